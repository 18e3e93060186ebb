"""GPUs kept for a job of a higher priority that waits: backfill across priorities.

The rule is that of EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995): the first job that can't
start gets a reservation at the time when, by the predicted ends of running jobs, its GPUs will be free; others go
before it if they end by then, or take only GPUs that it leaves over. Within one priority the policy decides; between
priorities this does, whatever the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpuloom.core.decision import Reason
from gpuloom.core.job import Job
from gpuloom.core.units import format_duration


@dataclass(slots=True)
class Hold:
    """Jobs of lower priority may start if they end within `within_s` (seconds from now), or on `spare` GPUs in all."""

    job: Job
    within_s: float
    spare: int

    def admitted(self, jobs: Sequence[Job], left_s: Callable[[Job], float]) -> tuple[set[int], dict[int, Reason]]:
        """Who of these may start, and why the others may not. What is spare is taken in the order given."""
        found: set[int] = set()
        out: dict[int, Reason] = {}
        for job in jobs:
            left = left_s(job)
            if left <= self.within_s:
                found.add(job.id)
            elif job.gpus <= self.spare:
                self.spare -= job.gpus
                found.add(job.id)
            else:
                out[job.id] = Reason(
                    "reservation",
                    f"GPUs are kept for job {self.job.id} (priority {self.job.priority}), which is to start in about "
                    f"{format_duration(self.within_s)}; this one would not end before.",
                    {"job": self.job.id, "start_in_s": self.within_s, "runs_s": left},
                )
        return found, out


def hold_for(
    job: Job, free: int, ends: Iterable[tuple[float, int]], before: Hold | None, *, now_s: float
) -> Hold | None:
    """The hold for a job that waits; the stricter of it and the one `before`. None if its GPUs can't come free.

    Args:
        free: GPUs that it could use and nobody has. ends: (predicted end, GPUs that come free then) of running jobs.
    """
    at_s = now_s
    for end_s, gpus in sorted(ends):
        if free >= job.gpus:
            break
        free, at_s = free + gpus, max(end_s, now_s)
    if free < job.gpus or not math.isfinite(at_s):
        return before
    within, spare = at_s - now_s, free - job.gpus
    if before is None:
        return Hold(job, within, spare)
    nearer = before if before.within_s <= within else Hold(job, within, spare)
    return Hold(nearer.job, nearer.within_s, min(before.spare, spare))
