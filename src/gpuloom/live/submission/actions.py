"""Whether an action can be applied to a job: one rule for all actions.

An action that changes nothing is not an error: the answer says that it was so already. An impossible action is an
error.
"""

from __future__ import annotations

from enum import StrEnum

from gpuloom.core.job import ACTIVE, ENDED, MAKES_WAY, Attempt, EndReason, Job, Phase


class Action(StrEnum):
    """What users do to jobs."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    SUSPEND = "suspend"
    RESUME = "resume"
    REQUEUE = "requeue"
    UPDATE = "update"
    TOP = "top"


DONE = {
    Action.CANCEL: "cancelled",
    Action.HOLD: "held",
    Action.RELEASE: "released",
    Action.SUSPEND: "suspended",
    Action.RESUME: "resumed",
    Action.REQUEUE: "requeued",
    Action.UPDATE: "changed",
    Action.TOP: "moved to the top",
}


_NOT_SUSPENDED = {
    Phase.QUEUED: "`gpuloom hold` keeps it back",
    Phase.HELD: "it waits, and goes on waiting",
    Phase.STARTING: "it can once it runs",
    Phase.STOPPING: "it is about to leave its GPUs",
}


def so_already(action: Action, job: Job, attempt: Attempt | None) -> bool:
    """Whether there is nothing to do. attempt: the one that is open."""
    told = None if attempt is None else attempt.stop_reason
    match action:
        case Action.CANCEL:
            return job.phase is Phase.CANCELLED
        case Action.HOLD:
            return job.phase is Phase.HELD
        case Action.RELEASE:
            return job.phase is Phase.QUEUED or job.phase in ACTIVE
        case Action.SUSPEND:
            return job.suspended
        case Action.RESUME:
            return job.phase is Phase.QUEUED or (job.phase in ACTIVE and not job.suspended)
        case Action.REQUEUE:
            return job.phase is Phase.QUEUED or told is EndReason.REQUEUED
        case Action.TOP:
            return job.phase in (Phase.STARTING, Phase.RUNNING)
        case Action.UPDATE:
            return False


def impossible(action: Action, job: Job, attempt: Attempt | None) -> str:
    """Why it can't be done, for people; '' if it can, or is so already."""
    if so_already(action, job, attempt):
        return ""
    told = None if attempt is None else attempt.stop_reason
    hint = None
    if job.spec.adopted and job.phase in ENDED and action is not Action.CANCEL:
        return f"job {job.id} was not made by gpuloom: make its pods anew, as they were made before (kubectl)"
    if job.phase in ENDED and action is not Action.REQUEUE:
        hint = "" if action is Action.CANCEL else "submit it again, or requeue it"
    elif action is Action.HOLD and job.phase in ACTIVE:
        hint = "requeue it first"
    elif action is Action.SUSPEND:
        hint = _NOT_SUSPENDED.get(job.phase)
    elif action is Action.REQUEUE and job.phase is Phase.HELD:
        hint = "it is in the queue; release lets it go"
    elif action is Action.TOP and job.phase is Phase.STOPPING and told not in MAKES_WAY:
        hint = "it was told to stop"
    if hint is None:
        return ""
    return f"job {job.id} is {job.phase} and can't be {DONE[action]}" + (f"; {hint}" if hint else "")
