"""The commands about jobs, nodes, policy and what happened, against the API over a scheduler in memory."""

from __future__ import annotations

import csv
import io
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from fake_views import attempt, record
from gpuloom.cli.bars import bars, binned
from gpuloom.cli.job_groups import beside
from gpuloom.cli.live import Moment, ago, plain, runs_of, short
from gpuloom.cli.main import cli
from gpuloom.client import Client, ConflictError, NotFoundError, RequestError, WaitTimeoutError
from gpuloom.client.client import current_user
from gpuloom.core.decision import Reason
from gpuloom.core.errors import InputError
from gpuloom.core.job import EndReason, Phase
from gpuloom.live.figures.each import Of, table
from gpuloom.live.figures.sample import Figures, Machines, UserFigures
from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views import jobs as views
from live_api import Api, serving

LIVE = ["ls", "show", "logs", "why", "wait", "top", "cancel", "hold", "release", "requeue", "update", "nodes", "drain"]
LIVE += [
    "cordon",
    "uncordon",
    "policy",
    "events",
    "usage",
    "stats",
    "history",
    "status",
    "submit",
    "up",
    "down",
    "schema",
]


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Job 1 runs, 2 to 4 are an array that waits, 5 failed; 1 and 5 are of this user, 2 to 4 of ada."""
    with serving(tmp_path / "home") as found:
        monkeypatch.setenv("GPULOOM_HOME", str(found.home))
        me = current_user()
        service = found.service
        service.submit([JobSpec(command=["python", "train.py"], gpus=2, time_limit=3600.0)], user=me)
        service.submit([JobSpec(command=["python", "sweep.py"], array="0-2")], user="ada")
        service.submit([JobSpec(command=["sh", "-c", "exit 3"])], user=me)
        service.run(1)
        service.write(1, "epoch 1\nepoch 2\n")
        service.report(1, step=450, steps=1000)
        service.run(5)
        service.finish(5, 3)
        yield found


def run(*args: object, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def told(*args: object, code: int = 0) -> Any:
    return json.loads(run(*args, "--json", code=code).stdout)


def leaves(command: click.Command) -> Iterator[click.Command]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from leaves(found)
    else:
        yield command


@pytest.mark.parametrize("name", LIVE)
def test_every_command_has_json_and_examples(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    helps = [command.help or ""]
    for leaf in leaves(command):
        options = {option for p in leaf.params for option in p.opts}
        assert "--json" in options
        assert name == "schema" or "--home" in options
        helps.append(leaf.help or "")
    assert any("Example" in text for text in helps)


def test_help_stays_fast() -> None:
    """Nothing that is only needed for a scheduler is imported for --help, nor a web framework by any command."""
    code = (
        "import sys; from gpuloom.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "heavy = {'httpx', 'rich', 'pydantic', 'yaml', 'fastapi', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["--help"], ["ls", "--help"], ["submit", "--help"], ["up", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60)
        assert "Usage:" in done.stdout
        assert done.stderr.strip() == "[]"


def test_a_submission_imports_only_what_sends_it(api: Api) -> None:
    """Who submits waits for the command: nothing of the scheduler, the store or the tables is imported for it."""
    code = (
        "import sys; from gpuloom.cli.main import cli\n"
        "try: cli.main(sys.argv[1:])\nexcept SystemExit: pass\n"
        "heavy = {'rich', 'pydantic', 'yaml', 'fastapi', 'numpy', 'gpuloom.store.port', 'gpuloom.core.book'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "submit", "--", "true"], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr.strip()) == ("submitted job 6\n", "[]")


# -- ls, show, why, logs -----------------------------------------------------------------------------------------------


def test_ls(api: Api) -> None:
    lines = run("ls").stdout.splitlines()
    assert lines[0].split() == ["id", "name", "user", "state", "gpus", "where", "waited", "ran", "done", "reason"]
    assert [line.split()[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]
    assert "45%" in lines[1]
    assert "node0:0,1" in lines[1]
    assert lines[5].endswith("exit code 3")
    assert [job["id"] for job in told("ls")] == [1, 2, 3, 4, 5]
    assert [job["id"] for job in told("ls", "--me")] == [1, 5]
    assert [job["id"] for job in told("ls", "--user", "ada", "-n", "2")] == [2, 3]
    assert [job["id"] for job in told("ls", "--state", "failed", "--state", "running")] == [1, 5]
    assert [job["id"] for job in told("ls", "--name", "sweep*", "--all")] == [2, 3, 4]
    assert "no jobs" in run("ls", "--user", "nobody").stdout
    assert told("ls", "--user", "nobody") == []


def test_ls_shows_the_last_few_that_ended_and_all_if_asked(api: Api) -> None:
    for _ in range(8):
        ((job,),) = api.service.submit([JobSpec(command=["true"])], user="ada")
        api.service.cancel([job])
    assert [job["id"] for job in told("ls")] == [1, 2, 3, 4, 13, 12, 11, 10, 9]
    assert len(told("ls", "--all")) == 13
    assert [job["id"] for job in told("ls", "--all", "-n", "5")] == [1, 2, 3, 4, 13]


def test_a_limit_keeps_what_runs_and_what_is_next_and_says_what_is_left_out(api: Api) -> None:
    api.service.submit([JobSpec(command=["true"], array="0-9")], user="ada")
    ((urgent,),) = api.service.submit([JobSpec(command=["true"], priority=5)], user="ada")
    assert [job["id"] for job in told("ls", "-n", "3")] == [1, urgent, 2]
    assert run("ls", "-n", "3").stdout.splitlines()[-1] == "not shown, by -n 3: 12 queued"
    api.service.run(2)
    assert [job["id"] for job in told("ls", "-n", "1")] == [1]
    assert run("ls", "-n", "1").stdout.splitlines()[-1] == "not shown, by -n 1: 1 running, 13 queued"
    assert run("ls", "-n", "1", "--state", "failed").stdout.splitlines()[-1].startswith(" 5 ")
    assert "not shown" not in run("ls", "-n", "99").stdout
    assert run("ls", "-n", "2", "--name", "sweep*").stdout.splitlines()[-1] == "not shown, by -n 2: 1 queued"


def test_a_long_reason_is_one_bounded_line_in_a_list_and_whole_in_show(api: Api) -> None:
    path = ":".join(f"/opt/some/where/{n}/bin" for n in range(99))
    api.service.run(2)
    api.service.fail_to_start(2, f"can't run 'x': not found in PATH\n({path})")
    (line,) = [line for line in run("ls").stdout.splitlines() if line.lstrip().startswith("2 ")]
    assert "can't run 'x': not found in PATH (/opt" in line
    assert line.endswith("…")
    assert len(line) < 220
    assert path in run("show", "2").stdout


def test_a_long_list_is_not_cut_where_no_terminal_is(api: Api) -> None:
    name = "n" * 200
    api.service.submit([JobSpec(command=["true"], name=name)], user="ada")
    assert name in run("ls").stdout
    assert "\x1b" not in run("ls").stdout


def test_what_users_write_does_nothing_to_the_terminal(api: Api) -> None:
    api.service.submit([JobSpec(command=["a\x1b]0;x\x07b"], name="evil\x1b[2J\r\nx")], user="ada")
    for command in (["ls"], ["show", 6], ["events"], ["cancel", 6]):
        output = run(*command).stdout
        assert "\x1b" not in output
        assert "\r" not in output
        assert "\x07" not in output


def test_a_table_on_a_terminal_keeps_numbers_whole() -> None:
    from io import StringIO

    from rich.console import Console

    from gpuloom.cli.live_tables import JOB_COLUMNS, rich_table

    failed = record(id=123456, name="n" * 80, gpus=128, reason=EndReason.FAILED, message="m" * 99, held_s=60.0)
    ended = replace(failed, phase=Phase.CANCELLED, ended_s=7e5 + 60.0)
    gpus = tuple((f"node{number}", (0, 1, 2, 3)) for number in range(9))
    job = views.job_view(ended, attempt=None, preemptions=0, reason=None, usage=None, left=None, now_s=8e5) | {
        "where": views.where(gpus)
    }
    for width in (60, 80, 120, 200):
        out = StringIO()
        Console(file=out, width=width, highlight=False).print(rich_table(JOB_COLUMNS, [job], width))
        lines = out.getvalue().splitlines()
        assert len(lines) == 2
        assert max(map(len, lines)) <= width
        assert "123456" in lines[1]
        assert "cancelled" in lines[1]
        assert "8d 02h" in lines[1]


def test_wide_letters_keep_columns_in_line(api: Api) -> None:
    from io import StringIO

    from rich.cells import cell_len
    from rich.console import Console

    from gpuloom.cli.live_tables import JOB_COLUMNS, rich_table

    api.service.submit([JobSpec(command=["true"], name="\N{CJK UNIFIED IDEOGRAPH-8BAD}" * 12)], user="ada")
    lines = run("ls").stdout.splitlines()
    assert len({cell_len(line[: line.index("ada")]) for line in lines if " ada " in line}) == 1
    jobs = told("ls")
    for width in (60, 100, 110):
        out = StringIO()
        Console(file=out, width=width, highlight=False).print(rich_table(JOB_COLUMNS, jobs, width))
        shown = out.getvalue().splitlines()
        assert len(shown) == len(jobs) + 1
        assert max(map(cell_len, shown)) <= width
    # Where there is room for all nothing is cut, to the last column.
    out = StringIO()
    Console(file=out, width=500, highlight=False).print(rich_table(JOB_COLUMNS, jobs, 500))
    room = max(cell_len(line.rstrip()) for line in out.getvalue().splitlines())
    out = StringIO()
    Console(file=out, width=room, highlight=False).print(rich_table(JOB_COLUMNS, jobs, room))
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.getvalue()


def test_words_of_what_happened_before() -> None:
    from gpuloom.cli.events import _data_text
    from gpuloom.cli.live_tables import short_reason
    from gpuloom.cli.show import _outcome

    waits = Reason("gpus", "It needs 2 GPUs and 0 are free.")
    again = record(attempts=1, reason=EndReason.PREEMPTED)
    job = views.job_view(again, attempt=None, preemptions=1, reason=waits, usage=None, left=None, now_s=9.0)
    assert short_reason(job) == "It needs 2 GPUs and 0 are free; preempted before"
    ended = attempt(phase=None, ended_s=1.0, reason=EndReason.NODE)
    assert _outcome(views.attempt_view(ended, 0.0)) == "moved: its machine was drained"
    data = {"reason": "node", "deadline_s": 1795282382.5, "work_s": 90.0, "not_before_s": 1795282382.5, "exit_code": 3}
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1795282382.5))
    assert _data_text(data, 1.0) == (
        f"moved: its machine was drained, ends by {day}, work 1m 30s, not before {day}, exit code 3"
    )


def test_what_is_wrong_with_the_scheduler_stands_on_top(api: Api) -> None:
    api.service.broken = "no space left on device"
    assert run("ls").stdout.splitlines()[0] == "store: no space left on device"
    assert run("top", "--once").stdout.splitlines()[0] == "store: no space left on device"
    assert isinstance(told("ls"), list)


def test_show(api: Api) -> None:
    text = run("show", "1").stdout
    for part in (
        "python train.py",
        "2 GPUs, at most 1h 00m",
        "node0:0,1",
        "done:          45%",
        "output.log",
        "attempt",
    ):
        assert part in text
    assert "failed: exit code 3" in run("show", "5").stdout
    assert set(told("show", "2_1")) >= {"job", "spec", "speeds", "sizes", "attempts", "events", "log", "group"}
    with pytest.raises(InputError, match="stands for 3 jobs"):
        run("show", "2_")
    with pytest.raises(NotFoundError, match="no job 77"):
        run("show", "77")


def test_why(api: Api) -> None:
    text = run("why", "3").stdout
    assert "It is number 2 in the order in which jobs will start; 3 jobs wait" in text
    assert "assumes:\n  - every job runs for as long as its estimate says" in text
    assert "assumes" not in run("why", "3", "--no-forecast").stdout
    assert told("why", "2_2")["position"] == 3


def test_show_tells_of_each_attempt_where_it_ran_and_the_exit_code_of_what_has_ended(api: Api) -> None:
    api.service.preempt(1)
    api.service.run(1)
    shown = run("show", "1").stdout
    first, second = [line for line in shown.splitlines() if line.split()[:1] in (["1"], ["2"])]
    assert first.split()[1] == second.split()[1] == "node0:0,1"
    assert "exit code:" not in shown  # it runs: an exit code is that of the attempt before
    api.service.finish(1, 7)
    assert "exit code:     7" in run("show", "1").stdout


def test_following_a_log_ends_with_how_the_job_ended(api: Api) -> None:
    api.service.finish(1, 3)
    done = run("logs", "-f", "1")
    assert done.stderr.splitlines()[-1].startswith("gpuloom: job 1 train: failed (exit code 3), ran ")
    assert run("logs", "1").stderr == ""
    assert run("logs", "-f", "--json", "1").stderr == ""


def test_logs(api: Api) -> None:
    assert run("logs", "1").stdout == "epoch 1\nepoch 2\n"
    assert run("logs", "1", "-n", "1").stdout == "epoch 2\n"
    assert told("logs", "1") == {"job": 1, "attempt": 1, "text": "epoch 1\nepoch 2\n", "offset": 16} | {
        "skipped": 0,
        "ended": False,
    }
    assert run("logs", "2").stdout == ""  # waits, and nobody waits for it
    threading.Timer(0.2, api.service.finish, (1,)).start()
    assert run("logs", "-f", "1", "-n", "1").stdout == "epoch 2\n"
    lines = [json.loads(line) for line in run("logs", "-f", "--json", "1").stdout.splitlines()]
    assert "".join(line.get("text", "") for line in lines) == "epoch 1\nepoch 2\n"
    assert lines[-1]["end"]["state"] == "finished"


def test_a_log_that_was_rotated_begins_at_a_line_and_says_what_is_missing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuloom.executors.runner import rotation
    from gpuloom.executors.runner.rotation import Log

    monkeypatch.setattr(rotation, "_cut_head", lambda *_: False)  # cut to nothing, as where heads can't be taken out
    path = api.service.log_path(1)
    path.write_text("".join(f"line {number}\n" for number in range(1000)))
    log = Log(str(path.parent), 50, 1)
    with path.open("a") as file:
        log.rotate()
        file.write("half a ")
        file.flush()
        log.rotate()  # what was kept until now goes
        file.write("line\nlast\n")
    end = len("".join(f"line {number}\n" for number in range(1000)))
    done = run("logs", "1")
    assert done.stdout == "last\n"
    assert f"{end + len('half a line') + 1:,} bytes of its log before this are no longer kept" in done.stderr
    assert told("logs", "1")["skipped"] == end
    assert (run("logs", "1", "-n", "1").stdout, run("logs", "1", "-n", "1").stderr) == ("last\n", "")
    assert "no longer kept" in run("logs", "1", "-n", "5").stderr
    api.service.finish(1)
    done = run("logs", "-f", "1")
    assert done.stdout == "last\n"
    assert f"{end + len('half a line') + 1:,} bytes of its log before this are no longer kept" in done.stderr
    assert json.loads(run("logs", "-f", "1", "--json").stdout.splitlines()[1])["skipped"] == end


def test_a_long_log_comes_piece_by_piece(api: Api) -> None:
    path = api.service.log_path(1)
    path.write_bytes(b"0123456789abcde\n" * (1 << 17))  # 2 MiB
    with Client(api.home) as client:
        pieces = list(client.log_pieces(1))
    assert max(len(piece.content) for piece in pieces) <= 1 << 18
    assert [piece.start for piece in pieces[1:]] == [piece.start + len(piece.content) for piece in pieces[:-1]]
    assert b"".join(piece.content for piece in pieces) == path.read_bytes()
    assert run("logs", "1").stdout_bytes == path.read_bytes()


# -- what is done to jobs ----------------------------------------------------------------------------------------------


def test_a_large_array_is_changed_by_one_request(api: Api) -> None:
    from gpuloom.live.submission.spec import job_spec

    array = api.service.submit([job_spec({"command": ["./a"], "array": "0-29"})], user="ada")[0][0]
    before = len(api.service.calls)
    assert run("hold", f"{array}_").stdout == f"30 jobs of array {array}: held\n"
    assert len(api.service.calls) == before + 1
    assert run("release", f"{array}_").stdout == f"30 jobs of array {array}: queued\n"
    done = run("release", f"{array}_", "7")
    assert f"none of {array}_ is held" in done.stderr
    before = len(api.service.calls)
    assert run("update", f"{array}_", "--priority", "3").stdout == f"30 jobs of array {array}: priority changed\n"
    assert {job["priority"] for job in told("ls", "--name", "a")} == {3}
    assert run("top", f"{array}_").stdout == f"30 jobs of array {array}: first in the queue\n"
    assert len(api.service.calls) == before + 2
    assert run("cancel", f"{array}_").stdout == f"30 jobs of array {array}: cancelled\n"
    for command in (["update", f"{array}_", "--priority", "4"], ["top", f"{array}_"]):
        assert f"none of {array}_ was changed: they have ended, or are so already" in run(*command).stderr
    assert run("requeue", f"{array}_").stdout == f"30 jobs of array {array}: back in the queue\n"
    assert len(told("cancel", f"{array}_")) == 30


def test_cancel(api: Api) -> None:
    assert run("cancel", "2_1").stdout == "job 3 sweep[1]: cancelled\n"
    # Of a range, those that have ended are left alone; named one by one, they are an error.
    assert [job["id"] for job in told("cancel", "2-5", "--grace", "2s")] == [2, 4]
    assert api.service.calls[-1][1]["grace_s"] == 2
    with pytest.raises(ConflictError, match="job 5 is failed"):
        run("cancel", "5", "1")
    assert told("ls", "--state", "running")[0]["id"] == 1
    assert "none of 2_ is running or" in run("cancel", "2_").stderr


def test_many_jobs_are_told_in_a_few_lines(api: Api) -> None:
    ((*_, last),) = api.service.submit([JobSpec(command=["true"], name="filler", array="0-299")], user=current_user())
    more = [api.service.submit([JobSpec(command=["true"])], user=current_user())[0][0] for _ in range(2)]
    assert [job["name"] for job in told("ls", "--name", "filler", "-n", "2")] == ["filler[0]", "filler[1]"]
    lines = run("hold", f"6-{more[-1]}").stdout.splitlines()
    assert lines == [f"300 jobs of array 6 filler (6-{last}): held", *(f"job {n} true: held" for n in more)]
    assert run("cancel", "--name", "filler").stdout == f"300 jobs of array 6 filler (6-{last}): cancelled\n"


def test_all_means_all_of_mine(api: Api) -> None:
    assert [job["id"] for job in told("cancel", "--all")] == [1]
    assert told("cancel", "--name", "sweep*") == []
    for args in ([], ["--all", "3"], ["--all", "--name", "x"]):
        assert "one of the three" in run("cancel", *args, code=2).stderr


def test_hold_release_requeue_top(api: Api) -> None:
    assert [job["state"] for job in told("hold", "2_")] == ["held"] * 3
    assert run("release", "2-3").stdout == "job 2 sweep[0]: queued\njob 3 sweep[1]: queued\n"
    assert run("requeue", "5").stdout == "job 5 sh: back in the queue\n"
    assert "job 5 sh: first in the queue" in run("top", "5").stdout
    assert told("top", "3")[0]["priority"] > told("show", "5")["job"]["priority"]
    assert "without a job" in run("top", "--once", "3", code=2).stderr


def test_suspend_and_resume(api: Api) -> None:
    assert run("suspend", "1").stdout == "job 1 train: told to leave its GPUs\n"
    assert run("suspend", "1").stdout == "job 1 train: told to leave its GPUs already\n"
    assert run("resume", "1").stdout == "job 1 train: may go on\n"
    assert run("resume", "1").stdout == "job 1 train: not suspended; it is running\n"
    run("hold", "2")
    assert [job["state"] for job in told("resume", "2")] == ["queued"]
    assert [job["changed"] for job in told("suspend", "--name", "train")] == [True]
    with pytest.raises(ConflictError, match="is queued and can't be suspended"):
        run("suspend", "2")


def test_what_is_so_already_is_said_and_no_error(api: Api) -> None:
    run("hold", "2")
    assert run("hold", "2").stdout == "job 2 sweep[0]: held already\n"
    run("release", "2")
    assert run("release", "2").stdout == "job 2 sweep[0]: not held; it is queued\n"
    assert run("requeue", "2").stdout == "job 2 sweep[0]: back in the queue already\n"
    run("top", "2")
    assert "job 2 sweep[0]: first in the queue already" in run("top", "2").stdout
    assert "runs already; top moves waiting jobs" in run("top", "1").stdout
    run("cancel", "2")
    assert run("cancel", "2").stdout == "job 2 sweep[0]: cancelled already\n"
    with pytest.raises(ConflictError, match="is cancelled and can't be held"):
        run("hold", "2")


def test_update(api: Api) -> None:
    assert (
        run("update", "1", "--time-limit", "8h", "--priority", "3").stdout
        == "job 1 train: priority, time limit changed\n"
    )
    assert told("update", "1", "--time-limit", "none")[0]["time_limit_s"] is None
    assert told("update", "2_", "--gpu-type", "A100, V100", "-g", "2")[0]["gpu_types"] == ["A100", "V100"]
    assert told("update", "2", "--gpu-type", "none", "--name", "none")[0] | {"waited_s": 0} != {}
    assert told("show", "2")["job"]["gpu_types"] == []
    assert told("show", "2")["job"]["name"].startswith("none")
    with pytest.raises(ConflictError, match="its gpus can't change"):
        run("update", "1", "-g", "3")
    assert "name what to change" in run("update", "1", code=2).stderr


def test_wait(api: Api) -> None:
    threading.Timer(0.1, api.service.finish, (1,)).start()
    assert run("wait", "1").stdout.startswith("job 1 train: finished, ran ")
    lines = run("wait", "1", "5", "--json", code=1).stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [1, 5]
    with pytest.raises(WaitTimeoutError, match="3 of 3 jobs"):
        run("wait", "2_", "--timeout", "0.1")
    assert run("wait", "--all").stdout == ""  # of mine none is left
    for args in ([], ["--all", "1"]):
        assert "--all" in run("wait", *args, code=2).stderr


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_top(api: Api) -> None:
    text = run("top").stdout
    assert "1 job on GPUs, 3 queued" in text
    assert "2 of 4 GPUs busy" in text
    assert [line.split()[0] for line in text.splitlines() if "train" in line] == ["1"]
    looks = run("top", "-n", "2", "--every", "0.1", "--json").stdout.splitlines()
    assert [set(json.loads(look)) for look in looks] == [{"status", "nodes", "jobs", "groups"}] * 2


def test_q_ends_top(api: Api) -> None:
    import pty

    command = [sys.executable, "-c", "from gpuloom.cli.main import main; main()", "top", "--every", "60"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        text = b""
        while b"train" not in text:
            text += os.read(ours, 4096)
        os.write(ours, b"xq")
        until = time.monotonic() + 20
        while process.poll() is None and time.monotonic() < until:  # what it writes must go somewhere
            if select.select([ours], [], [], 0.05)[0]:
                with suppress(OSError):  # it has let go of the terminal
                    os.read(ours, 4096)
        process.kill()
        assert process.wait() == 0
    os.close(ours)


def test_nodes(api: Api) -> None:
    text = run("nodes").stdout
    assert "2/4 GPUs" in text
    assert text.count("H100") == 4
    assert "how limits" not in text
    assert run("nodes", "node0").stdout.endswith(
        "how limits are kept on node0:\n  memory     cgroup v2\n  time       runner\n"
    )
    assert run("drain", "node0", "--reason", "driver").stdout.startswith(
        "node0: draining; no new job starts there, job 1 moves"
    )
    assert told("nodes")[0]["reason"] == "driver"
    assert told("cordon", "node0")["state"] == "cordoned"
    assert run("nodes", "node0", "up").stdout == "node0: up\n"
    assert told("nodes", "node0", "drain")["state"] == "draining"
    assert told("uncordon", "node0")["state"] == "up"
    with pytest.raises(InputError, match="no node 'nope'"):
        run("nodes", "nope")
    with pytest.raises(NotFoundError, match="nodes: node0"):
        run("cordon", "a b")
    assert "goes with a state" in run("nodes", "--reason", "x", code=2).stderr


def test_policy(api: Api) -> None:
    assert run("policy", "get").stdout.startswith("fifo, never preempts, set ")
    assert told("policy", "set", "muri-l", "--interval", "30s")["interval_s"] == 30
    assert run("policy", "get").stdout.startswith("muri-l, preempts at most every 30s")
    assert "muri-l, preempts at most every 30s" in run("status").stdout
    assert "before: fifo" in run("policy", "get").stdout
    assert [row["id"] for row in told("policy", "ls") if row["decides"]] == ["muri-l"]
    assert "* in use: muri-l" in run("policy", "ls").stdout
    with pytest.raises(RequestError, match="nope"):
        run("policy", "set", "nope")


def test_events(api: Api) -> None:
    last = [json.loads(json.dumps(event)) for event in told("events", "-n", "3")]
    assert [event["type"] for event in last] == ["attempt.starting", "attempt.running", "attempt.ended"]
    assert {event["job"] for event in told("events", "--job", "1", "--type", "attempt.running")} == {1}
    assert [event["id"] for event in told("events", "--after", "2", "-n", "2")] == [3, 4]
    assert "job 5" in run("events", "-n", "1").stdout


def test_events_are_followed(api: Api) -> None:
    command = [sys.executable, "-c", "from gpuloom.cli.main import main; main()", "events", "-f", "--json", "-n", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        api.service.hold([2])
        second = json.loads(process.stdout.readline())
        process.send_signal(2)
        assert process.wait(20) == 0
    assert (first["type"], second["type"]) == ("attempt.ended", "job.held")
    assert second["id"] == first["id"] + 1
    command[-2:] = ["--after", str(first["id"] - 1)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=dict(os.environ)) as process:
        assert process.stdout is not None
        again = [json.loads(process.stdout.readline())["id"] for _ in range(2)]
        api.service.release([2])
        again.append(json.loads(process.stdout.readline())["id"])
        process.send_signal(2)
        assert process.wait(20) == 0
    assert again == [first["id"], second["id"], second["id"] + 1], "each once, from there on"


def test_usage_and_history(api: Api, tmp_path: Path) -> None:
    assert {row["key"] for row in told("usage")} == {"ada", current_user()}
    assert run("usage", "--by", "name").stdout.startswith("name ")
    text = run("usage").stdout
    assert "GPU time" in text
    assert " h " not in text  # what is far below an hour is not 0.00 hours
    assert told("usage", "--until", "1d") == []
    assert "nothing was used" in run("usage", "--until", "1d").stdout
    api.service.finish(1)
    target = tmp_path / "week.csv"
    assert run("history", "export", target, "--since", "7d").stdout == f"{target}: 1 job\n"
    assert run("history", "export", "-").stdout == target.read_text()
    with pytest.raises(InputError, match="exists already; --overwrite"):
        run("history", "export", target)
    assert told("history", "export", target, "--overwrite") == {"file": str(target), "jobs": 1}
    with pytest.raises(InputError, match="does not exist"):
        run("history", "export", tmp_path / "no" / "x.csv")
    assert "stdout" in run("history", "export", "-", "--json", code=2).stderr


def test_groups_are_listed(api: Api) -> None:
    assert run("ls", "--groups").stdout == "no job shares its GPUs with another one\n"
    members: Any = [
        {
            "job": 1,
            "name": "train",
            "user": "ada",
            "expected_rate": 0.75,
            "expected_from": "stage times",
            "it_per_s": 12.5,
        },
        {"job": 2, "name": "serve", "user": "bob", "expected_rate": 1.0, "expected_from": None, "it_per_s": None},
    ]
    for member in members:
        member |= {"alone_it_per_s": None, "beside_it_per_s": None, "share": None}
    gpus = {"node0": [0, 1], "node1": [3]}
    group: Any = {"members": members, "gpus": gpus, "since_s": time.time() - 60.0, "order": None, "efficiency": None}
    group["gain"] = None
    api.service.groups_now = [group]
    lines = [line.split() for line in run("ls", "--groups").stdout.splitlines()]
    heads = "group id name user GPUs since order γ expected measured it/s alone gain"
    assert lines[0] == heads.split()
    lines = [[*line[:-4], line[-3]] for line in lines]  # the other three: not known
    assert lines[1] == ["1", "1", "train", "ada", "node0:0,1;node1:3", "1m", "00s", "ago", "-", "-", "0.75", "12.5"]
    assert lines[2][-2:] == ["1.00", "-"]
    assert told("ls", "--groups") == api.service.groups_now
    api.service.groups_now = [{**group, "order": [2, 1], "efficiency": 0.625}]
    lines = [line.split() for line in run("ls", "--groups").stdout.splitlines()]
    assert [line[-7:-3] for line in lines[1:3]] == [["2", "0.62", "0.75", "-"], ["1", "0.62", "1.00", "-"]]
    measured = {"alone_it_per_s": 12.5, "beside_it_per_s": 10.0, "share": 0.8}
    api.service.groups_now = [{**group, "members": [{**members[0], **measured}, members[1]], "gain": 1.71}]
    said = run("ls", "--groups").stdout
    assert [line.split()[-4:] for line in said.splitlines()[1:3]] == [
        ["0.80", "10", "12.5", "1.71"],
        ["-", "-", "-", "1.71"],
    ]
    assert "1 is as much as one after another" in said
    assert "together on node0:0,1;node1:3: jobs 1 (0.80), 2, measured gain 1.71" in run("top", "--once").stdout
    assert told("top", "--once")["groups"] == api.service.groups_now
    assert "give it alone" in run("ls", "--groups", "--all", code=2).stderr
    assert beside({"group": group}, 1)[1:] == [("expected", "75% of its speed alone (stage times)")]  # type: ignore[typeddict-item]
    assert len(beside({"group": group}, 2)) == 1  # type: ignore[typeddict-item]


def test_policy_show(api: Api) -> None:
    text = run("policy", "show").stdout
    assert text.splitlines()[0].startswith("fifo")
    assert ["parameter", "value", "default"] in [line.split()[:3] for line in text.splitlines()]
    assert "it keeps no state of its own" in text
    found = told("policy", "show")
    assert found["state"] == {"kind": "none"}
    assert "backfill" in {one["name"] for one in found["parameters"]}
    assert told("policy", "get")["state"] is None
    long = "/".join(str(number) for number in range(1, 40))
    run("policy", "set", f"tiresias:thresholds={long}")
    assert f" {long[:39]}… " in run("policy", "show").stdout
    assert long in [one["value"] for one in told("policy", "show")["parameters"]]


def test_stats(api: Api) -> None:
    now = api.service.clock()
    api.service.submit([JobSpec(command=["a"])], user="ada")
    found = told("stats")
    assert (found["jobs"], found["failed"], found["user"], found["avg_queue_length"]) == (1, 1, None, None)
    lines = run("stats").stdout.splitlines()
    assert lines[0] == "1 job ran and ended (1 failed)"
    assert {"avg queue       -", "utilization     -", "preemptions     0"} <= set(lines)
    assert lines[-1].startswith(
        "Queue, blocking and utilization are of 0s in which a scheduler ran and sampled, out of "
    )
    assert run("stats", "--user", "ada").stdout.startswith("0 jobs of user ada ran and ended\n")
    assert run("stats", "--series").stdout == (
        "no samples in that time: one is taken every ten seconds while the scheduler runs\n"
    )
    for place in range(6):
        one = UserFigures(float(place), 2.0, 3.0, 0.5, 1, 10.0 * (place + 1))
        machines = Machines(cpu_percent=50.0, disk_free_mib=2048.0)
        api.service.samples.append(Figures(now - 120 + 10 * place, 10.0, one, 1, 4, 1, 1, machines, {"ada": one}))
    assert told("stats", "--since", "1h", "--until", str(now))["avg_queue_length"] == 2.5
    assert "utilization     75.0%" in run("stats").stdout.splitlines()
    lines = run("stats", "--series").stdout.splitlines()
    assert lines[0].split() == ["figure", "over", "time", "last", "least", "most"]
    assert lines[1].split() == ["jobs", "waiting", "▁▂▄▅▇█", "5.00", "0.00", "5.00"]
    assert ["disk", "free,", "GiB", "▁▁▁▁▁▁", "2.00", "2.00", "2.00"] in [line.split() for line in lines]
    assert not any("GPU use" in line for line in lines)  # nothing measures it
    assert lines[-1] == "6 samples over 1m 00s; --csv and --json have each"
    rows = list(csv.DictReader(io.StringIO(run("stats", "--series", "--csv").stdout)))
    assert [row["avg_jct_so_far_s"] for row in rows] == ["10.0", "15.0", "20.0", "25.0", "30.0", "35.0"]
    assert (rows[0]["queue_length"], rows[0]["utilization"], rows[0]["gpu_utilization"]) == ("0.0", "0.75", "")
    points = told("stats", "--series", "--user", "ada")["points"]
    assert [point["queue_length"] for point in points] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_what_each_used(api: Api) -> None:
    now = api.service.clock()
    assert run("stats", "--series", "--by", "gpu").stdout.startswith("no samples of any GPU in that time")
    for place in range(4):
        node = [10.0 * place, None, None, 2048.0, *[None] * 8]
        ada = [1.5 + place, *[None] * 5]
        used = {Of.NODE: table(Of.NODE, {"node10": node, "node9": node}), Of.USER: table(Of.USER, {"ada": ada})}
        api.service.samples.append(Figures(now - 60 + 10 * place, 10.0, UserFigures(), each=used))
    lines = [line.split() for line in run("stats", "--series", "--by", "node").stdout.splitlines()]
    assert lines[0][:5] == ["node", "CPU", "use", "over", "time"]
    assert [line[:5] for line in lines[1:3]] == [[name, "▁▃▆█", "30", "-", "2.0"] for name in ("node9", "node10")]
    assert " ".join(lines[-1]) == "4 samples over 40s; --csv and --json have each"
    (line,) = told("stats", "--series", "--by", "user", "--of", "ada")["lines"]
    assert line["figures"]["cpu_cores"] == [1.5, 2.5, 3.5, 4.5]
    rows = list(csv.DictReader(io.StringIO(run("stats", "--series", "--by", "node", "--csv").stdout)))
    assert [(row["node"], row["cpu_percent"], row["sent_mib_per_s"]) for row in rows[-2:]] == [
        ("node9", "30.0", ""),
        ("node10", "30.0", ""),
    ]
    with pytest.raises(NotFoundError, match="no figures of node 'moon' in that time"):
        run("stats", "--series", "--by", "node", "--of", "moon")


def test_stats_that_can_not_be_told(api: Api) -> None:
    assert "add --series" in run("stats", "--by", "node", code=2).stderr
    assert "add --by" in run("stats", "--series", "--of", "node1", code=2).stderr
    assert "--by user --of ada" in run("stats", "--series", "--by", "job", "--user", "ada", code=2).stderr
    assert "add --series" in run("stats", "--csv", code=2).stderr
    assert "give one" in run("stats", "--series", "--csv", "--json", code=2).stderr
    assert "needs a name" in run("stats", "--user", "", code=2).stderr
    assert "is not a time" in run("stats", "--since", "soon", code=2).stderr
    with pytest.raises(NotFoundError, match="there is no job of a user 'eve'; `gpuloom usage` lists"):
        run("stats", "--user", "eve")
    with pytest.raises(RequestError, match="must be before until"):
        run("stats", "--since", "1h", "--until", "2h")


def test_bars_and_bins_by_hand() -> None:
    assert bars([1.0, None, 3.0, 2.0, None]) == "▁ █▅"
    assert bars([7.0, 7.0]) == "▁▁"
    assert binned([0.0, 10.0, 50.0], [10.0, 30.0, 10.0], [1.0, 3.0, None], 3) == [2.0, 3.0, None]


def test_status(api: Api, tmp_path: Path) -> None:
    found = told("status")
    assert found["running"] is True
    assert found["url"] == api.url
    assert {"pid", "version", "store", "executor", "home"} <= set(found)
    assert "4 GPUs; 2 busy" in run("status").stdout
    nothing = tmp_path / "nothing"
    assert told("status", "--home", nothing, code=1)["running"] is False
    assert f"gpuloom up --home {nothing} --detach" in run("status", "--home", nothing, code=1).stdout
    assert "nothing to stop" in run("down", "--home", nothing).stdout
    assert told("down", "--home", nothing)["was_running"] is False


# -- words -------------------------------------------------------------------------------------------------------------


def test_times_in_words() -> None:
    assert short(None) == "-"
    assert short(0.00011) == "0s"
    assert ago(100.0, 130.0) == "30s ago"
    assert ago(130.0, 100.0) == "in 30s"
    assert runs_of([1, 2, 3, 7, 9, 10]) == "1-3, 7, 9-10"
    assert plain("a\nb\x1b[c") == "a b\N{REPLACEMENT CHARACTER}[c"
    moment = Moment()
    assert moment.convert("1795282382.5", None, None) == 1795282382.5
    before = time.time()
    assert before <= moment.convert("7d", None, None) + 7 * 86400 <= time.time()
    assert moment.convert("1970-01-02T00:00:00+00:00", None, None) == 86400
    with pytest.raises(click.BadParameter, match="not a time"):
        moment.convert("yesterday", None, None)


def test_the_table_of_commands_is_whole() -> None:
    assert set(LIVE) <= set(cli.table)
