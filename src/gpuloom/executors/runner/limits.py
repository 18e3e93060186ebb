"""The limits of a run: its time, and its memory where no control group enforces that."""

from __future__ import annotations

import math
import time
from functools import partial

from gpuloom.core.end_reason import EndReason
from gpuloom.executors import procs
from gpuloom.executors.runner.loop import Loop
from gpuloom.executors.wire import RunPhase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpuloom.executors.runner.life import RunningJob

MEMORY_LOOK_S = 0.5


class Limits:
    """runs: those that there are. stop: ends a run: (run, reason, grace, message). over_memory: (run, MiB it uses)."""

    def __init__(
        self,
        loop: Loop,
        runs: Mapping[str, RunningJob],
        stop: Callable[[RunningJob, str, float, str], None],
        over_memory: Callable[[RunningJob, float], None],
    ) -> None:
        self._loop, self._runs, self._stop, self._over_memory = loop, runs, stop, over_memory
        self._memory_due = False
        self._due: dict[str, float] = {}
        """By run, when its time is looked at next: once, however often it is frozen and thawed."""

    def begin(self, run: RunningJob) -> None:
        """From now on."""
        self.look(run)
        if self._watches_memory(run) and not self._memory_due:
            self._memory_due = True
            self._loop.after(MEMORY_LOOK_S, self._look_at_memory, "the memory of jobs")

    def look(self, run: RunningJob) -> None:
        """Whether its time is over; thawing comes here again."""
        if run.limit_s is None or run.phase is not RunPhase.RUNNING or run.ended is not None:
            return
        now = time.monotonic()
        left = run.limit_s - run.running_s(now)
        if left <= 0:
            self._stop(run, EndReason.TIMED_OUT, run.grace_s, f"it reached its time limit of {run.limit_s:g} s")
        elif (due := now + left) < self._due.get(run.name, math.inf):
            self._due[run.name] = due
            # By name: what is left of a run that has ended does not stay in memory until its limit.
            self._loop.at(due, partial(self._look_again, run.name, due), f"the time limit of run {run.name}")

    def _look_again(self, name: str, due: float) -> None:
        if self._due.get(name) == due:
            del self._due[name]
        run = self._runs.get(name)
        if run is not None:
            self.look(run)

    def _watches_memory(self, run: RunningJob) -> bool:
        return run.memory_mib is not None and (run.group is None or "memory" not in run.group.places)

    def _look_at_memory(self) -> None:
        watched = [run for run in self._runs.values() if run.ended is None and self._watches_memory(run)]
        if not watched:
            self._memory_due = False
            return
        everything = procs.table()
        for run in watched:
            used = run.memory_over(everything)
            if used is not None:
                self._over_memory(run, used)
        self._loop.after(MEMORY_LOOK_S, self._look_at_memory, "the memory of jobs")
