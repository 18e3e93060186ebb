"""What keeps a queued job from being handed to the policy at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import ENDED, EndReason, Job, Needed, Phase

Jobs = Mapping[int, Job]


def throttle_of(job: Job) -> int:
    """How many jobs of its array may run at once; 0: any number, or it is of no array."""
    return 0 if job.array_id is None else job.spec.at_once or 0


class Throttles:
    """Of arrays with `%k`: how many of their jobs may still be started."""

    def __init__(self, active: Iterable[Job]) -> None:
        self._taken = Counter([job.array_id for job in active if job.array_id is not None])

    def take(self, job: Job) -> Reason | None:
        """Count a job as one that may start; the reason if it is one too many."""
        array, most = job.array_id, throttle_of(job)
        if array is None or not most:
            return None
        if self._taken[array] < most:
            self._taken[array] += 1
            return None
        text = f"Its array {array} may run {most} jobs at once, and that many run or come before it."
        return Reason(WaitCode.ARRAY_THROTTLE, text, {"throttle": most})


def blocked(job: Job, jobs: Jobs, now_s: float) -> Reason | None:
    """Why a queued, held or suspended job is not to be started now, whatever is free; None: it is.

    `jobs` must hold the jobs that it waits for, as far as they have not ended well long ago: one that is not there
    counts as done (`broken` looks at those that ended badly).
    """
    if job.suspended:
        text = f"It was suspended by hand; `gpuloom resume {job.id}` lets it go on."
        return Reason(WaitCode.SUSPENDED, text)
    if job.phase is Phase.HELD:
        return Reason(WaitCode.HELD, f"It is held; `gpuloom release {job.id}` releases it.")
    for other, how in job.after:
        if other in jobs and (ended := broken(jobs[other], how)):
            text = f"It can't start, as job {other}, which it waits for, {ended}; `gpuloom cancel {job.id}` removes it."
            return Reason(WaitCode.DEPENDENCY_FAILED, text)
    waits_for = [(other, how) for other, how in job.after if other in jobs and jobs[other].phase not in ENDED]
    if waits_for:
        first, how = waits_for[0]
        more = f" and {len(waits_for) - 1} more" if len(waits_for) > 1 else ""
        what = "succeed" if how is Needed.OK else "end"
        return Reason(
            WaitCode.DEPENDENCY,
            f"It waits for job {first} ({jobs[first].phase}){more} to {what}.",
            {"first": first, "jobs": len(waits_for)},
        )
    if job.not_before_s > now_s:
        left = job.not_before_s - now_s
        if job.reason is EndReason.NOT_STARTED:
            text = f"It could not be started, through no fault of its own: {job.message}. The next attempt is in"
            return Reason(WaitCode.START_FAILED, f"{text} {max(left, 1.0):.0f} s.", {"seconds": left})
        return Reason(
            WaitCode.PAUSE_BEFORE_RETRY, f"Its last attempt failed; the next one is in {left:.0f} s.", {"seconds": left}
        )
    return None


def broken(other: Job, how: Needed) -> str:
    """That `other` 'failed' or 'was cancelled', so that a job that waits for it can never start; '' if it can."""
    if how is Needed.OK and other.phase in (Phase.FAILED, Phase.CANCELLED):
        return "failed" if other.phase is Phase.FAILED else "was cancelled"
    return ""
