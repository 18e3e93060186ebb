"""What happens to a job when one of its attempts has ended."""

from __future__ import annotations

import signal as signals
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gpuloom.core.job import MAKES_WAY, Attempt, EndReason, Job, Phase, SavedBy
from gpuloom.core.kept import kept_data
from gpuloom.executors.port import Cause, RunExit
from gpuloom.live.dispatch.faults import Fault
from gpuloom.live.dispatch.replicas import Dropped
from gpuloom.live.dispatch.saved import SAVED, Saved

MOST_PAUSE_S = 60.0
NO_SAVES = Saved()


NOT_THE_JOBS = frozenset({Cause.PLACE, Cause.EXECUTOR, Cause.NODE})


def kept_from_starting(how: RunExit) -> bool:
    """A fault of the surroundings kept it from being started: that counts neither as a failure nor as a run."""
    return how.reason is EndReason.NOT_STARTED and how.cause in NOT_THE_JOBS


def ended(
    job: Job,
    attempt: Attempt,
    how: RunExit,
    *,
    work_s: float,
    complete: bool,
    now_s: float,
    saves: Saved = NO_SAVES,
    pause_s: float = 0.0,
    failed: Dropped | None = None,
    beside: Collection[int] = (),
    apart: bool = False,
    fault: Fault | None = None,
    told: str = "",
) -> dict[str, Any]:
    """Data of the event `attempt.ended`.

    Args:
        work_s: work of this attempt, seconds. complete: the job reported that all of its steps are done.
        saves: what is known of what it saved.
        pause_s: how long to wait before the next try, where it was kept from starting.
        fault: what it failed by, where that is not its own doing. told: why it was told to end, where the reason does
            not say all.
        failed: replicas of an elastic job that failed while others were well: it goes on with these.
        beside: jobs that shared its GPUs when it found no GPU memory left: that is no failure of its own. apart: it is
            not put together with such for a while.

    A job that made way and is known to have saved keeps its work: it goes on from there. Any other one keeps what it
    had reported as saved before, and else begins again where the attempt began. A preempted job is never counted as
    failed. Exit code 0 after a notice to make way is the end only of a job that has reported its last step: it may as
    well be that of a framework that takes SIGTERM for a wish to leave.
    """
    fate = _fate_of(job, attempt, how, work_s, complete, saves, failed=failed, fault=fault, beside=bool(beside))
    queued = fate.after is Phase.QUEUED
    pause = _pause_s(job, how, fate, pause_s, failed)
    # Who told it to leave its GPUs does not want it to begin again by itself.
    back = Phase.HELD if job.suspended and fate.reason is not EndReason.REQUEUED else Phase.QUEUED
    message = (
        _whole(how)
        or (_unproven(how, fate.kept_s > job.work_s, saves.why_not) if fate.made_way and not fate.by and queued else "")
        or _also(_message(how, fate.reason, container=job.spec.container is not None), saves.why_not, how)
    )
    if fate.reason is EndReason.OUT_OF_MEMORY and beside:
        message = f"{message}; {_beside(beside, apart)}"
    cause = failed if fault is None else fault
    data: dict[str, Any] = {
        "reason": fate.reason.value,
        "exit_code": how.exit_code,
        "signal": how.signal,
        "message": "; ".join(text for text in (told, message, "" if cause is None else cause.text) if text),
        "saved": (bool(fate.by) or fate.goes_on) and queued,
        "saved_by": fate.by.value if queued else "",
        "work_s": fate.kept_s,
        "peak_memory_mib": how.peak_memory_mib,
        "next": (back if queued else fate.after).value,
        "not_before_s": now_s + pause if pause else 0.0,
        "failure": fate.failure,
    }
    if kept_from_starting(how):
        data["began"] = False
    if saves.kept is not None:
        data["kept"] = kept_data(saves.kept)
    return data


@dataclass(frozen=True, slots=True)
class _Fate:
    """What an end means for its job. kept_s: work that counts as done."""

    reason: EndReason
    after: Phase
    kept_s: float
    by: SavedBy
    made_way: bool
    goes_on: bool
    failure: bool = False
    drops: bool = False


def _fate_of(
    job: Job,
    attempt: Attempt,
    how: RunExit,
    work_s: float,
    complete: bool,
    saves: Saved,
    *,
    failed: Dropped | None,
    fault: Fault | None,
    beside: bool,
) -> _Fate:
    stopped = attempt.stop_reason if how.reason is not None else None
    reason = reason_of(how, attempt)
    made_way = stopped in MAKES_WAY and how.exit_code is not None
    drops = failed is not None and failed.forgiven
    by = saves.by if made_way or drops else SavedBy.NOTHING
    # Its members go on in the next attempt: from its newest save, if it says how old that is.
    goes_on = how.reason is EndReason.RESIZED and stopped is EndReason.RESIZED and saves.part in (None, 1.0)
    kept = job.work_s + (work_s if by or goes_on else 0.0)
    if not by and saves.part is not None:
        kept = max(job.work_s, (job.work_s + work_s) * saves.part)

    def fate(reason: EndReason, after: Phase, kept_s: float = kept, *, failure: bool = False) -> _Fate:
        return _Fate(reason, after, kept_s, by, made_way, goes_on, failure, drops)

    unseen = reason is EndReason.LOST and complete  # all is done, and nobody saw it end: it does not begin anew
    if reason is EndReason.FINISHED or unseen or (stopped is not None and complete and how.exit_code == 0):
        return fate(EndReason.FINISHED, Phase.FINISHED, job.work_s + work_s)
    if attempt.stop_reason is EndReason.CANCELLED or reason is EndReason.CANCELLED:
        # Whatever ended it first: its user wants no more of it.
        return fate(EndReason.CANCELLED, Phase.CANCELLED)
    if attempt.stop_reason is EndReason.REQUEUED or reason is EndReason.REQUEUED:
        return fate(EndReason.REQUEUED, Phase.QUEUED, 0.0)
    if fault is not None:
        return fate(fault.reason, Phase.QUEUED)
    if drops:
        return fate(EndReason.RESIZED, Phase.QUEUED)
    if reason in MAKES_WAY:
        return fate(reason, Phase.QUEUED)
    if reason is EndReason.LOST and attempt.stop_reason is not None:
        return fate(attempt.stop_reason, Phase.QUEUED)
    if (reason is EndReason.LOST and how.cause is Cause.RESTARTED) or kept_from_starting(how):
        return fate(reason, Phase.QUEUED)
    if beside and reason is EndReason.FAILED:
        return fate(EndReason.OUT_OF_MEMORY, Phase.QUEUED)
    if reason is EndReason.NOT_STARTED:
        return fate(reason, Phase.FAILED)
    return fate(reason, Phase.QUEUED if job.failures < job.spec.retries else Phase.FAILED, failure=True)


def _pause_s(job: Job, how: RunExit, fate: _Fate, kept_s: float, failed: Dropped | None) -> float:
    """How long it waits before its next try; longer after each failure in a row. kept_s: where it could not start."""
    if fate.after is not Phase.QUEUED:
        return 0.0
    if fate.failure:
        return float(min(2.0 ** min(job.failures, 30), MOST_PAUSE_S))
    if fate.drops and failed is not None:
        return float(2.0 ** (failed.in_a_row - 2)) if failed.in_a_row > 1 else 0.0
    return kept_s if kept_from_starting(how) else 0.0


def _beside(beside: Collection[int], apart: bool) -> str:
    others = ", ".join(map(str, sorted(beside)))
    return (
        f"no GPU memory was left beside {'job' if len(beside) == 1 else 'jobs'} {others}: "
        f"that is no failure{', and it is not put together with such again for some hours' if apart else ''}"
    )


def _whole(how: RunExit) -> str:
    """What the executor says, with the exit code: whatever is said of an attempt tells that, unless it is 0."""
    if how.message and how.exit_code and how.member is None:  # else the message has it
        return f"{how.message}; exit code {how.exit_code}"
    return how.message


def _also(message: str, why_not: str, how: RunExit) -> str:
    """Of one that was told to go and died of it, why hooks did not save it, too."""
    return f"{message}; not saved: {why_not}" if message and why_not and how.signal is not None else message


def _unproven(how: RunExit, some: bool, why_not: str) -> str:
    since = "since the last save it reported" if some else "in this attempt"
    return (
        f"exit code {how.exit_code} after the notice, without proof that it saved: its work {since} counts as lost"
        f"{f' ({why_not})' if why_not else ''}. "
        f"A job proves a save by exit code 85, by reporting saved_step, or by a "
        "declared checkpoint (docs/howto/write-jobs.md)"
    )


def reason_of(how: RunExit, attempt: Attempt) -> EndReason:
    """Why a run ended, or a member of it: what its executor says, seen beside what was asked for."""
    stopped = attempt.stop_reason if how.reason is not None else None
    if how.reason is EndReason.PEER:
        return how.reason
    if how.reason in (EndReason.OUT_OF_MEMORY, EndReason.NOT_STARTED, EndReason.LOST, EndReason.TIMED_OUT):
        return how.reason
    if how.reason is not None:
        return how.reason if stopped is None else stopped
    return EndReason.FINISHED if how.exit_code == 0 else EndReason.FAILED


_CONTAINER = {
    125: "the container could not be started",
    126: "the container's command can't be run",
    127: "the container has no such command",
}
"""What exit codes of docker and podman mean (and of a shell, in part)."""


def _message(how: RunExit, reason: EndReason, *, container: bool) -> str:
    if how.signal is not None:
        try:
            name = signals.Signals(how.signal).name
        except ValueError:
            name = f"signal {how.signal}"
        return f"ended by {name}"
    if container and how.exit_code in _CONTAINER:
        return f"exit code {how.exit_code}: {_CONTAINER[how.exit_code]}; the log says why"
    if reason is EndReason.FAILED and how.exit_code == SAVED:
        return f"exit code {SAVED} means 'preempted, saved', but the job had not been asked to stop"
    return "" if how.exit_code in (0, None) else f"exit code {how.exit_code}"
