"""What the controller of pilots is told of the running scheduler, and tells it: a `PilotNodes` (live/pilots.py)."""

from __future__ import annotations

from collections.abc import Callable, Container

from gpuloom.core.job import NodeState, Phase, gpus_in
from gpuloom.core.spec import OnPreempt
from gpuloom.live.planning.lasting import must_last_s, stay_of
from gpuloom.live.planning.scene import Coming
from gpuloom.live.records.fleet import open_slots, slots_of
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.sights import Sights
from gpuloom.slurm.pilots import Use, Wanted
from gpuloom.store.errors import StoreError


def wanted_of(scheduler: Scheduler, cut: Container[str]) -> Wanted:
    """The jobs that could start if there was room, and what is had of each node that is ours. cut: nodes that can't be
    talked to now. In the scheduler's thread."""
    planning, book = scheduler.planning, scheduler.book
    jobs, grants = book.jobs, planning.claims.grants
    eligible, _, _ = planning.candidates.eligible(scheduler.clock.now())
    waiting = {number: jobs[number].gpus for number in eligible}
    stays = {number: stay_of(planning.scene, jobs[number]) for number in eligible}
    held = {number: one.allocation for number, one in book.attempts.items() if one.phase is not Phase.FROZEN}
    taken = {**held, **grants}
    free = open_slots(book.nodes.values()) - {slot for allocation in taken.values() for slot in slots_of(allocation)}
    nodes = {}
    for name, node in book.nodes.items():
        if node.state is NodeState.DOWN:
            continue
        here = {n: gpus_in(a) for n, a in taken.items() if any(where == name for where, _ in a)}
        here |= {n: gpus_in(a.allocation) for n, a in book.attempts.items() if name in a.nodes}
        stay = {number for number in here if jobs[number].spec.on_preempt is OnPreempt.NEVER}
        nodes[name] = Use(
            0 if name in cut else sum(where == name for where, _ in free),
            here,
            max((jobs[number].spec.grace for number in here.keys() - stay), default=0.0),
            node.engine_job,
            node.until_s,
            stay,
        )
    return Wanted(waiting, nodes, {number: must_last_s(stay[0]) for number, stay in stays.items() if stay is not None})


class SchedulerNodes:
    """See the module. gone: has a node counted as lost, whatever its lease (`fleet/registry.py`)."""

    def __init__(self, scheduler: Scheduler, sights: Sights, gone: Callable[[str, str], None]) -> None:
        self._scheduler, self._sights, self._gone = scheduler, sights, gone

    def wanted(self) -> Wanted:
        """See `PilotNodes`. Raises StoreError: the scheduler does not answer now."""
        try:
            return self._scheduler.do(lambda: wanted_of(self._scheduler, self._sights.cut))
        except StoreError:
            if not self._has_ended():
                raise
            return wanted_of(self._scheduler, self._sights.cut)  # it has ended: nothing changes any more

    def _has_ended(self) -> bool:
        try:
            return self._scheduler.join(0.0)
        except RuntimeError:  # it has not begun
            return False

    def ours_until(self, name: str, until_s: float | None, engine_job: str) -> None:
        """See `PilotNodes`."""
        self._scheduler.do(lambda: self._scheduler.arrivals.ours_until(name, until_s, engine_job))

    def comes(self, coming: Coming) -> None:
        """See `PilotNodes`."""
        self._scheduler.do(lambda: self._scheduler.planning.comes(coming))

    def closes(self, name: str, why: str) -> None:
        """See `PilotNodes`."""
        self._scheduler.do(lambda: self._scheduler.arrivals.closes(name, why))

    def gone(self, name: str, why: str) -> None:
        """See `PilotNodes`."""
        self._gone(name, why)
