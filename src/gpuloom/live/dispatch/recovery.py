"""Takes up the runs that went on, or ended, while no scheduler was there."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpuloom.core.job import Phase
from gpuloom.executors.port import ExecutorError, RunExit, RunPhase, RunStatus
from gpuloom.live.dispatch.dispatch import Dispatch
from gpuloom.live.dispatch.intake import Intake
from gpuloom.live.dispatch.launch import end_unseen, exit_on_disk, run_directory, same_process
from gpuloom.live.planning.claims import Step


def take_up(known: Mapping[str, RunStatus], dispatch: Dispatch, intake: Intake) -> None:
    """Compare the open attempts with the runs that the executor knows: who runs on, who has to be asked for again, and
    who has ended.

    Raises:
        ExecutorError: a run of the executor is not the one of this name that the store knows.
    """
    now = dispatch.clock.now()
    boot = dispatch.executor.boot_id()
    dispatch.work.at(now)
    for attempt in list(dispatch.book.attempts.values()):
        status = known.get(attempt.run)
        if status is not None and not same_process(attempt, status.pid, status.start_ticks):
            raise ExecutorError(  # an older gpuloom gave runs of two pasts one name
                f"run {attempt.run} is process {status.pid}, but the store says process {attempt.pid} (an older "
                f"backup was restored): end process {status.pid}, then start the scheduler again"
            )
        # What it did before it was last frozen; start-up included, which is not known any more.
        dispatch.work.begin(attempt.job, now, attempt.since_s, done_s=attempt.held_s)
        if attempt.phase is Phase.FROZEN:
            dispatch.work.pause(attempt.job, attempt.since_s)
        if status is not None and status.phase is not RunPhase.EXITED:
            dispatch.set_limit(attempt.job)
        if status is None and attempt.phase is Phase.STARTING and attempt.stop_reason is None:
            dispatch.claims.on(Step.UNKNOWN, attempt.job)
        elif status is None and attempt.pid is None and attempt.stop_reason is not None:
            how = RunExit(None, None, attempt.stop_reason, "it was stopped before it started", time.time())
            intake.statuses[attempt.run] = RunStatus(attempt.run, RunPhase.EXITED, exit=how)
        elif status is None:
            # A store that was put back to an older state has forgotten an end that was acknowledged.
            how = exit_on_disk(run_directory(dispatch.runs, attempt.run), attempt) or end_unseen(attempt, boot)
            intake.statuses[attempt.run] = RunStatus(attempt.run, RunPhase.EXITED, exit=how)
        elif attempt.stop_reason is not None and status.phase is not RunPhase.EXITED:
            grace = max((attempt.deadline_s or now) - now, 0.0)
            dispatch.end_run(attempt.run, attempt.stop_reason, grace)
