"""Nodes that fail and come back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import InputError

_BACK, _LOST = 0, 1


@dataclass(frozen=True, slots=True)
class Failure:
    """Node `node` (its index) is out of service from `start_s` to `end_s`."""

    node: int
    start_s: float
    end_s: float


class Outages:
    """Nodes lost and back, in order of time; at equal times nodes come back before others are lost."""

    def __init__(self, failures: Sequence[Failure], cluster: Cluster) -> None:
        """Given failures.

        Raises:
            InputError: a node that does not exist, an end before its start, or overlapping failures of a node.
        """
        last: dict[int, float] = {}
        for failure in sorted(failures, key=lambda f: (f.node, f.start_s)):
            if not 0 <= failure.node < len(cluster.nodes):
                raise InputError(f"failure of node {failure.node}: the cluster has nodes 0 to {len(cluster.nodes) - 1}")
            if not failure.end_s > failure.start_s or failure.start_s < last.get(failure.node, -math.inf):
                raise InputError(f"{failure}: must end after it starts, and begin when the one before it has ended")
            last[failure.node] = failure.end_s
        self._events = [(failure.start_s, _LOST, failure.node) for failure in failures]
        self._events += [(failure.end_s, _BACK, failure.node) for failure in failures]
        heapify(self._events)

    def next_s(self) -> float:
        """When something happens next; infinity if nothing does."""
        return self._events[0][0] if self._events else math.inf

    def pop(self, now_s: float) -> tuple[list[int], list[int]]:
        """Nodes (lost, back) up to now."""
        lost: list[int] = []
        back: list[int] = []
        while self._events and self._events[0][0] <= now_s:
            at_s, kind, node = heappop(self._events)
            (lost if kind == _LOST else back).append(node)
            self._follow(at_s, kind, node)
        return lost, back

    def _follow(self, at_s: float, kind: int, node: int) -> None:
        """What comes after an event of a node."""

    @property
    def endless(self) -> bool:
        """Whether there is always a next event."""
        return False


class RandomOutages(Outages):
    """Exponential times between failures and to repair, per node, drawn as time goes on."""

    def __init__(self, cluster: Cluster, *, mtbf_s: float, repair_s: float, start_s: float, seed: int) -> None:
        super().__init__((), cluster)
        self._mean_s = (mtbf_s, repair_s)
        self._rngs = [np.random.default_rng([seed, node]) for node in range(len(cluster.nodes))]
        for node, rng in enumerate(self._rngs):
            heappush(self._events, (start_s + float(rng.exponential(mtbf_s)), _LOST, node))

    def _follow(self, at_s: float, kind: int, node: int) -> None:
        mtbf_s, repair_s = self._mean_s
        rng = self._rngs[node]
        if kind == _LOST:
            heappush(self._events, (at_s + float(rng.exponential(repair_s)), _BACK, node))
        else:
            heappush(self._events, (at_s + float(rng.exponential(mtbf_s)), _LOST, node))

    @property
    def endless(self) -> bool:
        return True
