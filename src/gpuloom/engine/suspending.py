"""Jobs that leave their GPUs with all they have on them, and go on there later: who may, and what it takes.

The copy of a job's GPU memory lies in its node's memory. The job goes on where it was; anywhere else it begins anew
from its last checkpoint, and the copy is given up.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gpuloom.core.decision import Decision, Placement, place_of
from gpuloom.core.links import closest
from gpuloom.core.state import State
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8


class Suspending(Protocol):
    """What suspending costs, where it is simulated.

    moves: nodes on which a job can go on on other GPUs than its own.
    """

    moves: Collection[int]

    def may(self, job: int, placement: Placement) -> bool:
        """Whether the job can be suspended where it runs: its node has room for what it has on its GPUs."""

    def leaves(self, job: int, placement: Placement, now_s: float) -> None:
        """It is suspended: its GPUs are free once its memory is out."""

    def dropped(self, job: int, placement: Placement) -> None:
        """Nothing of a job lies in the node's memory any more. placement: where it was suspended."""

    def back_s(self, job: int, placement: Placement) -> float:
        """Seconds until it goes on, once its GPUs are free."""

    def free_from_s(self, placement: Placement) -> float:
        """When all that was on these GPUs is out."""

    def again_s(self, start_s: F8) -> F8:
        """What policies are to reckon with where a job makes way and goes on, seconds by job: the way out and back of
        those that may be suspended, a start (`start_s`) of others."""


def goes_on(state: State, job: int, placement: Placement) -> bool:
    """Whether a job that lies suspended goes on there."""
    home = state.away[job]
    if place_of(home) == place_of(placement):
        return True
    alike = home.nodes == placement.nodes and home.gpus == placement.gpus
    return alike and state.moves_on.issuperset(home.nodes)


def homed(state: State, decision: Decision) -> Decision:
    """The decision, with jobs that lie suspended back where they can go on, if that changes nothing else.

    A policy gives GPUs to a job; which ones of several alike is all the same to it, but not to a job that lies
    suspended. It gets GPUs on which it can go on where these are of the same model, and either nobody has them after
    the decision, or one who starts too has them and can as well have those that were meant for it.
    """
    coming = [job for job in decision.run if job in state.away and job not in state.placements]
    coming = [job for job in coming if not goes_on(state, job, decision.run[job])]
    if not coming:
        return decision
    plan = _Plan(state, decision)
    for job in coming:
        plan.bring_home(job)
    return Decision(plan.run, decision.wait, decision.wake_at_s, decision.why) if plan.changed else decision


class _Plan:
    """Who has which GPUs once the decision is carried out."""

    def __init__(self, state: State, decision: Decision) -> None:
        self._state = state
        self.run = dict(decision.run)
        self.changed = False
        self._on: dict[tuple[int, int], list[int]] = {}
        """Jobs by (node, GPU), on the nodes that matter."""
        self._nodes = {node for placement in self.run.values() for node in placement.nodes}
        self._nodes.update([node for job in self.run if job in state.away for node in state.away[job].nodes])
        left = {*decision.wait, *self.run}
        for job, placement in state.placements.items():
            if job not in left:
                self._put(job, placement)
        for job, placement in self.run.items():
            self._put(job, placement)

    def bring_home(self, job: int) -> None:
        """Give a job GPUs on which it can go on, if it can have them."""
        state, there, home = self._state, self.run[job], self._state.away[job]
        if there.gpus != home.gpus or len(there.nodes) != len(home.nodes) or not state.down.isdisjoint(home.nodes):
            return
        if not self._alike(home, there) or self._others(job, there):  # it is meant to be beside somebody
            return
        free = [home.masks] if not self._others(job, home) else []
        if len(home.nodes) == 1 and home.nodes[0] in state.moves_on:
            free += self._free_on(home.nodes[0], home.gpus)
        if free:
            self._move(job, Placement(home.nodes, free[0], there.layer))
            return
        for other in self.run:
            has = self.run[other]
            if (
                other == job
                or other in state.placements
                or has.gpus != there.gpus
                or len(has.nodes) != len(there.nodes)
            ):
                continue
            if not goes_on(state, job, has) or self._others(other, has) or not self._alike(has, there):
                continue
            if other in state.away and goes_on(state, other, has):
                continue  # it is at home there, too
            self._move(other, Placement(there.nodes, there.masks, has.layer))
            self._move(job, Placement(has.nodes, has.masks, there.layer))
            return

    def _alike(self, one: Placement, other: Placement) -> bool:
        """Whether the nodes are of one kind."""
        nodes = self._state.cluster.nodes
        return (
            len({(nodes[n].gpu_model, nodes[n].gpu_memory_mib, nodes[n].gpus) for n in (*one.nodes, *other.nodes)}) == 1
        )

    def _others(self, job: int, placement: Placement) -> set[int]:
        """Who else has any of these GPUs."""
        return {other for slot in placement.slots() for other in self._on.get(slot, ())} - {job}

    def _free_on(self, node: int, gpus: int) -> list[tuple[int, ...]]:
        """The mask of so many GPUs that nobody has, if there are so many."""
        spec = self._state.cluster.nodes[node]
        free = sum_ints([1 << gpu for gpu in range(spec.gpus) if not self._on.get((node, gpu))])
        return [(closest(free, gpus, spec.links),)] if free.bit_count() >= gpus else []

    def _put(self, job: int, placement: Placement) -> None:
        if self._nodes.isdisjoint(placement.nodes):
            return
        for slot in placement.slots():
            self._on.setdefault(slot, []).append(job)

    def _move(self, job: int, placement: Placement) -> None:
        for slot in self.run[job].slots():
            self._on[slot].remove(job)
        self._put(job, placement)
        self.run[job] = placement
        self.changed = True
