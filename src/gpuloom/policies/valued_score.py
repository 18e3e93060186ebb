"""What a plan by value is worth: of its groups, less what starts and stops cost (see `policies/valued_plan.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuloom.core.decision import Place, Placement
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
        own: each job of a group has its own process, so that only who joins has to start.
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
        *,
        own: bool = False,
    ) -> None:
        self._own = own
        self._start_s, self._held, self._horizon_s = snapshot.again_s, snapshot.placements, horizon_s
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
                value *= 1.0 - (self._joining(group, place) if self._own else self._begun_anew(group.jobs))
            score += value
        if self._stopping:
            goes_on = {job for group in groups for job in group.jobs}
            score -= sum_floats([lost for job, lost in self._stopping.items() if job not in goes_on])
        return score

    def _begun_anew(self, jobs: Iterable[int]) -> float:
        """The share of its value that a group loses whose jobs all start."""
        return min(sum_floats([self._cost_s(job) for job in jobs]) / self._horizon_s, 1.0)

    def _joining(self, group: Group, place: Placement) -> float:
        """The same of one in which only those start who are not there: most of those who run on this GPU model go on
        together where they are."""
        there: dict[Place, list[int]] = {}
        for job in group.jobs:
            now = self._held.get(job)
            if now is not None and self._kind_of(now.nodes[0]) == self._kind_of(place.nodes[0]):
                there.setdefault((now.nodes, now.masks), []).append(job)
        stay = max(there.values(), key=len, default=[])
        lost = sum_floats(
            [
                self._begun_anew([job]) * value
                for job, value in zip(group.jobs, group.values, strict=True)
                if job not in stay
            ]
        )
        return lost / group.total if group.total > 0 else 0.0

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
