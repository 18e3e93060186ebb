"""First in, first out, with or without backfill.

Strict FIFO never lets a job pass an earlier one. `greedy` skips jobs that don't fit, so that large ones may starve.
`easy` is EASY backfill (Lifka, "The ANL/IBM SP Scheduling System", 1995; Mu'alem and Feitelson, TPDS 2001): the
first job that does not fit gets a reservation at the earliest time its GPUs will be free by the predicted ends of
the running jobs, and a later job may pass only if it ends before that time or stays off the reserved GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Any, ClassVar

from gpuloom.core.carrying import PLACES_BY_JOB
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.reservation import Reservation, reserve
from gpuloom.placement.shapes import shapes_of, speeds_by_pool
from gpuloom.policies.base import Parameter, Preemptive, Traits, one_of, whole
from gpuloom.policies.upgrading import UPGRADE, Upgrading


@dataclass(slots=True)
class Memory:
    """Of EASY backfill: the GPUs reserved for the job that was first, and since when it will have them."""

    reserved: dict[int, Placement] = field(default_factory=dict, metadata=PLACES_BY_JOB)
    start_s: float = 0.0


class SubmitOrder:
    """In order of submission."""

    clock = 0
    by_gpus = False

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        return float(job)

    running_key = waiting_key


class Fifo(Upgrading):
    """See the module."""

    id = "fifo"
    traits = Traits(
        summary="first in, first out",
        knows="nothing (easy backfill: durations)",
        preemptive=Preemptive.NO,
        heterogeneity=False,
        sharing=False,
        paper="easy: Lifka 1995",
        weights="",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "backfill",
            "no",
            one_of("no", "easy", "greedy"),
            "who may pass a job that does not fit: no: nobody; easy: jobs that don't delay it; greedy: everyone",
        ),
        Parameter("depth", 100, whole, "easy: how many waiting jobs that don't fit are tried for backfill"),
        UPGRADE,
    )

    remembers = (Memory,)
    cache: OrderedPlanner | _Easy | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory | None:
        return Memory() if self.values["backfill"] == "easy" else None

    def sees(self, gpus: int) -> int | None:
        return gpus + 1 + (self.values["depth"] if self.values["backfill"] == "easy" else 0)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        backfill = self.values["backfill"]
        if self.cache is None:
            if backfill == "easy":
                self.cache = _Easy(snapshot, self.values["depth"], memory)
            else:
                self.cache = OrderedPlanner(snapshot, SubmitOrder(), preemptive=False, strict=backfill == "no")
        self.cache.observe(snapshot)
        decision = self.cache.plan(snapshot)
        return self.upgraded(snapshot, decision, self.cache.relocate, in_order=backfill != "greedy"), memory


class _Easy:
    """Caches for EASY backfill: the queue, the free GPUs, the reservation of the job at its head."""

    def __init__(self, snapshot: Snapshot, depth: int, memory: Memory) -> None:
        self._depth, self._memory = depth, memory
        self._gpus = snapshot.cluster.gpus
        self._shapes = shapes_of(snapshot.workload, snapshot.cluster)
        self._speed = speeds_by_pool(snapshot.workload, snapshot.cluster, self._shapes)
        self._pools = pools_of(snapshot.cluster, snapshot.free_masks())
        self._pool_of_node = {node: index for index, pool in enumerate(self._pools) for node in pool.nodes}
        self._queue: dict[int, None] = dict.fromkeys(snapshot.waiting())
        self._where: dict[int, Placement] = dict(snapshot.placements)
        self._reservation: Reservation | None = None
        if not (snapshot.evicted or snapshot.nodes_down or snapshot.nodes_up):
            for job, place in memory.reserved.items():
                self._reservation = Reservation(job, memory.start_s, self._pool_of_node[place.nodes[0]], place)
        self._freed = self._built = True

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call (nothing, if this cache was just built from this snapshot)."""
        if self._built:
            self._built = False
            return
        freed = bool(snapshot.nodes_up)
        for job in (*snapshot.finished, *snapshot.evicted):
            placement = self._where.pop(job)
            self._pools[self._pool_of_node[placement.nodes[0]]].release(placement)
            freed = True
        for node in snapshot.nodes_down:
            self._pools[self._pool_of_node[node]].node_down(node)
        for node in snapshot.nodes_up:
            self._pools[self._pool_of_node[node]].node_up(node)
        if snapshot.nodes_down or snapshot.nodes_up:
            self._reservation = None
        if snapshot.evicted:
            self._queue = dict.fromkeys(sorted((*self._queue, *snapshot.evicted)))
            self._reservation = None
            freed = True
        self._queue.update(dict.fromkeys(snapshot.arrived))
        self._freed = freed

    def plan(self, snapshot: Snapshot) -> Decision:
        """Start the head of the queue while it fits, reserve for it, let others pass."""
        run: dict[int, Placement] = {}
        while self._queue:
            head = next(iter(self._queue))
            if not self._start(head, run):
                break
        if not self._queue:
            return Decision(run) if run else NOTHING
        freed = self._freed
        if self._reservation is None or self._reservation.job != head or self._reservation.start_s <= snapshot.now_s:
            self._reservation = self._reserve(snapshot, head, run)
            self._remember()
            freed = True
        first = 1 if freed or run else max(1, len(self._queue) - len(snapshot.arrived))
        if first <= self._depth:
            self._backfill(snapshot, first, run)
        return Decision(run) if run else NOTHING

    def relocate(self, job: int, placement: Placement) -> None:
        """A running job will have other GPUs, which are free."""
        before = self._where[job]
        self._pools[self._pool_of_node[before.nodes[0]]].release(before)
        self._pools[self._pool_of_node[placement.nodes[0]]].claim(placement)
        self._where[job] = placement

    def _remember(self) -> None:
        self._memory.reserved.clear()
        if self._reservation is not None:
            self._memory.reserved[self._reservation.job] = self._reservation.placement
            self._memory.start_s = self._reservation.start_s

    def _start(self, job: int, run: dict[int, Placement]) -> bool:
        shape = self._shapes.shapes[self._shapes.of_job[job]]
        for index in shape.pools:
            placement = self._pools[index].take(shape.gpus)
            if placement is not None:
                run[job] = self._where[job] = placement
                del self._queue[job]
                return True
        return False

    def _reserve(self, snapshot: Snapshot, head: int, run: dict[int, Placement]) -> Reservation | None:
        shape = self._shapes.shapes[self._shapes.of_job[head]]
        running = [
            (
                self._end_s(snapshot, job, self._pool_of_node[placement.nodes[0]])
                if job in run
                else snapshot.predicted_end_s(job),
                placement,
            )
            for job, placement in self._where.items()
        ]
        return reserve(head, shape.gpus, self._pools, shape.pools, running, snapshot.now_s)

    def _end_s(self, snapshot: Snapshot, job: int, pool: int) -> float:
        """When a job that starts now on this GPU model would end."""
        work_s = snapshot.remaining_s(job) / float(self._speed[job, pool])
        return snapshot.now_s + snapshot.restart_overhead_s[job] + work_s

    def _backfill(self, snapshot: Snapshot, first: int, run: dict[int, Placement]) -> None:
        """Try waiting jobs from place `first` on (those before don't fit), until `depth` behind the head don't.

        Jobs that start don't count: a pass right after this one, by a cache built anew, would start nobody.
        """
        reserved, unfit = self._reservation, first - 1
        held = self._hold(reserved)
        tried: set[tuple[int, bool]] = set()
        for job in list(islice(self._queue, first, first + self._depth + self._gpus)):
            if unfit >= self._depth:
                break
            index = int(self._shapes.of_job[job])
            # Done before the reservation begins, it may use reserved GPUs too.
            short = (
                reserved is not None
                and held is not None
                and reserved.pool in self._shapes.shapes[index].pools
                and self._end_s(snapshot, job, reserved.pool) <= reserved.start_s
            )
            if (index, short) in tried:
                unfit += 1
                continue
            if self._start(job, run):
                continue
            tried.add((index, False))
            if short and reserved is not None and held is not None:
                pool = self._pools[reserved.pool]
                pool.release(held)
                placement = pool.take(self._shapes.shapes[index].gpus)
                if placement is not None:
                    run[job] = self._where[job] = placement
                    del self._queue[job]
                else:
                    tried.add((index, True))
                    unfit += 1
                held = self._hold(reserved)
            else:
                unfit += 1
        if held is not None and reserved is not None:
            self._pools[reserved.pool].release(held)

    def _hold(self, reserved: Reservation | None) -> Placement | None:
        """Set aside the reserved GPUs that are free now."""
        if reserved is None:
            return None
        pool: Pool = self._pools[reserved.pool]
        pieces = [
            (node, mask & pool.free[node])
            for node, mask in zip(reserved.placement.nodes, reserved.placement.masks, strict=True)
            if mask & pool.free[node]
        ]
        if not pieces:
            return None
        held = Placement(tuple(node for node, _ in pieces), tuple(mask for _, mask in pieces))
        pool.claim(held)
        return held
