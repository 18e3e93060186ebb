"""First in, first out, with or without backfill.

Strict FIFO never lets a job pass an earlier one. `greedy` skips jobs that don't fit, so that large ones may starve.
`easy` is EASY backfill (Lifka, "The ANL/IBM SP Scheduling System", 1995; Mu'alem and Feitelson, TPDS 2001): the
first job that does not fit gets a reservation at the earliest time its GPUs will be free by the predicted ends of
the running jobs, and a later job may pass only if it ends before that time or stays off the reserved GPUs.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, ClassVar

from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.reservation import Reservation, reserve
from gpuloom.placement.shapes import shapes_of
from gpuloom.policies.base import Parameter, Policy, Traits, one_of, positive


class SubmitOrder:
    """In order of submission."""

    clock = 0
    by_gpus = False

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        return float(job)

    running_key = waiting_key


class Fifo(Policy):
    """See the module."""

    id = "fifo"
    traits = Traits(
        summary="first in, first out",
        knows="nothing (easy backfill: durations)",
        preemptive="no",
        heterogeneity=False,
        sharing=False,
        paper="easy: Lifka 1995",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("backfill", "no", one_of("no", "easy", "greedy"), "no, easy or greedy"),
        Parameter("depth", 100.0, positive, "easy: how many waiting jobs are tried for backfill"),
    )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._planner: OrderedPlanner | None = None
        self._easy: _Easy | None = None

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.values["backfill"] == "easy":
            if self._easy is None:
                self._easy = _Easy(snapshot, int(self.values["depth"]))
            return self._easy.decide(snapshot), memory
        if self._planner is None:
            strict = self.values["backfill"] == "no"
            self._planner = OrderedPlanner(snapshot, SubmitOrder(), preemptive=False, strict=strict)
        self._planner.observe(snapshot)
        return self._planner.plan(snapshot), memory


class _Easy:
    """Caches for EASY backfill: the queue, the free GPUs, the reservation of the job at its head."""

    def __init__(self, snapshot: Snapshot, depth: int) -> None:
        self._depth = depth
        self._shapes = shapes_of(snapshot.workload, snapshot.cluster)
        self._pools = pools_of(snapshot.cluster, snapshot.free_masks())
        self._pool_of_node = {node: index for index, pool in enumerate(self._pools) for node in pool.nodes}
        new = {*snapshot.arrived, *snapshot.evicted}
        self._queue: dict[int, None] = {job: None for job in snapshot.waiting() if job not in new}
        self._where: dict[int, Placement] = dict(snapshot.placements)
        self._reservation: Reservation | None = None

    def decide(self, snapshot: Snapshot) -> Decision:
        # 1. What happened.
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
        # 2. Start the head of the queue while it fits.
        run: dict[int, Placement] = {}
        while self._queue:
            head = next(iter(self._queue))
            if not self._start(head, run):
                break
        if not self._queue:
            return Decision(run) if run else NOTHING
        # 3. Reserve for the head, and let later jobs pass that don't delay it.
        if self._reservation is None or self._reservation.job != head or self._reservation.start_s <= snapshot.now_s:
            self._reservation = self._reserve(snapshot, head, run)
            freed = True
        first = 1 if freed or run else max(1, len(self._queue) - len(snapshot.arrived))
        if first <= self._depth:
            candidates = list(islice(self._queue, first, self._depth + 1))
            self._backfill(snapshot, candidates, run)
        return Decision(run) if run else NOTHING

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
            (self._end_s(snapshot, job) if job in run else snapshot.predicted_end_s(job), placement)
            for job, placement in self._where.items()
        ]
        return reserve(head, shape.gpus, self._pools, shape.pools, running, snapshot.now_s)

    @staticmethod
    def _end_s(snapshot: Snapshot, job: int) -> float:
        """When a job that starts now would end."""
        return snapshot.now_s + snapshot.restart_overhead_s[job] + snapshot.remaining_s(job)

    def _backfill(self, snapshot: Snapshot, candidates: list[int], run: dict[int, Placement]) -> None:
        reserved = self._reservation
        held = self._hold(reserved)
        tried: set[tuple[int, bool]] = set()
        for job in candidates:
            shape = int(self._shapes.of_job[job])
            short = reserved is None or self._end_s(snapshot, job) <= reserved.start_s
            if (shape, short) in tried:
                continue
            if self._start(job, run):
                continue
            if short and held is not None and reserved is not None:
                self._pools[reserved.pool].release(held)
                started = self._start(job, run)
                held = self._hold(reserved)
                if started:
                    continue
                tried.add((shape, True))
            tried.add((shape, False))
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
