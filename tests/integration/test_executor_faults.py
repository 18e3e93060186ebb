"""A fault at every system call of the runner and its children, and of the executor in the scheduler's process: nothing
is lost, nothing runs twice, all ends.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fake_cgroups import carrying
from faults import Call, Fault, Injector, errnos, teller
from gpuloom.core.end_reason import EndReason
from gpuloom.executors import link, procs
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.port import ExecutorError, RunPhase, RunRequest, RunStatus
from until import until

RUNNER = Path(__file__).parents[1] / "faulty_runner.py"
WAIT_S = 30.0
SAMPLE = 10
OURS = ("executors/link.py", "executors/local.py", "executors/verify.py", "executors/procs.py", "executors/wire.py")
OTHER = os.getpid()
"""A process that has nothing to do with the run."""


class Story:
    """A short life of a runner: starts, a freeze, a thaw, a limit, a stop, ends, acknowledgements, a take-over.

    As a scheduler does it: what a fault kept from starting is started again under another name.
    """

    cgroups = "off"
    enough = 200
    """So many failures are enough of them, told or not."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault | None) -> None:
        self.folder, self.home = folder, folder / "home"
        folder.mkdir()
        self.failed, self.over = folder / "failed", folder / "over"
        self.told: dict[str, RunStatus] = {}
        self.troubles: set[str] = set()
        self.names: dict[str, int] = {}
        self.executor = self.made(monkeypatch, fault)

    def made(self, monkeypatch: pytest.MonkeyPatch, fault: Fault | None) -> LocalExecutor:
        self.seen = self.folder / "seen"
        written = None if fault is None else Fault(fault.call, fault.errno, until=str(self.over)).written()
        plan: dict[str, Any] = {"seen": str(self.seen), "failed": str(self.failed), "over": str(self.over)}
        # In a file, as each child that is forked has a memory of its own.
        plan |= {"fault": written, "once": fault is not None and not fault.until}
        plan["groups"] = "" if self.cgroups == "off" else str(self.folder / "cgroup")
        monkeypatch.setenv("GPULOOM_TEST_FAULTS", json.dumps(plan))
        monkeypatch.setattr(link, "RUNNER", RUNNER)
        return LocalExecutor(self.home, cgroups=self.cgroups)

    def calls(self) -> list[Call]:
        """That were made."""
        return [Call(*json.loads(line)) for line in sorted(set(self.seen.read_text().splitlines()))]

    def open(self) -> None:
        """Until it answers: a fault may keep the first runners from beginning."""

        def opened() -> bool:
            try:
                self.executor.open(self._tell, patience_s=2.0)
            except ExecutorError as error:
                self._noted(str(error))
                return False
            return True

        until(opened, "a runner")

    def _tell(self, status: RunStatus) -> None:
        self.told[status.run] = status

    def _noted(self, text: str) -> None:
        if text:
            self.troubles.add(text)
            if self.failed.exists():
                self.over.touch()  # it was told: that is enough of it

    def look(self) -> None:
        self._noted(self.executor.healthy())
        if self.failed.exists() and self.failed.stat().st_size > self.enough:
            self.over.touch()

    def run(self, job: str, script: str, **more: Any) -> str:
        """Start it, under another name where the surroundings kept it from starting; the name under which it runs."""
        while True:
            self.names[job] = self.names.get(job, 0) + 1
            run = f"{job}.{self.names[job]}"
            directory = str(self.home / "runs" / run)
            argv = ("sh", "-c", f'echo "$GPULOOM_RUN" >> {self.folder}/marks.{job}; {script}')
            env = {"PATH": os.environ["PATH"]}
            fields: dict[str, Any] = {"kind": "cpu", "gpu_uuids": (), "grace_s": 2.0, **more}
            self.executor.start(RunRequest(run, argv, str(self.folder), env, (0,), directory=directory, **fields))
            status = self.state(run, lambda s: s.phase is not RunPhase.STARTING)
            if status.exit is None or status.exit.reason != "not_started":
                return run
            assert status.exit.cause in ("executor", "place"), status
            self._noted(status.exit.message)
            self.executor.acknowledge(run)

    def state(self, run: str, true: Callable[[RunStatus], bool]) -> RunStatus:
        def found() -> RunStatus | None:
            self.look()
            status = self.told.get(run)
            return status if status is not None and true(status) else None

        status: RunStatus = until(found, f"run {run}, now {self.told.get(run)}, {self.troubles}")
        return status

    def ended(self, run: str) -> RunStatus:
        """With all of its processes."""
        status = self.state(run, lambda status: status.exit is not None and status.exit.released)
        mark = f"GPULOOM_RUN={self.executor._home_id}:{run}\0".encode()
        # One that was killed a moment ago still has its environment until the kernel has taken its memory.
        until(lambda: not carrying(mark), f"the end of {carrying(mark)}", 15.0)
        return status

    def tell(self) -> None:
        self.open()
        quick = self.run("1", "sleep 60 & exit 3", kind="gpu", gpu_uuids=("GPU-a",))
        end = self.ended(quick).exit
        assert end is not None
        assert (end.exit_code, end.reason) in ((3, None), (None, "lost"))
        freezes = self.run("2", "while [ ! -e go ]; do sleep 0.02; done; exit 4")
        self.executor.freeze(freezes)
        self.state(freezes, lambda s: s.phase in (RunPhase.FROZEN, RunPhase.EXITED))
        self.executor.thaw(freezes)
        self.state(freezes, lambda s: s.phase in (RunPhase.RUNNING, RunPhase.EXITED))
        (self.folder / "go").touch()
        end = self.ended(freezes).exit
        assert end is not None
        assert (end.exit_code, end.reason) in ((4, None), (None, "lost"))
        stopped = self.run("3", "sleep 60")
        self.executor.stop(stopped, reason=EndReason.CANCELLED, grace_s=0.2)
        limited = self.run("4", "sleep 60", limit_s=60.0, grace_s=0.0)
        self.executor.limit(limited, 0.1)
        reasons = [end.reason for run in (stopped, limited) if (end := self.ended(run).exit) is not None]
        assert reasons[0] in ("cancelled", "lost")
        assert reasons[1] in ("timed_out", "lost")
        lasts = self.run("5", "while [ ! -e end ]; do sleep 0.02; done", cpus=1.0, memory_mib=4096)
        with suppress(ProcessLookupError):
            os.kill(int(self.executor._link.hello["pid"]), signal.SIGKILL)
        self.state(lasts, lambda s: True)
        (self.folder / "end").touch()
        self.ended(lasts)
        for run in (quick, freezes, stopped, limited, lasts):
            self.executor.acknowledge(run)
        self.over.touch()
        until(lambda: not self.executor.runs(), "that all is forgotten")
        until(lambda: not self.executor.healthy(), f"that all is well again: {self.executor.healthy()}")

    def play(self) -> None:
        self.tell()
        self.check()

    def check(self) -> None:
        """Each job has run once, whatever happened; two were ended, maybe before they had said so."""
        for job in "12345":
            marks = self.folder / f"marks.{job}"
            count = len(marks.read_text().split()) if marks.exists() else 0
            assert count == 1 or (count == 0 and job in "34"), (job, count)

    def close(self) -> None:
        self.over.touch()
        pid = self.executor._link.hello.get("pid")
        self.executor.close()
        if pid is not None and procs.process(int(pid)) is not None:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


class Groups(Story):
    """With control groups, whose calls fail."""

    cgroups = "v2"

    def calls(self) -> list[Call]:
        return [call for call in super().calls() if call.site.startswith("cgroups.py")]

    def tell(self) -> None:
        super().tell()
        if not self.failed.exists():
            assert self.executor.limits()["freezing"] == "cgroup v2"
            assert not [path for path in (self.folder / "cgroup").rglob("*.*") if path.is_dir()]


class OurSide(Story):
    """The same with a sound runner, where calls of the executor itself fail; one job has a GPU, which others use."""

    enough = 20

    def made(self, monkeypatch: pytest.MonkeyPatch, fault: Fault | None) -> LocalExecutor:
        once = fault is not None and not fault.until
        planned = None if fault is None else Fault(fault.call, fault.errno, until=str(self.over))
        self.injector = Injector(OURS, planned, teller(str(self.failed), str(self.over) if once else ""))
        return LocalExecutor(self.home, cgroups="off", gpu_processes=lambda uuids: {uuid: [OTHER] for uuid in uuids})

    def calls(self) -> list[Call]:
        return sorted(self.injector.calls, key=str)

    def play(self) -> None:
        with self.injector:
            super().play()
            assert self.executor._link._worker.alive
            assert self.executor._check is not None
            assert self.executor._check._worker.alive
            if not self.failed.exists():  # it is a call of the last moment
                self.over.unlink()
            self.executor.close()


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault | None, kind: type[Story] = Story) -> Story:
    story = kind(folder, monkeypatch, fault)
    try:
        story.play()
    except BaseException as error:
        log = story.home / "runner.log"
        error.add_note(f"fault: {fault}\ntold: {story.troubles}\n{log.read_text()[-3000:] if log.exists() else ''}")
        raise
    finally:
        story.close()
    return story


def all_faults(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Story] = Story) -> list[Fault]:
    """Every call that the story makes, with each errno, once and for as long as nothing is said of it."""
    calls = told(folder / "none", monkeypatch, None, kind).calls()
    assert len(calls) > LEAST_CALLS[kind]
    return [Fault(call, number, until=until) for call in calls for number in errnos(call) for until in ("", "told")]


LEAST_CALLS = {Story: 60, OurSide: 20, Groups: 20}


# A runner that was begun, of which `subprocess` could not hear so: the next try finds it at work.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")
KINDS = pytest.mark.parametrize("kind", [Story, OurSide, Groups], ids=["runner", "executor", "groups"])


@pytest.mark.slow
@KINDS
def test_a_fault_at_some_system_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Story]) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    every = all_faults(tmp_path, monkeypatch, kind)
    for number, fault in enumerate(random.Random(seed).sample(every, SAMPLE)):
        told(tmp_path / str(number), monkeypatch, fault, kind)


if "GPULOOM_ALL_FAULTS" in os.environ:  # ten minutes: no test of the suite, and none that it would skip

    @pytest.mark.slow
    @pytest.mark.timeout(3600)
    @KINDS
    def test_a_fault_at_every_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Story]) -> None:
        every = all_faults(tmp_path, monkeypatch, kind)
        for number, fault in enumerate(every):
            told(tmp_path / str(number), monkeypatch, fault, kind)
        print(f"{len({fault.call for fault in every})} calls, {len(every)} faults")
