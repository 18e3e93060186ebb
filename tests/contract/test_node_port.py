"""What every node must do, whoever runs it and wherever it is, with real processes. In three parts: the port, which
each kind of node passes; what a node's `capabilities` say that it can do; and what can be tried only where the node is
this very machine.

To have another kind of node pass, give `TARGETS` a way to make one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import DeviceKind
from gpuloom.executors import procs
from gpuloom.executors.kubernetes.kinds import INDEXED, VOLCANO, JobKind
from gpuloom.executors.kubernetes.marks import host_of
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.local_node import LocalNode
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.node import NodePort, Peer, RunSpec, Weaving
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunStatus
from joined_node import JoinedTarget
from pilot_node import PilotTarget
from pod_node import PodTarget
from slurm_kit import RealSlurm
from tiers import mostly_slow
from until import until

RUN, OTHER = "12.1-9f3a02bc", "12.1.1-9f3a02bc"
PYTHON = (sys.executable, "-I", "-S", "-c")
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
FORKS = """
import os, time
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print(os.getpid(), flush=True)
            time.sleep(600)
        os._exit(0)
time.sleep({sleep})
"""


class Target(Protocol):
    """A node of some kind, for one test.

    runner: the pid of its runner, where that is a process of this machine that may be killed; else None. pods: its runs
    are pods of a cluster, in images of their own.
    """

    pods: bool

    def connect(self) -> NodePort:
        """A port to it that has not been opened, as a scheduler has when it begins. The one before is closed."""
        ...

    @property
    def runner(self) -> int | None: ...


class _Here:
    """This machine, with a runner of its own."""

    pods = False

    def __init__(self, home: Path, mode: str) -> None:
        self.home, self.mode = home, mode
        self.node: LocalNode | None = None
        self._executor: LocalExecutor | None = None

    def connect(self) -> NodePort:
        if self.node is not None:
            self.node.close()
        self._executor = LocalExecutor(self.home, cgroups=self.mode)
        self.node = LocalNode("here", self._executor, self.home / "runs")
        return self.node

    @property
    def runner(self) -> int:
        assert self._executor is not None
        return int(self._executor._link.hello["pid"])


Made = Callable[[Path, pytest.FixtureRequest], AbstractContextManager[Target]]


def _here(mode: str) -> Made:
    @contextmanager
    def made(home: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
        target = _Here(home, mode)
        yield target
        runner = target.runner
        assert target.node is not None
        target.node.close()
        os.kill(runner, signal.SIGKILL)

    return made


@contextmanager
def _joined(home: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    target = JoinedTarget(home)
    try:
        yield target
    finally:
        target.close()


@contextmanager
def _pilot(home: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
    target: PilotTarget = request.getfixturevalue("pilot")
    yield target
    target.clean()


def _pods(kind: JobKind) -> Made:
    @contextmanager
    def made(home: Path, request: pytest.FixtureRequest) -> Iterator[Target]:
        target = PodTarget(home, kind=kind)
        try:
            yield target
        finally:
            target.close()

    return made


TARGETS: dict[str, Made] = {
    "here": _here("auto"),
    "watched": _here("off"),
    "joined": _joined,
    "slurm": _pilot,
    "volcano": _pods(VOLCANO),
    "indexed": _pods(INDEXED),
}
"""By name: a context with a node whose files may lie in this folder."""
QUICK = ("here",)
"""Those that `make quick` tries."""


class Bench:
    """A node, and what it said."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.told: list[RunStatus] = []
        self.node = self.again()

    def again(self) -> NodePort:
        """As another scheduler finds it."""
        self.node = self.target.connect()
        self.told = []
        self.node.open(self.told.append)
        return self.node

    def spec(self, run: str, *command: str, **more: object) -> RunSpec:
        fields: dict[str, object] = {"gpus": (0,), "gpu_uuids": (), "kind": DeviceKind.CPU, "grace_s": 5.0, "env": {}}
        return RunSpec(run, command, "/", **{**fields, **more})  # type: ignore[arg-type]

    def start(self, run: str, *command: str, **more: object) -> RunStatus:
        """Start it, and wait until its program runs, is prepared or can't be."""
        self.node.start(self.spec(run, *command, **more))
        return self.said(run, RunPhase.RUNNING, RunPhase.PREPARED, RunPhase.EXITED)

    def up(self, run: str, code: str, **more: object) -> RunStatus:
        """Start Python code, and wait until it has said something."""
        status = self.start(run, *PYTHON, code, **more)
        until(lambda: self.log(run), f"{run} to be up")
        return status

    def said(self, run: str, *phases: RunPhase) -> RunStatus:
        found: RunStatus = until(
            lambda: next((one for one in self.told if one.run == run and one.phase in phases), None),
            f"{run} to be {' or '.join(phases)}",
        )
        return found

    def end(self, run: str) -> RunExit:
        how = self.said(run, RunPhase.EXITED).exit
        assert how is not None
        assert how.released
        return how

    def known(self, run: str) -> RunStatus | None:
        return next((status for status in self.node.runs() if status.run == run), None)

    def log(self, run: str) -> bytes:
        try:
            return self.node.files.read_log(run)[0]
        except NoLogError:
            return b""

    def finish(self) -> None:
        """End what runs, and see that nothing is left."""
        for status in self.node.runs():
            self.node.stop(status.run, reason=EndReason.CANCELLED, grace_s=0.0)
        until(lambda: all(status.phase is RunPhase.EXITED for status in self.node.runs()), "all runs to end")
        for status in self.node.runs():
            self.node.acknowledge(status.run)
        until(lambda: list(self.node.runs()) == [], "all runs to be forgotten")


@pytest.fixture(scope="module")
def pilot(slurm_there: RealSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PilotTarget]:
    """One pilot of a real Slurm for all tests."""
    target = PilotTarget(tmp_path_factory.mktemp("pilot"), slurm_there)
    try:
        yield target
    finally:
        target.close()


@pytest.fixture(params=mostly_slow(TARGETS, *QUICK))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    with TARGETS[request.param](tmp_path / "node", request) as target:
        bench = Bench(target)
        yield bench
        bench.finish()


def alive(pid: int) -> bool:
    entry = procs.process(pid)
    return entry is not None and not entry.dead


class TestThePort:
    @pytest.mark.parametrize(("code", "how"), [("exit 0", (0, None)), ("exit 7", (7, None)), ("kill -9 $$", (None, 9))])
    def test_a_run_from_its_start_to_its_end(self, bench: Bench, code: str, how: tuple[int, int]) -> None:
        bench.start(RUN, "sh", "-c", code)
        end = bench.end(RUN)
        assert (end.exit_code, end.signal, end.reason) == (*how, None)
        known = bench.known(RUN)
        assert known is not None
        assert known.exit == end
        bench.node.acknowledge(RUN)
        until(lambda: bench.known(RUN) is None, "it to be forgotten")

    def test_its_process_is_known(self, bench: Bench) -> None:
        status = bench.up(RUN, "import time; print('up', flush=True); time.sleep(600)")
        if bench.target.pods:
            assert (status.pid, bench.node.boot_id()) == (None, "")
        else:
            assert status.pid is not None
            assert status.start_ticks is not None
            assert status.boot_id == bench.node.boot_id() != ""
        assert bench.node.healthy() == ""
        assert set(bench.node.limits()) == {"processes", "freezing", "memory", "cpus", "time"}

    def test_started_once_however_often_it_is_asked(self, bench: Bench, tmp_path: Path) -> None:
        for _ in range(3):
            bench.node.start(bench.spec(RUN, "sh", "-c", f"echo x >> {tmp_path}/ran; sleep 0.2"))
        bench.end(RUN)
        bench.node.start(bench.spec(RUN, "sh", "-c", f"echo x >> {tmp_path}/ran"))
        assert bench.node.runs()
        assert (tmp_path / "ran").read_text() == "x\n"

    def test_many_at_once(self, bench: Bench) -> None:
        runs = [f"{job}.1-00" for job in range(40)]
        for run in runs:
            bench.node.start(bench.spec(run, "true"))
        until(lambda: {one.run for one in bench.told if one.exit is not None} == set(runs), "all of them to end")
        assert len([one for one in bench.told if one.exit is not None]) == len(runs)

    @pytest.mark.parametrize(
        ("more", "said"),
        [({"command": ("no-such-program",)}, "no-such-program"), ({"workdir": "/no/such"}, "/no/such"),
         ({"venv": "/no/such/venv"}, "/no/such/venv")],
    )  # fmt: skip
    @pytest.mark.parametrize("hold", [False, True])
    def test_what_can_not_be_started(self, bench: Bench, more: dict[str, object], said: str, hold: bool) -> None:
        spec = bench.spec(RUN, "true", hold=hold)
        fields = {name: getattr(spec, name) for name in RunSpec.__dataclass_fields__}
        bench.node.start(RunSpec(**{**fields, **more}))
        if hold and bench.target.pods and bench.said(RUN, RunPhase.PREPARED, RunPhase.EXITED).exit is None:
            bench.node.go(RUN)  # what is in an image is seen when it begins
        end = bench.end(RUN)
        if bench.target.pods and "workdir" in more:  # a folder that pods don't see plays no part
            assert (end.reason, end.exit_code) == (None, 0)
            return
        assert (end.reason, end.cause, end.exit_code) == (EndReason.NOT_STARTED, Cause.JOB, None)
        assert said in end.message
        known = bench.known(RUN)
        assert known is not None
        assert known.exit == end

    def test_what_it_finds(self, bench: Bench) -> None:
        show = "import json, os; print(json.dumps(dict(os.environ)))"
        own = bench.node.name
        peers = (Peer("there", "10.0.0.1", 1), Peer(own, "10.0.0.2", 1))
        if bench.target.pods:  # they are made once all of them are asked for
            bench.node.start(bench.spec(RUN, *PYTHON, show, peers=peers, port=29500))
        bench.start(OTHER, *PYTHON, show, env={"MINE": "1"}, peers=peers, rank=1, port=29500, resumes=True)
        bench.end(OTHER)
        found = json.loads(bench.log(OTHER))
        kind = bench.target.kind if isinstance(bench.target, PodTarget) else None
        master = "10.0.0.1" if kind is None else host_of("gpuloom-12-1-9f3a02bc", [1, 1], 0, kind)
        wanted = {
            "MINE": "1", "GPULOOM_JOB_ID": "12", "GPULOOM_ATTEMPT": "1", "GPULOOM_GPUS": "1", "GPULOOM_RESUME": "1",
            "GPULOOM_NODE_RANK": "1", "GPULOOM_NODE_COUNT": "2", "MASTER_PORT": "29500",
            "MASTER_ADDR": master,
            "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        assert {name: found.get(name) for name in wanted} == wanted
        assert found["GPULOOM_NODE_NAMES"].split(",") == ["there", own]
        assert found["GPULOOM_RUN_DIR"].endswith("1.1-9f3a02bc")


class TestHolding:
    def test_runs_when_it_is_told_to(self, bench: Bench, tmp_path: Path) -> None:
        prepared = bench.start(RUN, "sh", "-c", f"touch {tmp_path}/ran; exit 3", hold=True)
        assert prepared.phase is RunPhase.PREPARED
        assert not (tmp_path / "ran").exists()
        bench.node.go(RUN)
        bench.node.go(RUN)
        assert bench.end(RUN).exit_code == 3
        assert (tmp_path / "ran").exists()

    def test_told_before_it_is_prepared(self, bench: Bench) -> None:
        bench.node.start(bench.spec(RUN, "true", hold=True))
        bench.node.go(RUN)
        assert bench.end(RUN).exit_code == 0

    def test_stopped_it_never_ran(self, bench: Bench, tmp_path: Path) -> None:
        bench.start(RUN, "touch", f"{tmp_path}/ran", hold=True)
        bench.node.stop(RUN, reason=EndReason.PEER, grace_s=5.0)
        end = bench.end(RUN)
        assert (end.reason, end.exit_code, end.signal) == (EndReason.PEER, None, None)
        assert bench.said(RUN, RunPhase.EXITED).pid is None
        bench.node.go(RUN)
        assert bench.node.runs()  # it has answered all that came before
        assert not (tmp_path / "ran").exists()

    def test_another_scheduler_finds_it(self, bench: Bench) -> None:
        bench.start(RUN, "sh", "-c", "exit 4", hold=True)
        bench.again()
        known = bench.known(RUN)
        if bench.target.pods:  # what has not begun is known once it is asked for again
            assert known is None
        else:
            assert known is not None
            assert known.phase is RunPhase.PREPARED
        bench.node.start(bench.spec(RUN, "sh", "-c", "exit 5", hold=True))
        bench.node.go(RUN)
        assert bench.end(RUN).exit_code == 4


class TestStopping:
    def test_notice(self, bench: Bench) -> None:
        code = (
            "import os, signal, sys, time\n"
            "def stop(*_):\n"
            "    os.write(1, b'noticed %d\\n' % os.path.exists(os.environ['GPULOOM_NOTICE_FILE'])); os._exit(85)\n"
            "signal.signal(signal.SIGTERM, stop)\n"
            "print('up', flush=True)\n"
            "time.sleep(600)"
        )
        bench.up(RUN, code)
        assert bench.node.files.noticed_s(RUN) is None
        bench.node.stop(RUN, reason=EndReason.PREEMPTED, grace_s=30.0)
        end = bench.end(RUN)
        assert (end.exit_code, end.reason) == (85, EndReason.PREEMPTED)
        assert bench.log(RUN) == b"up\nnoticed 1\n"
        noticed = bench.node.files.noticed_s(RUN)
        assert noticed is not None
        assert abs(noticed - end.at_s) < 60.0

    def test_one_that_ignores_it_is_ended_at_the_earlier_deadline(self, bench: Bench) -> None:
        bench.up(RUN, IGNORES)
        bench.node.stop(RUN, reason=EndReason.PREEMPTED, grace_s=60.0)
        bench.said(RUN, RunPhase.STOPPING)
        bench.node.stop(RUN, reason=EndReason.CANCELLED, grace_s=0.2)
        end = bench.end(RUN)
        assert (end.signal, end.reason) == (9, EndReason.PREEMPTED)

    def test_after_its_end_it_is_left_alone(self, bench: Bench) -> None:
        bench.start(RUN, "true")
        end = bench.end(RUN)
        bench.node.stop(RUN, reason=EndReason.CANCELLED, grace_s=0.0)
        bench.node.freeze(RUN)
        bench.node.thaw(RUN)
        known = bench.known(RUN)
        assert known is not None
        assert known.exit == end

    def test_time_limit(self, bench: Bench) -> None:
        # On a busy machine it may be over before it says anything.
        bench.start(RUN, *PYTHON, "import time; time.sleep(600)", limit_s=0.3, grace_s=0.0)
        assert bench.end(RUN).reason is EndReason.TIMED_OUT


class TestOtherSchedulers:
    def test_what_runs_goes_on(self, bench: Bench) -> None:
        before = bench.up(RUN, "import time; print('up', flush=True); time.sleep(600)")
        bench.again()
        known = bench.known(RUN)
        assert known is not None
        assert (known.phase, known.pid, known.start_ticks) == (RunPhase.RUNNING, before.pid, before.start_ticks)
        bench.node.stop(RUN, reason=EndReason.CANCELLED, grace_s=0.0)
        assert bench.end(RUN).reason is EndReason.CANCELLED

    def test_what_ended_is_told_until_it_is_acknowledged(self, bench: Bench) -> None:
        bench.start(RUN, "sh", "-c", "exit 5")
        end = bench.end(RUN)
        bench.again()
        known = bench.known(RUN)
        assert known is not None
        assert known.exit == end
        bench.node.acknowledge(RUN)
        bench.again()
        assert bench.known(RUN) is None


SHOWS = """
import json, os, struct, time
page = os.path.join(os.environ["GPULOOM_DEVICES_DIR"], "page")
said = None
while True:
    head = struct.unpack("=13I", open(page, "rb").read(52))
    now = [head[2], list(head[5 : 5 + head[4]])]
    if now != said:
        said = now
        print(json.dumps(now), flush=True)
    time.sleep(0.02)
"""


class TestWeaving:
    def test_jobs_are_told_who_shares_their_devices(self, bench: Bench) -> None:
        def told(run: str) -> list[object]:
            return [json.loads(line) for line in bench.log(run).splitlines()]

        def weave(*members: int, on: bool) -> None:
            bench.node.weave(Weaving(DeviceKind.CPU, (1, 2), members, on))

        if not bench.node.capabilities().shares:
            weave(12, on=True)  # nobody is to be told
            bench.start(RUN, *PYTHON, "import os; print(os.environ.get('GPULOOM_DEVICES_DIR'))")
            bench.end(RUN)
            assert bench.log(RUN) == b"None\n"
            return
        runs = [(RUN, (2, 1)), ("13.1-00", (1, 2)), ("14.1-00", (1,))]
        for run, gpus in runs:
            bench.start(run, *PYTHON, SHOWS, gpus=gpus)
            until(lambda run=run: told(run) == [[0, []]], f"{run} finds its page")
        weave(13, 12, on=True)
        for run, _ in runs[:2]:
            until(lambda run=run: told(run)[1:] == [[1, [13, 12]]], f"{run} knows of the other")
        bench.again()  # another scheduler says the same, and nothing changes
        weave(13, 12, on=True)
        weave(12, on=False)
        for run, _ in runs[:2]:
            until(lambda run=run: told(run)[2:] == [[0, [12]]], f"{run} knows that it is alone")
        assert told("14.1-00") == [[0, []]], "other devices"

    def test_a_job_without_hooks_has_no_page(self, bench: Bench) -> None:
        show = "import os; print(os.environ.get('GPULOOM_DEVICES_DIR'))"
        bench.start(RUN, *PYTHON, show, hooks=False)
        bench.end(RUN)
        assert bench.log(RUN) == b"None\n"


class TestFiles:
    def test_logs_grow(self, bench: Bench) -> None:
        bench.up(RUN, "import time; print('one', flush=True); time.sleep(600)")
        before = bench.node.files.log_mark(RUN)
        assert before != ()
        assert bench.node.files.log_mark(RUN) == before
        assert bench.node.files.read_log(RUN) == (b"one\n", 4)
        assert bench.node.files.read_log(RUN, 4) == (b"", 4)
        bench.start("13.1-00", *PYTHON, "print('a\\nb\\nc')")
        bench.end("13.1-00")
        assert bench.node.files.read_log("13.1-00", tail_lines=2) == (b"b\nc\n", 6)

    def test_of_a_run_that_never_was(self, bench: Bench) -> None:
        assert bench.node.files.log_mark("99.1") == ()
        assert bench.node.files.progress("99.1") == {}
        assert bench.node.files.noticed_s("99.1") is None
        assert bench.node.files.exit_of("99.1", None, None) is None

    def test_progress(self, bench: Bench) -> None:
        report = "import os; open(os.environ['GPULOOM_PROGRESS_FILE'], 'w').write('{\"step\": 3, \"total_steps\": 4}')"
        bench.start(RUN, *PYTHON, report)
        bench.end(RUN)
        assert bench.node.files.progress(RUN)["step"] == 3

    def test_how_it_ended(self, bench: Bench) -> None:
        status = bench.up(RUN, "import sys; print('up', flush=True); sys.exit(9)")
        end = bench.end(RUN)
        assert bench.node.files.exit_of(RUN, status.pid, status.start_ticks) == end


class TestWhatItCan:
    def test_freeze(self, bench: Bench) -> None:
        if not bench.node.capabilities().freezes:
            bench.up(RUN, IGNORES)
            bench.node.freeze(RUN)
            bench.node.thaw(RUN)
            bench.again()
            assert (known := bench.known(RUN)) is not None
            assert known.phase is RunPhase.RUNNING
            return
        bench.up(RUN, "import time\nwhile True: print('.', end='', flush=True); time.sleep(0.01)")
        bench.node.freeze(RUN)
        bench.said(RUN, RunPhase.FROZEN)
        frozen = bench.log(RUN)
        bench.again()
        known = bench.known(RUN)
        assert known is not None
        assert known.phase is RunPhase.FROZEN
        assert bench.log(RUN) == frozen
        bench.node.thaw(RUN)
        bench.said(RUN, RunPhase.RUNNING)
        until(lambda: bench.log(RUN) != frozen, "it to go on")

    def test_limits_are_changed(self, bench: Bench) -> None:
        if not bench.node.capabilities().limits:
            pytest.skip("it does not change limits")
        bench.up(RUN, IGNORES, limit_s=600.0, grace_s=0.0)
        bench.node.limit(RUN, 0.2)
        assert bench.end(RUN).reason is EndReason.TIMED_OUT

    def test_memory(self, bench: Bench) -> None:
        if not bench.node.capabilities().memory:
            pytest.skip("it does not limit memory")
        eats = "kept = []\nwhile True: kept.append(bytearray(1 << 24))"
        bench.start(RUN, *PYTHON, eats, memory_mib=200)
        assert bench.end(RUN).reason is EndReason.OUT_OF_MEMORY

    @pytest.mark.parametrize("sleep", [0, 600])
    def test_nothing_is_left(self, bench: Bench, sleep: int) -> None:
        if not bench.node.capabilities().kills_all:
            pytest.skip("it does not end all that a run forks")
        bench.start(RUN, *PYTHON, FORKS.format(sleep=sleep))
        if sleep:
            until(lambda: bench.log(RUN).count(b"\n") == 2, "both to be there")
            bench.node.stop(RUN, reason=EndReason.CANCELLED, grace_s=0.1)
        bench.end(RUN)
        assert not [pid for pid in bench.log(RUN).split() if alive(int(pid))]


@pytest.mark.parametrize(
    "bench", mostly_slow([name for name in TARGETS if name not in ("volcano", "indexed")], *QUICK), indirect=True
)
class TestHere:
    """Where its runner is a process of this machine."""

    def kill_runner(self, bench: Bench) -> None:
        runner = bench.target.runner
        if runner is None:
            pytest.skip("its runner can't be killed from here")
        os.kill(runner, signal.SIGKILL)
        until(lambda: not alive(runner), "the runner to be gone")

    def test_runs_go_on_without_the_runner(self, bench: Bench) -> None:
        status = bench.up(RUN, "import time; print('up', flush=True); time.sleep(600)")
        self.kill_runner(bench)
        known = until(lambda: bench.known(RUN), "the next runner")
        assert (known.phase, known.pid) == (RunPhase.RUNNING, status.pid)
        bench.node.stop(RUN, reason=EndReason.CANCELLED, grace_s=0.0)
        assert bench.end(RUN).reason is EndReason.CANCELLED

    def test_what_was_held_never_ran(self, bench: Bench, tmp_path: Path) -> None:
        bench.start(RUN, "touch", f"{tmp_path}/ran", hold=True)
        self.kill_runner(bench)
        end = bench.end(RUN)
        assert (end.reason, end.cause) == (EndReason.NOT_STARTED, Cause.EXECUTOR)
        assert not (tmp_path / "ran").exists()
