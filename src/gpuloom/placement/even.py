"""Even placements (a job takes the same number of GPUs on each of its nodes), and a queue in order of submission.

A placement is chosen by its number among the cluster's `Choices`. Nodes are chosen by best fit: those with the fewest
free GPUs among those that have enough; of equal ones the first. A job that fits the cluster only unevenly (11 GPUs on
nodes of 8) has one choice instead, `packed`: on as few nodes as possible.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Placement
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8, I4, Workload
from gpuloom.placement.pool import Pool, pool_of_node
from gpuloom.placement.shapes import Shapes, shapes_of, speeds_by_pool

WAIT, PACKED = 0, 1
"""Numbers of the choices `wait` and `packed`; even placements follow."""

THRIFT, FRAGMENTATION = 0.7, 0.2
"""Defaults of `cost_of`."""

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Columns: nodes and GPUs per node of each choice (0 for `wait` and `packed`), by GPUs and then by nodes."""

    nodes: I4
    per_node: I4

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def names(self) -> tuple[str, ...]:
        """'wait', 'packed', '1x1', '1x2', …"""
        even = zip(self.nodes[2:].tolist(), self.per_node[2:].tolist(), strict=True)
        return ("wait", "packed", *(f"{nodes}x{per_node}" for nodes, per_node in even))


def choices_of(workload: Workload, cluster: Cluster) -> Choices:
    """All even placements that the cluster's nodes allow, up to the size of the largest job."""
    scaling = workload.scaling
    sizes = workload.gpus if scaling is None else scaling.max_gpus
    most = min(int(sizes.max()) if len(sizes) else 1, cluster.gpus)
    able: dict[int, int] = {}
    for model in cluster.models:
        nodes = [node.gpus for node in cluster.nodes if node.gpu_model == model]
        for per_node in range(1, max(nodes) + 1):
            able[per_node] = max(able.get(per_node, 0), sum_ints(size >= per_node for size in nodes))
    pairs = [(n, g) for g, count in able.items() for n in range(1, min(count, most // g) + 1)]
    pairs.sort(key=lambda pair: (pair[0] * pair[1], pair[0]))
    table = np.array([(0, 0), (0, 0), *pairs], dtype=np.int32)
    return Choices(table[:, 0], table[:, 1])


def placement_name(text: str) -> str:
    """'2x4': 4 GPUs on each of 2 nodes. Raises ValueError for anything else."""
    nodes, _, per_node = text.partition("x")
    if not (nodes.isdecimal() and per_node.isdecimal() and int(nodes) and int(per_node)):
        raise ValueError("must be NODESxGPUS, as in 2x4")
    return f"{int(nodes)}x{int(per_node)}"


class EvenPool(Pool):
    """A pool that also places evenly."""

    __slots__ = ()

    def ready(self) -> list[int]:
        """[g]: number of nodes with at least g free GPUs."""
        counts = [bucket.bit_count() for bucket in self._buckets]
        for free in range(len(counts) - 2, -1, -1):
            counts[free] += counts[free + 1]
        return counts

    def take_even(self, nodes: int, per_node: int) -> Placement | None:
        """`per_node` GPUs on each of `nodes` nodes; None if that does not fit."""
        found: list[int] = []
        for bucket in self._buckets[per_node:]:
            while bucket and len(found) < nodes:
                low = bucket & -bucket
                bucket ^= low
                found.append(self.nodes[low.bit_length() - 1])
            if len(found) == nodes:
                return Placement(tuple(found), tuple([self._allocate(node, per_node) for node in found]))
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Jobs with the same sizes, GPU models and throughput curve. choices: what they may choose from (no `wait`);
    nodes, per_node: of each of them (the submitted size's fewest nodes for `packed`); curve: index, or NO_CURVE."""

    choices: NDArray[np.intp]
    nodes: I4
    per_node: I4
    gpus: I4
    pools: tuple[int, ...]
    curve: int
    packed: bool


def cost_of(kind: Kind, cluster: Cluster, *, thrift: float, fragmentation: float) -> F8:
    """What each of the kind's choices costs: the share of the cluster's GPUs, times (nodes / fewest nodes) to the power
    of `fragmentation`, all to the power of `thrift`."""
    spread = kind.nodes / np.ceil(kind.gpus / max(node.gpus for node in cluster.nodes))
    cost: F8 = logs.power(kind.gpus / cluster.gpus * logs.power(spread, fragmentation), thrift)
    return cost


Choose = Callable[[int, Kind, Mask], int]
"""(job, kind, which of the kind's choices fit now) -> index into the kind's choices, or one of the two constants."""
HOLD, HOLD_ALL = -1, -2
"""The job is not placed now; neither is any other of its kind and group (`EvenQueue.regroup`)."""


class EvenQueue:
    """Waiting jobs and free GPUs. A cache: built from any snapshot, kept up with `observe`."""

    def __init__(self, snapshot: Snapshot, choices: Choices) -> None:
        workload, cluster = snapshot.workload, snapshot.cluster
        self.choices = choices
        by_model: dict[str, list[int]] = {model: [] for model in cluster.models}
        for index, node in enumerate(cluster.nodes):
            by_model[node.gpu_model].append(index)
        free = snapshot.free_masks()
        self.pools = [EvenPool(cluster, nodes, free) for nodes in by_model.values()]
        self._pool_of_node = pool_of_node(cluster)
        self._ready = np.zeros((len(self.pools), max(pool.size for pool in self.pools) + 1), dtype=np.int32)
        """[pool, g]: nodes with at least g free GPUs, true during a walk."""
        shapes = shapes_of(workload, cluster)
        self._speeds = None if workload.speeds is None else speeds_by_pool(workload, cluster, shapes)
        self.kinds, self.kind_of = _kinds(workload, self.pools, shapes, choices)
        self._where: dict[int, Placement] = dict(snapshot.placements)
        self._groups: Callable[[Sequence[int]], NDArray[np.intp]] | None = None
        self._waiting: dict[tuple[int, int], list[int]] = {}
        """By kind and group the waiting jobs, the last submitted first."""
        self._file(snapshot.waiting()[::-1])
        self._built = True

    def regroup(self, groups: Callable[[Sequence[int]], NDArray[np.intp]]) -> None:
        """Split the jobs of a kind into groups: `HOLD_ALL` then holds only jobs of the same group.

        Call again when the groups change.

        Args:
            groups: jobs -> the number of each.
        """
        self._groups = groups
        waiting = sorted((job for jobs in self._waiting.values() for job in jobs), reverse=True)
        self._waiting = {}
        self._file(waiting)

    def _file(self, jobs: Sequence[int]) -> None:
        """Enter waiting jobs, given last submitted first."""
        for job, key in zip(jobs, self._keys(jobs), strict=True):
            self._waiting.setdefault(key, []).append(job)

    def _keys(self, jobs: Sequence[int]) -> list[tuple[int, int]]:
        """Kind and group of each job."""
        if self._groups is None or not jobs:
            return [(self.kind_of.item(job), 0) for job in jobs]
        return list(zip(self.kind_of[jobs].tolist(), self._groups(jobs).tolist(), strict=True))

    def kind(self, job: int) -> Kind:
        return self.kinds[int(self.kind_of[job])]

    def differing(self, values: F8) -> Mask:
        """By kind: whether its jobs have a curve and differ in this number of theirs (NaN is one as well)."""
        known = np.where(np.isnan(values), -np.inf, values)
        low, high = np.full(len(self.kinds), np.inf), np.full(len(self.kinds), -np.inf)
        np.minimum.at(low, self.kind_of, known)
        np.maximum.at(high, self.kind_of, known)
        differ: Mask = (low < high) & np.array([kind.curve != NO_CURVE for kind in self.kinds], dtype=bool)
        return differ

    def speed(self, job: int, placement: Placement) -> float:
        """Of the placement's GPU model, relative to the job's reference; 1 where nothing is known."""
        if self._speeds is None:
            return 1.0
        return self._speeds.item(job, self._pool_of_node[placement.nodes[0]])

    @property
    def running(self) -> int:
        """Jobs that hold GPUs."""
        return len(self._where)

    @property
    def waiting(self) -> int:
        return sum_ints(map(len, self._waiting.values()))

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened (nothing, if this cache was just built)."""
        if self._built:
            self._built = False
            return
        for job in (*snapshot.finished, *snapshot.evicted):
            placement = self._where.pop(job)
            self.pools[self._pool_of_node[placement.nodes[0]]].release(placement)
        for node in snapshot.nodes_down:
            self.pools[self._pool_of_node[node]].node_down(node)
        for node in snapshot.nodes_up:
            self.pools[self._pool_of_node[node]].node_up(node)
        came = [*snapshot.evicted, *snapshot.arrived]
        for job, key in zip(came, self._keys(came), strict=True):
            insort(self._waiting.setdefault(key, []), job, key=_newest_first)

    def walk(self, choose: Choose) -> dict[int, Placement]:
        """Ask for every waiting job that fits now, in order of submission, until no GPU is free."""
        run: dict[int, Placement] = {}
        waited: list[tuple[int, tuple[int, int]]] = []
        waiting, kinds, pools = self._waiting, self.kinds, self.pools
        heads = [(jobs[-1], key) for key, jobs in waiting.items() if jobs]
        heapify(heads)
        for pool in range(len(pools)):
            self._count(pool)
        while heads and any(pool.free_gpus for pool in pools):
            job, key = heads[0]
            kind = kinds[key[0]]
            fits = self._fits(kind)
            choice = choose(job, kind, fits) if fits.any() else HOLD_ALL
            if choice == HOLD_ALL:
                heappop(heads)
                continue
            jobs = waiting[key]
            jobs.pop()
            if choice == HOLD:
                waited.append((job, key))
            else:
                pool, placement = self._take(job, kind, choice)
                run[job] = self._where[job] = placement
                self._count(pool)
            heappop(heads)
            if jobs:
                heappush(heads, (jobs[-1], key))
        for job, key in reversed(waited):
            waiting[key].append(job)
        return run

    def _fits(self, kind: Kind) -> Mask:
        if kind.packed:
            return np.array([any(self.pools[pool].fits(int(kind.gpus[0])) for pool in kind.pools)])
        if len(kind.pools) == 1:
            found: Mask = self._ready[kind.pools[0]][kind.per_node] >= kind.nodes
            return found
        found = np.zeros(len(kind.choices), dtype=bool)
        for pool in kind.pools:
            found |= self._ready[pool][kind.per_node] >= kind.nodes
        return found

    def _count(self, pool: int) -> None:
        ready = self.pools[pool].ready()
        self._ready[pool, : len(ready)] = ready

    def _take(self, job: int, kind: Kind, choice: int) -> tuple[int, Placement]:
        """The fastest pool on which the chosen placement fits; of equals the cluster's first."""
        pools: Sequence[int] = kind.pools
        if self._speeds is not None and len(pools) > 1:
            speeds = self._speeds[job].tolist()
            pools = sorted(pools, key=lambda pool: -speeds[pool])
        for pool in pools:
            if kind.packed:
                placement = self.pools[pool].take(int(kind.gpus[choice]))
            else:
                placement = self.pools[pool].take_even(int(kind.nodes[choice]), int(kind.per_node[choice]))
            if placement is not None:
                return pool, placement
        raise AssertionError(f"choice {choice} of job {job} does not fit")


def _newest_first(job: int) -> int:
    return -job


def _kinds(
    workload: Workload, pools: Sequence[EvenPool], shapes: Shapes, choices: Choices
) -> tuple[list[Kind], NDArray[np.intp]]:
    """All kinds of jobs, and the index of each job's kind."""
    scaling = workload.scaling
    gpus = workload.gpus.astype(np.int64)
    if scaling is None:
        one, none = np.ones(len(gpus), dtype=np.int64), np.full(len(gpus), NO_CURVE, dtype=np.int64)
        columns: list[NDArray[np.int64]] = [gpus, one, gpus, gpus, none]
    else:
        limits = (scaling.replica_gpus, scaling.min_gpus, scaling.max_gpus, scaling.curve)
        columns = [gpus, *(column.astype(np.int64) for column in limits)]
    keys, kind_of = np.unique(np.stack([*columns, shapes.of_job], axis=1), axis=0, return_inverse=True)
    kinds = []
    for asked, step, least, most, curve, shape in keys.tolist():
        pool_of = shapes.shapes[shape].pools
        sizes = choices.nodes * choices.per_node
        fits = (sizes >= least) & (sizes <= most) & (sizes % step == 0) & (sizes > 0)
        able = np.zeros(len(choices), dtype=bool)
        for pool in pool_of:
            room = np.array(
                [sum_ints(size >= g for size in pools[pool].sizes.values()) for g in range(pools[pool].size + 1)]
            )
            inside = choices.per_node < len(room)
            able |= inside & (room[np.where(inside, choices.per_node, 0)] >= choices.nodes)
        fits &= able
        if scaling is not None and curve != NO_CURVE:
            runs = scaling.curves[curve][:, 0] > 0
            fits &= runs[np.minimum(sizes, len(runs) - 1)]
        numbers = np.flatnonzero(fits)
        if len(numbers):
            nodes, per_node = choices.nodes[numbers], choices.per_node[numbers]
            kinds.append(Kind(numbers, nodes, per_node, nodes * per_node, pool_of, curve, packed=False))
            continue
        largest = max((pools[pool].size for pool in pool_of), default=1)
        nodes = np.array([-(-asked // largest)], dtype=np.int32)
        size = np.array([asked], dtype=np.int32)
        kinds.append(Kind(np.array([PACKED]), nodes, size // nodes, size, pool_of, curve, packed=True))
    return kinds, kind_of.reshape(-1)
