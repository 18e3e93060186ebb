"""Moves the GPU memory of runs to the machine's memory and back: when they are to make way, and to see whether their
program bears that."""

from __future__ import annotations

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.runner.suspender import RESUME, SUSPEND, Suspender
from gpuloom.executors.wire import Cause, RunPhase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from gpuloom.executors.runner.again import Again
    from gpuloom.executors.runner.life import RunningJob
    from gpuloom.executors.runner.loop import Loop

    Stop = Callable[[RunningJob, str, float, str], None]
    OfRun = Callable[[RunningJob], None]

LONGEST_S = 600.0
"""Between two tries of a rehearsal that showed nothing."""


class Moves:
    """stop, away, back, report: what is done with a run that can't go on, whose memory is out, that goes on, of which
    there is news."""

    def __init__(self, loop: Loop, again: Again, *, stop: Stop, away: OfRun, back: OfRun, report: OfRun) -> None:
        self._loop, self._again = loop, again
        self._stop, self._away, self._back, self._report = stop, away, back, report
        self._suspender = Suspender(loop, again, self._moved)

    def suspend(self, run: RunningJob) -> None:
        """Have its GPU memory moved out."""
        if not run.moving:
            self.begin(run, SUSPEND)
        elif run.rehearsing:
            run.leaves = True
            self._again.do(run, "state.json", run.write_state)

    def resume(self, run: RunningJob) -> None:
        """Have it brought back. All its processes must go on: the driver can't reach one that stands still."""
        run.leaves = False
        if not run.moving:
            self.begin(run, RESUME)

    def stay(self, run: RunningJob) -> None:
        """Let one that is being rehearsed go on afterwards."""
        run.leaves = False

    def begin(self, run: RunningJob, what: str) -> None:
        """SUSPEND or RESUME."""
        run.moving, run.refused = what, ""
        self._report(run)  # that a refusal of before is over, or the same one again would be no news
        self._again.do(run, "state.json", run.write_state)
        self._again.do(run, "its GPU memory", lambda: self._suspender.begin(run, what))

    def rehearse_later(self, run: RunningJob, wait_s: float | None) -> None:
        """See whether its program bears it, so much later; None: it is not asked for."""
        if wait_s is not None and run.rehearsed is None:
            self._loop.after(wait_s, lambda: self._rehearse(run, wait_s), f"the rehearsal of run {run.name}")

    def _rehearse(self, run: RunningJob, waited_s: float) -> None:
        if run.ended is not None or run.rehearsed is not None or run.deadline is not None:
            return
        if run.phase is not RunPhase.RUNNING or run.moving:
            self.rehearse_later(run, waited_s)
            return
        run.rehearsing, run.waited_s = True, waited_s
        self.begin(run, SUSPEND)

    def _moved(self, run: RunningJob, what: str, outcome: Mapping[str, Any]) -> None:
        """It was moved, or could not be."""
        if run.ended is not None:
            return
        if outcome["lost"]:
            run.rehearsed = _failed(run, outcome)
            run.moving, run.away_mib, run.rehearsing = "", None, False
            if not run.reason:
                run.cause = Cause.NODE
            self._stop(run, EndReason.NODE, 0.0, f"{outcome['why']}; it goes on from its last checkpoint")
            return
        run.moved_s = outcome["took_s"]
        if what == SUSPEND:
            self._is_out(run, outcome)
        elif outcome["ok"]:
            self._is_back(run)
        else:
            self._loop.troubles.note(f"resuming run {run.name}", f"run {run.name} can't go on yet: {outcome['why']}")
            self._suspender.again_soon(run, what)

    def _is_out(self, run: RunningJob, outcome: Mapping[str, Any]) -> None:
        run.moving = ""
        if outcome["ok"]:
            run.away_mib, run.out_s = outcome["mib"], outcome["took_s"]
            # One that was told to end meanwhile may save: nobody has its GPU yet.
            if run.deadline is not None or run.rehearsing:
                self.begin(run, RESUME)
            else:
                self._away(run)
            return
        if not outcome["machine"]:
            run.rehearsed = _failed(run, outcome)
        if run.rehearsing and not run.leaves:
            self._rehearsal_over(run)
        else:
            run.rehearsing = run.leaves = False
            run.refused = outcome["why"]
        self._done(run)

    def _is_back(self, run: RunningJob) -> None:
        self._loop.troubles.note(f"resuming run {run.name}", "")
        if run.away_mib and (run.rehearsed is None or run.rehearsed["ok"]):
            run.rehearsed = {
                "ok": True,
                "mib": run.away_mib,
                "out_s": run.out_s,
                "in_s": run.moved_s,
                "why": "",
                "earnest": not run.rehearsing,
            }
        run.moving, run.away_mib = "", None
        if run.frozen_since is not None:
            self._back(run)
        leaves = run.leaves
        if run.rehearsing:
            self._rehearsal_over(run)
        self._done(run)
        if leaves and run.deadline is None:
            self.begin(run, SUSPEND)

    def _rehearsal_over(self, run: RunningJob) -> None:
        """One that had nothing on its GPU yet, or was hindered by the machine, is tried again later."""
        run.rehearsing = run.leaves = False
        self.rehearse_later(run, min(2 * run.waited_s, LONGEST_S))

    def _done(self, run: RunningJob) -> None:
        self._again.do(run, "state.json", run.write_state)
        self._report(run)


def _failed(run: RunningJob, outcome: Mapping[str, Any]) -> dict[str, Any]:
    found = {"ok": False, "mib": outcome["mib"], "out_s": 0.0, "in_s": 0.0}
    return {**found, "why": outcome["why"], "earnest": not run.rehearsing}
