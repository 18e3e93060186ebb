"""What a plan by value is worth: of its groups, less what starts and stops cost (see `policies/valued_plan.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuloom.core.decision import Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import F8
from gpuloom.interleave.valued import Group
from gpuloom.policies.valued_rooms import Jobs

_ONCE = 0.055
"""What a job that waits loses by its start at most, as a share of the horizon: it must start once in any case. That is
a little more than any start that was measured."""
_STOPPED = 0.5
"""Which part of the rest of its start a job loses that is stopped: it starts again, but later."""


class Score:
    """The plans of one decision.

    Args:
        together: who runs with whom now, by nodes and masks.
        jobs: those that run come first, in their order.
        value: what each of them is worth per iteration (worth · seconds per iteration alone).
        solo_s: seconds per iteration alone, of every job of the workload.
        speed: by job and pool; None where it does not matter on which GPU model a job is.
        pool_of_node: the pool of each node.
        horizon_s: within it what starts cost is taken off.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        together: Mapping[Any, Sequence[int]],
        jobs: Jobs,
        value: F8,
        solo_s: F8,
        speed: F8 | None,
        pool_of_node: Mapping[int, int],
        horizon_s: float,
    ) -> None:
        self._start_s, self._held, self._horizon_s = snapshot.restart_overhead_s, snapshot.placements, horizon_s
        self._pool_of_node, self._anywhere = pool_of_node, speed is None
        self._same = {(frozenset(members), self._kind_of(nodes[0])) for (nodes, _), members in together.items()}
        self._once_s = float("inf") if speed is None else _ONCE * horizon_s
        self._stopping = {} if speed is None else self._losses(jobs, value, solo_s, speed)

    def of(self, groups: Sequence[Group], places: Sequence[Placement]) -> float:
        """Value per second of the groups, less what starting the new ones and stopping others costs."""
        score = 0.0
        for group, place in zip(groups, places, strict=True):
            value = group.value
            if (frozenset(group.jobs), self._kind_of(place.nodes[0])) not in self._same:
                value *= 1.0 - min(sum_floats([self._cost_s(job) for job in group.jobs]) / self._horizon_s, 1.0)
            score += value
        if self._stopping:
            goes_on = {job for group in groups for job in group.jobs}
            score -= sum_floats([lost for job, lost in self._stopping.items() if job not in goes_on])
        return score

    def _cost_s(self, job: int) -> float:
        return self._start_s[job] if job in self._held else min(self._start_s[job], self._once_s)

    def _losses(self, jobs: Jobs, value: F8, solo_s: F8, speed: F8) -> dict[int, float]:
        """What is lost if a job that runs is stopped, per second, where its start is dear: a job that waits must start
        once, whenever that is; who is stopped for it starts once more."""
        return {
            job: _STOPPED
            * min((self._start_s[job] - self._once_s) / self._horizon_s, 1.0)
            * (value.item(row) / solo_s.item(job) * speed.item(job, self._pool_of_node[place.nodes[0]]))
            for row, (job, place) in enumerate(self._held.items())
            if self._start_s[job] > self._once_s
        }

    def _kind_of(self, node: int) -> int:
        """The pool of a node, where it matters on which one a job is."""
        return 0 if self._anywhere else self._pool_of_node[node]
