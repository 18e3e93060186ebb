"""A fault at every system call of the runner and of its children: nothing is lost, nothing runs twice, all ends."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from faults import Call, Fault, errnos
from gpuloom.executors import link, procs
from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.port import ExecutorError, RunPhase, RunRequest, RunStatus

RUNNER = Path(__file__).parents[1] / "faulty_runner.py"
WAIT_S = 30.0
SAMPLE = 10
NOT_SEEN = "not seen"


def until(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + WAIT_S
    while not (value := found()):
        assert time.monotonic() < end, f"waited {WAIT_S:g} s for {what}"
        time.sleep(0.005)
    return value


class Story:
    """A short life of a runner: starts, a freeze, a thaw, a limit, a stop, ends, acknowledgements, a take-over.

    As a scheduler does it: what a fault kept from starting is started again under another name.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault | None) -> None:
        self.folder, self.home = folder, folder / "home"
        folder.mkdir()
        self.seen, self.failed, self.over = folder / "seen", folder / "failed", folder / "over"
        written = None if fault is None else Fault(fault.call, fault.errno, until=str(self.over)).written()
        plan: dict[str, Any] = {"seen": str(self.seen), "failed": str(self.failed), "over": str(self.over)}
        # In a file, as each child that is forked has a memory of its own.
        plan |= {"fault": written, "once": fault is not None and not fault.until}
        monkeypatch.setenv("GPULOOM_TEST_FAULTS", json.dumps(plan))
        monkeypatch.setattr(link, "RUNNER", RUNNER)
        self.told: dict[str, RunStatus] = {}
        self.troubles: set[str] = set()
        self.names: dict[str, int] = {}
        self.executor = LocalExecutor(self.home, cgroups="off")

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
        if self.failed.exists() and self.failed.stat().st_size > 200:
            self.over.touch()

    def run(self, job: str, script: str, **more: Any) -> str:
        """Start it, under another name where the surroundings kept it from starting; the name under which it runs."""
        while True:
            self.names[job] = self.names.get(job, 0) + 1
            run = f"{job}.{self.names[job]}"
            directory = str(self.home / "runs" / run)
            argv = ("sh", "-c", f'echo "$GPULOOM_RUN" >> {self.folder}/marks.{job}; {script}')
            env = {"PATH": os.environ["PATH"]}
            fields: dict[str, Any] = {"kind": "cpu", "grace_s": 2.0, **more}
            self.executor.start(RunRequest(run, argv, str(self.folder), env, (0,), (), directory, **fields))
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
        return self.state(run, lambda status: status.exit is not None and status.exit.released)

    def tell(self) -> None:
        self.open()
        quick = self.run("1", "exit 3")
        end = self.ended(quick).exit
        assert end is not None
        assert (end.exit_code, end.reason) in ((3, ""), (None, "lost"))
        freezes = self.run("2", "while [ ! -e go ]; do sleep 0.02; done; exit 4")
        self.executor.freeze(freezes)
        self.state(freezes, lambda s: s.phase in (RunPhase.FROZEN, RunPhase.EXITED))
        self.executor.thaw(freezes)
        self.state(freezes, lambda s: s.phase in (RunPhase.RUNNING, RunPhase.EXITED))
        (self.folder / "go").touch()
        end = self.ended(freezes).exit
        assert end is not None
        assert (end.exit_code, end.reason) in ((4, ""), (None, "lost"))
        stopped = self.run("3", "sleep 60")
        self.executor.stop(stopped, reason="cancelled", grace_s=0.2)
        limited = self.run("4", "sleep 60", limit_s=60.0, grace_s=0.0)
        self.executor.limit(limited, 0.1)
        reasons = [end.reason for run in (stopped, limited) if (end := self.ended(run).exit) is not None]
        assert reasons[0] in ("cancelled", "lost")
        assert reasons[1] in ("timed_out", "lost")
        lasts = self.run("5", "while [ ! -e end ]; do sleep 0.02; done")
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


def told(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault | None) -> Story:
    story = Story(folder, monkeypatch, fault)
    try:
        story.tell()
        story.check()
    except BaseException as error:
        log = story.home / "runner.log"
        error.add_note(f"fault: {fault}\ntold: {story.troubles}\n{log.read_text()[-3000:] if log.exists() else ''}")
        raise
    finally:
        story.close()
    return story


def all_faults(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Fault]:
    """Every call that the story makes, with each errno, once and for as long as nothing is said of it."""
    story = told(folder / "none", monkeypatch, None)
    calls = [Call(*json.loads(line)) for line in sorted(set(story.seen.read_text().splitlines()))]
    assert len(calls) > 60
    return [Fault(call, number, until=until) for call in calls for number in errnos(call) for until in ("", "told")]


@pytest.mark.slow
def test_a_fault_at_some_system_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    every = all_faults(tmp_path, monkeypatch)
    for number, fault in enumerate(random.Random(seed).sample(every, SAMPLE)):
        told(tmp_path / str(number), monkeypatch, fault)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif("GPULOOM_ALL_FAULTS" not in os.environ, reason="half an hour: GPULOOM_ALL_FAULTS=1 runs it")
def test_a_fault_at_every_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, fault in enumerate(all_faults(tmp_path, monkeypatch)):
        told(tmp_path / str(number), monkeypatch, fault)
