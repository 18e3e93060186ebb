"""How runs end, what is tried again, and what limits them: by a clock and a loop of the test's own."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.executors import procs
from gpuloom.executors.runner import again, ends, life, limits
from gpuloom.executors.runner.again import Again
from gpuloom.executors.runner.ends import Ends
from gpuloom.executors.runner.life import TERM_SIGNAL, RunningJob
from gpuloom.executors.runner.limits import Limits
from gpuloom.executors.runner.loop import Troubles
from gpuloom.executors.wire import Cause, RunPhase, StartRequest


class FakeLoop:
    """Keeps what is to be done, and does it when told to."""

    def __init__(self, now: SimpleNamespace) -> None:
        self.now, self.troubles = now, Troubles()
        self.due: list[tuple[float, Callable[[], None], str]] = []

    def at(self, when: float, action: Callable[[], None], what: str = "its work") -> None:
        self.due.append((round(when, 6), action, what))

    def after(self, seconds: float, action: Callable[[], None], what: str = "its work") -> None:
        self.at(self.now.s + seconds, action, what)

    def soon(self, action: Callable[[], None], what: str = "its work") -> None:
        self.after(0.0, action, what)

    def add(self, fd: int, action: Any, what: str) -> None:
        self.wake, self.woken = fd, action

    def failed(self, what: str, error: BaseException) -> None:
        self.troubles.note(what, f"{what}: {error}")

    def times(self) -> list[float]:
        return [when for when, _, _ in self.due]

    def do(self) -> None:
        """What is to be done next."""
        when, action, _ = self.due.pop(0)
        self.now.s = max(self.now.s, when)
        action()


class FakeGroup:
    """A control group: what is in it, and whether it can be removed."""

    def __init__(self, removed: Sequence[Any] = (True,), found: Sequence[int] = (), kills: int = 0) -> None:
        self.results, self.found, self.kills, self.killed = list(removed), list(found), kills, 0
        self.places = {"": "/there"}
        self.cpu: float | None = 7.0

    def pids(self) -> Sequence[int]:
        return self.found

    def kill(self) -> None:
        self.killed += 1

    def oom_kills(self) -> int:
        return self.kills

    def cpu_s(self) -> float | None:
        return self.cpu

    def remove(self) -> bool:
        found = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(found, OSError):
            raise found
        return bool(found)


class Made:
    """The parts, and one run with processes as the test says."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = SimpleNamespace(s=100.0)
        fake = SimpleNamespace(monotonic=lambda: self.now.s, time=lambda: 900.0 + self.now.s)
        for module in (ends, limits, life):
            monkeypatch.setattr(module, "time", fake)
        self.wakers: list[int] = []
        monkeypatch.setattr(ends.signal, "signal", lambda *_: None)
        monkeypatch.setattr(ends.signal, "set_wakeup_fd", lambda fd, **_: self.wakers.append(fd))
        self.logged: list[str] = []
        monkeypatch.setattr(again, "log", self.logged.append)
        self.sent: list[tuple[list[int], int]] = []
        monkeypatch.setattr(
            procs, "send_all", lambda found, number: self.sent.append(([one.pid for one in found], number))
        )
        self.table: dict[int, procs.Process] = {}
        self.tables = 0

        def table() -> dict[int, procs.Process]:
            self.tables += 1
            return self.table

        monkeypatch.setattr(procs, "table", table)
        self.loop: Any = FakeLoop(self.now)
        self.again = Again(self.loop)
        self.runs: dict[str, RunningJob] = {}
        self.told: list[str] = []

        def tells(what: str) -> Callable[[RunningJob], None]:
            return lambda run: self.told.append(f"{what} {run.name}")

        self.ends = Ends(self.loop, self.again, self.runs, tells("ended"), tells("thaw"), tells("concluded"))
        self.helped: list[str] = []
        self.again.help = lambda run, verb: self.helped.append(verb)  # type: ignore[method-assign]
        self.directory = directory
        self.run = self.job("7.1")

    def job(self, name: str, left: Sequence[int] = (), **fields: Any) -> RunningJob:
        (self.directory / name).mkdir()
        run = self.runs[name] = RunningJob(StartRequest(name, str(self.directory / name), **fields), "home", "boot")
        run.pid, run.start_ticks, run.phase = 31, 50, RunPhase.RUNNING
        self.left(run, left)
        return run

    def left(self, run: RunningJob, *looks: Sequence[int]) -> None:
        """What each look at its processes finds; the last one for good."""
        found = list(looks)

        def alive(everything: Any = None, strays: Sequence[int] = ()) -> list[procs.Process]:
            return [process(pid) for pid in (found.pop(0) if len(found) > 1 else found[0])]

        run.alive = alive  # type: ignore[method-assign]
        run.kill = lambda strays=(): self.told.append(f"kill {run.name}")  # type: ignore[method-assign]


def process(pid: int, *, ppid: int = 1) -> procs.Process:
    return procs.Process(pid, f"{pid} (sh) D {ppid} 0 0{' 0' * 15} 50 0 0".encode())


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    found = Made(tmp_path, monkeypatch)
    yield found
    for fd in (found.loop.wake, *found.wakers):
        os.close(fd)


def exit_of(run: RunningJob) -> dict[str, Any]:
    assert run.exit is not None
    return run.exit


class TestEnds:
    def test_processes_that_have_gone(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        """All that there are at each wake-up: of jobs, of tools, of nobody."""
        used = SimpleNamespace(ru_maxrss=2048, ru_utime=1.0, ru_stime=0.5)
        gone: list[Any] = [(31, 9, used), (77, 0, used), (78, 0, used), (0, 0, used), (32, 3 << 8, used)]

        def wait4(pid: int, options: int) -> Any:
            assert (pid, options) == (-1, os.WNOHANG)
            if not gone:
                raise ChildProcessError
            return gone.pop(0)

        monkeypatch.setattr(os, "wait4", wait4)
        run, other = made.run, made.job("8.1")
        run.peak_mib = 5.0
        made.ends.children.update({31: run, 32: other})
        made.again.helpers[77] = run
        os.write(made.wakers[0], b"xx")
        made.loop.woken(made.loop.wake)
        assert made.ends._reaped == [(run, -9, 1.5)]
        assert (run.peak_mib, list(made.ends.children), made.again.helpers) == (5.0, [32], {})
        assert made.loop.times() == [100.0]
        made.loop.woken(made.loop.wake)
        assert made.ends._reaped[1:] == [(other, 3, 1.5)]
        assert other.peak_mib == 2.0
        made.loop.do()
        assert [(one.ended or {})["signal"] for one in (run, other)] == [9, None]
        made.loop.due.clear()
        made.loop.woken(made.loop.wake)
        assert made.loop.due == []

    @pytest.mark.parametrize(
        ("code", "before", "after"), [(-9, "", "node"), (1, "", "node"), (0, "", ""), (-9, "preempted", "preempted")]
    )
    def test_one_that_the_guard_ended(self, made: Made, code: int, before: str, after: str) -> None:
        """What ended well in that moment has ended well, and what was told to end was."""
        run = made.run
        run.fences, run.reason = 3, before
        asked: list[int] = []
        made.ends.fenced = lambda run: bool(asked.append(run.fences) or True)  # type: ignore[func-returns-value]
        made.ends._reaped.append((run, code, 0.5))
        made.ends._leaders_ended()
        made.loop.do()
        assert exit_of(run)["reason"] == after
        assert exit_of(run)["cause"] == (Cause.NODE if after == "node" else Cause.NONE)
        assert asked == ([3] if code and not before else [])

    @pytest.mark.parametrize("fenced", [False, True])
    def test_one_that_nobody_saw_end(self, made: Made, fenced: bool) -> None:
        made.ends.fenced = lambda run: fenced
        made.ends.lost(made.run, "unseen")
        made.loop.do()
        how = exit_of(made.run)
        assert (how["reason"], how["cause"]) == (("node", "node") if fenced else ("lost", ""))
        other = made.job("8.1")
        made.ends.lost(other, "rebooted", Cause.RESTARTED)
        made.loop.do()
        assert (exit_of(other)["reason"], exit_of(other)["cause"]) == ("lost", "restarted")

    def test_one_that_was_not_begun(self, made: Made) -> None:
        run = made.run
        made.ends.not_started(run, Cause.PLACE, "no such disk")
        assert run.exit == {
            "exit_code": None, "signal": None, "reason": EndReason.NOT_STARTED, "cause": Cause.PLACE,
            "message": "no such disk", "at_s": 1000.0, "peak_memory_mib": None, "cpu_s": None, "released": True,
        }  # fmt: skip
        assert (run.phase, run.saved, made.told) == (RunPhase.EXITED, True, ["concluded 7.1"])
        assert not os.listdir(run.directory), "a fault that passes is not remembered"
        own = made.job("8.1")
        made.ends.not_started(own, Cause.JOB, "no such program")
        assert json.loads(Path(own.directory, "exit.json").read_text())["exit"]["message"] == "no such program"
        assert own.saved

    @pytest.mark.parametrize(
        ("reason", "message", "found"),
        [
            ("", "", (EndReason.LOST, Cause.RESTARTED, "gone")),
            ("", "known", (EndReason.LOST, Cause.RESTARTED, "known")),
            ("preempted", "", ("preempted", Cause.NONE, "gone")),
        ],
    )
    def test_one_whose_end_nobody_saw(self, reason: str, message: str, found: tuple[str, ...], made: Made) -> None:
        run = made.run
        run.reason, run.message = reason, message
        made.ends.lost(run, "gone", Cause.RESTARTED)
        assert (run.reason, run.cause, run.message) == found
        assert run.ended == {"exit_code": None, "signal": None, "cpu_s": None, "peak_memory_mib": None}
        assert made.helped == ["kill"]
        made.loop.do()
        assert exit_of(run)["released"]

    def test_codes_signals_and_time(self, made: Made) -> None:
        """And a process table is read once, for those without a group."""
        runs = [made.job(f"{number}.1") for number in range(1, 5)]
        runs[2].group = FakeGroup(kills=1)  # type: ignore[assignment]
        runs[3].ended = before = {"exit_code": 9, "signal": None, "cpu_s": None, "peak_memory_mib": None}
        for run in runs:
            run.peak_mib = 3.0
        made.ends._reaped += [(run, code, 1.5) for run, code in zip(runs, (0, -9, 3, 0), strict=True)]
        made.ends._leaders_ended()
        assert made.told[:4] == [f"ended {number}.1" for number in range(1, 5)]
        assert [(run.ended["exit_code"], run.ended["signal"], run.ended["cpu_s"]) for run in runs if run.ended] == [
            (0, None, 1.5), (None, 9, 1.5), (3, None, 7.0), (9, None, None),
        ]  # fmt: skip
        assert runs[3].ended is before
        assert (runs[0].ended or {})["peak_memory_mib"] == 3.0
        assert (made.helped, made.tables, made.ends._reaped) == (["kill", "kill"], 1, [])
        assert [run.reason for run in runs] == ["", "", "out_of_memory", ""]
        assert [run.kill_at for run in runs] == [102.0, 102.0, 102.0, 0.0]
        assert made.loop.times() == [100.0] * 3
        group = made.job("5.1")
        group.group = FakeGroup()  # type: ignore[assignment]
        group.group.cpu = None  # type: ignore[union-attr]
        made.ends._reaped.append((group, 0, 2.5))
        made.ends._leaders_ended()
        assert ((group.ended or {})["cpu_s"], made.tables) == (2.5, 1)

    @pytest.mark.parametrize(
        ("reason", "kills", "limit", "message"),
        [
            ("", 1, 2048, "killed by the kernel: it needed more than its limit of 2,048 MiB"),
            ("", 1, None, "killed by the kernel: it needed more than the machine's memory"),
            ("", 0, 2048, ""),
            ("preempted", 1, 2048, ""),
        ],
    )
    def test_out_of_memory(self, reason: str, kills: int, limit: int | None, message: str, made: Made) -> None:
        run = made.run
        run.group, run.reason, run.memory_mib = FakeGroup(kills=kills), reason, limit  # type: ignore[assignment]
        made.ends._reaped.append((run, 0, 1.0))
        made.ends._leaders_ended()
        assert run.reason == reason, "it went well"
        run.ended = None
        made.ends._reaped.append((run, 1, 1.0))
        made.ends._leaders_ended()
        assert run.message == message
        assert run.reason == ("out_of_memory" if message else reason)

    @pytest.mark.parametrize(
        ("deadline", "kill_at", "asked"),
        [(None, 102.0, True), (101.0, 101.0, True), (105.0, 102.0, True), (90.0, 100.0, False), (100.0, 100.0, False)],
    )
    def test_what_a_leading_process_leaves_behind_has_a_little_time(
        self, deadline: float | None, kill_at: float, asked: bool, made: Made
    ) -> None:
        run = made.run
        run.deadline = deadline
        made.left(run, [40])
        made.ends.lost(run, "gone")
        assert run.kill_at == kill_at
        assert made.sent == ([([40], TERM_SIGNAL)] if asked else [])
        assert made.told == (["thaw 7.1"] if asked else [])
        made.loop.do()
        assert made.told[1 if asked else 0 :] == ([] if asked else ["kill 7.1"])
        made.told.clear()
        assert made.loop.times() == [100.005]  # looked at again, less and less often
        made.left(run, [40], [])
        made.now.s = kill_at
        made.loop.do()
        assert made.told == ["kill 7.1", "concluded 7.1"]
        assert exit_of(run)["at_s"] == 900.0 + max(kill_at, 100.005)

    @pytest.mark.parametrize(
        ("code", "number", "deadline", "kill_at"),
        [(None, TERM_SIGNAL, 130.0, 130.0), (85, None, 130.0, 102.0), (None, TERM_SIGNAL, None, 102.0)],
    )
    def test_what_a_shell_that_dies_of_the_notice_leaves_has_the_whole_grace(
        self, code: int | None, number: int | None, deadline: float | None, kill_at: float, made: Made
    ) -> None:
        """Its program saves. Who is of the shell's process group has been told, and isn't told twice."""
        run = made.run
        run.deadline = deadline
        child, stray = process(40), process(41)
        child.pgrp, stray.pgrp = 31, 41
        run.alive = lambda *_: [child, stray]  # type: ignore[method-assign]
        made.ends._leader_ended(run, code, number, 0.1)
        assert run.kill_at == kill_at
        assert made.sent == [([41] if kill_at == 130.0 else [40, 41], TERM_SIGNAL)]

    def test_where_its_processes_can_not_be_looked_at_it_is_tried_again(self, made: Made) -> None:
        def alive(*_: object, **__: object) -> list[procs.Process]:
            raise OSError(errno.EMFILE, "too many")

        made.run.alive = alive  # type: ignore[method-assign]
        made.ends.lost(made.run, "gone")
        made.left(made.run, [])
        made.loop.do()
        assert exit_of(made.run)["message"] == "gone"

    def test_pauses_grow(self, made: Made) -> None:
        run = made.run
        made.left(run, [40])
        run.kill_at = 200.0
        made.ends.clean_soon(run)
        before, found = made.now.s, []
        for _ in range(10):
            made.loop.do()
            found.append(round(made.loop.times()[0] - before, 4))
            before = made.loop.times()[0]
        assert found[:4] == [0.0075, 0.0113, 0.0169, 0.0253]
        assert found[-1] == 0.1

    def test_what_can_not_be_killed_is_named(self, made: Made) -> None:
        run = made.run
        run.ended = {"exit_code": 0, "signal": None, "cpu_s": 1.0, "peak_memory_mib": 2.0}
        run.kill_at, run.message = 80.0, "told to"
        made.left(run, range(40, 46))
        made.now.s = 90.0
        made.ends._clean(run)
        assert run.exit is None
        made.loop.due.clear()
        made.now.s = 90.001
        made.ends._clean(run)
        names = ", ".join(f"{pid} (sh, state D)" for pid in range(40, 45))
        assert run.message == f"told to; processes that SIGKILL does not kill: {names}"
        assert (exit_of(run)["released"], exit_of(run)["at_s"], made.told[-1]) == (False, 990.001, "concluded 7.1")
        assert made.loop.times() == [91.001]
        made.ends._clean(run)
        assert run.message.count("SIGKILL") == 1
        made.left(run, [])
        made.now.s = 95.0
        made.ends._clean(run)
        assert (exit_of(run)["released"], exit_of(run)["at_s"]) == (True, 990.001)
        told = len(made.told)
        made.ends._clean(run)
        assert len(made.told) == told, "it has ended once"
        other = made.job("8.1", left=[40])
        other.ended, other.kill_at = run.ended, 50.0
        made.ends._clean(other)
        assert other.message == "processes that SIGKILL does not kill: 40 (sh, state D)"

    def test_the_tool_that_ends_its_container_is_waited_for_but_not_for_ever(self, made: Made) -> None:
        run = made.run
        run.ended = {"exit_code": 0, "signal": None, "cpu_s": 1.0, "peak_memory_mib": 2.0}
        made.again.helpers[77] = run
        run.kill_at = 90.0
        made.ends._clean(run)
        assert run.exit is None
        made.now.s = 100.001
        made.ends._clean(run)
        assert exit_of(run)["released"]

    def test_orphans_are_its_own_if_no_other_run_is_there(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        me = os.getpid()
        monkeypatch.setattr(procs, "marked", lambda pid, mark: (pid, mark) == (44, b"GPULOOM_GUARD=1"))
        made.table[44] = process(44, ppid=me)  # the guard, which the runner has started
        made.table.update({40: process(40, ppid=me), 41: process(41, ppid=me), 42: process(42, ppid=me)})
        made.table[43] = process(43, ppid=me + 1)
        made.ends.children[41] = made.run
        made.again.helpers[42] = made.run
        assert made.ends._strays(made.run) == [40]
        assert made.ends._strays(made.run, {40: process(40)}) == []
        other = made.job("8.1")
        assert made.ends._strays(made.run) == []
        other.exit = {}
        assert made.ends._strays(made.run) == [40]
        made.run.group = FakeGroup()  # type: ignore[assignment]
        assert made.ends._strays(made.run) == []

    def test_a_deadline_comes_and_is_kept_to(self, made: Made) -> None:
        run = made.run
        made.ends.deadline(run)
        run.deadline = 100.01
        made.ends.deadline(run)
        assert (made.told, made.loop.due) == ([], [])
        run.deadline = 100.001  # as good as now
        made.ends.deadline(run)
        assert (made.told, made.loop.times()) == (["kill 7.1"], [100.1])
        made.now.s = 110.0009
        made.loop.do()
        assert made.loop.times() == [110.1009]
        made.left(run, [40])
        made.now.s = 110.001  # ten seconds later
        made.loop.do()
        assert (run.kill_at, made.loop.times()) == (100.001, [110.1009])
        assert run.ended == {"exit_code": None, "signal": None, "cpu_s": None, "peak_memory_mib": None}
        made.ends.deadline(run)
        assert len(made.loop.due) == 1

    def test_a_kill_that_fails_is_trouble_until_it_works(self, made: Made) -> None:
        fails = [True]

        def kill(strays: object) -> None:
            if fails[0]:
                raise OSError(errno.EMFILE, "too many")

        made.run.kill = kill  # type: ignore[method-assign, assignment]
        made.ends._kill(made.run)
        assert "killing run 7.1" in str(made.loop.troubles)
        fails[0] = False
        made.ends._kill(made.run)
        assert str(made.loop.troubles) == ""
        fails[0] = True
        made.ends._kill(made.run)
        made.run.ended = {"exit_code": 0, "signal": None, "cpu_s": None, "peak_memory_mib": None}
        made.ends._clean(made.run)
        assert (exit_of(made.run)["released"], str(made.loop.troubles)) == (True, ""), "nothing is left to be killed"


class TestAgain:
    def test_of_what_was_asked_the_last_counts(self, made: Made) -> None:
        done: list[int] = []

        def fails(number: int, times: int) -> Callable[[], None]:
            left = [times]

            def action() -> None:
                left[0] -= 1
                if left[0] >= 0:
                    raise OSError(errno.ENOSPC, f"full {number}")
                done.append(number)

            return action

        run = made.run
        made.again.do(run, "notice", fails(1, 1))
        made.again.do(run, "exit.json", fails(2, 1))
        made.again.do(run, "notice", fails(3, 1))
        assert made.loop.times() == [101.0] * 3
        assert [what for _, _, what in made.loop.due] == [
            f"{run.directory}/{name}" for name in ("notice", "exit.json", "notice")
        ]
        assert "full 3" in str(made.loop.troubles)
        for _ in range(3):
            made.loop.do()
        assert done == [2, 3]
        made.again.do(run, "notice", fails(4, 1))
        run.forgotten = True
        made.loop.do()
        assert done == [2, 3]
        made.again.do(run, "notice", fails(5, 0))
        assert (done, made.loop.due) == ([2, 3, 5], [])
        assert "notice" not in str(made.loop.troubles)

    def test_a_group_is_emptied_and_removed(self, made: Made) -> None:
        group: Any = FakeGroup([OSError(errno.EBUSY, "busy"), False, OSError(errno.EBUSY, "busy"), True], [5])
        made.again.remove_group(group)
        for _ in range(3):
            made.loop.do()
        assert (group.killed, made.loop.due, len(made.logged)) == (1, [], 1)
        assert made.now.s == pytest.approx(100.015)
        first: Any = FakeGroup([True], [5])
        made.again.remove_group(first)
        assert (first.killed, made.loop.due) == (1, [])
        stays: Any = FakeGroup([OSError(errno.EBUSY, "busy")])
        made.logged.clear()
        began = made.now.s
        made.again.remove_group(stays)
        count = 0
        while made.loop.due:
            made.loop.do()
            count += 1
        assert (stays.killed, count, len(made.logged)) == (0, 200, 2)
        assert made.logged[0].startswith("can't remove a control group: ")
        assert made.now.s - began == pytest.approx(20 * 0.005 + 180 * 0.25)

    def test_a_container_tool(self, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        begun: list[tuple[str, ...]] = []
        missing = [False]

        def spawn(path: str, argv: tuple[str, ...], env: dict[str, str], **how: Any) -> int:
            if missing[0]:
                raise FileNotFoundError(errno.ENOENT, "No such file")
            assert [action[2] for action in how["file_actions"]] == [0, 1, 2]
            begun.append((path, *argv))
            return 77

        monkeypatch.setattr(os, "posix_spawnp", spawn)
        one = Again(made.loop)
        one.help(made.run, "kill")
        assert begun == []
        made.run.container = ("podman", "gpuloom-7")
        one.help(made.run, "pause")
        assert begun == [("podman", "podman", "pause", "gpuloom-7")]
        assert one.helpers == {77: made.run}
        missing[0] = True
        one.help(made.run, "kill")
        assert (made.logged, made.loop.due) == (["podman kill gpuloom-7: No such file"], [])


class TestLimits:
    def test_time(self, made: Made) -> None:
        stopped: list[tuple[str, str, float, str]] = []
        watch = Limits(
            made.loop,
            made.runs,
            lambda run, reason, grace_s, message: stopped.append((run.name, reason, grace_s, message)),
            lambda run, mib: None,
        )
        run = made.run
        run.started, run.grace_s = 90.0, 5.0
        watch.look(run)
        run.limit_s = 30.0
        run.phase = RunPhase.FROZEN
        watch.look(run)
        run.phase, run.ended = RunPhase.RUNNING, {}
        watch.look(run)
        assert made.loop.due == []
        run.ended = None
        watch.begin(run)
        assert made.loop.times() == [120.0]
        watch.look(run)
        assert made.loop.times() == [120.0]
        run.limit_s = 31.0
        watch.look(run)  # later: it is looked at then, and again
        assert made.loop.times() == [120.0]
        made.loop.do()
        assert (made.loop.times(), stopped) == ([121.0], [])
        made.loop.do()
        assert stopped == [("7.1", "timed_out", 5.0, "it reached its time limit of 31 s")]
        run.limit_s = 40.0
        watch.look(run)
        del made.runs["7.1"]
        made.loop.do()
        assert (len(stopped), made.loop.due) == (1, [])

    def test_memory_is_looked_at_where_no_group_enforces_it(self, made: Made) -> None:
        over: list[tuple[str, float]] = []
        watch = Limits(made.loop, made.runs, lambda *_: None, lambda run, mib: over.append((run.name, mib)))
        enforced, by_us, free = made.run, made.job("8.1", memory_mib=4), made.job("9.1")
        enforced.memory_mib, enforced.group = 4, FakeGroup()  # type: ignore[assignment]
        enforced.group.places = {"memory": "/there"}  # type: ignore[union-attr]
        by_us.group = FakeGroup()  # type: ignore[assignment]
        watch.begin(enforced)
        watch.begin(free)
        assert made.loop.due == []
        watch.begin(by_us)
        watch.begin(by_us)
        assert made.loop.times() == [100.5]
        used: list[float | None] = [None, 5.0]
        by_us.memory_over = lambda everything: used.pop(0)  # type: ignore[method-assign]
        made.loop.do()
        assert (over, made.loop.times()) == ([], [101.0])
        made.loop.do()
        assert (over, made.loop.times()) == ([("8.1", 5.0)], [101.5])
        by_us.ended = {}
        made.loop.do()
        assert made.loop.due == []
        by_us.ended = None
        watch.begin(by_us)
        assert made.loop.times() == [102.0]
