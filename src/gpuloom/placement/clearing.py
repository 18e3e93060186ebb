"""Which node is cheapest to clear: for every node, how far up the order jobs must stop to free s GPUs there.

Take a node's jobs from the last in the order upwards until they and the free GPUs make s GPUs. The key of the last job
taken is the node's threshold for s. A job before that key may clear the node, and clearing the node with the largest
threshold stops the least important jobs. There is one heap of thresholds per s. A node's threshold is computed again
only when s is asked for and something on the node has changed, so a search costs the same on a small and on a large
cluster.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush

from gpuloom.core.decision import Placement
from gpuloom.placement.pool import Pool


class Clearing:
    """Thresholds of one pool's nodes.

    Args:
        sizes: the numbers of GPUs that will be asked for.
        jobs_on: node -> its running jobs. stored: keys of the jobs that may be stopped. where: their placements.
        value: (stored key, job) -> key, at the present.
        falling: thresholds fall with time (keys of running jobs fall at different rates), so an earlier one is only an
            upper bound and is computed again before it is used.
    """

    def __init__(
        self,
        pool: Pool,
        sizes: set[int],
        jobs_on: Mapping[int, set[int]],
        stored: Callable[[int], float | None],
        where: Mapping[int, Placement],
        value: Callable[[float, int], float],
        *,
        falling: bool,
    ) -> None:
        self._pool, self._jobs_on, self._stored, self._where = pool, jobs_on, stored, where
        self._value, self._falling = value, falling
        self._heaps: dict[int, _Heap] = {size: _Heap() for size in sizes if size <= pool.size}
        self.now_s = 0.0
        """The present, where thresholds fall."""
        self._log: list[int] = list(pool.nodes)
        """Nodes that changed, in order; each heap remembers how far it has read."""

    def touch(self, node: int) -> None:
        """Something on the node has changed."""
        self._log.append(node)
        if len(self._log) > 64 + 8 * len(self._pool.nodes):
            self.touch_all()

    def touch_all(self) -> None:
        """Everything may have changed."""
        self._log = list(self._pool.nodes)
        for heap in self._heaps.values():
            heap.read = 0

    def node_for(self, size: int, key: float, job: int) -> int | None:
        """The node where freeing `size` GPUs costs least, if stopping jobs after (key, job) is enough."""
        found = self._top(size, 1, key, job, lambda node: True)
        return found[0] if found else None

    def nodes_for(self, gpus: int, key: float, job: int) -> list[tuple[int, int]] | None:
        """Whole nodes and one for the remainder, as (node, GPUs), for a job larger than any node."""
        pool = self._pool
        picked: list[tuple[int, int]] = []
        left = gpus
        for size in sorted(set(pool.sizes.values()), reverse=True):
            if left >= size:
                exact = size
                nodes = self._top(size, left // size, key, job, lambda node, exact=exact: pool.sizes[node] == exact)  # type: ignore[misc]
                picked += [(node, size) for node in nodes]
                left -= size * len(nodes)
        if left == 0:
            return picked
        if left >= pool.size:
            return None
        whole = {node for node, _ in picked}
        rest = self._top(left, 1, key, job, lambda node: node not in whole)
        return [*picked, (rest[0], left)] if rest else None

    def victims(self, node: int, size: int) -> list[int]:
        """The last jobs of the order that free `size` GPUs on the node, no more of them than needed."""
        room = self._pool.free[node].bit_count()
        taken: list[tuple[int, int]] = []
        for _, negative_job, count in self._ranked(node):
            if room >= size:
                break
            taken.append((-negative_job, count))
            room += count
        kept = []
        for victim, count in reversed(taken):
            if room - count >= size:
                room -= count
            else:
                kept.append(victim)
        return kept

    # -- inside ---------------------------------------------------------------------------------------------

    def _ranked(self, node: int) -> list[tuple[float, int, int]]:
        """(-key, -job, GPUs on the node) of its jobs that may be stopped, the last of the order first."""
        ranked = []
        for job in self._jobs_on[node]:
            stored = self._stored(job)
            if stored is not None:
                placement = self._where[job]
                mask = placement.masks[0] if len(placement.nodes) == 1 else placement.masks[placement.nodes.index(node)]
                ranked.append((-self._value(stored, job), -job, mask.bit_count()))
        ranked.sort()
        return ranked

    def _compute(self, heap: _Heap, size: int, node: int) -> None:
        version = heap.version[node] = heap.version.get(node, 0) + 1
        if self._falling:
            heap.computed_s[node] = self.now_s
        room = self._pool.free[node].bit_count()
        if room >= size:
            heappush(heap.entries, (-math.inf, 0, node, version))
            return
        for key, job, count in self._ranked(node):
            room += count
            if room >= size:
                heappush(heap.entries, (key, job, node, version))
                return

    def _top(self, size: int, count: int, key: float, job: int, wanted: Callable[[int], bool]) -> list[int]:
        """Up to `count` wanted nodes with the largest thresholds for `size` after (key, job)."""
        heap = self._heaps[size]
        if heap.read < len(self._log):
            for node in dict.fromkeys(self._log[heap.read :]):
                self._compute(heap, size, node)
            heap.read = len(self._log)
            heap.compact()
        entries, version = heap.entries, heap.version
        limit = (-key, -job)
        seen: list[tuple[float, int, int, int]] = []
        nodes: list[int] = []
        while entries and len(nodes) < count and entries[0] < limit:
            entry = heappop(entries)
            node = entry[2]
            if version[node] != entry[3]:
                continue
            if self._falling and heap.computed_s[node] != self.now_s:
                self._compute(heap, size, node)
                continue
            seen.append(entry)
            if wanted(node):
                nodes.append(node)
        for entry in seen:
            heappush(entries, entry)
        return nodes


class _Heap:
    """Thresholds for one number of GPUs: entries (-key, -job, node, version), the largest threshold first."""

    __slots__ = ("computed_s", "entries", "read", "version")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, int, int]] = []
        self.version: dict[int, int] = {}
        self.computed_s: dict[int, float] = {}
        self.read = 0

    def compact(self) -> None:
        """Drop what is out of date once it is most of the heap."""
        if len(self.entries) > 64 + 4 * len(self.version):
            self.entries = [entry for entry in self.entries if self.version[entry[2]] == entry[3]]
            heapify(self.entries)
