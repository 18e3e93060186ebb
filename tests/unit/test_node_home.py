"""The home of a node process, the head's address, and the commands on both sides."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.cli.node import join
from gpuloom.core.errors import InputError
from gpuloom.executors.own_log import MOST_BYTES
from gpuloom.fleet.token import Token
from gpuloom.node.dial import check_url
from gpuloom.node.home import BusyError, NodeHome, State, node_home
from until import until

TOKEN = str(Token("0123abcd", "x" * 43))


@pytest.fixture
def home(tmp_path: Path) -> NodeHome:
    return NodeHome(tmp_path / "node").create()


def test_a_home_is_its_owners_alone_and_one_process_holds_it(home: NodeHome) -> None:
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert home.holder() is None
    lock = home.take()
    assert home.holder() == os.getpid()
    with pytest.raises(BusyError, match=f"pid {os.getpid()}\\) works here already"):
        home.take()
    os.close(lock)
    assert home.holder() is None


def test_it_keeps_its_identity_also_if_it_was_half_written(home: NodeHome) -> None:
    first = home.id()
    assert home.id() == first
    home.identity.write_text("")
    assert len(home.id()) == len(first)


def test_what_it_says_of_itself_is_read_back(home: NodeHome) -> None:
    assert home.said() is None
    state = State(7, "n1", "https://head:7411", "cut", 5.0, 4.0, "why", "1.0")
    home.say(state)
    assert home.said() == state
    home.state.write_text("{}")
    assert home.said() is None
    assert home.joined_with() == {}
    home.joins_with({"url": "u", "token": "t"})
    assert home.joined_with() == {"url": "u", "token": "t"}
    assert stat.S_IMODE(home.settings.stat().st_mode) == 0o600


def test_the_home_of_a_scheduler_is_none(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    with pytest.raises(InputError, match="is the home of a scheduler"):
        NodeHome(tmp_path).create()


def test_where_the_home_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("GPULOOM_NODE_HOME", raising=False)
    assert node_home().path == tmp_path / "gpuloom-node"
    monkeypatch.setenv("GPULOOM_NODE_HOME", str(tmp_path / "mine"))
    assert node_home().path == tmp_path / "mine"
    assert node_home(tmp_path / "given").path == tmp_path / "given"


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("https://head:7412", "https://head:7412"),
        ("head", "https://head:7411"),
        ("head:99/", "https://head:99"),
        ("https://[fd00::1]", "https://[fd00::1]:7411"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://localhost", "http://localhost:7411"),
    ],
)
def test_addresses_of_heads(given: str, plain: str) -> None:
    assert check_url(given) == plain


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("http://head:7411", "without TLS the token could be read.*give https://head:7411"),
        ("ftp://head", "give https://HOST:PORT"),
        ("https://head/path", "give https://HOST:PORT"),
        ("https://head:port", "give https://HOST:PORT"),
        ("https://", "give https://HOST:PORT"),
    ],
)
def test_what_is_no_address_of_a_head(given: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        check_url(given)


def gpuloom(*words: object) -> Result:
    return CliRunner().invoke(cli, ["node", *map(str, words)])


def test_tokens_are_made_listed_and_revoked(tmp_path: Path) -> None:
    head = ("--home", tmp_path / "head")
    assert gpuloom("tokens", *head).stdout == "no tokens: `gpuloom node token` makes one\n"
    made = json.loads(gpuloom("token", "--lasts", "1h", "--note", "rack 7", "--json", *head).stdout)
    assert made["url"] == "https://HEAD:7411"
    assert made["expires_s"] == pytest.approx(time.time() + 3600.0, abs=600.0)
    assert (made["fingerprint"], made["token"][:13], len(made["token"])) == ("", f"glt_{made['id']}_", 13 + 43)
    done = gpuloom("token", *head)
    assert done.stdout.startswith("glt_")
    assert "gpuloom node join https://HEAD:7411" in done.stderr
    assert "rack 7" in gpuloom("tokens", *head).stdout
    assert str(gpuloom("revoke", made["token"], *head).exception) == f"give the token's id alone: {made['id']}"
    assert gpuloom("revoke", made["id"], *head).stdout == f"token {made['id']} is revoked\n"
    (one, _) = json.loads(gpuloom("tokens", "--json", *head).stdout)
    assert (one["id"], one["valid"], "sha256" in one) == (made["id"], False, False)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--token", TOKEN], "give the address of the scheduler"),
        (["https://head"], "give the token"),
        (["https://head", "--token", "glt_1"], "it is one line that begins with glt_"),
        (["https://head", "--token", TOKEN, "--lease", "1s"], "a lease of 1 s"),
        (["https://head", "--token-file", "/no/such/file"], "/no/such/file: the token can't be read"),
        (["http://127.0.0.1", "--token", f"{TOKEN}_{'A' * 43}"], "of a scheduler with TLS"),
        (["https://head", "--token", TOKEN, "--token-file", "f"], "not both"),
    ],
)
def test_what_join_lacks_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], says: str
) -> None:
    monkeypatch.delenv("GPULOOM_NODE_TOKEN", raising=False)
    done = gpuloom("join", *words, "--home", tmp_path / "node")
    assert done.exit_code != 0
    assert says in f"{done.exception} {done.output}"
    assert not (tmp_path / "node").exists()


def test_where_no_node_process_works_leave_and_status_say_so(home: NodeHome) -> None:
    done = gpuloom("leave", "--home", home.path)
    assert (done.exit_code, "nothing to leave" in done.stdout) == (0, True)
    home.say(State(7, "n1", "https://head:7411", "refused", 5.0, 4.0, "its token was revoked"))
    done = gpuloom("status", "--home", home.path)
    assert (done.exit_code, "the last one: refused, its token was revoked" in done.stdout) == (1, True)
    found = json.loads(gpuloom("status", "--json", "--home", home.path).stdout)
    assert (found["running"], found["pid"], found["home"]) == (False, None, str(home.path))
    assert (found["name"], found["state"], found["detail"]) == ("n1", "refused", "its token was revoked")


def test_a_node_process_loads_nothing_large() -> None:
    program = (
        "import sys, gpuloom.cli.main, gpuloom.cli.node.join, gpuloom.node.process, gpuloom.server.log; "
        "print(*{'fastapi', 'starlette', 'numpy', 'httpx', 'pydantic', 'uvicorn', 'rich', 'sqlite3', 'asyncio'}"
        " & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


class TestAJoinInTheBackgroundThatFails:
    """What ends the process that `gpuloom node join --detach` has started is told once, with the path of its log."""

    def test_the_reason_alone(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A real process, whose log goes on after that of another one, and that can have no guard."""
        home = NodeHome(tmp_path / "node").create()
        home.log.write_text("2026-11-01 10:00:00,000 WARNING gpuloom.node: of before\ngpuloom: of before\n")
        monkeypatch.setattr(join, "READY_S", 120.0)
        (home.path / "lease").mkdir()
        done = gpuloom("join", "http://127.0.0.1:9", "--token", TOKEN, "--slots", "1", "--detach", "--home", home.path)
        assert isinstance(done.exception, join.JoinError)
        why = f"the node can't begin: can't guard {home.path}: Is a directory"
        assert str(done.exception) == f"the node process ended: {why} (its log is {home.log})"

    def test_what_it_wrote_where_it_could_not_say_why(self, tmp_path: Path) -> None:
        log = tmp_path / "node.log"
        log.write_text("gpuloom: of before\n")
        begin = log.stat().st_size
        assert join._why_ended(-9, log, begin) == f"the node process ended with exit code -9 (its log is {log})"
        log.write_text(log.read_text() + "\n".join(f"line {number}" for number in range(20)))
        told = join._why_ended(1, log, begin)
        assert told.splitlines()[0].endswith(f"(its log is {log}); its last lines:")
        assert told.splitlines()[1:] == [f"line {number}" for number in range(10, 20)]
        log.write_text(log.read_text() + "\ngpuloom: first\nline\ngpuloom: last\n")
        assert join._why_ended(1, log, begin) == f"the node process ended: last (its log is {log})"

    def test_also_where_its_log_was_rotated_since(self, tmp_path: Path) -> None:
        log = tmp_path / "node.log"
        log.write_text("line\ngpuloom: last\n")
        assert join._why_ended(1, log, 10_000) == f"the node process ended: last (its log is {log})"


def test_the_log_of_a_node_process_is_rotated(home: NodeHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one in the background, which finds no head. What its interpreter prints goes to the new file, too."""
    home.log.write_text("x" * MOST_BYTES)
    older = home.path / "node.log.1"
    monkeypatch.setattr(join, "READY_S", 1.0)
    words = ("http://127.0.0.1:9", "--token", TOKEN, "--name", "n1", "--slots", "1")
    try:
        done = gpuloom("join", *words, "--detach", "--home", home.path)
        assert isinstance(done.exception, join.JoinError)
        until(older.exists)
        pid = until(home.holder)
        until(lambda: {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (1, 2)} == {str(home.log)})
    finally:
        until(home.holder)
        left = gpuloom("leave", "--home", home.path)
    assert left.stdout == "left\n"
    assert older.stat().st_size == MOST_BYTES
    assert "no connection" in home.log.read_text()
    assert "leaving: it was told to (SIGTERM)" in home.log.read_text()


def test_what_is_not_given_is_as_the_last_time() -> None:
    before = {
        "url": "http://127.0.0.1:7411", "token": TOKEN, "name": "a", "slots": 2, "slot_model": "x",
        "address": "10.0.0.1", "lease_s": 60.0,
    }  # fmt: skip
    place: Any = SimpleNamespace(joined_with=lambda: dict(before))
    assert join._settings(place, None, None, None, None, None, None, None) == before
    given = ("http://127.0.0.1:7412", str(Token("89abcdef", "y" * 43)), "b", 3, "y", "10.0.0.2", 90.0)
    assert join._settings(place, *given) == dict(zip(before, given, strict=True))
    new: Any = SimpleNamespace(joined_with=dict)
    plain = {"name": "", "slots": None, "slot_model": "CPU", "address": "", "lease_s": None}
    assert join._settings(new, *given[:2], None, None, None, None, None) == {
        "url": given[0], "token": given[1], **plain,
    }  # fmt: skip
