"""Takes up the runs that went on, or ended, while no scheduler was there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from gpuloom.core.job import Attempt, Phase
from gpuloom.executors.gang_ends import unseen_end
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.local_files import same_process
from gpuloom.executors.port import ExecutorError, RunExit, RunPhase, RunStatus, not_run
from gpuloom.executors.roster import rebooted
from gpuloom.live.dispatch.dispatch import Dispatch
from gpuloom.live.dispatch.intake import Intake
from gpuloom.live.planning.claims import Step


def take_up(known: Mapping[str, RunStatus], attempts: Iterable[Attempt], dispatch: Dispatch, intake: Intake) -> None:
    """Compare open attempts with the runs that their nodes know: who runs on, who has to be asked for again, and who
    has ended.

    Raises:
        ExecutorError: a run of a node is not the one of this name that the store knows.
    """
    now = dispatch.clock.now()
    gangs = dispatch.gangs
    dispatch.work.at(now)
    for attempt in attempts:
        status = known.get(attempt.run)
        one = (attempt.pid, attempt.start_ticks)
        if status is not None and not same_process(one, (status.pid, status.start_ticks)):
            raise ExecutorError(  # an older gpuloom gave runs of two pasts one name
                f"run {attempt.run} is process {status.pid}, but the store says process {attempt.pid} (an older "
                f"backup was restored): end process {status.pid}, then start the scheduler again"
            )
        if status is not None and status.phase is not RunPhase.EXITED:
            dispatch.set_limit(attempt.job)
        starting = attempt.phase is Phase.STARTING and attempt.stop_reason is None
        # A gang is asked for again even if some of it is there: who has begun by then begins no second time.
        if starting and (status is None or (attempt.members and status.phase is not RunPhase.EXITED)):
            dispatch.claims.on(Step.UNKNOWN, attempt.job)
        elif status is None and attempt.running_s is None and attempt.stop_reason is not None:
            found = not_run(attempt.run, attempt.stop_reason, "it was stopped before it started")
            intake.statuses[attempt.run] = found
        elif status is None:
            # A store that was put back to an older state has forgotten an end that was acknowledged.
            node = attempt.nodes[0]
            # A machine that loses its power may lose what was last written to files: then that is what ended it.
            restarted = rebooted(attempt.boot_id, gangs.boot_id(node))
            how = _on_disk(gangs, node, attempt) or unseen_end(time.time(), begun=True, restarted=restarted)
            intake.statuses[attempt.run] = RunStatus(attempt.run, RunPhase.EXITED, exit=how)
        elif attempt.stop_reason is not None and status.phase is not RunPhase.EXITED:
            grace = max((attempt.deadline_s or now) - now, 0.0)
            dispatch.end_run(attempt.run, attempt.stop_reason, grace)
        elif status.phase is RunPhase.RUNNING and dispatch.book.jobs[attempt.job].suspended:
            dispatch.suspend([attempt.job], now)  # the scheduler before was killed before it told it


def _on_disk(gangs: Gangs, node: str, attempt: Attempt) -> RunExit | None:
    try:
        return gangs.files(node).exit_of(attempt.run, attempt.pid, attempt.start_ticks)
    except ExecutorError:  # the machine is not ours any more
        return None
