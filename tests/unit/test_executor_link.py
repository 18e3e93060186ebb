"""The scheduler's side of the runner's socket, against a runner that is a thread of the test."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.executors import link as linking
from gpuloom.executors import procs
from gpuloom.executors.link import Link
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.wire import EXIT_LOCKED, RUNNER_LOG, VERSION, LineBuffer, encode, socket_address
from until import until

HELLO = {"re": 0, "version": VERSION, "pid": 77}


class FakeRunner:
    """Answers what it is asked as `answer` says (None: not at all); asked: what it was asked, in order.

    greeting: what it says to a hello; None: nothing.
    """

    def __init__(self, home: Path) -> None:
        self.asked: list[dict[str, Any]] = []
        self.greeting: bytes | None = encode(HELLO)
        self.answer: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda message: {"re": message["id"]}
        self._home_fd = os.open(home, os.O_RDONLY)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(socket_address(self._home_fd))
        self.listener.listen()
        self.connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        lines = LineBuffer()
        try:
            while data := connection.recv(1 << 16):
                for message in lines.feed(data):
                    if message["op"] == "hello":
                        if self.greeting is not None:
                            connection.sendall(self.greeting)
                        continue
                    self.asked.append(message)
                    if (reply := self.answer(message)) is not None:
                        connection.sendall(encode(reply))
        except OSError:
            return

    def say(self, message: dict[str, Any]) -> None:
        self.connections[-1].sendall(encode(message))

    def hang_up(self) -> None:
        self.connections[-1].shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.listener.close()
        for connection in self.connections:
            connection.close()
        os.close(self._home_fd)


class Made:
    def __init__(self, home: Path) -> None:
        self.home, self.news, self.again = home, list[dict[str, Any]](), list[int]()
        self.link = Link(home, "id", "off", self.news.append, lambda: self.again.append(1))


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    found = Made(tmp_path)
    yield found
    found.link.close()


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[FakeRunner]:
    found = FakeRunner(tmp_path)
    yield found
    found.close()


def test_questions_news_and_what_fails(made: Made, runner: FakeRunner) -> None:
    link, failed, answers = made.link, list[str](), list[dict[str, Any]]()
    link.open()
    link.open()
    assert len(runner.connections) == 1
    assert link.hello == HELLO
    assert link.question("runs", more=3) == {"re": 1}
    assert runner.asked == [{"id": 1, "op": "runs", "more": 3}]
    runner.say({"trouble": "x"})
    until(lambda: made.news == [{"trouble": "x"}], "the news")
    runner.answer = lambda message: {"re": message["id"], "failed": "no space"}
    link.ask("start", answers.append, failed.append, request={"run": "1.1"})
    until(lambda: failed == ["no space"], "the failure")
    assert answers == []
    assert link.problem == "the runner can't do what it was asked to: no space (see runner.log)"
    runner.answer = lambda message: {"re": message["id"]}
    link.ask("start", answers.append, failed.append)
    until(lambda: answers == [{"re": 3}], "the answer")
    runner.say({"re": 99})
    assert link.question("runs") == {"re": 4}
    assert (failed, made.again, made.news) == (["no space"], [], [{"trouble": "x"}])


def test_what_was_not_answered_is_asked_again_and_then_what_the_new_connection_asks(
    made: Made, runner: FakeRunner
) -> None:
    link = made.link
    link.open()
    runner.answer = lambda message: None
    for run in ("1.1", "2.1", "3.1"):
        link.ask("start", request={"run": run})
    link.ask("stop", run="1.1")
    until(lambda: len(runner.asked) == 4, "the four")
    link.never_start("2.1")
    runner.asked.clear()
    runner.answer = lambda message: {"re": message["id"]}
    runner.hang_up()
    until(lambda: len(runner.asked) == 3, "the three")
    assert [(one["id"], one["op"]) for one in runner.asked] == [(1, "start"), (3, "start"), (4, "stop")]
    assert made.again == [1]
    runner.say({"no": "message"})
    runner.connections[-1].sendall(b"[1]\n")
    until(lambda: len(made.again) == 2, "another connection")
    assert made.news == [{"no": "message"}]
    assert link.question("runs") == {"re": 5}
    assert link.problem == ""


def test_a_question_that_is_not_answered(made: Made, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    link = made.link
    link.open()
    runner.answer = lambda message: None
    monkeypatch.setattr(procs, "process", lambda pid: None)
    with pytest.raises(ExecutorError) as error:
        link.question("runs", 0.01)
    told = f"the runner of {made.home} does not answer: "
    assert str(error.value) == f"{told}no reply within 0.01 s; process 77 is gone"
    link._problem = "it is ill"
    with pytest.raises(ExecutorError) as error:
        link.question("runs", 0.01)
    assert str(error.value) == f"{told}it is ill"
    assert link._questions == set()

    def ask() -> None:
        with pytest.raises(ExecutorError, match=r"^the executor is closed$"):
            link.question("runs")

    asked = threading.Thread(target=ask)
    asked.start()
    until(lambda: bool(link._questions), "the question")
    link.close()
    asked.join(10.0)
    assert not asked.is_alive()
    with pytest.raises(ExecutorError, match=r"^the executor is closed$"):
        link.ask("runs")


@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (
            encode({**HELLO, "version": VERSION + 1}),
            f"the runner of {{}} (pid 77) speaks version {VERSION + 1} of its protocol, this gpuloom version "
            f"{VERSION}: let its jobs end with the gpuloom that started it, or stop them",
        ),
        (
            None,
            "the runner of {} does not answer: it (pid {pid}) has sent no greeting; it is busy, or stuck",
        ),
        (b"[]\n", "can't talk to the runner at {}/runner.sock: it sent something that is not a greeting: ValueError("),
        (encode({"re": 0}), "can't talk to the runner at {}/runner.sock: it sent something that is not a greeting: K"),
    ],
)
def test_greetings(
    greeting: bytes | None, said: str, made: Made, runner: FakeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.greeting = greeting
    monkeypatch.setattr(procs, "process", lambda pid: SimpleNamespace(dead=False, state="S"))
    monkeypatch.setattr(made.link, "_spawn", lambda end: False)
    made.link._closed.set()  # it does not try again
    with pytest.raises(ExecutorError) as error:
        made.link.open(20.0 if greeting else 0.1)
    assert str(error.value).startswith(said.format(made.home, pid=os.getpid()))
    assert made.link.hello == {}


def test_news_before_the_greeting_is_passed_over(made: Made, runner: FakeRunner) -> None:
    runner.greeting = encode({"trouble": "old"}) + encode(HELLO) + encode({"trouble": "new"})
    made.link.open()
    until(lambda: made.news == [{"trouble": "new"}], "the news")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (None, "; process 5 is gone"),
        (SimpleNamespace(dead=True, state="Z"), "; process 5 is gone"),
        (SimpleNamespace(dead=False, state="T"), "; it is stopped by a signal: `kill -CONT 5` continues it"),
        (SimpleNamespace(dead=False, state="t"), "; a debugger holds it"),
        (SimpleNamespace(dead=False, state="D"), "; it waits for a disk: see `dmesg`"),
        (SimpleNamespace(dead=False, state="R"), "; it is busy, or stuck"),
        (PermissionError(), ""),
    ],
)
def test_why_a_process_does_not_answer(entry: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def process(pid: int) -> Any:
        if isinstance(entry, OSError):
            raise entry
        return entry

    monkeypatch.setattr(procs, "process", process)
    assert Link._state(5) == said
    assert Link._state(None) == ""


class Started:
    """Stands for subprocess.run."""

    def __init__(self, code: int | Exception, said: bytes = b"") -> None:
        self.code, self.said, self.argv = code, said, list[str]()

    def __call__(self, argv: list[str], *, stdout: int, stderr: int, timeout: float, **how: Any) -> Any:
        self.argv = argv
        assert stdout == stderr
        assert (how["cwd"], how["start_new_session"], how["stdin"]) == ("/", True, subprocess.DEVNULL)
        assert timeout >= 0.1
        os.write(stdout, self.said)
        if isinstance(self.code, Exception):
            raise self.code
        return SimpleNamespace(returncode=self.code)


@pytest.mark.parametrize(
    ("code", "said", "found"),
    [
        (0, b"", True),
        (EXIT_LOCKED, b"", False),
        (4, b"one\nthe disk is full\n", "the runner ended with code 4: the disk is full (see {log})"),
        (subprocess.TimeoutExpired("x", 2.0), b"", "the runner did not start within 2.0 s (see {log})"),
        (OSError(12, "Cannot allocate memory"), b"", "can't start the runner: "),
    ],
)
def test_starting_a_runner(
    code: int | Exception, said: bytes, found: bool | str, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(code, said)
    monkeypatch.setattr(subprocess, "run", started)
    before = len(os.listdir("/proc/self/fd"))
    if isinstance(found, str):
        with pytest.raises(ExecutorError) as error:
            made.link._spawn(0.0)
        assert str(error.value).startswith(found.format(log=made.home / RUNNER_LOG))
    else:
        assert made.link._spawn(0.0) is found
    assert len(os.listdir("/proc/self/fd")) == before
    home = [str(made.home), "id", "off", str(os.getpid())]
    assert started.argv[:8] == [sys.executable, "-I", "-S", str(linking.RUNNER), *home]
    assert started.argv[8].isdigit()
    held = f" ({made.home}/runner.lock is held by a runner that is starting, or stuck)"
    assert made.link._locker() == (held if code == EXIT_LOCKED else "")
    assert (made.home / RUNNER_LOG).stat().st_mode & 0o777 == 0o600


def test_no_socket_and_no_runner(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    patient: Any = SimpleNamespace(is_set=lambda: len(waits) == 6, wait=waits.append, set=lambda: None)
    monkeypatch.setattr(made.link, "_closed", patient)
    monkeypatch.setattr(made.link, "_spawn", lambda end: False)
    with pytest.raises(ExecutorError) as error:
        made.link.open(60.0)
    assert str(error.value) == f"can't talk to the runner at {made.home}/runner.sock: No such file or directory"
    assert waits == pytest.approx([0.01, 0.02, 0.04, 0.08, 0.16, 0.2])
    gone = Link(made.home / "gone", "id", "off", made.news.append, lambda: None)
    with pytest.raises(ExecutorError, match=r"^can't use .*/gone: No such file or directory"):
        gone.open()


def test_a_log_that_can_not_be_opened_is_gone_without(tmp_path: Path) -> None:
    assert Link._log(tmp_path / "none" / "log") == subprocess.DEVNULL
