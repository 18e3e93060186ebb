"""`gpuloom logs` of a job with several members: whole lines of all, each marked with whose it is."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli import marked
from gpuloom.cli.main import cli
from gpuloom.cli.marked import MarkedLines, coloured
from gpuloom.client import Client, NotFoundError
from gpuloom.client.errors import ServerError
from gpuloom.live.submission.spec import JobSpec
from gpuloom.server import log_stream
from live_api import Api, serving
from until import until

NODES = {0: "node-a", 1: "node-b"}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Job 1 runs with a member on node-a and one on node-b."""
    with serving(tmp_path / "home") as found:
        monkeypatch.setenv("GPULOOM_HOME", str(found.home))
        monkeypatch.setattr(log_stream, "AGAIN_S", 0.05)
        found.service.submit([JobSpec(command=["torchrun", "train.py"], gpus=2)], user="ada")
        found.service.run_gang(1, "node-a", "node-b")
        yield found


def run(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


# -- lines ------------------------------------------------------------------------------------------------------------


def test_lines_are_whole_and_marked() -> None:
    lines = MarkedLines(NODES)
    assert lines.add(0, b"one\ntw") == b"[0 node-a] one\n"
    assert lines.add(1, b"x\n\ny\n") == b"[1 node-b] x\n[1 node-b] \n[1 node-b] y\n"
    assert lines.add(2, b"of whom?\n") == b"[2] of whom?\n"
    assert lines.add(0, b"") == b""
    assert lines.add(0, b"o\nthree") == b"[0 node-a] two\n"
    assert lines.add(1, b"z") == b""
    assert lines.rest() == b"[0 node-a] three\n[1 node-b] z\n"
    assert lines.rest() == b""


def test_however_they_are_cut_every_line_comes_whole_and_in_its_member_s_order() -> None:
    draw = random.Random(7)
    texts = {rank: "".join(f"{rank}: {'€𝄞é' * draw.randrange(3)}{n}\n" for n in range(200)) for rank in range(3)}
    left = {rank: text.encode() for rank, text in texts.items()}
    lines, out = MarkedLines({}), b""
    while left:
        rank = draw.choice(list(left))
        size = draw.randrange(1, 40)
        out += lines.add(rank, left[rank][:size])
        left[rank] = left[rank][size:]
        if not left[rank]:
            del left[rank]
    out += lines.rest()
    shown = out.decode().splitlines(keepends=True)
    for rank, text in texts.items():
        mark = f"[{rank}] "
        assert "".join(line.removeprefix(mark) for line in shown if line.startswith(mark)) == text
    assert len(shown) == 600


def test_a_line_that_is_written_over_keeps_its_mark() -> None:
    lines = MarkedLines({1: "b"})
    assert lines.add(1, b" 1%\r 2%\r") == b""
    assert lines.add(1, b" 3%\r\nnext\r\n") == b"[1 b]  1%\r[1 b]  2%\r[1 b]  3%\r\n[1 b] next\r\n"


def test_a_line_without_end_is_shown_at_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marked, "LONGEST_LINE", 10)
    lines = MarkedLines(NODES)
    assert lines.add(0, b"123456789") == b""
    assert lines.add(0, b"0") == b"[0 node-a] 1234567890\n"
    assert lines.add(0, b"a\n") == b"[0 node-a] a\n"
    assert lines.rest() == b""


def test_marks_have_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (MarkedLines(NODES, colours=True).add(rank, b"x\n") for rank in (0, 1))
    assert one.startswith(b"\x1b[")
    assert one.endswith(b"[0 node-a]\x1b[0m x\n")
    assert one[:5] != other[:5]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert not coloured()


# -- what there is ----------------------------------------------------------------------------------------------------


def test_the_logs_of_all_members_are_printed_one_after_the_other(api: Api) -> None:
    api.service.write(1, "one\nno end")
    api.service.write(1, b"two\n\xff\n", member=1)
    done = run("logs", 1)
    assert done.stdout_bytes == b"[0 node-a] one\n[0 node-a] no end\n[1 node-b] two\n[1 node-b] \xff\n"
    assert done.stderr == ""
    assert run("logs", 1, "-n", 1).stdout_bytes == b"[0 node-a] no end\n[1 node-b] \xff\n"
    assert run("logs", 1, "--member", 1).stdout_bytes == b"two\n\xff\n"
    assert run("logs", 1, "--member", 0, "-n", 1).stdout == "no end"
    with pytest.raises(NotFoundError, match="attempt 1 of job 1 has 2 members, so none with number 2"):
        run("logs", 1, "--member", 2)
    found = json.loads(run("logs", 1, "--json").stdout)
    assert found == {
        "job": 1,
        "attempt": 1,
        "members": [
            {"member": 0, "node": "node-a", "text": "one\nno end", "offset": 10, "skipped": 0},
            {"member": 1, "node": "node-b", "text": "two\n\ufffd\n", "offset": 6, "skipped": 0},
        ],
        "ended": False,
    }
    found = json.loads(run("logs", 1, "--json", "--member", 1, "-n", 1).stdout)
    assert found == {
        "job": 1,
        "attempt": 1,
        "member": 1,
        "node": "node-b",
        "text": "\ufffd\n",
        "offset": 6,
        "skipped": 0,
        "ended": False,
    }


@pytest.mark.parametrize("silent", ["node-a", "node-b"])
def test_of_a_node_that_does_not_answer_it_is_said_and_the_rest_is_printed(api: Api, silent: str) -> None:
    for member in (0, 1):
        api.service.write(1, f"of {member}\n", member)
    api.service.silent.add(silent)
    gone = int(silent == "node-b")
    other = f"[{1 - gone} {NODES[1 - gone]}] of {1 - gone}\n"
    said = f"[{gone}] (node {silent} does not answer)\n"
    assert run("logs", 1).stdout == (said + other if gone == 0 else other + said)
    members = json.loads(run("logs", 1, "--json").stdout)["members"]
    assert members[gone] == {"member": gone, "problem": f"node {silent} does not answer"}
    assert members[1 - gone]["text"] == f"of {1 - gone}\n"
    with pytest.raises(ServerError, match=f"node {silent} does not answer"):
        run("logs", 1, "--member", gone)


def test_where_no_node_answers_all_of_them_are_named(api: Api) -> None:
    api.service.silent |= {"node-a", "node-b"}
    text = "[0] (node node-a does not answer)\n[1] (node node-b does not answer)\n"
    assert run("logs", 1).stdout == text


def test_of_an_only_member_whose_node_does_not_answer_it_is_an_error(api: Api) -> None:
    api.service.preempt(1)
    api.service.run(1)
    api.service.silent.add("node0")
    for more in ((), ("--json",)):
        with pytest.raises(ServerError, match="node0 does not answer") as error:
            run("logs", 1, *more)
        assert error.value.status == 504


def test_a_log_that_is_none_any_more_is_said_in_its_place(api: Api) -> None:
    path = api.service.log_path(1, 1)
    path.unlink()
    path.mkdir()
    api.service.write(1, "one\n")
    first, second = run("logs", 1).stdout.splitlines()
    assert first == "[0 node-a] one"
    assert second.startswith("[1] (")
    assert second.endswith("is a folder, no longer the log)")


def test_what_is_no_longer_kept_is_said_of_its_member(api: Api) -> None:
    path = api.service.log_path(1, 1)
    path.write_text("line\nlast\n")
    (path.parent / "log.json").write_text('{"base": 100, "parts": []}')
    done = run("logs", 1)
    assert done.stdout == "[1 node-b] last\n"
    assert "gpuloom: job 1, member 1: 105 bytes of its log before this are no longer kept" in done.stderr
    api.service.finish(1)
    done = run("logs", "-f", 1)
    assert done.stdout == "[1 node-b] last\n"
    assert "gpuloom: job 1, member 1: 105 bytes of its log before this are no longer kept" in done.stderr
    assert "105 bytes" in run("logs", "-f", 1, "--member", 1).stderr


# -- what is followed -------------------------------------------------------------------------------------------------


def test_all_members_are_followed_line_by_line_to_the_end(api: Api) -> None:
    api.service.write(1, "a0\na1")
    api.service.write(1, "b0\nb1", member=1)
    api.service.preempt(1)
    api.service.run_gang(1, "node-b", "node-c")
    api.service.write(1, "c", member=1)
    api.service.finish(1)
    done = run("logs", "-f", 1)
    assert done.stdout == "[1 node-c] c\n"
    assert "attempt 2" in done.stderr
    lines = run("logs", "-f", "--attempt", 1, 1).stdout.splitlines()
    assert [line for line in lines if line.startswith("[0")] == ["[0 node-a] a0", "[0 node-a] a1"]
    assert [line for line in lines if line.startswith("[1")] == ["[1 node-b] b0", "[1 node-b] b1"]
    assert run("logs", "-f", "--attempt", 1, "--member", 1, 1).stdout == "b0\nb1"
    found = [json.loads(line) for line in run("logs", "-f", "--json", 1).stdout.splitlines()]
    assert found[0] == {"attempt": 2, "text": "", "members": ["node-b", "node-c"]}
    assert found[1] == {"attempt": 2, "member": 1, "text": "c"}
    assert found[2]["end"]["state"] == "finished"


def test_partial_lines_of_members_are_not_mixed(api: Api, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from gpuloom.cli.logs import follow_log

    out = bytearray()
    with Client(api.home) as client:
        thread = threading.Thread(target=lambda: follow_log(client, 1, as_json=False))
        thread.start()

        def shown(text: bytes) -> bool:
            out.extend(capsysbinary.readouterr().out)
            return text in out

        api.service.write(1, b"begun \xe2\x82")
        api.service.write(1, "x\ny", member=1)
        until(lambda: shown(b"[1 node-b] x\n"), "the line of member 1")
        api.service.write(1, b"\xac done\n")
        until(lambda: shown("[0 node-a] begun € done\n".encode()), "the line of member 0")
        api.service.finish(1)
        thread.join(20.0)
        shown(b"")
    assert bytes(out) == "[1 node-b] x\n[0 node-a] begun € done\n[1 node-b] y\n".encode()


def test_the_first_attempt_is_followed_with_its_nodes(api: Api) -> None:
    api.service.write(1, "one\n", member=1)
    api.service.finish(1)
    with Client(api.home) as client:
        parts = list(client.follow_log(1, from_first=True))
    assert [(part.attempt, part.member, part.text, part.nodes) for part in parts] == [
        (1, None, "", ("node-a", "node-b")),
        (1, 1, "one\n", ()),
        (1, None, "", ()),
    ]


def test_a_job_that_waits_is_followed_from_its_first_attempt(api: Api) -> None:
    api.service.submit([JobSpec(command=["a"])], user="ada")
    parts: list[Any] = []

    def follow() -> None:
        with Client(api.home) as client:
            parts.extend(client.follow_log(2, from_first=True))

    thread = threading.Thread(target=follow)
    thread.start()
    until(lambda: api.service.book.jobs.get(2), "the job")
    api.service.run(2)
    api.service.write(2, "one\n")
    api.service.finish(2)
    thread.join(20.0)
    assert [part.text for part in parts] == ["one\n", ""]


def test_a_restart_of_the_scheduler_leaves_no_gap_in_any_log(api: Api) -> None:
    parts: list[Any] = []

    def text(member: int) -> str:
        return "".join(part.text for part in parts if part.member == member)

    thread = threading.Thread(target=lambda: _collect(api, parts))
    thread.start()
    for member in (0, 1):
        api.service.write(1, "one\n", member)
    until(lambda: text(0) == text(1) == "one\n", "both lines")
    api.stop()
    api.service.write(1, "two\n", member=1)
    api.start()
    until(lambda: text(1) == "one\ntwo\n", "the next line")
    api.service.write(1, "three\n")
    api.service.finish(1)
    thread.join(20.0)
    assert (text(0), text(1)) == ("one\nthree\n", "one\ntwo\n")
    assert [part.nodes for part in parts if not part.text] == [("node-a", "node-b"), ()]  # begin and end, once


def _collect(api: Api, parts: list[Any]) -> None:
    with Client(api.home) as client:
        for part in client.follow_log(1):
            parts.append(part)


def test_a_member_that_is_not_there_is_refused(api: Api) -> None:
    with Client(api.home) as client:
        with pytest.raises(NotFoundError, match="none with number 2"):
            list(client.follow_log(1, member=2))
        read = client.read_log(1, member=1)
        assert (read.member, read.members, read.node) == (1, 2, "node-b")
