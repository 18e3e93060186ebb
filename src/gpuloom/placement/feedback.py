"""Two queues of waiting jobs with feedback between them: a job's attained service is its key in both.

Small service first, ties by submission. If one job of a shape does not fit, no other of that shape does. So each queue
has a list per shape, and a walk in order skips a shape once one of its jobs did not fit.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

Entry = tuple[float, int]
"""(attained service, job)"""


class FeedbackQueues:
    """Jobs by queue (0 or 1) and shape. A cache, filled by its owner.

    Args:
        shape_of: shape of each job. shapes: how many there are.
    """

    def __init__(self, shape_of: memoryview[int], shapes: int) -> None:
        self._shape_of = shape_of
        self._entries: tuple[list[list[Entry]], ...] = tuple([[] for _ in range(shapes)] for _ in range(2))
        self._at: dict[int, tuple[int, float]] = {}
        self.waiting = [0, 0]
        """Jobs in each queue."""

    def put(self, job: int, queue: int, attained: float) -> None:
        self._at[job] = (queue, attained)
        insort(self._entries[queue][self._shape_of[job]], (attained, job))
        self.waiting[queue] += 1

    def drop(self, job: int) -> None:
        queue, attained = self._at.pop(job)
        entries = self._entries[queue][self._shape_of[job]]
        del entries[bisect_left(entries, (attained, job))]
        self.waiting[queue] -= 1

    def first(self, queue: int) -> Entry:
        """The first of a queue that is not empty."""
        return min(entries[0] for entries in self._entries[queue] if entries)

    def walk(self, queue: int, place: Callable[[Entry], bool]) -> None:
        """Offer the jobs in order to `place`, which drops those that it places; the first refusal ends a shape."""
        lists = self._entries[queue]
        heads = [(entries[0], shape) for shape, entries in enumerate(lists) if entries]
        heapify(heads)
        while heads:
            entry, shape = heappop(heads)
            if place(entry) and lists[shape]:
                heappush(heads, (lists[shape][0], shape))

    def in_order(self, queue: int) -> Iterator[tuple[Entry, Callable[[], None]]]:
        """(entry, function that leaves the rest of its shape out) in order; nothing may be put or dropped meanwhile."""
        lists = self._entries[queue]
        heads = [(entries[0], shape, 0) for shape, entries in enumerate(lists) if entries]
        heapify(heads)
        left_out: set[int] = set()
        while heads:
            entry, shape, index = heappop(heads)
            yield entry, lambda shape=shape: left_out.add(shape)  # type: ignore[misc]
            if shape not in left_out and index + 1 < len(lists[shape]):
                heappush(heads, (lists[shape][index + 1], shape, index + 1))
