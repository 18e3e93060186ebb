"""Whether the executor may be asked to start a run. After a start failed by a fault of the environment (a full disk, no
processes), starts are tried one at a time, at growing pauses, until one succeeds."""

from __future__ import annotations

import math

from gpuloom.core.units import format_duration

FIRST_PAUSE_S, MOST_PAUSE_S = 1.0, 30.0
STALE_S = 4 * MOST_PAUSE_S
"""So long after the last failure, with nothing to start meanwhile, it counts no more."""
ASIDE = 1.5
"""A job whose start failed waits for so many of these pauses, so that the next try can be another job's."""


def pause_after(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(FIRST_PAUSE_S * 2.0 ** min(failures - 1, 30), MOST_PAUSE_S)


class Starts:
    """Used by the scheduler's thread alone. problem: '' or why nothing can be started."""

    def __init__(self) -> None:
        self.problem = ""
        self._failures = 0
        self._next_s, self._until_s = -math.inf, math.inf
        self._under_way: set[str] = set()
        self._counted: set[str] = set()
        """Runs that were under way when another failed: their failures are the same one."""
        self._of_job: dict[int, int] = {}

    def asked(self, run: str) -> None:
        """A run is about to be started."""
        self._under_way.add(run)

    def began(self, run: str, job: int) -> None:
        """It runs, or its program can't be run: all that is ours has worked."""
        self._of_job.pop(job, None)
        if run in self._under_way:
            self._under_way.discard(run)
            self._forget()

    def gone(self, run: str, job: int) -> None:
        """It has ended otherwise."""
        self._under_way.discard(run)
        self._of_job.pop(job, None)

    def pause_s(self, run: str, job: int, *, everywhere: bool) -> float:
        """For how long its job is to wait, should its start be one that failed."""
        if everywhere:
            return ASIDE * pause_after(self._failures_with(run))
        return pause_after(self._of_job.get(job, 0) + 1)

    def failed(self, run: str, job: int, now_s: float, *, everywhere: bool, why: str) -> None:
        """It could not be started, and not by its own fault. everywhere: no other job could be started either."""
        failures = self._failures_with(run)
        self._under_way.discard(run)
        self._of_job[job] = self._of_job.get(job, 0) + 1
        if everywhere:
            self._failures, self._counted = failures, set(self._under_way)
            self._next_s, self._until_s = now_s + pause_after(failures), now_s + STALE_S
            self.problem = f"{why} (jobs wait; the next try is within {format_duration(MOST_PAUSE_S)})"

    def _failures_with(self, run: str) -> int:
        return self._failures + (run not in self._counted)

    def allowed(self, now_s: float) -> float:
        """How many may be started now."""
        if self.problem and now_s >= self._until_s and not self._under_way:
            self._forget()  # nothing was there to be started: it is not known any more
        if not self.problem:
            return math.inf
        return 0 if self._under_way or now_s < self._next_s else 1

    def next_s(self, *, waiting: bool) -> float:
        """When to look again; infinity: not before something happens. waiting: something is to be started."""
        if not self.problem or self._under_way:
            return math.inf
        return self._next_s if waiting else self._until_s

    def _forget(self) -> None:
        self.problem, self._failures, self._next_s, self._until_s = "", 0, -math.inf, math.inf
        self._counted.clear()
