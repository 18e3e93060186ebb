"""The parts of the guard: what wakes it, what it ends, how often it starts what has died."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.executors import procs
from gpuloom.executors.guard import alarm, ending, main, pair
from gpuloom.executors.guard.alarm import Alarm, Removal
from gpuloom.executors.guard.ending import Ending
from gpuloom.executors.guard.start import ensure_guard
from gpuloom.executors.lease import LeaseFile, boottime_ns
from gpuloom.executors.port import ExecutorError
from gpuloom.executors.runner.leased import Leased
from gpuloom.executors.runner.restarts import FIRST_S, MOST_S, QUIET_S, Restarts, free, holder, sign, watched
from gpuloom.executors.wire import EXIT_FAULT, EXIT_LOCKED, FENCED_FILE, GUARD_LOCK, LIVE, LOCK, Cause
from gpuloom.node.home import NodeHome
from until import until

SECOND = 10**9
HOME_ID = secrets.token_hex(6)
"""Tests that run at the same time must not end each other's processes."""


@pytest.fixture
def lease(tmp_path: Path) -> LeaseFile:
    file = LeaseFile(str(tmp_path))
    file.make()
    return file


@pytest.fixture
def job() -> Iterator[Any]:
    """Starts processes of runs of a home."""
    started: list[subprocess.Popen[bytes]] = []

    def start(run: str, code: str = "sleep 1000") -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "GPULOOM_RUN": run}
        one = subprocess.Popen(["sh", "-c", code], env=environment, start_new_session=True)
        started.append(one)
        # The pipe that tells Popen of its exec is closed a moment before the new environment can be read.
        until(lambda: b"GPULOOM_RUN" in Path(f"/proc/{one.pid}/environ").read_bytes(), "it runs")
        return one

    yield start
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with what the shell has started
        process.wait()


class TestWaking:
    def test_an_alarm_wakes_at_its_time(self) -> None:
        one = Alarm()
        begin = boottime_ns()
        assert one.wait(begin + SECOND // 20, ()) == set()
        assert boottime_ns() >= begin + SECOND // 20
        assert one.wait(begin, ()) == set(), "one that is past wakes at once"
        os.close(one.fd)

    def test_a_file_wakes_it_before(self) -> None:
        one, (readable, written) = Alarm(), os.pipe()
        os.write(written, b"x")
        assert one.wait(boottime_ns() + 600 * SECOND, [readable]) == {readable}
        for fd in (one.fd, readable, written):
            os.close(fd)

    def test_without_such_a_timer_it_waits_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """For a poll counts no time in which the machine sleeps."""
        waited: list[float] = []

        def poll(milliseconds: float) -> list[object]:
            waited.append(milliseconds)
            return []

        monkeypatch.setattr(select, "poll", lambda: SimpleNamespace(register=print, poll=poll))
        one = Alarm()
        os.close(one.fd)
        monkeypatch.setattr(one, "_libc", SimpleNamespace(timerfd_create=lambda *_: -1))
        one.fd = -1
        one.wait(boottime_ns() + 600 * SECOND, ())
        assert waited == [alarm.WITHOUT_S * 1000 + 1]

    def test_one_whose_file_was_closed_is_made_anew(self) -> None:
        one = Alarm()
        os.close(one.fd)
        one.wait(boottime_ns(), ())
        assert one.fd == -1
        one.wait(boottime_ns(), ())
        assert one.fd >= 0
        os.close(one.fd)

    def test_a_removal_is_heard(self, lease: LeaseFile) -> None:
        one, two = Alarm(), Removal(lease.path)
        two.arm()
        two.arm()
        lease.extend(boottime_ns() + SECOND)
        assert one.wait(boottime_ns(), [two.fd]) == set(), "to write to it is none"
        lease.remove()
        assert one.wait(boottime_ns() + 60 * SECOND, [two.fd]) == {two.fd}
        two.hear()
        two.hear()
        assert one.wait(boottime_ns(), [two.fd]) == set()
        for fd in (one.fd, two.fd):
            os.close(fd)


class TestRestarts:
    def test_pauses_grow_and_end_after_a_quiet_time(self) -> None:
        starts = Restarts()
        now, pauses = 100.0, []
        assert starts.wait_s(now) == 0.0
        for _ in range(9):
            assert starts.due(now)
            assert not starts.due(now)
            pauses.append(starts.wait_s(now))
            now += pauses[-1]
        assert pauses == [FIRST_S, 2.0, 4.0, 8.0, 16.0, 32.0, MOST_S, MOST_S, MOST_S]
        assert starts.due(now + QUIET_S + 1)
        assert starts.wait_s(now + QUIET_S + 1) == FIRST_S

    def test_who_has_a_lock(self, tmp_path: Path) -> None:
        path = str(tmp_path / "lock")
        assert holder(path) is None
        assert free(path)
        lock = os.open(path, os.O_RDWR | os.O_CREAT)
        assert free(path)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not free(path)
        sign(lock, {"standby": 7, "long": "x" * 100})
        sign(lock, {"standby": 8})
        assert holder(path) == {"pid": os.getpid(), "start_ticks": procs.process(os.getpid()).start_ticks, "standby": 8}  # type: ignore[union-attr]
        note = json.loads(Path(path).read_text())
        Path(path).write_text(json.dumps(note | {"start_ticks": 1}))
        assert holder(path) is None, "another process of its number"
        Path(path).write_text("{}")
        assert holder(path) is None
        os.close(lock)

    def test_watching_what_is_gone(self) -> None:
        process = subprocess.Popen(["sleep", "1000"])
        fd = watched(process.pid)
        assert fd is not None
        process.kill()
        assert Alarm().wait(boottime_ns() + 60 * SECOND, [fd]) == {fd}
        os.close(fd)
        assert watched(process.pid) is None, "a zombie"
        process.wait()
        assert watched(process.pid) is None


class TestEnding:
    def ended(self, home: Path, lease: LeaseFile) -> tuple[Ending, list[float]]:
        one, pauses = Ending(str(home), HOME_ID, lease), []
        for _ in range(100):
            pauses.append(one.step())
            if not one.unfinished():
                break
            time.sleep(pauses[-1])
        return one, pauses

    def test_by_their_mark(self, tmp_path: Path, lease: LeaseFile, job: Any) -> None:
        """Also those that ignore SIGTERM, that leave their session, and that fork all the time."""
        lease.extend(boottime_ns() + SECOND // 5)
        ours = job(
            f"{HOME_ID}:1.1", "trap '' TERM; setsid sh -c 'while :; do sleep 0.01; done' & while :; do sleep 0.01; done"
        )
        other, longer = job("g:1.1"), job(f"h{HOME_ID}:1.1")
        time.sleep(0.4)
        _, pauses = self.ended(tmp_path, lease)
        assert ours.wait(60) == -signal.SIGKILL
        assert other.poll() is None
        assert longer.poll() is None
        assert pauses[-1] == ending.OFTEN_S
        told = json.loads((tmp_path / FENCED_FILE).read_text())
        assert told == {"at_s": told["at_s"], "boot_id": procs.boot_id(), "runs": ["1.1"]}
        assert lease.fences() == 1
        assert lease.settled()

    def test_by_what_the_runner_noted(self, tmp_path: Path, lease: LeaseFile, job: Any) -> None:
        """Of a job that clears its environment."""
        leader = job("other:1.1")
        folder = tmp_path / "run"
        for path, data in (
            (tmp_path / LIVE / "1.1", {"directory": str(folder)}),
            (folder / "run.json", self.noted(leader.pid, folder)),
            (tmp_path / LIVE / "bad", {"directory": 7}),
            (tmp_path / LIVE / "none", {}),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(data))
        self.ended(tmp_path, lease)
        assert leader.wait(60) == -signal.SIGKILL

    def noted(self, pid: int, folder: Path, **more: Any) -> dict[str, Any]:
        entry = procs.process(pid)
        assert entry is not None
        return {
            "run": "1.1", "pid": pid, "start_ticks": entry.start_ticks, "boot_id": procs.boot_id(), "started": 1.0,
            "directory": str(folder), "grace_s": 1.0, "limit_s": None, "memory_mib": None, "container": None,
            "gpu_uuids": [], "log_mib": 1.0, "log_files": 1, "cgroup": None, **more,
        }  # fmt: skip

    def test_a_container_by_its_tool(self, tmp_path: Path, lease: LeaseFile, job: Any) -> None:
        tool = tmp_path / "tool"
        tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
        tool.chmod(0o700)
        leader, folder = job("other:1.1"), tmp_path / "run"
        for path, data in (
            (tmp_path / LIVE / "1.1", {"directory": str(folder)}),
            (folder / "run.json", self.noted(leader.pid, folder, container=[str(tool), "name"])),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(data))
        self.ended(tmp_path, lease)
        assert until(lambda: (tmp_path / "asked").exists() and (tmp_path / "asked").read_text()) == "kill name\n"

    def test_nothing_ran(self, tmp_path: Path, lease: LeaseFile) -> None:
        _, pauses = self.ended(tmp_path, lease)
        assert lease.fences() == 0, "before the first lease there is nothing to tell"
        assert not (tmp_path / FENCED_FILE).exists()
        lease.extend(boottime_ns() + SECOND // 5)
        time.sleep(0.3)
        one, pauses = self.ended(tmp_path, lease)
        assert lease.settled()
        assert json.loads((tmp_path / FENCED_FILE).read_text())["runs"] == []
        assert pauses == [ending.OFTEN_S]
        assert [one.step() for _ in range(7)] == [2.0, 4.0, 8.0, 16.0, 32.0, ending.SELDOM_S, ending.SELDOM_S]
        assert lease.fences() == 1
        one.again()
        assert one.step() == ending.OFTEN_S

    def test_what_begins_under_another_lease_is_left_alone(
        self, tmp_path: Path, lease: LeaseFile, job: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The lease is put off, and a run begins, while the guard is looking at all processes."""
        table, looks, started = procs.table, iter(range(1000)), list[subprocess.Popen[bytes]]()
        before = job(f"{HOME_ID}:1.1")

        def slow() -> dict[int, procs.Process]:
            if next(looks) == 1:  # it has stopped the first, and looks whether that had forked
                assert lease.extend(boottime_ns() + 600 * SECOND)
                started.append(job(f"{HOME_ID}:2.1"))
            return table()

        monkeypatch.setattr(procs, "table", slow)
        one = Ending(str(tmp_path), HOME_ID, lease)
        until(lambda: one.step() and not one.unfinished(), "all that ran before has ended")
        assert before.wait(60) == -signal.SIGKILL
        assert started[0].poll() is None
        assert json.loads((tmp_path / FENCED_FILE).read_text())["runs"] == ["1.1"]
        assert lease.fences() == 0, "nothing was ended under this lease"

    def test_it_ends_runs_though_nothing_can_be_written(
        self, tmp_path: Path, lease: LeaseFile, job: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease.extend(boottime_ns() + SECOND // 5)
        ours = job(f"{HOME_ID}:1.1")
        time.sleep(0.3)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(ending, "write_atomic", full)
        self.ended(tmp_path, lease)
        assert ours.wait(60) == -signal.SIGKILL
        assert lease.settled()
        lease.remove()
        one = Ending(str(tmp_path), HOME_ID, lease)
        again = job(f"{HOME_ID}:1.2")
        until(lambda: not one.step() or not one.unfinished())
        assert again.wait(60) == -signal.SIGKILL


class TestStart:
    def test_once_and_gone_with_the_lease(self, tmp_path: Path) -> None:
        pid = ensure_guard(tmp_path)
        assert ensure_guard(tmp_path) == pid
        note = until(lambda: (found := holder(str(tmp_path / GUARD_LOCK))) and found.get("standby") and found)
        assert note["pid"] == pid
        until(lambda: len({os.getsid(pid), os.getsid(note["standby"]), os.getsid(0)}) == 3, "sessions of their own")
        assert LeaseFile(str(tmp_path)).over()
        assert main.main(str(tmp_path), "h") == EXIT_LOCKED
        LeaseFile(str(tmp_path)).remove()
        until(lambda: free(str(tmp_path / GUARD_LOCK)), "the end of both", 10.0)

    def test_where_it_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(ExecutorError, match=r"can't guard .*/file: Not a directory"):
            ensure_guard(tmp_path / "file")
        assert main.main(str(tmp_path / "file"), "h") == EXIT_FAULT

    def test_what_it_loads_is_light(self) -> None:
        code = "import sys; sys.path.append(sys.argv[1]); import gpuloom.executors.guard.main; print(*sys.modules)"
        source = Path(__file__).parents[2] / "src"
        loaded = subprocess.check_output([sys.executable, "-I", "-S", "-c", code, source], text=True).split()
        heavy = {"asyncio", "concurrent.futures", "logging", "pathlib", "subprocess", "threading", "typing"}
        assert heavy & set(loaded) == set()

    @pytest.mark.parametrize(
        ("before", "allowed", "after"),
        [("0", -1000, -1000), ("0", -500, -500), ("0", 0, 0), ("-700", -1000, -1000), ("-600", -500, -600)],
    )
    def test_the_oom_killer(
        self, before: str, allowed: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The best score that may be asked for, and never a worse one."""
        path = tmp_path / "score"
        path.write_text(before)

        def opened(name: str, mode: str = "r") -> Any:
            assert name == "/proc/self/oom_score_adj"
            return path.open() if mode == "r" else Writer()

        class Writer:
            def __enter__(self) -> Writer:
                return self

            def __exit__(self, *_: object) -> None:
                return

            def write(self, text: str) -> None:
                if int(text) < allowed:
                    raise PermissionError
                path.write_text(text)

        monkeypatch.setattr(main, "open", opened, raising=False)
        assert main._protected() == before
        assert int(path.read_text()) == after


class FakeLoop:
    def __init__(self) -> None:
        self.due: list[tuple[float, Any]] = []

    def soon(self, action: Any, what: str) -> None:
        self.after(0.0, action, what)

    def after(self, seconds: float, action: Any, what: str) -> None:
        self.due.append((seconds, action))

    def add(self, fd: int, action: Any, what: str) -> None:
        os.close(fd)
        self.due.append((-1.0, action))

    def do(self) -> list[float]:
        """All that is due now; what is planned then."""
        now, self.due = self.due, []
        for _, action in now:
            action()
        return [seconds for seconds, _ in self.due]


class TestTheRunnersPart:
    def test_without_a_lease_nothing_is_watched(self, tmp_path: Path) -> None:
        loop, over = FakeLoop(), list[int]()
        leased = Leased(str(tmp_path), "h", loop, lambda: over.append(1))  # type: ignore[arg-type]
        leased.look()
        assert loop.due == []
        assert leased.refusal() is None
        assert leased.fences() == 0
        assert not leased.ended(0)

    def test_while_it_is_over(self, tmp_path: Path, lease: LeaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
        loop, over, started = FakeLoop(), list[int](), list[int]()
        leased = Leased(str(tmp_path), "h", loop, lambda: over.append(1))  # type: ignore[arg-type]
        monkeypatch.setattr(leased, "_start", lambda: started.append(1))
        leased.look()
        leased.look()
        assert loop.do() == [1.0, FIRST_S]
        assert (len(over), len(started)) == (1, 1)
        refused = leased.refusal()
        assert refused is not None
        assert refused[0] is Cause.NODE
        assert leased.ended(0)
        lease.extend(boottime_ns() + 100 * SECOND)
        assert leased.refusal() is None
        assert not leased.ended(0)
        lease.count_fence()
        assert leased.ended(0)
        assert not leased.ended(1)
        later, _ = loop.do()
        assert 99 < later <= 100
        assert len(over) == 1
        assert len(started) == 1, "not again so soon"

    def test_a_guard_that_lives_is_watched(self, tmp_path: Path, lease: LeaseFile) -> None:
        loop = FakeLoop()
        leased = Leased(str(tmp_path), "h", loop, lambda: None)  # type: ignore[arg-type]
        lock = os.open(tmp_path / GUARD_LOCK, os.O_RDWR | os.O_CREAT)
        fcntl.flock(lock, fcntl.LOCK_EX)
        sign(lock, {})
        leased._look_at_guard()
        assert [seconds for seconds, _ in loop.due] == [-1.0]
        os.close(lock)
        lease.remove()
        loop.due.clear()
        leased._look_at_guard()
        assert [seconds for seconds, _ in loop.due] == [MOST_S], "a node that has left needs none"

    def test_a_lease_that_cannot_be_read(
        self, tmp_path: Path, lease: LeaseFile, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is started, and nothing ended."""
        leased = Leased(str(tmp_path), "h", FakeLoop(), lambda: None)  # type: ignore[arg-type]

        def fails(*_: object) -> int:
            raise OSError(24, "Too many open files")

        monkeypatch.setattr(leased.file, "_read", fails)
        refused = leased.refusal()
        assert refused is not None
        assert refused[0] is Cause.EXECUTOR
        assert "Too many open files" in refused[1]
        assert leased.fences() == 0
        assert not leased.ended(0)


def test_a_guard_that_cannot_read_the_lease_goes_on(
    tmp_path: Path, lease: LeaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = pair.Guard(str(tmp_path), "h", -1, "0")

    def fails(*_: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(guard, "_look_at_others", lambda: 60.0)
    monkeypatch.setattr(guard._lease, "_read", fails)
    assert [guard._turn() for _ in range(6)] == [0.2, 0.4, 0.8, 1.6, pair.LASTING_S, pair.LASTING_S]
    monkeypatch.undo()
    lease.extend(boottime_ns() + 100 * SECOND)
    monkeypatch.setattr(guard, "_fork", lambda: None)
    me = procs.process(os.getpid())
    assert me is not None
    for damaged in ('{"pid": 1}', json.dumps({"pid": me.pid, "start_ticks": me.start_ticks, "groups": "x"})):
        (tmp_path / LOCK).write_text(damaged)
        guard._faults.clear()
        assert guard._turn() == pair.FAULT_S


def test_a_standby_is_made_where_there_is_none_and_it_is_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = pair.Guard(str(tmp_path), "h", -1, "0")
    guard._signed, guard._runner = True, 3
    made: list[int] = []
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    monkeypatch.setattr(guard, "_fork", lambda: made.append(1))
    for there, due, expected in ((5, True, 0), (None, False, 0), (None, True, 1)):
        guard._other = there
        guard._standbys = SimpleNamespace(due=lambda now, due=due: due, wait_s=lambda now: 7.0)  # type: ignore[assignment]
        assert guard._look_at_others() == (pair.LONGEST_S if there is not None else 7.0)
        assert len(made) == expected


def test_a_guard_without_any_lease_has_nothing_to_do(tmp_path: Path, job: Any) -> None:
    ours = job(f"{HOME_ID}:1.1")
    guard = pair.Guard(str(tmp_path), HOME_ID, -1, "0")
    guard.work()
    assert ours.poll() is None


class TestAbandoned:
    """Guards of a node process that died long ago end with the lease."""

    @pytest.fixture
    def guard(self, tmp_path: Path, lease: LeaseFile, monkeypatch: pytest.MonkeyPatch) -> Iterator[pair.Guard]:
        """One that began long ago, under a lease that was over as long."""
        lock = os.open(tmp_path / GUARD_LOCK, os.O_RDWR | os.O_CREAT)
        one = pair.Guard(str(tmp_path), HOME_ID, lock, "0")
        one._sign()
        monkeypatch.setattr(pair, "boottime_ns", lambda: boottime_ns() + int(pair.ABANDONED_S * SECOND))
        yield one
        os.close(lock)

    def test_the_lease_goes_and_the_guard_with_it(self, guard: pair.Guard, lease: LeaseFile) -> None:
        # On a busy machine a look at the processes may be cut short: it looks again.
        until(lambda: guard._look() is None, "nothing to be left")
        assert not lease.there()
        assert guard._ends()

    def test_a_node_process_that_lives_keeps_its_guard(self, guard: pair.Guard, tmp_path: Path) -> None:
        home = NodeHome(tmp_path)
        held = home.take()
        assert guard._look() is not None
        assert LeaseFile(str(tmp_path)).there()
        os.close(held)
        assert guard._look() is None

    def test_not_before_its_time(self, guard: pair.Guard, lease: LeaseFile) -> None:
        guard._began_ns += SECOND * 5
        assert guard._look() is not None, "its own beginning counts"
        guard._began_ns = 0
        lease.extend(boottime_ns() + SECOND * 5)
        lease.count_fence()
        assert guard._look() is not None
        assert lease.there()

    def test_a_standby_leaves_it_to_the_guard(self, guard: pair.Guard, lease: LeaseFile) -> None:
        guard._late_s = pair.STANDBY_S
        guard._began_ns = 0
        assert guard._look() is not None
        assert lease.there()

    def test_while_something_may_be_left(
        self, guard: pair.Guard, lease: LeaseFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease.extend(boottime_ns() + SECOND // 10)
        with monkeypatch.context() as patched:
            patched.setattr(guard._ending, "step", lambda: 1.0)
            time.sleep(0.2)
            guard._began_ns = 0
            monkeypatch.setattr(pair, "ABANDONED_S", 0.0)
            assert guard._look() is not None, "nobody has said yet that nothing is left"
        guard._scan_s = 0.0
        folder = tmp_path / "run"
        for path, data in (
            (tmp_path / LIVE / "1.1", {"directory": str(folder)}),
            (folder / "run.json", TestEnding().noted(os.getpid(), folder, boot_id="another")),
        ):
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(data))
        assert guard._look() is not None, "a runner has to write down how it ended"
        assert lease.settled()
        (tmp_path / LIVE / "1.1").unlink()
        guard._scan_s = 0.0
        assert guard._look() is None

    def test_a_lease_made_meanwhile_has_a_guard(self, guard: pair.Guard, lease: LeaseFile, tmp_path: Path) -> None:
        """Whoever makes it before the guard's last look is guarded by it, whoever comes later does not find it."""
        path = str(tmp_path / GUARD_LOCK)
        lease.remove()
        assert guard._look() is None
        assert holder(path) is not None
        lease.make()
        assert not guard._ends()
        assert guard._look() is not None
        guard._sign()
        assert holder(path) is not None
        lease.remove()
        assert guard._ends()
        assert holder(path) is None

    def test_two_processes_end_and_others_come(self, tmp_path: Path) -> None:
        """Real ones. However soon after the end of the lease there is another, it has a guard that stays."""
        for _ in range(5):
            pid = ensure_guard(tmp_path)
            assert pid
            LeaseFile(str(tmp_path)).remove()
        pid = ensure_guard(tmp_path)
        assert until(lambda: holder(str(tmp_path / GUARD_LOCK)), "a guard")["pid"] == pid
        code = (
            "import sys; from gpuloom.executors.guard import main, pair; pair.ABANDONED_S = 0.2; "
            "sys.exit(main.main(sys.argv[1], sys.argv[2]))"
        )
        home = tmp_path / "other"
        home.mkdir()
        LeaseFile(str(home)).make()
        subprocess.run([sys.executable, "-c", code, home, HOME_ID], check=True)
        until(lambda: free(str(home / GUARD_LOCK)), "the end of both", 30.0)
        assert not LeaseFile(str(home)).there()
        LeaseFile(str(tmp_path)).remove()
        until(lambda: free(str(tmp_path / GUARD_LOCK)), "the end of both", 30.0)
