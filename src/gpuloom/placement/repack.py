"""Places all jobs again at every call: the rule of the released Muri simulator.

The cluster is emptied, and all jobs are walked in order. Each job that fits is placed first-fit: on the first node that
holds it, or, if it is larger than a node, on wholly free nodes plus one for the remainder. No job is sure to keep its
place. That suits a simulator that does not charge moves; a real cluster wants `ordered.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Protocol

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import ints
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.errors import ClusterError
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import Entry
from gpuloom.placement.pool import pools_of
from gpuloom.placement.shapes import shapes_of


class PresentOrder(Protocol):
    """The order of jobs now, small keys first."""

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        """The key of a job that has just begun to wait; it stands still while the job waits."""
        ...

    def running_keys(self, snapshot: Snapshot, jobs: list[int]) -> list[float]:
        """The present keys of running jobs."""
        ...


class RepackPlanner:
    """Same calls as `OrderedPlanner`. Nodes must be alike.

    Who runs is decided by placing all jobs again. The rule does not care where the chosen jobs then run. So those that
    go on keep their GPUs if the new ones fit around them; otherwise all go where they were placed.
    """

    def __init__(self, snapshot: Snapshot, order: PresentOrder) -> None:
        self.order = order
        self._size = require_alike(snapshot.cluster)
        self._down: set[int] = set(snapshot.nodes_out)
        self._nodes = len(snapshot.cluster.nodes)
        shapes = shapes_of(snapshot.workload, snapshot.cluster)
        self._shape_of = ints(shapes.of_job)
        self._gpus = [shape.gpus for shape in shapes.shapes]
        self._waiting: list[list[Entry]] = [[] for _ in self._gpus]
        self._running: dict[int, Placement] = dict(snapshot.placements)
        self._pool = pools_of(snapshot.cluster, snapshot.free_masks())[0]
        for job in snapshot.waiting():
            self._waiting[self._shape_of[job]].append((order.waiting_key(snapshot, job), job))
        for heap in self._waiting:
            heapify(heap)
        self._built = True

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call (nothing, if this cache was just built from this snapshot)."""
        if self._built:
            self._built = False
            return
        for job in (*snapshot.finished, *snapshot.evicted):
            self._pool.release(self._running.pop(job))
        for node in snapshot.nodes_down:
            self._down.add(node)
            self._pool.node_down(node)
        for node in snapshot.nodes_up:
            self._down.discard(node)
            self._pool.node_up(node)
        for job in (*snapshot.evicted, *snapshot.arrived):
            heappush(self._waiting[self._shape_of[job]], (self.order.waiting_key(snapshot, job), job))

    def plan(self, snapshot: Snapshot) -> Decision:
        """Everyone who should run now."""
        before = self._running
        chosen, started, preempted = self._choose(snapshot, list(before))
        if not started and not preempted:
            return NOTHING
        for job in preempted:
            heappush(self._waiting[self._shape_of[job]], (self.order.waiting_key(snapshot, job), job))
            self._pool.release(before.pop(job))
        run: dict[int, Placement] = {}
        # Large jobs first: they need whole nodes.
        for job in sorted(started, key=lambda job: -self._gpus[self._shape_of[job]]):
            placement = self._pool.take(self._gpus[self._shape_of[job]])
            if placement is None:
                return self._everyone_anew(snapshot, chosen, preempted)
            run[job] = before[job] = placement
        return Decision(run, preempted)

    def _everyone_anew(self, snapshot: Snapshot, chosen: list[int], preempted: list[int]) -> Decision:
        placed = repack(snapshot, chosen, self._down)
        for placement in self._running.values():
            self._pool.release(placement)
        for placement in placed.values():
            self._pool.claim(placement)
        self._running = placed
        held = snapshot.placements
        return Decision({job: placement for job, placement in placed.items() if held.get(job) != placement}, preempted)

    def _choose(self, snapshot: Snapshot, running: list[int]) -> tuple[list[int], list[int], list[int]]:
        """Walk everyone in order on the emptied cluster.

        Returns:
            All that fit, the new ones among them, and the running ones that don't.
        """
        gpus_of, shape_of, size, nodes = self._gpus, self._shape_of, self._size, self._nodes
        keys = self.order.running_keys(snapshot, running)
        merged = [(key, job, False) for key, job in zip(keys, running, strict=True)]
        merged += [(*heap[0], True) for heap in self._waiting if heap]
        heapify(merged)
        used = [0] * nodes
        for node in self._down:
            used[node] = size
        # Nodes only fill up during the walk, so the first node that holds a shape only moves on.
        first = [0] * len(gpus_of)
        chosen: list[int] = []
        started: list[int] = []
        preempted: list[int] = []
        while merged:
            _, job, waits = heappop(merged)
            shape = shape_of[job]
            gpus = gpus_of[shape]
            node = first[shape]
            if gpus <= size:
                most = size - gpus
                while node < nodes and used[node] > most:
                    node += 1
                first[shape] = node
                if node < nodes:
                    used[node] += gpus
            elif node < nodes and _spread(used, gpus, size) is None:
                node = first[shape] = nodes
            if node == nodes:
                if not waits:
                    preempted.append(job)
                continue
            chosen.append(job)
            if waits:
                started.append(job)
                heap = self._waiting[shape]
                heappop(heap)
                if heap:
                    heappush(merged, (*heap[0], True))
        return chosen, started, preempted


def require_alike(cluster: Cluster) -> int:
    """GPUs of a node, where all nodes are alike.

    Raises:
        ClusterError: they are not.
    """
    sizes = {node.gpus for node in cluster.nodes}
    if len(sizes) > 1 or len(cluster.models) > 1:
        raise ClusterError(f"repacking (--compat muri) needs nodes that are all alike, not {cluster}")
    return sizes.pop()


class FirstFit:
    """Nodes that are all alike, filled first-fit from empty."""

    def __init__(self, cluster: Cluster, down: Iterable[int] = ()) -> None:
        self._size = cluster.nodes[0].gpus
        self._used = [0] * len(cluster.nodes)
        for node in down:
            self._used[node] = self._size

    def take(self, gpus: int) -> Placement | None:
        """Place one more job; None if it does not fit."""
        used, size = self._used, self._size
        if gpus > size:
            return _spread(used, gpus, size)
        most = size - gpus
        for node, count in enumerate(used):
            if count <= most:
                used[node] += gpus
                return Placement((node,), (((1 << gpus) - 1) << count,))
        return None


def repack(snapshot: Snapshot, jobs: Sequence[int], down: Iterable[int] = ()) -> dict[int, Placement]:
    """Place jobs first-fit in this order on the emptied cluster (nodes alike); those that don't fit are left out."""
    room = FirstFit(snapshot.cluster, down)
    gpus_of = ints(snapshot.workload.gpus)
    placed: dict[int, Placement] = {}
    for job in jobs:
        placement = room.take(gpus_of[job])
        if placement is not None:
            placed[job] = placement
    return placed


def _spread(used: list[int], gpus: int, size: int) -> Placement | None:
    whole, rest = divmod(gpus, size)
    picked = [node for node, count in enumerate(used) if count == 0][:whole]
    if len(picked) < whole:
        return None
    masks = [(1 << size) - 1] * whole
    if rest:
        last = next((n for n, count in enumerate(used) if count + rest <= size and n not in picked), -1)
        if last < 0:
            return None
        masks.append(((1 << rest) - 1) << used[last])
        used[last] += rest
    for node in picked:
        used[node] = size
    return Placement((*picked, last) if rest else tuple(picked), tuple(masks))
