"""A replica of an elastic job that fails by itself is dropped, and the job goes on with the rest.

A *replica that failed* is what is known to have failed apart from others: one process's GPUs where the command runs
once for each GPU (`--per gpu`, executors/direct.py), else all replicas of a member, which are one process tree on one
node. A job that is a single process tree has nobody who could go on: there the end of the program is the job's.

That the program itself is broken looks alike. So it counts as a failure of the job if none of the others was well and
nothing new was done, and if it happens more than `MOST_IN_A_ROW` times without new progress in between.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpuloom.core.job import MAKES_WAY, Allocation, Attempt, EndReason, Job, gpus_in
from gpuloom.core.words import plural
from gpuloom.executors.gang_ends import good
from gpuloom.executors.port import RunExit, RunStatus
from gpuloom.live.dispatch.saved import SAVED, Saved
from gpuloom.live.records.fleet import Slot, slots_of

EVENT = "job.replica_failed"
RESTARTED = "member.restarted"
"""Event: a member failed, and was begun anew within its attempt."""
MOST_IN_A_ROW = 3
"""Failures of replicas without new progress that are forgiven."""
ENDED_IN_ORDER = frozenset({0, SAVED, 143, -15})
"""Exit codes of those who were well when they were told to end; 143, -15: by SIGTERM."""
HEALTHY_S = 600.0
"""Of a job that reports no steps: it has made progress if it ran for so long and saved."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """gpus: of the replicas that failed, of `replicas` in all. kept: what is left of the job's GPUs, in whole replicas
    and in the order of ranks. in_a_row: failures without new progress, this one included. step: the last one that the
    job has ever reported."""

    gpus: tuple[Slot, ...]
    replicas: int
    left: int
    kept: Allocation
    in_a_row: int
    step: float | None

    @property
    def forgiven(self) -> bool:
        """It is no failure of the job."""
        return self.in_a_row <= MOST_IN_A_ROW

    @property
    def text(self) -> str:
        """What is said of it, for people."""
        if not self.forgiven:
            return f"replicas failed {self.in_a_row} times without new progress: that is a failure of the job"
        lost = self.replicas - self.left
        return f"{plural(lost, 'replica')} of {self.replicas} failed; the job goes on"

    def event(self, attempt: int) -> dict[str, Any]:
        """Data of the event."""
        return {
            "attempt": attempt,
            "replicas": self.replicas,
            "left": self.left,
            "gpus": [list(slot) for slot in self.gpus],
            "in_a_row": self.in_a_row,
            "most": MOST_IN_A_ROW,
            "step": self.step,
        }


def dropped(
    job: Job,
    attempt: Attempt,
    status: RunStatus,
    *,
    told: Mapping[str, object],
    before: Mapping[str, Any] | None,
    saves: Saved,
    ran_s: float,
) -> Dropped | None:
    """Of an attempt that has ended: the replicas that failed, where others of the job can go on; None: it ended
    otherwise.

    Args:
        told: what it reported last. before: data of the event of its last failure of replicas; None: the first.
        saves: what is known of what it saved. ran_s: for how long it ran.
    """
    replicas, how = job.spec.replicas, status.exit
    if replicas is None or how is None or attempt.stop_reason not in (None, *MAKES_WAY):
        return None
    if good(how) or how.reason not in (None, EndReason.OUT_OF_MEMORY):
        return None
    slots = slots_of(attempt.allocation)
    gone = _failed(attempt.allocation, how, replicas.gpus)
    left = [slot for slot in slots if slot not in gone]
    left = left[: replicas.of(len(left)) * replicas.gpus]
    if not left:
        return None
    step, since = _number(told.get("step")), None if before is None else _number(before["step"])
    begun_at = _number(told.get("first_step")) if since is None else since
    stepped = step is not None and (begun_at is None or step > begun_at)
    # A job that reports no steps has nothing else to show.
    healthy = step is None and bool(saves.by) and ran_s >= HEALTHY_S
    if not stepped and not _others_well(status, how):
        return None
    in_a_row = 1 if before is None or stepped or healthy else int(before["in_a_row"]) + 1
    known = [at for at in (step, since) if at is not None]
    return Dropped(
        tuple(slot for slot in slots if slot in gone),
        replicas.of(len(slots)),
        replicas.of(len(left)),
        _parts(attempt.allocation, left),
        in_a_row,
        max(known, default=None),
    )


def goes_on_with(job: Job, attempt: Attempt, found: Dropped, *, resizes: bool, usable: Collection[Slot]) -> Allocation:
    """The GPUs that a job keeps whose replicas failed; () where it waits for others.

    resizes: the policy gives it a replacement as soon as there is room; else it is replaced at once, where it was.
    """
    replicas = job.spec.replicas
    if resizes and replicas is not None and found.left >= replicas.least and _all_of(found.kept, usable):
        return found.kept
    return attempt.allocation if _all_of(attempt.allocation, usable) else ()


def how_others_ended(status: RunStatus, how: RunExit) -> RunExit:
    """How the first of those ended that did not fail: what these saved counts."""
    if how.failed_rank is not None and not status.members:
        return replace(how, exit_code=how.others_code)
    ends = [one.status.exit for one in status.members if one.rank != how.member]
    return next((end for end in ends if end is not None), how)


def _all_of(allocation: Allocation, usable: Collection[Slot]) -> bool:
    return all(slot in usable for slot in slots_of(allocation))


def _failed(allocation: Allocation, how: RunExit, each: int) -> set[Slot]:
    """The GPUs of the replicas that failed. each: GPUs of a replica."""
    slots, member = slots_of(allocation), how.member or 0
    first, count = gpus_in(allocation[:member]), len(allocation[member][1])
    if how.failed_rank is None or how.failed_rank >= count:
        return set(slots[first : first + count])
    replica = (first + how.failed_rank) // each
    return set(slots[replica * each : (replica + 1) * each])


def _others_well(status: RunStatus, how: RunExit) -> bool:
    """Whether somebody else was alive, and ended in order or only because the job was ended."""
    if how.failed_rank is not None and how.others_code in ENDED_IN_ORDER:
        return True
    ends = [one.status.exit for one in status.members if one.rank != how.member]
    return any(end is not None and (end.reason is EndReason.PEER or end.exit_code in ENDED_IN_ORDER) for end in ends)


def _parts(allocation: Allocation, slots: Collection[Slot]) -> Allocation:
    left = [(node, tuple([gpu for gpu in gpus if (node, gpu) in slots])) for node, gpus in allocation]
    return tuple((node, gpus) for node, gpus in left if gpus)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
