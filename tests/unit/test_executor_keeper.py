"""What the runner does when it is asked to: stops, freezes, limits, taking over; by a clock of the test itself."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.executors import procs
from gpuloom.executors.runner import keeper, log_keeper
from gpuloom.executors.runner import loop as runner_loop
from gpuloom.executors.runner.ends import LEASE_OVER
from gpuloom.executors.runner.keeper import Keeper
from gpuloom.executors.runner.life import RunningJob
from gpuloom.executors.runner.log_keeper import LogKeeper
from gpuloom.executors.runner.moves import Moves
from gpuloom.executors.wire import LIVE, VERSION, Cause, RunPhase, StartRequest


class Made:
    """A keeper whose parts note what they are asked; one run that runs."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self.did, self.now = home, list[Any](), SimpleNamespace(s=100.0)
        fake = SimpleNamespace(monotonic=lambda: self.now.s, time=lambda: 900.0 + self.now.s)
        monkeypatch.setattr(keeper, "time", fake)
        monkeypatch.setattr(keeper, "log", lambda text: self.did.append(text))
        (home / LIVE).mkdir()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        made: Any = Keeper.__new__(Keeper)
        made.home, made.home_id, made.boot, made.nofile = str(home), "home", "boot", (10, 10)
        made.runs, made._unread, made._children, made._idle_until = {}, set(), {}, 0.0
        made.loop = SimpleNamespace(
            at=lambda when, action, what="": self.timers.append((when, action)),
            soon=lambda action, what="": self.timers.append((self.now.s, action)),
            after=lambda seconds, action, what="": self.timers.append((self.now.s + seconds, action)),
            add=lambda fd, action, what: self.did.append(f"watch {what}"),
            drop=lambda fd: None,
            failed=lambda what, error: self.did.append(f"failed {what}"),
        )
        made.troubles = "a full disk"
        made.groups = SimpleNamespace(
            limits=lambda: {"memory": "watched"}, limits_cpus=True, create=lambda *_, **__: None
        )
        made.hub = SimpleNamespace(tell=lambda message: self.did.append(message["status"]["phase"].value))
        made._limits = SimpleNamespace(
            look=lambda run: self.did.append("look"), begin=lambda run: self.did.append("limits")
        )
        made._leased = SimpleNamespace(
            look=lambda: None, refusal=lambda: None, fences=lambda: 0, ended=lambda fences: False
        )
        made._logs = SimpleNamespace(end=lambda run: self.did.append("log ends"), begin=lambda run: None)
        made._again = SimpleNamespace(
            do=self._do, help=lambda run, verb: self.did.append(verb), remove_group=lambda group, tries=0: None
        )
        made._ends = SimpleNamespace(
            deadline=lambda run: self.did.append("deadline"),
            lost=lambda run, message, cause=Cause.NONE: self.did.append((message, cause)),
            not_started=lambda run, cause, message, reason="": self.did.append((cause, message)),
            clean_soon=lambda run: self.did.append("clean"),
            has_ended=lambda run: run.ended is not None,
            children={},
        )
        made._moves = Moves(
            made.loop, made._again, stop=made.stop, away=made._stand_still, back=made._thaw_quietly, report=made._report
        )
        self.keeper: Keeper = made
        self.run = self.job("1.1")

    def _do(self, run: RunningJob, name: str, action: Callable[[], None]) -> None:
        self.did.append(f"do {name}")
        action()

    def job(self, name: str, phase: RunPhase = RunPhase.RUNNING) -> RunningJob:
        folder = self.home / name
        folder.mkdir()
        run = RunningJob(StartRequest(name, str(folder), grace_s=5.0), "home", "boot")
        run.pid, run.start_ticks, run.phase = 31, 50, phase
        for what in ("signal_group", "thaw"):
            setattr(run, what, lambda *given, what=what: self.did.append((what, *given)))
        run.freeze = lambda: self.did.append("freeze") or True  # type: ignore[method-assign, func-returns-value]
        self.keeper.runs[name] = run
        return run

    def take(self) -> list[Any]:
        found, self.did = self.did, []
        return found

    def ask(self, op: str, **more: Any) -> Any:
        return self.keeper._answer({"id": 7, "op": op, **more})


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(tmp_path, monkeypatch)


def test_answers(made: Made) -> None:
    assert made.ask("hello") == {
        "re": 7, "version": VERSION, "pid": os.getpid(), "boot_id": "boot", "limits": {"memory": "watched"},
        "enforces": ["cpus"], "trouble": "a full disk", "holds": True,
    }  # fmt: skip
    other = made.job("2.1")
    other.acknowledged = True
    assert [status["run"] for status in made.ask("runs")["runs"]] == ["1.1"]
    made.keeper._unread = {"9.1"}
    assert made.ask("runs") is None
    assert made.ask("stop", run="1.1", reason="x", grace_s=0.0) is None
    assert made.ask("hello") is not None
    made.keeper._unread = set()
    assert made.ask("stop", run="none") == {"re": 7}
    assert made.take() == []
    for op, more, name in (
        ("stop", {"reason": "r", "grace_s": 2.0}, "stop"),
        ("limit", {"limit_s": 3.0}, "limit"),
        ("freeze", {}, "freeze"),
        ("thaw", {}, "thaw"),
        ("acknowledge", {}, "acknowledge"),
    ):
        setattr(made.keeper, name, lambda run, *given, name=name: made.did.append((name, run.name, *given)))
        assert made.ask(op, run="1.1", **more) == {"re": 7}
        assert made.take() == [(name, "1.1", *more.values())]


def test_the_earlier_of_two_deadlines_counts(made: Made) -> None:
    run = made.run
    made.keeper.stop(run, "preempted", 10.0, "make room")
    assert made.take() == ["do notice", "do SIGTERM", ("signal_group", 15), "stopping"]
    assert (run.reason, run.message, run.deadline, run.phase) == ("preempted", "make room", 110.0, "stopping")
    assert json.loads((made.home / "1.1" / "notice").read_text())["reason"] == "preempted"
    made.keeper.stop(run, "cancelled", 10.0)
    made.keeper.stop(run, "cancelled", 11.0)
    assert made.take() == []
    made.keeper.stop(run, "cancelled", 9.0, "other")
    assert made.take() == ["do notice", "stopping"]
    assert (run.reason, run.message, run.deadline) == ("preempted", "make room", 109.0)
    assert [when for when, _ in made.timers] == [110.0, 109.0]
    made.timers[0][1]()
    assert made.take() == ["deadline"]
    now = made.job("2.1")
    made.keeper.stop(now, "cancelled", 0.0)
    assert made.take() == ["do notice", "stopping"]
    ended = made.job("3.1")
    ended.ended = {}
    made.keeper.stop(ended, "cancelled", 0.0)
    assert (made.take(), ended.deadline) == ([], None)


def test_when_the_lease_of_the_node_is_over_all_that_runs_is_ended_at_once(made: Made) -> None:
    run, ended, leaving, held = made.run, made.job("2.1"), made.job("3.1"), made.job("4.1")
    ended.ended = {}
    leaving.reason, leaving.deadline, leaving.phase = "preempted", 150.0, RunPhase.STOPPING
    held.held = True
    made.keeper._ends.not_started = lambda run, *given: made.did.append((run.name, *given))  # type: ignore[method-assign]
    made.keeper._lease_over()
    assert [(one.reason, one.cause, one.deadline) for one in (run, leaving)] == [
        ("node", Cause.NODE, 100.0),
        ("preempted", Cause.NONE, 100.0),
    ]
    assert run.message == LEASE_OVER
    assert (ended.reason, ended.deadline) == ("", None)
    assert ("4.1", Cause.NODE, LEASE_OVER, "node") in made.take()
    made.keeper.runs.pop("4.1")
    made.keeper._lease_over()
    assert made.take() == [], "once"


def test_nothing_is_started_under_a_lease_that_is_over(made: Made) -> None:
    refused = (Cause.NODE, "the lease is over")
    made.keeper._leased = SimpleNamespace(look=lambda: None, refusal=lambda: refused, fences=lambda: 3)  # type: ignore[assignment]
    made.keeper.start(StartRequest("5.1", str(made.home / "five")))
    assert made.take() == [refused]
    assert made.keeper.runs["5.1"].fences == 3
    assert not (made.home / "five").exists()


def test_freezing_and_thawing(made: Made) -> None:
    run = made.run
    made.keeper.thaw(run)
    assert made.take() == ["do its processes"]
    made.keeper.freeze(run)
    assert made.take() == ["pause", "do its processes", "freeze", "do state.json", "frozen"]
    assert (run.phase, run.frozen_since) == (RunPhase.FROZEN, 100.0)
    made.keeper.freeze(run)
    assert made.take() == []
    made.now.s = 107.0
    made.keeper.thaw(run)
    assert made.take() == [
        "do its processes", "unpause", "do its processes", ("thaw",), "do state.json", "look", "running",
    ]  # fmt: skip
    assert (run.phase, run.frozen_since, run.frozen_s) == (RunPhase.RUNNING, None, 7.0)
    assert json.loads((made.home / "1.1" / "state.json").read_text())["frozen_s"] == 7.0
    run.freeze = lambda: False  # type: ignore[method-assign]
    made.keeper.freeze(run)
    assert "run 1.1: a process is slow to freeze" in made.take()
    made.now.s = 110.0
    made.keeper.stop(run, "cancelled", 5.0)
    assert made.take()[:3] == ["do notice", "unpause", "do its processes"]
    assert (run.phase, run.frozen_s) == ("stopping", 10.0)
    made.keeper.freeze(run)
    made.keeper._freeze_now(run)
    ended = made.job("2.1")
    ended.ended = {}
    made.take()
    made.keeper.freeze(ended)
    made.keeper._freeze_now(ended)
    assert made.take() == []
    assert ended.phase is RunPhase.RUNNING


def test_limits(made: Made) -> None:
    run = made.run
    made.keeper.limit(run, 60.0)
    assert (made.take(), run.limit_s) == (["do run.json", "look"], 60.0)
    assert json.loads((made.home / "1.1" / "run.json").read_text())["limit_s"] == 60.0
    run.memory_mib = 2048
    made.keeper._over_memory(run, 4096.4)
    assert (run.reason, run.message) == ("out_of_memory", "it used 4,096 MiB of memory, but may use 2,048")
    assert (run.deadline, made.take()) == (100.0, ["deadline"])
    made.keeper._over_memory(run, 5000.0)
    assert made.take() == []
    stopping = made.job("2.1")
    stopping.memory_mib, stopping.reason, stopping.deadline = 1, "preempted", 130.0
    made.keeper._over_memory(stopping, 2.0)
    assert (stopping.reason, stopping.message, stopping.deadline) == ("preempted", "", 100.0)
    stopping.ended = {}
    made.keeper.limit(stopping, 5.0)
    assert stopping.limit_s is None


def test_what_is_acknowledged_is_forgotten_once_nothing_is_left(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    run, file = made.run, made.home / LIVE / "1.1"
    file.write_text("{}")
    made.keeper.acknowledge(run)
    assert not run.acknowledged
    run.exit = {"released": False}
    made.keeper.acknowledge(run)
    assert (run.acknowledged, run.saved, file.exists()) == (True, True, True)
    made.keeper._report(run)
    assert made.take() == [], "nobody waits for news of it"
    run.exit = {"released": True}
    made.keeper._concluded(run)
    assert (made.take(), run.forgotten, file.exists()) == (["log ends"], True, False)
    assert (made.keeper.runs, made.keeper._idle_until) == ({}, 101.0)
    other = made.job("2.1")
    other.exit = {"released": True}
    (made.home / LIVE / "2.1").write_text("{}")
    plain = keeper.remove

    def fails(path: str) -> None:
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(keeper, "remove", fails)
    made.keeper.acknowledge(other)
    assert made.take() == [f"failed {made.home}/{LIVE}/2.1"]
    monkeypatch.setattr(keeper, "remove", plain)
    assert made.timers[-1][0] == 101.0
    made.keeper.runs["2.1"] = other
    made.timers[-1][1]()
    assert (made.home / LIVE / "2.1").exists(), "one of this name was begun again"
    del made.keeper.runs["2.1"]
    made.timers[-1][1]()
    assert not (made.home / LIVE / "2.1").exists()


@pytest.mark.parametrize(
    ("boot", "pid", "opens", "leads", "found"),
    [
        ("boot", 31, 9, True, ["watch the end of run 1.1", "limits"]),
        ("boot", 31, 9, False, [("it ended while no runner was watching (the runner had been killed)", Cause.NONE)]),
        ("boot", 31, errno.ESRCH, True, [("it ended while no runner was watching (the runner had been killed)", "")]),
        ("boot", 31, errno.EINVAL, True, [("it ended while no runner was watching (the runner had been killed)", "")]),
        ("boot", None, 9, True, [("it ended while no runner was watching (the runner had been killed)", Cause.NONE)]),
        ("old", 31, 9, True, [("the machine was restarted while it ran; how it ended is unknown", Cause.RESTARTED)]),
    ],
)
def test_runs_of_an_earlier_runner(
    boot: str, pid: int | None, opens: int, leads: bool, found: list[Any], made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made.run
    run.boot, run.pid, run.deadline = boot, pid, 130.0
    closed: list[int] = []

    def open_it(number: int) -> int:
        if opens in (errno.ESRCH, errno.EINVAL):
            raise OSError(opens, "gone")
        return opens

    ticks = 50 if leads else 51
    entry = procs.Process(31, f"31 (a) S 1 0 0{' 0' * 15} {ticks} 0 0".encode())
    monkeypatch.setattr(procs, "process", lambda number: entry)
    monkeypatch.setattr(os, "pidfd_open", open_it, raising=False)
    monkeypatch.setattr(keeper.os, "close", closed.append)
    made.keeper._watch_adopted(run)
    watched = found[0] == "watch the end of run 1.1"
    assert made.take() == found
    assert closed == ([9] if boot == "boot" and pid and opens == 9 and not watched else [])
    assert [when for when, _ in made.timers] == ([130.0] if watched else [])
    assert run.pid == (None if boot == "old" else pid)
    made.keeper._adopted_ended(run, 9)
    made.timers[-1][1]()
    text = "it ended, but the runner that started it had been killed: its exit code is unknown"
    assert made.take() == [(text, Cause.NONE)]


def test_who_can_not_be_told_from_another_is_let_go_of(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(number: int) -> procs.Process | None:
        raise OSError(errno.EACCES, "hidden")

    closed: list[int] = []
    made.run.boot, made.run.pid = "boot", 31
    monkeypatch.setattr(os, "pidfd_open", lambda number: 9, raising=False)
    monkeypatch.setattr(procs, "process", hidden)
    monkeypatch.setattr(keeper.os, "close", closed.append)
    with pytest.raises(OSError, match="hidden"):
        made.keeper._watch_adopted(made.run)
    assert (closed, made.take()) == ([9], [])


def test_a_process_that_can_not_be_looked_at_now_is_looked_at_later(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(number: int) -> int:
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr(os, "pidfd_open", full, raising=False)
    with pytest.raises(OSError, match="too many"):
        made.keeper._watch_adopted(made.run)
    assert made.take() == []


def test_what_an_earlier_runner_left(made: Made) -> None:
    for name, released in (("3.1", True), ("4.1", False)):
        (made.home / name).mkdir()
        ended = {"run": name, "exit": {"released": released}}
        (made.home / name / "exit.json").write_text(json.dumps(ended))
        (made.home / LIVE / name).write_text(json.dumps({"directory": str(made.home / name)}))
    (made.home / LIVE / "5.1").write_text(json.dumps({"directory": str(made.home / "5.1")}))
    (made.home / LIVE / "6.1").write_text("x")
    removed: list[Any] = []
    made.keeper._again.remove_group = lambda group, tries=0: removed.append(group)  # type: ignore[method-assign]
    made.keeper.groups = SimpleNamespace(stale=lambda runs: ["a group"])  # type: ignore[assignment]
    made.keeper.hub.go = lambda: made.did.append("go")  # type: ignore[method-assign]
    made.keeper._unread = {""}
    made.keeper._take_over()
    assert made.take() == ["clean", "go"]
    assert sorted(made.keeper.runs) == ["1.1", "3.1", "4.1"]
    assert (sorted(os.listdir(made.home / LIVE)), made.keeper._unread, removed) == (["3.1", "4.1"], set(), ["a group"])
    assert made.keeper.runs["4.1"].ended == {"released": False}


def test_starts_that_fail_say_at_what(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise OSError(errno.EAGAIN, "no processes")

    monkeypatch.setattr(keeper, "fork", fails)
    request = StartRequest("7.1", str(made.home / "7.1"), ("a",))
    made.keeper.start(request)
    ((cause, message),) = made.take()
    assert cause is Cause.EXECUTOR
    assert message.startswith("can't create a process: ")
    assert json.loads((made.home / LIVE / "7.1").read_text()) == {"directory": str(made.home / "7.1")}
    made.keeper.start(request)
    assert made.take() == ["starting"], "it is known: only told of again"
    (made.home / "file").write_text("")
    made.keeper.start(StartRequest("8.1", str(made.home / "file" / "8.1"), ("a",)))
    assert made.take()[0][1].startswith(f"can't make {made.home}/file/8.1: ")
    (made.home / "9.1").mkdir()
    (made.home / "9.1" / "exit.json").write_text('{"run": "9.1", "exit": {"released": true}}')
    made.keeper.start(StartRequest("9.1", str(made.home / "9.1"), ("a",)))
    assert (made.take(), made.keeper.runs["9.1"].exit) == (["exited"], {"released": True})


# -- logs --------------------------------------------------------------------------------------------------------------


class FakeLog:
    """Answers looks as the test says."""

    def __init__(self, *looks: Any) -> None:
        self.path, self.looks = "/log", list(looks)

    def look(self) -> tuple[bool, float]:
        found = self.looks.pop(0)
        if isinstance(found, OSError):
            raise found
        return found, 0.1


@pytest.mark.parametrize(
    ("looks", "watch", "did", "again"),
    [
        ([True], True, [], 0.1),
        ([False, False], True, ["once"], None),  # it sleeps
        ([False, True], True, ["once", "forget"], 0.1),
        ([False], False, ["once"], 0.1),
        ([False], None, [], 0.1),
        ([OSError(errno.EIO, "no")], True, ["failed"], 1.0),
    ],
)
def test_how_long_a_log_is_left_alone(
    looks: list[Any], watch: bool | None, did: list[str], again: float | None
) -> None:
    found: list[str] = []
    timers: list[tuple[float, Callable[[], None]]] = []
    notes: list[str] = []
    one: Any = LogKeeper.__new__(LogKeeper)
    one._runs, one._watch = {}, None
    if watch is not None:
        one._watch = SimpleNamespace(
            once=lambda path: found.append("once") or watch, forget=lambda path: found.append("forget")
        )
    one._loop = SimpleNamespace(
        after=lambda seconds, action: timers.append((seconds, action)),
        failed=lambda what, error: found.append("failed"),
        troubles=SimpleNamespace(note=lambda what, text: notes.append(text)),
    )
    run: Any = SimpleNamespace(log=FakeLog(*looks))
    one.begin(run)
    assert found == did
    assert [seconds for seconds, _ in timers] == ([] if again is None else [again])
    assert notes == ([] if "failed" in did else [""])
    assert run.log.looks == []
    found.clear()
    one.end(run)
    assert found == ([] if watch is None else ["forget"])
    one.end(run)
    assert found == ([] if watch is None else ["forget"])
    for _, action in timers:
        action()  # it is no longer looked at


def test_logs_that_were_written_to_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[Callable[[int], None]] = []
    loop: Any = SimpleNamespace(
        add=lambda fd, action, what: added.append(action),
        after=lambda seconds, action: None,
        troubles=SimpleNamespace(note=lambda what, text: None),
    )
    watch = SimpleNamespace(fd=3, written=lambda: ["/log", "/other"], once=lambda path: True, forget=lambda path: None)
    monkeypatch.setattr(log_keeper, "Watch", lambda: watch)
    one = LogKeeper(loop)
    run: Any = SimpleNamespace(log=FakeLog(False, False, True))
    one.begin(run)
    added[0](3)
    assert run.log.looks == []

    def fails() -> Any:
        raise OSError(errno.EMFILE, "too many")

    said: list[str] = []
    monkeypatch.setattr(log_keeper, "Watch", fails)
    monkeypatch.setattr(log_keeper, "log", said.append)
    poor = LogKeeper(loop)
    assert said == ["[Errno 24] too many: logs are polled instead"]
    poor._written()
    assert len(added) == 1


def test_what_works_again_is_trouble_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is read as well as of what was to be done at a time; each is tried again a second later."""
    logged: list[str] = []
    now, fails = [100.0], [True]
    monkeypatch.setattr(runner_loop, "log", logged.append)
    monkeypatch.setattr(runner_loop, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))
    loop = runner_loop.Loop()
    ours, theirs = os.pipe()
    done: list[str] = []

    def read(fd: int) -> None:
        if fails[0]:
            raise OSError(errno.EIO, "broken")
        done.append(os.read(fd, 9).decode())

    def act() -> None:
        if fails[0]:
            raise OSError(errno.EIO, "broken", "a file")
        done.append("acted")

    loop.add(ours, read, "reading")
    os.write(theirs, b"x")
    loop.soon(act, "acting")
    loop.turn()
    text = str(loop.troubles)
    assert text.startswith("can't go on with acting (a file): ")
    assert "; can't go on with reading: " in text
    assert done == []
    fails[0], now[0] = False, 101.0
    loop.turn()
    assert (done, str(loop.troubles)) == (["acted", "x"], "")
    assert logged[-1] == "in order again"
    loop.drop(ours)
    os.close(ours)
    os.close(theirs)


class FakeChild:
    """One that waits; release fails where `fault` says so."""

    said = 9

    def __init__(self, made: Made, fault: OSError | None = None) -> None:
        self.made, self.fault = made, fault

    def ready(self) -> bool:
        return True

    def release(self) -> None:
        if self.fault is not None:
            raise self.fault
        self.made.did.append("release")

    def drop(self) -> None:
        self.made.did.append("drop")


def held(made: Made, fault: OSError | None = None) -> RunningJob:
    run = made.run
    run.held, run.phase = True, RunPhase.STARTING
    made.keeper._children[run.name] = FakeChild(made, fault)  # type: ignore[assignment]
    return run


def test_its_time_counts_from_when_it_is_told_to_begin(made: Made) -> None:
    run = held(made)
    made.keeper._child_answered(run)
    assert (made.take(), run.phase) == (["prepared"], RunPhase.PREPARED)
    made.now.s = 150.0
    assert made.ask("go", run="1.1") == {"re": 7}
    assert made.take() == ["release"]
    assert (run.started, run.held, run.phase) == (150.0, False, RunPhase.STARTING)
    written = json.loads((made.home / "1.1" / "run.json").read_text())
    assert (written["started"], written["hold"]) == (150.0, False)
    made.keeper.go(run)
    assert made.take() == []


def test_told_to_begin_before_it_is_ready(made: Made) -> None:
    run = held(made)
    made.keeper.go(run)
    assert (made.take(), run.held) == ([], True)
    made.keeper._child_answered(run)
    assert (made.take(), run.held) == (["release"], False)


def test_one_that_can_not_be_let_go(made: Made) -> None:
    """Its disk is full now, or its process has gone: it never ran."""
    run = held(made, OSError(errno.EPIPE, "gone"))
    made.keeper._child_answered(run)
    made.keeper.go(run)
    cause, message = made.take()[-1]
    assert (cause, message) == (Cause.EXECUTOR, "can't let its process continue: gone")
    assert (run.pid, made.keeper._children) == (None, {})
    assert not (made.home / "1.1" / "run.json").exists()


def test_a_held_run_of_another_boot(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    run = held(made)
    run.boot = "before"
    made.keeper._children.clear()
    monkeypatch.setattr(procs, "process", lambda pid: pytest.fail("that number is another's now"))
    made.keeper.adopt(run)
    made.timers[-1][1]()
    cause, message = made.take()[-1]
    assert (cause, run.group) == (Cause.EXECUTOR, None)
    assert message == "the runner was killed before it was told to begin"
