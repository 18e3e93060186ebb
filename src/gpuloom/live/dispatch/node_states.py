"""Opening and closing nodes, and having jobs leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpuloom.core.book import node_data
from gpuloom.core.job import Condition, EndReason, Gpu, GpuState, NodeState, condition_of
from gpuloom.core.spec import OnPreempt
from gpuloom.live.dispatch.dispatch import Dispatch
from gpuloom.live.dispatch.intake import Intake
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.ledger import Ledger


class NodeStates:
    """Used by the scheduler's thread alone. on_up: called when a person opens a node again; GPUs whose state changes by
    that."""

    def __init__(
        self,
        ledger: Ledger,
        planning: Planning,
        dispatch: Dispatch,
        intake: Intake,
        now: Callable[[], float],
        on_up: Callable[[str], Sequence[Gpu]],
    ) -> None:
        self._ledger, self._planning, self._dispatch, self._intake = ledger, planning, dispatch, intake
        self._now, self._on_up = now, on_up

    def set(self, name: str, state: NodeState, reason: str) -> None:
        """Open or close a machine to new jobs; 'draining' also preempts the jobs on it. Raises StoreError."""
        node = self._ledger.book.nodes[name]
        changed = replace(node, state=state, reason=reason, since_s=self._now())
        if (node.state, node.reason) != (state, reason):
            self._ledger.write([("node.changed", None, {"node": node_data(changed)})])
        if state is NodeState.UP:
            well = {(name, gpu.index): Condition(GpuState.OK) for gpu in node.gpus if gpu.state == GpuState.UNHEALTHY}
            well |= {(name, gpu.index): condition_of(gpu) for gpu in self._on_up(name)}
            self._ledger.write(self._intake.gpu_states(well))
        self._planning.stale()
        if state is NodeState.DRAINING:
            self.empty(name)

    def empty(self, name: str, *, everyone: bool = False) -> None:
        """Tell the jobs on a machine to save, to go on elsewhere. everyone: those that can't be moved as well. Raises
        StoreError."""
        book = self._ledger.book
        on_it = [
            number
            for number, attempt in book.attempts.items()
            if name in attempt.nodes
            and attempt.stop_reason is None
            and (everyone or book.jobs[number].spec.on_preempt is not OnPreempt.NEVER)
        ]
        for number in on_it:
            self._planning.claims.take_back(number)
        if on_it:
            self._dispatch.end_attempts(on_it, EndReason.NODE, None)
