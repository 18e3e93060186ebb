"""One run as the runner sees it: its files and its processes, each at the edges of its rules."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.executors import procs
from gpuloom.executors.runner import life
from gpuloom.executors.runner.cgroups import MIB
from gpuloom.executors.runner.life import CONT_SIGNAL, KILL_SIGNAL, ROUNDS, STOP_SIGNAL, RunningJob
from gpuloom.executors.wire import Cause, RunPhase, StartRequest


def entry(
    pid: int, *, ppid: int = 1, group: int = 0, session: int = 0, ticks: int = 50, state: str = "S", pages: int = 0
) -> procs.Process:
    fields = [state, ppid, group or pid, session or pid, *[0] * 15, ticks, 0, pages]
    return procs.Process(pid, f"{pid} (a (b) c) {' '.join(map(str, fields))}".encode())


def pids(found: Iterable[procs.Process]) -> list[int]:
    return sorted(one.pid for one in found)


class FakeGroup:
    """A control group that does what it is told, or not."""

    version = 2

    def __init__(self, places: Any = None, found: Sequence[int] = (), fails: bool = False) -> None:
        self.places = {"": "/there"} if places is None else places
        self.found, self.fails, self.told = list(found), fails, list[str]()

    def exists(self) -> bool:
        return "gone" not in self.places

    def pids(self) -> list[int]:
        return self.found

    def freeze(self) -> None:
        if self.fails:
            raise OSError(errno.EIO, "no")
        self.told.append("freeze")

    def thaw(self) -> None:
        self.told.append("thaw")

    def kill(self) -> None:
        self.told.append("kill")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=100.0)
    fake = SimpleNamespace(monotonic=lambda: now.s, time=lambda: 900.0 + now.s)
    monkeypatch.setattr(life, "time", fake)
    return now


def job(directory: Path, **fields: Any) -> RunningJob:
    asked = {"grace_s": 5.0, "limit_s": 60.0, "memory_mib": 8, "log_mib": 2.0, "log_files": 3, "gpu_uuids": ("g",)}
    return RunningJob(StartRequest("7.2", str(directory), **{**asked, **fields}), "home", "boot")


RUN_JSON = {
    "run": "7.2", "pid": 31, "start_ticks": 50, "boot_id": "boot", "fences": 0, "started": 90.0, "started_s": 990.0,
    "grace_s": 5.0, "limit_s": 60.0, "memory_mib": 8, "container": None, "gpu_uuids": ["g"], "log_mib": 2.0,
    "log_files": 3, "cgroup": None,
}  # fmt: skip


def put(directory: Path, **files: Any) -> None:
    for name, data in files.items():
        (directory / {"run": "run.json", "exit": "exit.json", "state": "state.json"}.get(name, name)).write_text(
            json.dumps(data)
        )


class TestFiles:
    def test_what_is_written_of_a_run(self, tmp_path: Path, clock: SimpleNamespace) -> None:
        run = job(tmp_path)
        run.pid, run.start_ticks, run.started = 31, 50, 90.0
        run.write_run()
        written = {**RUN_JSON, "directory": str(tmp_path), "hold": False, "suspends": False, "rehearse_s": None}
        assert json.loads((tmp_path / "run.json").read_text()) == written
        run.group = FakeGroup()  # type: ignore[assignment]
        run.write_run()
        assert json.loads((tmp_path / "run.json").read_text())["cgroup"] == [2, {"": "/there"}]
        run.reason, run.message = "preempted", "make room"
        run.write_notice()
        notice = {"reason": "preempted", "message": "make room", "deadline_s": 1000.0, "monotonic": 100.0}
        assert json.loads((tmp_path / "notice").read_text()) == notice
        run.deadline = 130.0
        run.write_notice()
        assert json.loads((tmp_path / "notice").read_text()) == {**notice, "deadline_s": 1030.0, "monotonic": 130.0}
        run.frozen_s, run.frozen_since, run.stopped = 3.0, 98.0, True
        run.write_state()
        run.moving, run.away_mib = "resume", 12.0
        run.write_state()
        state = {"frozen_s": 3.0, "frozen_since": 98.0, "stopped": True, "moving": "resume", "away_mib": 12.0}
        tried = {"rehearsing": False, "rehearsed": None, "out_s": 0.0, "leaves": False, "refused": ""}
        assert json.loads((tmp_path / "state.json").read_text()) == state | tried
        run.exit = {"exit_code": 1}
        run.write_exit()
        assert json.loads((tmp_path / "exit.json").read_text()) == {"run": "7.2", "exit": {"exit_code": 1}}

    @pytest.mark.parametrize(
        ("files", "phase", "more"),
        [
            ({}, RunPhase.RUNNING, {"frozen_s": 0.0, "frozen_since": None, "stopped": False, "reason": ""}),
            ({"state": {"frozen_s": 3.0}}, RunPhase.RUNNING, {"frozen_s": 3.0, "frozen_since": None}),
            (
                {"state": {"frozen_s": 3.0, "frozen_since": 95.0, "stopped": True}},
                RunPhase.FROZEN,
                {"frozen_s": 3.0, "frozen_since": 95.0, "stopped": True},
            ),
            (
                {"notice": {"reason": "preempted", "message": "m", "monotonic": 120}},
                RunPhase.STOPPING,
                {"reason": "preempted", "message": "m", "deadline": 120.0},
            ),
            (
                {"notice": {"reason": "x", "message": "", "monotonic": 1}, "state": {"frozen_since": 9.0}},
                RunPhase.FROZEN,
                {"reason": "x"},
            ),
            ({"exit": {"run": "7.2", "exit": {"released": True}}}, RunPhase.EXITED, {"exit": {"released": True}}),
        ],
    )
    def test_what_the_next_runner_finds(
        self, files: dict[str, Any], phase: RunPhase, more: dict[str, Any], tmp_path: Path
    ) -> None:
        put(tmp_path, run={**RUN_JSON, "directory": str(tmp_path)}, **files)
        run = RunningJob.read(str(tmp_path), "home")
        assert run is not None
        assert {name: getattr(run, name) for name in more} == more
        assert (run.phase, run.pid, run.start_ticks, run.started, run.boot) == (phase, 31, 50, 90.0, "boot")
        assert (run.grace_s, run.limit_s, run.memory_mib, run.gpu_uuids) == (5.0, 60.0, 8, ("g",))
        assert (run.log.limit, run.log.keep, run.known) == (2 * MIB, 3, {(31, 50)})
        assert (run.marker, run.group, run.saved) == (b"GPULOOM_RUN=home:7.2", None, True)

    def test_one_that_is_held_has_not_run(self, tmp_path: Path, clock: SimpleNamespace) -> None:
        put(tmp_path, run={**RUN_JSON, "directory": str(tmp_path), "hold": True})
        run = RunningJob.read(str(tmp_path), "home")
        assert run is not None
        assert (run.held, run.phase) == (True, RunPhase.PREPARED)

    def test_a_control_group_that_is_gone_is_no_longer_used(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(life, "Group", lambda version, places: FakeGroup(places))
        for places, there in ({"": "/there"}, True), ({"gone": "/gone"}, False):
            put(tmp_path, run={**RUN_JSON, "directory": str(tmp_path), "cgroup": [2, places], "start_ticks": None})
            run = RunningJob.read(str(tmp_path), "home")
            assert run is not None
            assert (run.group is not None, run.start_ticks) == (there, None)

    def test_of_a_run_that_was_never_begun_only_its_end_is_known(self, tmp_path: Path) -> None:
        assert RunningJob.read(str(tmp_path), "home") is None
        put(tmp_path, exit={"run": "7.2", "exit": {"reason": "not_started"}})
        run = RunningJob.read(str(tmp_path), "home")
        assert run is not None
        assert (run.name, run.phase, run.exit, run.pid) == ("7.2", RunPhase.EXITED, {"reason": "not_started"}, None)

    @pytest.mark.parametrize("data", [{"run": "7.2"}, {**RUN_JSON, "directory": "/", "pid": None}])
    def test_files_that_were_written_over(
        self, data: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        said: list[str] = []
        monkeypatch.setattr(life, "log", said.append)
        put(tmp_path, run=data)
        assert RunningJob.read(str(tmp_path), "home") is None
        assert said[0].startswith(f"{tmp_path}: its files can't be understood (")
        assert said[0].endswith("): it is no longer watched")


class TestWhatItIs:
    def test_to_begin_with(self, tmp_path: Path, clock: SimpleNamespace) -> None:
        run = job(tmp_path, log_mib=0.5)
        assert (run.phase, run.started, run.frozen_s, run.kill_at) == (RunPhase.STARTING, 100.0, 0.0, 0.0)
        assert (run.saved, run.acknowledged, run.forgotten, run.stopped) == (True, False, False, False)
        assert (run.reason, run.cause, run.message, run.log.limit) == ("", Cause.NONE, "", MIB // 2)

    @pytest.mark.parametrize(
        ("exited", "saved", "rest"),
        [
            (None, True, False),
            ({"released": False}, True, False),
            ({"released": True}, False, False),
            ({"released": True}, True, True),
        ],
    )
    def test_at_rest(self, exited: Any, saved: bool, rest: bool, tmp_path: Path) -> None:
        run = job(tmp_path)
        run.exit, run.saved = exited, saved
        assert run.at_rest is rest

    def test_the_time_it_ran(self, tmp_path: Path) -> None:
        run = job(tmp_path)
        run.started, run.frozen_s = 10.0, 2.0
        assert run.running_s(20.0) == 8.0
        run.frozen_since = 15.0
        assert run.running_s(20.0) == 3.0

    def test_what_the_scheduler_is_told(self, tmp_path: Path) -> None:
        run = job(tmp_path)
        run.pid, run.start_ticks, run.phase = 31, 50, RunPhase.RUNNING
        told = {"run": "7.2", "phase": "running", "pid": 31, "start_ticks": 50, "boot_id": "boot", "exit": None}
        moved = {"suspended_mib": None, "moved_s": None, "refused": "", "rehearsal": None}
        assert run.status() == {**told, "gpu_uuids": ("g",), **moved}
        run.away_mib, run.moved_s = 12.0, 1.5
        assert run.status() == {**told, "gpu_uuids": ("g",), **moved, "moved_s": 1.5}  # it is not there yet
        run.phase = RunPhase.FROZEN
        assert run.status()["suspended_mib"] == 12.0
        run.away_mib, run.phase = None, RunPhase.RUNNING
        run.ended = {}
        assert run.status()["phase"] == "stopping"
        run.exit, run.phase = {"released": True}, RunPhase.EXITED
        assert run.status()["phase"] == "exited"

    def test_its_leading_process(self, tmp_path: Path) -> None:
        run = job(tmp_path)
        run.pid, run.start_ticks = 31, 50
        assert run.leads(entry(31))
        assert not run.leads(entry(31, ticks=51))
        assert not run.leads(entry(31, state="Z"))
        assert not run.leads(entry(31, state="X"))
        assert not run.leads(None)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    found: list[tuple[list[int], int]] = []
    monkeypatch.setattr(procs, "send_all", lambda targets, number: found.append((pids(targets), number)))
    return found


class TestProcesses:
    def test_of_a_group_those_that_live(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = job(tmp_path)
        assert run.alive({}) == []
        run.pid = 31
        assert run.alive({31: entry(31)}) == []  # it is not known when it began
        there = {31: entry(31), 32: entry(32, state="Z")}
        monkeypatch.setattr(procs, "process", there.get)
        run.group = FakeGroup(found=[31, 32, 33])  # type: ignore[assignment]
        assert pids(run.alive()) == [31]

    def test_without_a_group_the_table_is_read_unless_it_is_given(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = job(tmp_path)
        run.pid, run.start_ticks = 31, 50
        monkeypatch.setattr(life, "MARKS", SimpleNamespace(of=lambda one: b"", prune=lambda everything: None))
        monkeypatch.setattr(procs, "table", lambda: {31: entry(31), 40: entry(40)})
        assert pids(run.alive()) == [31]
        assert pids(run.alive(strays=[40])) == [31, 40]
        assert pids(run.alive({})) == []

    def test_a_signal_goes_to_the_group_or_to_the_leader(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run, told = job(tmp_path), list[tuple[str, int, int]]()
        there = {31: entry(31)}
        fails = [False]

        def killpg(pid: int, number: int) -> None:
            told.append(("group", pid, number))
            if fails[0]:
                raise ProcessLookupError

        def kill(pid: int, number: int) -> None:
            told.append(("one", pid, number))
            raise PermissionError

        monkeypatch.setattr(procs, "process", there.get)
        monkeypatch.setattr(os, "killpg", killpg)
        monkeypatch.setattr(os, "kill", kill)
        run.signal_group(15)
        run.pid, run.start_ticks = 31, 51
        run.signal_group(15)
        assert told == []
        run.start_ticks = 50
        run.signal_group(15)
        assert told == [("group", 31, 15)]
        fails[0] = True
        run.signal_group(9)
        assert told[1:] == [("group", 31, 9), ("one", 31, 9)]

    def looks(self, run: RunningJob, *found: Sequence[int]) -> list[Sequence[int]]:
        """What each look at its processes finds; the last one for good."""
        left = list(found)
        asked: list[Sequence[int]] = []

        def alive(everything: Any = None, strays: Sequence[int] = ()) -> list[procs.Process]:
            asked.append(strays)
            return [entry(pid) for pid in (left.pop(0) if len(left) > 1 else left[0])]

        run.alive = alive  # type: ignore[method-assign]
        return asked

    def test_all_stand_still_before_they_are_killed(self, tmp_path: Path, sent: list[tuple[list[int], int]]) -> None:
        run = job(tmp_path)
        asked = self.looks(run, [1], [1, 2], [1, 2])
        run.kill([77])
        assert sent == [([1], STOP_SIGNAL), ([2], STOP_SIGNAL), ([1, 2], KILL_SIGNAL)]
        assert asked == [[77]] * 3
        run.group = FakeGroup()  # type: ignore[assignment]
        run.kill()
        assert (run.group.told, len(sent)) == (["kill"], 3)  # type: ignore[union-attr]

    def test_who_makes_new_ones_for_ever_is_given_so_many_rounds(
        self, tmp_path: Path, sent: list[tuple[list[int], int]]
    ) -> None:
        run = job(tmp_path)
        self.looks(run, *[[number] for number in range(1, 100)])
        assert run.freeze()
        assert sent == [([number], STOP_SIGNAL) for number in range(1, ROUNDS + 1)]

    def test_one_that_can_not_be_stopped_keeps_no_other_alive(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, told = job(tmp_path), list[int]()

        def send_all(targets: Iterable[procs.Process], number: int) -> None:
            told.append(number)
            if number == STOP_SIGNAL:
                raise PermissionError

        monkeypatch.setattr(procs, "send_all", send_all)
        asked = self.looks(run, [1])
        with pytest.raises(PermissionError):
            run.kill([5])
        assert (told, asked) == ([STOP_SIGNAL, KILL_SIGNAL], [[5], [5]])

    def test_freezing_and_thawing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: list[tuple[list[int], int]]
    ) -> None:
        run = job(tmp_path)
        self.looks(run, [1])
        stands = [False]
        monkeypatch.setattr(life, "settle", lambda group, timeout_s: stands[0] and timeout_s == 0.25)
        run.group = group = FakeGroup()  # type: ignore[assignment]
        assert not run.freeze()
        stands[0] = True
        assert run.freeze()
        run.thaw()
        assert (group.told, sent, run.stopped) == (["freeze", "freeze", "thaw"], [], False)
        group.fails = True
        assert run.freeze()
        assert (sent, run.stopped) == ([([1], STOP_SIGNAL)], True)
        run.thaw()
        assert (sent[1:], run.stopped, group.told[3:]) == ([([1], CONT_SIGNAL)], False, ["thaw"])
        run.group = None
        run.thaw()
        assert sent[2:] == [([1], CONT_SIGNAL)]

    def test_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        run = job(tmp_path, memory_mib=8)
        pages = MIB // procs.PAGE
        there: list[procs.Process] = []
        run.alive = lambda everything=None, strays=(): there  # type: ignore[method-assign]
        monkeypatch.setattr(procs, "proportional_bytes", lambda pid: (pid + 2) * MIB)
        there[:] = [entry(1, pages=8 * pages)]
        assert (run.memory_over({}), run.peak_mib) == (None, 8.0)
        there[:] = [entry(1, pages=9 * pages)]
        assert (run.memory_over({}), run.peak_mib) == (9.0, 9.0)
        there[:] = [entry(1, pages=5 * pages), entry(2, pages=4 * pages)]
        assert (run.memory_over({}), run.peak_mib) == (None, 9.0)  # what they share counts once: 3 + 4
        there.append(entry(4, pages=1))
        assert (run.memory_over({}), run.peak_mib) == (13.0, 13.0)
        run.memory_mib = None
        assert run.memory_over({}) is None


class TestTable:
    def test_who_belongs_to_a_run(self) -> None:
        marks = SimpleNamespace(of=lambda one: b"M" if one.pid == 60 else b"other", prune=lambda everything: None)
        everything = {
            one.pid: one
            for one in (
                entry(31),
                entry(32, session=31),
                entry(33, group=31, state="Z"),
                entry(34, ppid=32),
                entry(35, ppid=34),
                entry(36, ppid=31, ticks=49),  # older than the run
                entry(37),
                entry(40, ticks=70),
                entry(41, ticks=71),
                entry(50),
                entry(60),
            )
        }

        def found(known: set[tuple[int, int]], strays: Sequence[int] = ()) -> list[int]:
            members = procs.members(
                everything,
                leader=31,
                start_ticks=50,
                marker=b"M",
                marks=marks,
                known=known,
                strays=strays,  # type: ignore[arg-type]
            )
            return pids(members)

        known = {(40, 70), (41, 70)}
        assert found(known, [50]) == [31, 32, 34, 35, 40, 50, 60]
        assert known == {(31, 50), (32, 50), (33, 50), (34, 50), (35, 50), (40, 70), (50, 50), (60, 50)}
        everything[31] = entry(31, ticks=51)  # the number was given again: its session is another one
        assert found(set()) == [60]
        del everything[31]  # the leader went first
        assert found(set()) == [32, 34, 35, 60]

    def test_this_very_process(self) -> None:
        me = procs.table()[os.getpid()]
        assert (me.pid, me.ppid, me.dead) == (os.getpid(), os.getppid(), False)
        assert procs.proportional_bytes(os.getpid()) > MIB
        assert procs.proportional_bytes(1 << 30) == 0
        assert procs.process(1 << 30) is None
        name, value = next((name, value) for name, value in os.environ.items() if name == "PATH")
        assert procs.marked(os.getpid(), f"{name}={value}".encode())

    def test_a_line_of_it(self) -> None:
        one = entry(31, ppid=7, group=8, session=9, ticks=50, state="D", pages=2)
        assert (one.pid, one.name, one.state, one.ppid, one.pgrp, one.session) == (31, "a (b) c", "D", 7, 8, 9)
        assert (one.start_ticks, one.rss, one.dead) == (50, 2 * procs.PAGE, False)

    def test_marks_are_looked_up_once_and_forgotten_now_and_then(self, monkeypatch: pytest.MonkeyPatch) -> None:
        texts = {1: b"GPULOOM_RUN=h:1\0A=b\0", 2: b"A=b\0GPULOOM_RUN=h:2\0", 3: b"XGPULOOM_RUN=h:3\0"}
        asked: list[int] = []

        def environment(pid: int) -> bytes:
            asked.append(pid)
            return texts.get(pid, b"")

        monkeypatch.setattr(procs, "_environment", environment)
        marks = procs.Marks()
        for _ in range(2):
            assert [marks.of(entry(pid)) for pid in (1, 2, 3)] == [b"GPULOOM_RUN=h:1", b"GPULOOM_RUN=h:2", b""]
        assert asked == [1, 2, 3]
        assert procs.marked(1, b"A=b")
        assert procs.marked(1, b"GPULOOM_RUN=h:1")
        assert not procs.marked(1, b"GPULOOM_RUN=h:")
        for pid in range(4, 103):
            marks.of(entry(pid))
        everything = {1: entry(1)}
        marks.prune(everything)
        assert len(marks._found) == 102  # twice as many as there are, and a hundred
        marks.of(entry(103))
        marks.prune(everything)
        assert list(marks._found) == [(1, 50)]

    def test_a_signal_reaches_this_process_or_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[int] = []
        trouble: dict[str, OSError | None] = {"open": None, "send": None}

        def raising(what: str, value: int) -> Callable[..., int]:
            def call(*arguments: int) -> int:
                if (error := trouble[what]) is not None:
                    raise error
                if what == "send":
                    told.append(arguments[1])
                return value

            return call

        closed: list[int] = []
        monkeypatch.setattr(os, "pidfd_open", raising("open", 99), raising=False)
        monkeypatch.setattr(procs.signal, "pidfd_send_signal", raising("send", 0), raising=False)
        monkeypatch.setattr(procs, "process", {5: entry(5)}.get)
        monkeypatch.setattr(procs.os, "close", closed.append)
        assert procs.send(entry(5), 15)
        assert not procs.send(entry(5, ticks=51), 15)
        assert not procs.send(entry(6), 15)
        assert (told, closed) == ([15], [99, 99, 99])
        trouble["send"] = ProcessLookupError()
        assert not procs.send(entry(5), 15)
        for number in (errno.ESRCH, errno.EINVAL):
            trouble["open"] = OSError(number, "gone")
            assert not procs.send(entry(5), 15)
        trouble["open"] = OSError(errno.EMFILE, "too many")
        with pytest.raises(OSError, match="too many"):
            procs.send_all([entry(5), entry(5)], 15)
