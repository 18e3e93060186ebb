"""Waiting jobs in order of their keys, one queue per shape.

Keys of waiting jobs stand still; running jobs are merged in with their present keys when asked for. Small keys
first, ties by submission.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import islice

from gpuloom.core.columns import ints
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.shapes import Shapes, shapes_of

Entry = tuple[float, int]
"""(key, job)"""

WaitingKey = Callable[[Snapshot, int], float]


class ShapeQueues:
    """A cache: built from any snapshot, kept up to date by the events of each."""

    def __init__(self, snapshot: Snapshot, waiting_key: WaitingKey) -> None:
        self._key = waiting_key
        self.shapes: Shapes = shapes_of(snapshot.workload, snapshot.cluster)
        self.shape_of = ints(self.shapes.of_job)
        self.gpus = [shape.gpus for shape in self.shapes.shapes]
        self.waiting: list[list[Entry]] = [[] for _ in self.gpus]
        self._stored: dict[int, float] = {}
        for job in snapshot.waiting():
            self._stored[job] = key = waiting_key(snapshot, job)
            self.waiting[self.shape_of[job]].append((key, job))
        for queue in self.waiting:
            queue.sort()
        self._built = True

    def __len__(self) -> int:
        return len(self._stored)

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call (nothing, if this cache was just built from this snapshot)."""
        if self._built:
            self._built = False
            return
        for job in (*snapshot.evicted, *snapshot.arrived):
            self.add(snapshot, job)

    def add(self, snapshot: Snapshot, job: int) -> None:
        """A job begins to wait."""
        self._stored[job] = key = self._key(snapshot, job)
        insort(self.waiting[self.shape_of[job]], (key, job))

    def remove(self, job: int) -> None:
        """A job waits no longer."""
        queue = self.waiting[self.shape_of[job]]
        del queue[bisect_left(queue, (self._stored.pop(job), job))]

    def first(self, shape: int, running: Sequence[Entry], most: int) -> list[Entry]:
        """The first `most` of the waiting and these running jobs of the shape, in order."""
        waiting = self.waiting[shape]
        if not running:
            return waiting[:most]
        return list(islice(merge(islice(waiting, most), sorted(running)), most))
