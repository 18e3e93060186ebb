"""What every executor of the live scheduler must do, with real processes. Each way to run them passes all of this."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.executors import procs
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.logs import read_log
from gpuloom.executors.port import Cause, ExecutorError, LiveExecutor, RunPhase, RunRequest, RunStatus
from gpuloom.executors.runner import cgroups
from tiers import mostly_slow, slow
from until import until

PYTHON = (sys.executable, "-I", "-S", "-c")
WAIT_S = 20.0
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
BUSY = "print('up', flush=True)\nwhile True: pass"


class Bench:
    """An executor with a home of its own, and what it said."""

    def __init__(self, mode: str, home: Path) -> None:
        self.mode, self.home = mode, home
        self.told: list[RunStatus] = []
        self.executor = self.fresh()

    def fresh(self) -> LocalExecutor:
        """Another executor for the same home, as a scheduler makes when it starts."""
        executor = LocalExecutor(self.home, cgroups=self.mode)
        executor.open(self.told.append)
        self.executor = executor
        return executor

    @property
    def runner(self) -> int:
        return int(self.executor._link.hello["pid"])

    @property
    def marker(self) -> bytes:
        return f"GPULOOM_RUN={self.executor._home_id}:".encode()

    def request(self, run: str, *argv: str, **more: object) -> RunRequest:
        fields: dict[str, object] = {
            "cwd": str(self.home),
            "env": {"PATH": os.environ["PATH"]},
            "gpus": (0,),
            "gpu_uuids": (),
            "kind": "cpu",
            "directory": str(self.home / "runs" / run),
            "grace_s": 5.0,
        }
        return RunRequest(run=run, argv=argv, **{**fields, **more})  # type: ignore[arg-type]

    def start(self, run: str, *argv: str, **more: object) -> RunStatus:
        """Start it, and wait until its program runs or can't."""
        self.executor.start(self.request(run, *argv, **more))
        return until(lambda: self.said(run, RunPhase.RUNNING, RunPhase.EXITED), f"{run} to start")

    def up(self, run: str, code: str, **more: object) -> RunStatus:
        """Start Python code and wait until it has said something."""
        status = self.start(run, *PYTHON, code, **more)
        until(lambda: self.log(run), f"{run} to be up")
        return status

    def said(self, run: str, *phases: RunPhase) -> RunStatus | None:
        return next((status for status in self.told if status.run == run and status.phase in phases), None)

    def ended(self, run: str) -> RunStatus:
        """Its end, which must leave nothing behind."""
        status = until(lambda: self.said(run, RunPhase.EXITED), f"{run} to end")
        assert status.exit is not None
        assert status.exit.released
        return status

    def known(self, run: str) -> RunStatus | None:
        return next((status for status in self.executor.runs() if status.run == run), None)

    def log(self, run: str) -> bytes:
        return read_log(self.home / "runs" / run)[0]

    def pid_of(self, path: Path) -> int:
        return int(until(lambda: path.read_text().strip() if path.exists() else "", str(path)))

    def kill_runner(self) -> None:
        before = self.runner
        os.kill(before, signal.SIGKILL)
        until(lambda: not alive(before), "the runner to be gone")

    def ours(self) -> list[int]:
        """Processes that are left of jobs."""
        found = []
        for entry in procs.table().values():
            try:
                data = Path(f"/proc/{entry.pid}/environ").read_bytes()
            except OSError:
                continue
            if self.marker in data and not entry.dead:
                found.append(entry.pid)
        return found

    def finish(self) -> None:
        """End what runs, and see that nothing is left."""
        for status in self.executor.runs():
            self.executor.stop(status.run, reason=EndReason.CANCELLED, grace_s=0)
        until(lambda: all(status.phase is RunPhase.EXITED for status in self.executor.runs()), "all runs to end")
        for status in self.executor.runs():
            self.executor.acknowledge(status.run)
        assert self.executor.runs() == []
        assert list((self.home / "live").iterdir()) == []
        assert self.ours() == []
        runner = self.runner
        until(lambda: not [entry for entry in procs.table().values() if entry.ppid == runner], "the dead to be reaped")
        groups = cgroups.find(self.executor._home_id, mode=self.mode)
        until(lambda: groups.stale(()) == [], "control groups to be removed")
        for base in set(groups.bases.values()):
            os.rmdir(base)
        self.executor.close()
        os.kill(runner, signal.SIGKILL)


def alive(pid: int) -> bool:
    entry = procs.process(pid)
    return entry is not None and not entry.dead


def idle(pid: int) -> None:
    """Wait until a process does nothing by itself: it is not woken for half a second."""
    status = Path(f"/proc/{pid}/status")

    def wakes() -> int:
        return int(next(line for line in status.read_text().splitlines() if line.startswith("voluntary")).split()[1])

    def rests() -> bool:
        before = wakes()
        time.sleep(0.5)
        return wakes() == before

    until(rests, f"process {pid} to rest")


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _has(mode: str) -> bool:
    found = cgroups.find(f"probe-{os.getpid()}", mode=mode)  # the workers of a test run all look, at the same time
    for place in set(found.bases.values()):
        os.rmdir(place)
    return f"v{found.version}" == mode


MODES = ["auto", "off"]
# Where both versions are there, 'auto' is v1, and what v2 does otherwise is tried as well.
ALL_MODES = [*MODES, *(slow("v2") if _has("v1") and _has("v2") else [])]
every_mode = pytest.mark.parametrize("bench", ALL_MODES, indirect=True)
any_mode = pytest.mark.parametrize("bench", ["auto"], indirect=True)


@pytest.fixture(params=mostly_slow(MODES, "auto"))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(request.param, tmp_path / "home")
    try:
        yield bench
    finally:
        bench.finish()


def _size_of_logs(directory: Path) -> int:
    """Bytes of a run's logs; one may get another name while they are looked at."""
    total = 0
    for path in directory.glob("output.log*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


class TestStarting:
    def test_it_is_the_port(self, bench: Bench) -> None:
        executor: LiveExecutor = bench.executor
        assert executor.healthy() == ""
        assert executor.runs() == []
        assert set(bench.executor.limits()) == {"processes", "freezing", "memory", "cpus", "time"}
        can = bench.executor.capabilities()
        assert can.freezes
        assert can.memory
        assert can.cpus is (not bench.executor.limits()["cpus"].startswith("not enforced"))

    @pytest.mark.parametrize("code", [0, 3, 127])
    def test_exit_codes(self, bench: Bench, code: int) -> None:
        bench.start("1.1", "sh", "-c", f"echo out; echo err >&2; exit {code}")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.signal, ended.reason, ended.message) == (code, None, None, "")
        assert abs(ended.at_s - time.time()) < WAIT_S
        assert bench.log("1.1") == b"out\nerr\n"
        assert [status.phase for status in bench.told] == [RunPhase.RUNNING, RunPhase.EXITED]

    def test_signals(self, bench: Bench) -> None:
        bench.start("1.1", "sh", "-c", "kill -SEGV $$")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.signal, ended.reason) == (None, signal.SIGSEGV, None)

    def test_started_once_however_often_it_is_asked(self, bench: Bench) -> None:
        mark = bench.home / "mark"
        request = bench.request("1.1", "sh", "-c", f"echo x >> {mark}; sleep 0.1")
        for _ in range(3):
            bench.executor.start(request)
        bench.ended("1.1")
        bench.executor.start(request)
        bench.executor.acknowledge("1.1")
        until(lambda: not bench.executor.runs())
        bench.told.clear()
        bench.executor.start(request)  # its files say that it ran, though nobody remembers
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 0
        assert mark.read_text() == "x\n"

    def test_what_a_job_finds(self, bench: Bench) -> None:
        code = (
            "import json, os, signal\n"
            "fds = {}\n"
            "for n in os.listdir('/proc/self/fd'):\n"
            "    try: fds[n] = os.readlink('/proc/self/fd/' + n)\n"
            "    except OSError: pass\n"
            "kept = [int(s) for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)\n"
            "        if signal.getsignal(s) != signal.SIG_DFL]\n"
            "print(json.dumps([dict(os.environ), os.getcwd(), fds, kept, os.getsid(0) == os.getpid()]))"
        )
        more = {"gpus": (2, 5), "gpu_uuids": ("GPU-a", "GPU-b"), "kind": "gpu", "resumes": True, "grace_s": 7.5}
        bench.start("12.3", *PYTHON, code, **more)
        bench.ended("12.3")
        env, cwd, fds, kept, leads = json.loads(bench.log("12.3"))
        directory = str(bench.home / "runs" / "12.3")
        assert {key: env[key] for key in env if key.startswith(("CUDA", "GPULOOM"))} == {
            "CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "GPULOOM_JOB_ID": "12",
            "GPULOOM_ATTEMPT": "3",
            "GPULOOM_RUN": bench.marker.decode().partition("=")[2] + "12.3",
            "GPULOOM_GPUS": "2",
            "GPULOOM_SLOTS": "2,5",
            "GPULOOM_RUN_DIR": directory,
            "GPULOOM_NOTICE_FILE": f"{directory}/notice",
            "GPULOOM_PROGRESS_FILE": f"{directory}/progress.json",
            "GPULOOM_RESUME": "1",
            "GPULOOM_GRACE_S": "7.5",
        }
        assert cwd == str(bench.home)
        assert fds == {"0": "/dev/null", "1": f"{directory}/output.log", "2": f"{directory}/output.log"}
        assert kept == []
        assert leads

    def test_cpu_slots_show_no_gpu(self, bench: Bench) -> None:
        bench.start("1.1", "sh", "-c", 'echo "[$CUDA_VISIBLE_DEVICES] $GPULOOM_RESUME"', gpu_uuids=("GPU-a",))
        bench.ended("1.1")
        assert bench.log("1.1") == b"[] 0\n"

    def test_what_can_not_be_started(self, bench: Bench, tmp_path: Path) -> None:
        plain = tmp_path / "plain"
        plain.write_text("#!/bin/sh\n")
        orphan = tmp_path / "orphan"
        orphan.write_text("#!/no/such/interpreter\n")
        orphan.chmod(0o755)
        odd = tmp_path / "odd"
        odd.write_bytes(b"\1\2\3")
        odd.chmod(0o755)
        for number, (argv, more, text) in enumerate(
            [
                (("no-such-program",), {}, "'no-such-program': not found in PATH"),
                (("/no/such/program",), {}, "'/no/such/program': there is no such file"),
                ((str(plain),), {}, "no permission to execute it"),
                ((str(orphan),), {}, "the interpreter that its first line names does not exist"),
                ((str(odd),), {}, "not a program"),
                (("true",), {"cwd": "/no/such/place"}, "working directory '/no/such/place': No such file"),
                (("echo", "x" * 3_000_000), {}, "too long together"),
            ]
        ):
            run = f"{number}.1"
            bench.start(run, *argv, **more)
            ended = bench.ended(run).exit
            assert ended is not None
            assert (ended.reason, ended.exit_code, ended.signal) == ("not_started", None, None)
            assert text in ended.message
            assert bench.said(run, RunPhase.RUNNING) is None

    def test_names_that_are_refused(self, bench: Bench) -> None:
        for run in ("", "../1", "a b", ".hidden"):
            with pytest.raises(ExecutorError, match="is not a valid name of a run"):
                bench.executor.start(bench.request(run, "true"))
        with pytest.raises(ExecutorError, match="must be absolute"):
            bench.executor.start(bench.request("1.1", "true", directory="runs/1"))
        with pytest.raises(ExecutorError, match="no program"):
            bench.executor.start(bench.request("1.1"))


class TestHolding:
    """A run that is held is prepared, and waits."""

    def held(self, bench: Bench, run: str, *argv: str, **more: object) -> RunStatus:
        bench.executor.start(bench.request(run, *argv, hold=True, **more))
        status = until(lambda: bench.said(run, RunPhase.PREPARED, RunPhase.EXITED), f"{run} to be prepared")
        assert status.phase is RunPhase.PREPARED
        return status

    def test_runs_when_it_is_told_to(self, bench: Bench, tmp_path: Path) -> None:
        prepared = self.held(bench, "1.1", "sh", "-c", f"echo ran; touch {tmp_path}/ran; exit 3")
        assert prepared.pid is not None
        assert not (tmp_path / "ran").exists()
        assert bench.log("1.1") == b""
        bench.executor.freeze("1.1")  # nothing to freeze yet
        bench.executor.go("1.1")
        bench.executor.go("1.1")
        ended = bench.ended("1.1")
        running = bench.said("1.1", RunPhase.RUNNING)
        assert ended.exit is not None
        assert (ended.exit.exit_code, ended.exit.reason) == (3, None)
        assert running is None or (running.pid, running.start_ticks) == (prepared.pid, prepared.start_ticks)
        assert bench.log("1.1") == b"ran\n"
        bench.executor.go("1.1")  # late: it has ended

    def test_told_before_it_is_prepared(self, bench: Bench) -> None:
        bench.executor.start(bench.request("1.1", "true", hold=True))
        bench.executor.go("1.1")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 0

    @pytest.mark.parametrize("grace_s", [0.0, 5.0])
    def test_stopped_it_never_ran(self, bench: Bench, tmp_path: Path, grace_s: float) -> None:
        prepared = self.held(bench, "1.1", "touch", f"{tmp_path}/ran")
        bench.executor.stop("1.1", reason=EndReason.PEER, grace_s=grace_s)
        ended = bench.ended("1.1")
        assert ended.exit is not None
        assert (ended.exit.reason, ended.exit.exit_code, ended.exit.signal) == (EndReason.PEER, None, None)
        assert ended.pid is None
        assert prepared.pid is not None
        gone = prepared.pid
        until(lambda: not alive(gone), "its process to be gone")
        bench.executor.go("1.1")
        assert not (tmp_path / "ran").exists()

    @pytest.mark.parametrize("program", ["no-such-program", "/no/such/program", "/tmp", "/etc/passwd"])
    def test_what_can_not_run_is_told_before(self, bench: Bench, program: str) -> None:
        bench.executor.start(bench.request("1.1", program, hold=True))
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.reason, ended.cause) == (EndReason.NOT_STARTED, Cause.JOB)
        assert ended.message.startswith(f"can't run {program!r}: ")
        bench.executor.start(bench.request("2.1", "true", hold=True, cwd="/no/such/folder"))
        ended = bench.ended("2.1").exit
        assert ended is not None
        assert "working directory" in ended.message

    def test_its_process_is_killed(self, bench: Bench) -> None:
        prepared = self.held(bench, "1.1", "true")
        assert prepared.pid is not None
        os.kill(prepared.pid, signal.SIGKILL)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.reason, ended.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)

    def test_the_scheduler_is_killed(self, bench: Bench) -> None:
        self.held(bench, "1.1", "sh", "-c", "exit 4")
        bench.executor.close()
        bench.fresh()
        known = bench.known("1.1")
        assert known is not None
        assert known.phase is RunPhase.PREPARED
        bench.executor.start(bench.request("1.1", "sh", "-c", "exit 5", hold=True))  # asked again
        bench.executor.go("1.1")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 4

    def test_the_runner_is_killed(self, bench: Bench, tmp_path: Path) -> None:
        prepared = self.held(bench, "1.1", "touch", f"{tmp_path}/ran")
        second = self.held(bench, "2.1", "touch", f"{tmp_path}/ran")
        bench.kill_runner()
        for run in ("1.1", "2.1"):
            ended = bench.ended(run).exit
            assert ended is not None
            assert (ended.reason, ended.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
            bench.executor.go(run)
        for pid in (prepared.pid, second.pid):
            until(lambda pid=pid: not alive(pid), "its process to be gone")
        bench.executor.runs()  # it has answered all that came before
        assert not (tmp_path / "ran").exists()

    def test_a_runner_that_knows_nothing_of_it(self, bench: Bench) -> None:
        """One of an older gpuloom would begin it at once."""
        bench.executor._link.hello = {**bench.executor._link.hello, "holds": False}
        bench.executor.start(bench.request("1.1", "true", hold=True))
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.reason, ended.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
        assert "older gpuloom" in ended.message


class TestLongTimes:
    @pytest.mark.parametrize("long_s", [30 * 86_400.0, 1e12])
    def test_limits_and_graces_beyond_what_epoll_counts(self, bench: Bench, long_s: float) -> None:
        """Whatever waits for long in the runner, other runs go on and end."""
        runner = bench.runner
        bench.start("1.1", *PYTHON, IGNORES, limit_s=long_s, grace_s=long_s)
        idle(runner)  # nothing but the limit is left to wait for: logs are looked at for a while
        bench.start("2.1", "sh", "-c", "exit 3")
        ended = bench.ended("2.1").exit
        assert ended is not None
        assert ended.exit_code == 3
        until(lambda: bench.log("1.1"))
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=long_s)
        bench.start("3.1", "sh", "-c", "exit 4")
        bench.ended("3.1")
        assert bench.said("1.1", RunPhase.EXITED) is None
        assert bench.runner == runner


class TestStopping:
    def test_notice(self, bench: Bench) -> None:
        code = (
            "import os, shutil, signal, sys, time\n"
            "def told(*_):\n"
            "    shutil.copy(os.environ['GPULOOM_NOTICE_FILE'], 'seen')\n"
            "    sys.exit(85)\n"
            "signal.signal(signal.SIGTERM, told)\n"
            "print('up', flush=True)\n"
            "time.sleep(600)"
        )
        bench.up("1.1", code)
        now = time.time()
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=9)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.signal, ended.reason) == (85, None, "preempted")
        notice = json.loads((bench.home / "seen").read_text())
        assert notice["reason"] == "preempted"
        assert now + 8.9 < notice["deadline_s"] < time.time() + 9.1
        assert bench.said("1.1", RunPhase.STOPPING) is not None

    def test_a_job_that_ignores_it_is_ended_at_the_deadline(self, bench: Bench) -> None:
        bench.up("1.1", IGNORES)
        began = time.monotonic()
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0.3)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.signal, ended.reason) == (None, signal.SIGKILL, "cancelled")
        assert time.monotonic() - began > 0.29

    def test_the_earlier_deadline_counts(self, bench: Bench) -> None:
        bench.up("1.1", IGNORES)
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=0.4)
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=600)
        bench.up("2.1", IGNORES)
        bench.executor.stop("2.1", reason=EndReason.PREEMPTED, grace_s=600)
        bench.executor.stop("2.1", reason=EndReason.CANCELLED, grace_s=0)
        for run in ("1.1", "2.1"):
            ended = bench.ended(run).exit
            assert ended is not None
            assert (ended.reason, ended.signal) == ("preempted", signal.SIGKILL)

    def test_after_its_end_it_is_left_alone(self, bench: Bench) -> None:
        bench.start("1.1", "true")
        before = bench.ended("1.1")
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0)
        bench.executor.freeze("1.1")
        bench.executor.thaw("1.1")
        bench.executor.stop("no-such.1", reason=EndReason.CANCELLED, grace_s=0)
        assert bench.known("1.1") == before

    def test_a_deadline_holds_without_a_scheduler(self, bench: Bench) -> None:
        status = bench.up("1.1", IGNORES)
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=0.3)
        bench.executor.close()
        assert status.pid is not None
        until(lambda: not alive(status.pid or 0), "the job to be ended")
        bench.fresh()
        known = until(lambda: bench.known("1.1"))
        until(lambda: (bench.known("1.1") or known).phase is RunPhase.EXITED)

    @pytest.mark.parametrize("frozen", [False, True])
    def test_time_limit(self, bench: Bench, frozen: bool) -> None:
        began = time.monotonic()
        bench.start("1.1", "sleep", "600", limit_s=0.3, grace_s=5)
        if frozen:
            bench.executor.freeze("1.1")
            until(lambda: bench.said("1.1", RunPhase.FROZEN))
            stood = time.monotonic()
            until(lambda: time.monotonic() > stood + 0.5)
            assert bench.said("1.1", RunPhase.EXITED) is None
            began += time.monotonic() - stood
            bench.executor.thaw("1.1")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.reason, ended.signal) == ("timed_out", signal.SIGTERM)
        assert "time limit of 0.3 s" in ended.message
        assert time.monotonic() - began > 0.29

    def test_a_time_limit_is_changed(self, bench: Bench) -> None:
        bench.start("1.1", "sleep", "600", limit_s=0.4)
        bench.start("2.1", "sleep", "600", limit_s=600.0)
        bench.start("3.1", "sleep", "600", limit_s=0.4)
        bench.executor.limit("1.1", None)
        bench.executor.limit("2.1", 0.2)
        bench.executor.limit("3.1", 500.0)
        ended = bench.ended("2.1").exit
        assert ended is not None
        assert ended.reason == "timed_out"
        assert "0.2 s" in ended.message
        bench.kill_runner()  # the next one knows the new limits
        bench.start("4.1", "sleep", "600", limit_s=0.4)
        bench.ended("4.1")  # so the first limit of the third is over, too
        assert {status.run for status in bench.executor.runs() if status.phase is RunPhase.RUNNING} == {"1.1", "3.1"}

    def test_out_of_memory(self, bench: Bench) -> None:
        code = "import time; data = b'x' * (200 << 20); print('got it', flush=True); time.sleep(600)"
        bench.start("1.1", *PYTHON, code, memory_mib=64)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.reason, ended.signal) == ("out_of_memory", signal.SIGKILL)
        assert "64" in ended.message

    def test_memory_within_the_limit(self, bench: Bench) -> None:
        bench.start("1.1", *PYTHON, "data = b'x' * (50 << 20); import time; time.sleep(0.6)", memory_mib=400)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.reason, ended.exit_code) == (None, 0)
        assert ended.peak_memory_mib is not None
        assert ended.peak_memory_mib > 50

    def test_files_that_were_read_are_no_memory_of_the_job(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "data").write_bytes(b"x" * (120 << 20))
        code = "import sys; file = open(sys.argv[1], 'rb')\nwhile file.read(1 << 20): pass"
        bench.start("1.1", *PYTHON, code, str(tmp_path / "data"), memory_mib=2000)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.peak_memory_mib is not None
        assert 1 < ended.peak_memory_mib < 100


@every_mode
class TestTrees:
    """Nothing of a job is left, wherever its processes hide."""

    HIDES = (
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "where = sys.argv[1]\n"
        "def note(name):\n"
        "    with open(f'{where}/{name}.new', 'w') as f: f.write(str(os.getpid()))\n"
        "    os.rename(f'{where}/{name}.new', f'{where}/{name}')\n"
        "if os.fork() == 0:\n"  # a child
        "    note('child'); time.sleep(600)\n"
        "if os.fork() == 0:\n"  # a daemon: another session, another parent
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    note('daemon'); time.sleep(600)\n"
        "if os.fork() == 0:\n"  # a daemon that also sheds its environment
        "    os.setsid()\n"
        "    if os.fork(): os._exit(0)\n"
        "    note('bare'); os.execve('/bin/sleep', ['sleep', '600'], {})\n"
        "names = ['child', 'daemon', 'bare']\n"
        "while not all(os.path.exists(f'{where}/{name}') for name in names): time.sleep(0.005)\n"
        "print('up', flush=True)\n"
    )

    @pytest.mark.parametrize("grace_s", [0.0, 0.2])
    def test_stopped(self, bench: Bench, tmp_path: Path, grace_s: float) -> None:
        status = bench.start("1.1", *PYTHON, self.HIDES + "time.sleep(600)", str(tmp_path))
        until(lambda: bench.log("1.1"))
        pids = [bench.pid_of(tmp_path / name) for name in ("child", "daemon", "bare")]
        assert all(alive(pid) for pid in pids)
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=grace_s)
        bench.ended("1.1")
        assert [pid for pid in [*pids, status.pid or 0] if alive(pid)] == []

    def test_left_behind(self, bench: Bench, tmp_path: Path) -> None:
        """The run ends when its leading process does; what that leaves behind is ended too."""
        bench.start("1.1", *PYTHON, self.HIDES + "sys.exit(4)", str(tmp_path))
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.reason) == (4, None)
        assert [name for name in ("child", "daemon", "bare") if alive(bench.pid_of(tmp_path / name))] == []

    def test_left_behind_may_end_well(self, bench: Bench, tmp_path: Path) -> None:
        code = (
            "import os, signal, sys, time\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    def told(*_): open(sys.argv[1] + '/saved', 'w').close(); os._exit(0)\n"
            "    signal.signal(signal.SIGTERM, told)\n"
            "    print('up', flush=True)\n"
            "    while True: time.sleep(600)\n"
            "while not os.path.getsize('runs/1.1/output.log'): time.sleep(0.005)\n"
        )
        bench.start("1.1", *PYTHON, code, str(tmp_path))
        bench.ended("1.1")
        assert (tmp_path / "saved").exists()

    def test_a_program_of_a_shell_has_the_whole_grace_to_save(self, bench: Bench, tmp_path: Path) -> None:
        """Longer than what else is left behind has: the shell itself dies of the notice at once."""
        code = (
            "import os, signal, time\n"
            "def told(*_): time.sleep(2.5); open(os.environ['SAVED'], 'x').close(); os._exit(85)\n"
            "signal.signal(signal.SIGTERM, told)\n"
            "print('up', flush=True)\n"
            "while True: time.sleep(600)\n"
        )
        saved = tmp_path / "saved"
        command = f"SAVED={shlex.quote(str(saved))} {shlex.join(PYTHON)} {shlex.quote(code)}; echo after"
        bench.start("1.1", "/bin/sh", "-c", command)
        until(lambda: bench.log("1.1"))
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=60)
        ended = bench.ended("1.1").exit
        assert saved.exists()
        assert ended is not None
        assert (ended.reason, ended.signal) == (EndReason.PREEMPTED, signal.SIGTERM)

    def test_one_that_forks_all_the_time(self, bench: Bench) -> None:
        code = (
            "import os, time\n"
            "print('up', flush=True)\n"
            "end = time.monotonic() + 20\n"
            "while time.monotonic() < end:\n"
            "    if os.fork() == 0:\n"
            "        os.setsid()\n"
            "        if os.fork(): os._exit(0)\n"
            "        time.sleep(0.002)\n"  # each generation forks the next and lingers
            "        if os.fork(): time.sleep(0.05); os._exit(0)\n"
            "    else:\n"
            "        os.wait(); time.sleep(0.2)\n"
        )
        bench.up("1.1", code)
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0)
        bench.ended("1.1")
        assert bench.ours() == []

    def test_runs_beside_each_other_are_kept_apart(self, bench: Bench) -> None:
        other = bench.up("2.1", IGNORES)
        bench.up("1.1", IGNORES)
        bench.executor.stop("1.1", reason=EndReason.CANCELLED, grace_s=0)
        bench.ended("1.1")
        assert alive(other.pid or 0)
        assert bench.said("2.1", RunPhase.EXITED) is None


@every_mode
class TestFreezing:
    def test_stands_still_and_goes_on(self, bench: Bench) -> None:
        status = bench.up("1.1", "import os\nos.fork()\n" + BUSY)
        pid = status.pid or 0
        child = until(lambda: next((e.pid for e in procs.table().values() if e.ppid == pid), 0))
        bench.executor.freeze("1.1")
        until(lambda: bench.said("1.1", RunPhase.FROZEN))
        before = [cpu_ticks(pid), cpu_ticks(child)]
        time.sleep(0.15)
        assert [cpu_ticks(pid), cpu_ticks(child)] == before
        known = bench.known("1.1")
        assert known is not None
        assert known.phase is RunPhase.FROZEN
        bench.told.clear()
        bench.executor.thaw("1.1")
        until(lambda: bench.said("1.1", RunPhase.RUNNING))
        until(lambda: cpu_ticks(pid) > before[0] and cpu_ticks(child) > before[1], "it to go on")

    def test_a_frozen_run_gets_its_notice(self, bench: Bench) -> None:
        bench.up("1.1", "import os, signal, time; signal.signal(15, lambda *_: os._exit(85)); print('up', flush=True); "
                        "time.sleep(600)")  # fmt: skip
        bench.executor.freeze("1.1")
        until(lambda: bench.said("1.1", RunPhase.FROZEN))
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=50)  # a busy machine may stand still for a while
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.signal, ended.reason) == (85, None, "preempted")


class TestLogs:
    def test_a_flood_stays_within_bounds(self, bench: Bench) -> None:
        # As fast as it goes, but for a runner that gets no time on a busy machine it waits.
        code = (
            "import os, sys, time\nfor i in range(1, 1200001):\n"
            "    sys.stdout.write(f'{i:09d} {\"x\" * 40}\\n')\n"
            "    while i % 1000 == 0 and os.fstat(1).st_size > 20 << 20: time.sleep(0.001)\n"
        )
        directory = bench.home / "runs" / "1.1"
        bench.start("1.1", *PYTHON, code, log_mib=1, log_files=2)
        most, offset, last, seen = 0, 0, 0, 0
        while True:
            over = bench.said("1.1", RunPhase.EXITED) is not None
            most = max(most, _size_of_logs(directory))
            data, after = read_log(directory, offset, max_bytes=1 << 18)
            assert after >= offset
            start = after - len(data)
            # Offsets count from the first byte: line n (of 51 bytes) begins at 51 (n - 1), but for what was lost while
            # a full file was cut, of which the reader can't know.
            for line in data[(-start) % 51 :].splitlines()[:-1]:
                if len(line) == 50 and line[:9].isdigit() and int(line[:9]) >= last:
                    last = int(line[:9])
                    seen += 1
            offset = after
            if over and not data:
                break
        bench.ended("1.1")
        assert most < 40 << 20, f"{most >> 20} MiB of a log of 61 MB that may have 3"
        assert seen > 1000
        # A line may be torn where the file was cut, be it the last.
        whole = [line for line in read_log(directory, tail_lines=2000)[0].splitlines() if len(line) == 50]
        assert max(int(line[:9]) for line in whole if line[:9].isdigit()) > 1_150_000
        # The last file is as large as a runner without time let it grow; the flood waits at 20 MiB.
        assert _size_of_logs(directory) < 24 << 20

    def test_slow_logs_lose_nothing(self, bench: Bench) -> None:
        directory = bench.home / "runs" / "1.1"
        # What is written at the moment of the cut is lost: on a busy machine that moment may be long.
        code = (
            "import os, time\nfor i in range(60):\n"
            f"    while os.path.exists({str(directory / 'output.log.copy')!r}): time.sleep(0.001)\n"
            "    print(f'{i:04d}', 'x' * 994, flush=True); time.sleep(0.01)\n"
        )
        bench.start("1.1", *PYTHON, code, log_mib=0.01, log_files=20)
        bench.ended("1.1")
        assert (directory / "output.log.2").exists()
        data, end = read_log(directory)
        assert end == len(data) == 60_000
        assert [int(line[:4]) for line in data.splitlines()] == list(range(60))


class TestSurviving:
    def test_the_scheduler_is_killed(self, bench: Bench) -> None:
        script = (
            "import sys, time\nfrom pathlib import Path\n"
            "from gpuloom.executors.local import LocalExecutor\nfrom gpuloom.executors.port import RunRequest\n"
            "home = Path(sys.argv[1])\n"
            "executor = LocalExecutor(home, cgroups=sys.argv[2])\n"
            "executor.open(lambda status: print(status.run, status.phase, flush=True))\n"
            "for run, code in (('1.1', 'while [ ! -e go ]; do sleep 0.01; done; exit 7'), ('2.1', 'exit 5')):\n"
            "    executor.start(RunRequest(run, ('sh', '-c', code), str(home), {'PATH': '/usr/bin:/bin'}, (0,), (),\n"
            "                              str(home / 'runs' / run), kind='cpu'))\n"
            "time.sleep(600)"
        )
        argv = [sys.executable, "-c", script, str(bench.home), bench.mode]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as scheduler:
            assert scheduler.stdout is not None
            lines = [scheduler.stdout.readline() for _ in range(3)]
            scheduler.kill()
        assert sorted(line.split()[0] for line in lines) == ["1.1", "2.1", "2.1"]
        bench.executor.close()
        bench.fresh()
        found = {status.run: status for status in bench.executor.runs()}
        assert found["1.1"].phase is RunPhase.RUNNING
        assert found["2.1"].exit is not None
        assert found["2.1"].exit.exit_code == 5
        (bench.home / "go").touch()
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 7

    def test_the_runner_is_killed(self, bench: Bench) -> None:
        """Its jobs go on; the next runner watches them, but their exit codes only a parent gets."""
        going = bench.up("1.1", IGNORES)
        told = bench.start("2.1", "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done")
        meanwhile = bench.start("3.1", "sleep", "600")
        bench.start("4.1", "sleep", "600", limit_s=1.2)
        before = bench.runner
        os.kill(before, signal.SIGSTOP)  # so that it sees nothing of what follows
        os.kill(meanwhile.pid or 0, signal.SIGKILL)
        bench.kill_runner()
        assert until(lambda: bench.ended("3.1").exit) is not None
        lost = bench.ended("3.1").exit
        assert lost is not None
        assert (lost.reason, lost.exit_code, lost.signal) == ("lost", None, None)
        assert "the runner had been killed" in lost.message
        assert bench.runner != before
        known = bench.known("1.1")
        assert known is not None
        assert (known.phase, known.pid, known.start_ticks) == (RunPhase.RUNNING, going.pid, going.start_ticks)
        assert alive(told.pid or 0)
        (bench.home / "go").touch()
        unseen = bench.ended("2.1").exit
        assert unseen is not None
        assert unseen.reason == "lost"
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=0.2)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.reason == "preempted"
        late = bench.ended("4.1").exit
        assert late is not None
        assert late.reason == "timed_out"
        assert not alive(going.pid or 0)

    def test_what_has_ended_by_itself_was_not_stopped(self, bench: Bench) -> None:
        """The runner hears of both at once, of the stop first: it stood still meanwhile."""
        status = bench.start("1.1", "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done; exit 5")
        os.kill(bench.runner, signal.SIGSTOP)
        try:
            (bench.home / "go").touch()
            until(lambda: not alive(status.pid or 0), "its end")
            bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=1.0)
        finally:
            os.kill(bench.runner, signal.SIGCONT)
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert (ended.exit_code, ended.reason) == (5, None)

    @pytest.mark.parametrize("text", ["{", '{"pid": "x", "boot_id": 3}', "[" * 100_000, None])
    def test_what_a_job_does_to_its_files_costs_no_other_job(self, bench: Bench, text: str | None) -> None:
        spoilt = bench.start("1.1", "sleep", "600")
        other = bench.up("2.1", BUSY)
        for name in ("run.json", "log.json", "state.json"):
            path = bench.home / "runs" / "1.1" / name
            path.unlink(missing_ok=True)
            if text is None:
                os.mkfifo(path)
            else:
                path.write_text(text)
        (bench.home / "runs" / "2.1" / "log.json").write_text('{"generation": "x"}')
        bench.kill_runner()
        known = until(lambda: bench.known("2.1"))
        assert (known.phase, known.pid) == (RunPhase.RUNNING, other.pid)
        bench.start("3.1", "true")
        assert bench.ended("3.1").exit is not None
        assert bench.executor.healthy() == ""
        with suppress(ProcessLookupError):
            os.kill(spoilt.pid or 0, signal.SIGKILL)  # nobody watches it any more
        until(lambda: not alive(spoilt.pid or 0))

    def test_deadlines_and_frozen_runs_survive_the_runner(self, bench: Bench) -> None:
        bench.up("1.1", IGNORES)
        bench.up("2.1", BUSY)
        bench.executor.freeze("2.1")
        until(lambda: bench.said("2.1", RunPhase.FROZEN))
        bench.executor.stop("1.1", reason=EndReason.PREEMPTED, grace_s=0.5)
        until(lambda: bench.said("1.1", RunPhase.STOPPING))
        bench.kill_runner()
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.reason == "preempted"
        known = bench.known("2.1")
        assert known is not None
        assert known.phase is RunPhase.FROZEN
        bench.told.clear()
        bench.executor.thaw("2.1")
        until(lambda: bench.said("2.1", RunPhase.RUNNING))

    def test_what_is_asked_while_no_runner_is_there(self, bench: Bench) -> None:
        os.kill(bench.runner, signal.SIGKILL)
        bench.executor.start(bench.request("1.1", "sh", "-c", "exit 6"))
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 6

    def test_none_runs_twice_whenever_the_runner_is_killed(self, bench: Bench) -> None:
        runs = [f"{number}.1" for number in range(40)]
        for number, run in enumerate(runs):
            bench.executor.start(bench.request(run, "sh", "-c", f"echo {run} >> ran"))
            if number % 8 == 5:
                time.sleep(0.002 * (number // 8))  # at another point of its work each time
                with contextlib.suppress(ProcessLookupError):
                    os.kill(bench.runner, signal.SIGKILL)
        ends = {run: bench.ended(run).exit for run in runs}
        ran = (bench.home / "ran").read_text().split()
        assert len(ran) == len(set(ran))
        for run, ended in ends.items():
            assert ended is not None
            assert (run in ran) if ended.reason is None else ended.reason == "lost"

    def test_another_boot_is_a_loss(self, bench: Bench) -> None:
        status = bench.start("1.1", "true")
        bench.ended("1.1")
        directory = bench.home / "runs" / "1.1"
        (directory / "exit.json").unlink()
        data = json.loads((directory / "run.json").read_text())
        (directory / "run.json").write_text(json.dumps({**data, "boot_id": "another", "pid": os.getpid()}))
        bench.told.clear()
        bench.kill_runner()
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.reason == "lost"
        assert "the machine was restarted" in ended.message
        assert status.boot_id == procs.boot_id() == bench.executor.boot_id()

    @any_mode
    @pytest.mark.parametrize("name", ["live/1.1", "runs/1.1/run.json"])
    def test_files_that_a_power_failure_cut_off(self, bench: Bench, name: str) -> None:
        """The run is not known any more; that the machine was started anew is, to whoever knows where it ran."""
        bench.start("1.1", "true")
        bench.ended("1.1")
        (bench.home / "runs" / "1.1" / "exit.json").unlink()
        (bench.home / name).write_bytes(b"")
        bench.executor.close()
        os.kill(bench.runner, signal.SIGKILL)
        bench.fresh()
        assert bench.executor.runs() == []
        assert bench.executor.boot_id() == procs.boot_id()

    def test_another_process_with_the_same_number(self, bench: Bench) -> None:
        """A pid alone is no identity."""
        bench.start("1.1", "true")
        bench.ended("1.1")
        directory = bench.home / "runs" / "1.1"
        (directory / "exit.json").unlink()
        with subprocess.Popen(["sleep", "600"]) as other:
            data = json.loads((directory / "run.json").read_text())
            entry = procs.process(other.pid)
            assert entry is not None
            later = {**data, "pid": other.pid, "start_ticks": entry.start_ticks - 1}
            (directory / "run.json").write_text(json.dumps(later))
            bench.told.clear()
            bench.kill_runner()
            ended = bench.ended("1.1").exit
            assert ended is not None
            assert ended.reason == "lost"
            assert other.poll() is None
            other.kill()

    def test_acknowledged_runs_are_forgotten(self, bench: Bench) -> None:
        bench.start("1.1", "true")
        bench.ended("1.1")
        bench.executor.close()
        bench.fresh()
        assert [status.run for status in bench.executor.runs()] == ["1.1"]
        bench.executor.acknowledge("1.1")
        assert bench.executor.runs() == []
        bench.kill_runner()
        until(lambda: bench.executor.healthy() == "")
        assert bench.executor.runs() == []
        assert (bench.home / "runs" / "1.1" / "exit.json").exists()

    @any_mode
    def test_a_disk_that_takes_nothing(self, bench: Bench) -> None:
        """A directory in the way stands for it: root writes where a full disk would not let others."""
        (bench.home / "runs" / "1.1" / "exit.json.new").mkdir(parents=True)
        (bench.home / "runs" / "2.1" / "run.json.new").mkdir(parents=True)
        bench.start("1.1", "sh", "-c", "exit 3")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 3
        until(lambda: "exit.json" in bench.executor.healthy(), "the trouble to be told")
        (bench.home / "runs" / "1.1" / "exit.json.new").rmdir()
        until(lambda: bench.executor.healthy() == "", "the trouble to be over")
        assert (bench.home / "runs" / "1.1" / "exit.json").exists()
        bench.start("2.1", "touch", "ran")
        refused = bench.ended("2.1").exit
        assert refused is not None
        assert refused.reason == "not_started"
        assert "run.json" in refused.message
        assert not (bench.home / "ran").exists()

    @any_mode
    def test_many_runs_are_told_at_once(self, bench: Bench) -> None:
        for number in range(60):
            bench.executor.start(bench.request(f"{number}.1", "sleep", "600"))
        until(lambda: sum(status.phase is RunPhase.RUNNING for status in bench.told) == 60)
        bench.executor.close()
        bench.fresh()
        assert len(bench.executor.runs()) == 60


@any_mode
class TestRunner:
    def test_one_for_a_home(self, bench: Bench) -> None:
        first, runner = bench.executor, bench.runner
        second = bench.fresh()
        assert bench.runner == runner
        bench.start("1.1", "true")
        bench.ended("1.1")
        first.close()
        assert [status.run for status in second.runs()] == ["1.1"]

    def test_goes_when_it_is_needed_no_more(self, bench: Bench) -> None:
        runner = bench.runner
        bench.start("1.1", "sleep", "1.5")
        bench.executor.close()
        until(lambda: not alive(runner), "the runner to go")
        bench.fresh()
        known = bench.known("1.1")
        assert known is not None
        assert known.exit is not None
        assert known.exit.exit_code == 0

    def test_leaves_no_control_group(self, bench: Bench) -> None:
        runner, home_id = bench.runner, bench.executor._home_id
        bench.executor.close()
        until(lambda: not alive(runner), "the runner to go")
        # Not by glob, which fails where a group of another test goes meanwhile.
        assert [at for at, _, _ in os.walk("/sys/fs/cgroup") if at.endswith(home_id)] == []
        bench.fresh()

    def test_idles(self, bench: Bench) -> None:
        bench.up("1.1", IGNORES)
        idle(bench.runner)
        status = Path(f"/proc/{bench.runner}/status").read_text()
        size = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
        if "GPULOOM_COVERAGE" not in os.environ:  # which takes memory of its own
            assert int(size) < 20 * 1024


class TestHomes:
    def test_long_homes(self, tmp_path: Path) -> None:
        home = tmp_path / ("long" * 30) / ("longer" * 20)
        bench = Bench("off", home)
        bench.start("1.1", "sh", "-c", "exit 3")
        ended = bench.ended("1.1").exit
        assert ended is not None
        assert ended.exit_code == 3
        bench.finish()
