"""Place everyone anew at every call: the rule of the released Muri simulator.

The cluster is emptied, all jobs are walked in order, and each that fits is placed first-fit, up to a node's GPUs
on the first node that holds it, larger jobs on wholly free nodes plus one for the remainder. Nobody keeps a place
by right. That suits a simulator which charges no migration; `ordered.py` is what a real cluster wants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from gpuloom.core.columns import ints
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.errors import ClusterError
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import Entry, Order
from gpuloom.placement.shapes import shapes_of


class RepackPlanner:
    """Same calls as `OrderedPlanner`. Nodes must be alike."""

    def __init__(self, snapshot: Snapshot, order: Order) -> None:
        self.order = order
        sizes = {node.gpus for node in snapshot.cluster.nodes}
        if len(sizes) > 1 or len(snapshot.cluster.models) > 1:
            raise ClusterError(f"repacking (--compat muri) needs nodes that are all alike, not {snapshot.cluster}")
        self._size = sizes.pop()
        self._down: set[int] = set()
        self._nodes = len(snapshot.cluster.nodes)
        shapes = shapes_of(snapshot.workload, snapshot.cluster)
        self._shape_of = ints(shapes.of_job)
        self._gpus = [shape.gpus for shape in shapes.shapes]
        self._waiting: list[list[Entry]] = [[] for _ in self._gpus]
        self._running: dict[int, Placement] = dict(snapshot.placements)
        skip = {*snapshot.arrived, *snapshot.evicted}
        for job in snapshot.waiting():
            if job not in skip:
                self._waiting[self._shape_of[job]].append((order.waiting_key(snapshot, job), job))
        for heap in self._waiting:
            heapify(heap)

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call."""
        for job in (*snapshot.finished, *snapshot.evicted):
            del self._running[job]
        self._down.update(snapshot.nodes_down)
        self._down.difference_update(snapshot.nodes_up)
        for job in (*snapshot.evicted, *snapshot.arrived):
            heappush(self._waiting[self._shape_of[job]], (self.order.waiting_key(snapshot, job), job))

    def plan(self, snapshot: Snapshot) -> Decision:
        """Everyone who should run now, placed anew."""
        order, gpus_of, shape_of, size, nodes = (
            self.order,
            self._gpus,
            self._shape_of,
            self._size,
            self._nodes,
        )
        before = self._running
        merged = [(order.running_key(snapshot, job), job, -1) for job in before]
        merged += [(heap[0][0], heap[0][1], shape) for shape, heap in enumerate(self._waiting) if heap]
        heapify(merged)
        used = [0] * nodes
        for node in self._down:
            used[node] = size
        # Nodes only fill up during the walk, so the first node that holds a shape only moves on.
        first = [0] * len(gpus_of)
        chosen: dict[int, Placement] = {}
        run: dict[int, Placement] = {}
        preempted: list[int] = []
        while merged:
            _, job, waiting = heappop(merged)
            shape = shape_of[job]
            node = first[shape]
            gpus = gpus_of[shape]
            old = before.get(job)
            placement: Placement = old  # type: ignore[assignment] # replaced below unless it fits as it was
            if gpus <= size:
                most = size - gpus
                while node < nodes and used[node] > most:
                    node += 1
                first[shape] = node
                if node < nodes:
                    mask = ((1 << gpus) - 1) << used[node]
                    used[node] += gpus
                    if old is None or old.masks != (mask,) or old.nodes != (node,):
                        placement = run[job] = Placement((node,), (mask,))
                fits = node < nodes
            else:
                fits = False
                if node < nodes:
                    new = _spread(used, gpus, size)
                    fits = new is not None
                    if new is None:
                        first[shape] = nodes
                    elif new != old:
                        placement = run[job] = new
            if not fits:
                if waiting < 0:
                    preempted.append(job)
                continue
            chosen[job] = placement
            if waiting >= 0:
                heap = self._waiting[shape]
                heappop(heap)
                if heap:
                    heappush(merged, (heap[0][0], heap[0][1], shape))
        for job in preempted:
            heappush(self._waiting[shape_of[job]], (order.waiting_key(snapshot, job), job))
        self._running = chosen
        return Decision(run, preempted) if run or preempted else NOTHING


def repack(snapshot: Snapshot, jobs: Sequence[int], down: Iterable[int] = ()) -> dict[int, Placement]:
    """Place jobs first-fit in this order on the emptied cluster (nodes alike); those that don't fit are left out."""
    size = snapshot.cluster.nodes[0].gpus
    used = [0] * len(snapshot.cluster.nodes)
    for node in down:
        used[node] = size
    gpus_of = ints(snapshot.workload.gpus)
    placed: dict[int, Placement] = {}
    for job in jobs:
        gpus = gpus_of[job]
        if gpus <= size:
            node = next((node for node, count in enumerate(used) if count + gpus <= size), -1)
            if node >= 0:
                placed[job] = Placement((node,), (((1 << gpus) - 1) << used[node],))
                used[node] += gpus
        else:
            placement = _spread(used, gpus, size)
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
