"""GPUs kept for a job of a higher priority that waits: backfill across priorities.

The rule is that of EASY backfilling (Lifka, "The ANL/IBM SP Scheduling System", JSSPP 1995): the first job that can't
start gets a reservation at the time when, by the predicted ends of running jobs, its GPUs will be free; others go
before it if they end by then, or take only GPUs that it leaves over. Within one priority the policy decides; between
priorities this does, whatever the policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import Job
from gpuloom.core.units import format_duration
from gpuloom.live.planning.claims import State
from gpuloom.live.planning.estimates import left_s
from gpuloom.live.planning.lasting import lasting
from gpuloom.live.planning.scene import Scene
from gpuloom.live.records.fleet import Slot, slots_of, wanted_types
from gpuloom.placement.shapes import model_allowed


@dataclass(slots=True)
class Reservation:
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
                    WaitCode.RESERVATION,
                    f"GPUs are kept for job {self.job.id} (priority {self.job.priority}), which is expected to start "
                    f"in about "
                    f"{format_duration(self.within_s)}; this job would not end before that.",
                    {"job": self.job.id, "start_in_s": self.within_s, "runs_s": left},
                )
        return found, out


def reservation(
    scene: Scene, job: Job, before: Reservation | None, now_s: float, *, closed: Collection[str] = ()
) -> Reservation | None:
    """What is kept for the first job of a priority that waits on, from all of lower ones.

    Args:
        closed: nodes on which it can't start, as their time with us ends before it would. Nothing is kept for it where
            others do so until its GPUs come free.
    """
    claims = scene.claims
    slots = {slot for slot in scene.open_slots if slot[0] not in closed}
    models = {
        (node.name, gpu.index)
        for node in scene.book.nodes.values()
        for gpu in node.gpus
        if model_allowed(wanted_types(job.spec), gpu.model)
    }
    ends: list[tuple[float, int]] = []
    held: set[Slot] = set()
    for number in {**claims.grants, **scene.book.attempts}:
        attempt = scene.book.attempts.get(number)
        allocation = claims.target(number)
        if allocation is None and attempt is not None and claims.state(number) is not State.FROZEN:
            allocation = attempt.allocation
        if allocation is None:
            continue
        mine = slots & models & set(slots_of(allocation))
        left = 0.0
        if attempt is None or attempt.stop_reason is None:
            known = scene.known(scene.book.jobs[number], allocation, now_s)
            left = left_s(*known[:3]) / known.speed
        ends.append((now_s + left, len(mine - held)))
        held |= mine
    found = _reserved(job, len((slots & models) - held), ends, before, now_s=now_s)
    if found is not None and found.job is job and (then := lasting(scene, [job.id], now_s + found.within_s).tied):
        return found if then[job.id].short == closed else before
    return found


def _reserved(
    job: Job, free: int, ends: Iterable[tuple[float, int]], before: Reservation | None, *, now_s: float
) -> Reservation | None:
    """The reservation for a job that waits; the stricter of it and the one `before`. None if its GPUs can't come free.

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
        return Reservation(job, within, spare)
    nearer = before if before.within_s <= within else Reservation(job, within, spare)
    return Reservation(nearer.job, nearer.within_s, min(before.spare, spare))
