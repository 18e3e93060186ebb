"""Runs that are suspended and brought back at random, by the real runner and a driver that fails when told to: frozen,
thawed and rehearsed in any order, while the runner, the program that moves their memory, and they themselves are
killed. None begins anew, nobody is left without a GPU that should have one, and nothing ends without its reason."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from unittest import mock

import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.port import RunPhase
from suspending_kit import Machine, environment, made
from tiers import examples
from until import until

GIB = {"1.1": 3, "2.1": 3, "3.1": 4}
"""What each run has on the GPU of 8 GiB."""
HARMLESS = ("801", "no-lock", "no-checkpoint", "nvml")
"""What the driver may do wrong that costs a program nothing."""
PICK = st.integers(0, 99)


@lru_cache(1)
def library() -> Path:
    folder = Path(mkdtemp())
    made(folder)
    return folder


class Suspending(RuleBasedStateMachine):
    """Plays the scheduler, which gives nobody a GPU that has no room for it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        home = Path(self.folder.name)
        self.patched = mock.patch.dict(os.environ, environment(library(), home / "gpu"))
        self.patched.start()
        self.machine = Machine(home, library())
        self.began: list[str] = []
        self.coming: set[str] = set()
        """Runs that were told to go on."""
        self.going: set[str] = set()
        """Runs that were told to freeze."""
        self.may_end: set[str] = set()
        """Runs of which this test has seen to it that they end."""
        self.wrong: set[str] = set()

    # -- what is so --------------------------------------------------------------------------------------------

    def phase(self, run: str) -> RunPhase | None:
        return self.machine.phase(run)

    def alive(self) -> list[str]:
        return [run for run in self.began if self.phase(run) is not RunPhase.EXITED]

    def holds(self) -> set[str]:
        """Who may have memory on the GPU, or be about to."""
        self.coming = {run for run in self.coming if self.phase(run) is RunPhase.FROZEN}
        return {run for run in self.alive() if self.phase(run) is not RunPhase.FROZEN} | self.coming

    def fits(self, run: str) -> bool:
        return sum(GIB[one] for one in self.holds() | {run}) <= 8

    def refused(self, run: str) -> bool:
        status = self.machine.last(run)
        return status is not None and bool(status.refused)

    def pick(self, number: int, phase: RunPhase) -> str | None:
        there = [run for run in self.alive() if self.phase(run) is phase and run not in self.coming]
        return there[number % len(there)] if there else None

    # -- what happens ------------------------------------------------------------------------------------------

    @initialize(first=st.booleans(), second=st.booleans())
    def begin(self, first: bool, second: bool) -> None:
        self.start(first)
        self.start(second)

    @rule(rehearses=st.booleans())
    def start(self, rehearses: bool) -> None:
        run = next((run for run in GIB if run not in self.began), None)
        if run is not None and self.fits(run):
            rehearse_s = 0.05 if rehearses else None
            self.began.append(run)
            self.machine.start(run, gib=GIB[run], saves=True, rehearse_s=rehearse_s)

    @rule(number=PICK, sees=st.booleans())
    def freeze(self, number: int, sees: bool) -> None:
        if (run := self.pick(number, RunPhase.RUNNING)) and run not in self.going:
            self.going.add(run)
            self.machine.executor.freeze(run)
            if sees:
                self.gone(run)

    def gone(self, run: str) -> None:
        """Wait until it has been suspended, or could not be."""
        until(lambda: self.phase(run) is not RunPhase.RUNNING or self.refused(run), f"{run} to be suspended, or not")
        self.going.discard(run)

    @rule(number=PICK)
    def thaw(self, number: int) -> None:
        run = self.pick(number, RunPhase.FROZEN)
        if run and self.fits(run):
            self.coming.add(run)
            self.machine.executor.thaw(run)

    @rule(number=PICK)
    def stop(self, number: int) -> None:
        if there := self.alive():
            run = there[number % len(there)]
            self.may_end.add(run)
            self.machine.executor.stop(run, reason=EndReason.PREEMPTED, grace_s=5.0)

    @rule(name=st.sampled_from(HARMLESS))
    def goes_wrong(self, name: str) -> None:
        self.machine.wrong(name, wrong=name not in self.wrong)
        self.wrong ^= {name}

    @rule()
    def runner_killed(self) -> None:
        if self.began:
            before = int(self.machine.executor._link.hello["pid"])
            os.kill(before, signal.SIGKILL)
            until(lambda: self.machine.executor._link.hello["pid"] != before, "the next runner")

    @rule()
    def mover_killed(self) -> None:
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = process.cmdline()
                if "suspending.py" in " ".join(words) and any(self.folder.name in word for word in words):
                    process.kill()

    @rule(number=PICK)
    def killed(self, number: int) -> None:
        if (there := self.alive()) and number % 4 == 0:
            run = there[number % len(there)]
            self.may_end.add(run)
            status = self.machine.last(run)
            assert status is not None
            if status.pid:
                with suppress(ProcessLookupError):
                    os.kill(status.pid, signal.SIGKILL)

    @invariant()
    def none_begins_anew(self) -> None:
        for run in self.began:
            words = [int(word) for word in self.machine.log(run) if word.isdigit()]
            assert words == list(range(1, len(words) + 1)), f"{run} began anew"

    @invariant()
    def who_ends_has_a_reason(self) -> None:
        for run in self.began:
            if self.phase(run) is RunPhase.EXITED and run not in self.may_end:
                raise AssertionError(f"{run} ended: {self.machine.last(run)}")

    # -- the end -----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            for name in self.wrong:
                self.machine.wrong(name, wrong=False)
            self._all_go_on()
            self.none_begins_anew()
            self.who_ends_has_a_reason()
        finally:
            for status in self.machine.executor.runs():
                self.machine.executor.stop(status.run, reason=EndReason.CANCELLED, grace_s=0.0)
            until(lambda: all(status.exit for status in self.machine.executor.runs()), "all to end")
            self.machine.executor.close()
            self.patched.stop()
            self.folder.cleanup()

    def _all_go_on(self) -> None:
        """Whoever is there goes on, as soon as there is room: those who are asked to save can, and make it."""
        for run in self.going.copy():
            self.gone(run)
        while there := self.alive():
            before = [self.phase(run) for run in there]
            for run in there:
                if self.phase(run) is RunPhase.FROZEN and run not in self.coming and self.fits(run):
                    self.coming.add(run)
                    self.machine.executor.thaw(run)
            runs = [run for run in there if self.phase(run) is RunPhase.RUNNING]
            if run := next((run for run in runs if run not in self.may_end), ""):
                self._works_and_saves(run)
            else:
                self._something_happens(there, before)

    def _works_and_saves(self, run: str) -> None:
        self.machine.works(run)
        self.may_end.add(run)
        self.machine.executor.stop(run, reason=EndReason.PREEMPTED, grace_s=60.0)
        until(lambda: self.phase(run) is RunPhase.EXITED, f"{run} to save and end")
        assert self.machine.log(run)[-1] == b"saved", f"{run} could not save: {self.machine.last(run)}"

    def _something_happens(self, there: list[str], before: list[RunPhase | None]) -> None:
        until(lambda: [self.phase(run) for run in there] != before, f"anything to happen to {there}")


@pytest.mark.slow
def test_at_random() -> None:
    run_state_machine_as_test(
        Suspending, settings=settings(max_examples=examples(20), stateful_step_count=20, deadline=None)
    )
