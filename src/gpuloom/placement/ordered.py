"""Which jobs run, given an order: in order of priority every job that still fits runs (greedy, with skips).

The answer is the same as from sorting all jobs and walking down the list, but without sorting. Waiting jobs lie in one
heap per shape. Within a pass free GPUs only become fewer, so a shape that did not fit will not fit later, and only the
heads of the heaps are looked at. Running jobs keep their GPUs unless a job before them in the order needs these (sticky
placement). The jobs that are stopped are the last in the order (`clearing.py`), and no more of them, nor on more nodes,
than needed.

Keys are floats, small first, ties by submission. A waiting job's key is constant. A running job's key is
`(stored - now · clock) · pace`: with clock 0 it is constant as well; with clock 1 it falls with time, as remaining
time does, at a pace that goes by the job's GPUs and weight. Jobs of one shape (and weight, where that sets the pace)
thus never overtake each other while they run.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from gpuloom.core.columns import ints
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.clearing import Clearing
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.shapes import Shapes, by_weight, shapes_of

Entry = tuple[float, int]
"""(key, job): job numbers are in order of submission, which breaks ties as wanted."""


_NOBODY: Entry = (-math.inf, -1)


class Order(Protocol):
    """The order of jobs. Small keys first."""

    clock: int
    """1: a running job's key falls as time passes; 0: it stands still."""
    by_gpus: bool
    """Keys of running jobs are multiplied by the job's GPUs (with clock 1 over its weight, whether or not)."""

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        """The key of a job that has just begun to wait."""
        ...

    def running_key(self, snapshot: Snapshot, job: int) -> float | None:
        """The stored key of a job that has just begun to run; None: it must not be stopped for now."""
        ...


class OrderedPlanner:
    """Keeps the orderings up to date from the events of each snapshot, and plans.

    A cache: `OrderedPlanner(snapshot, …)` builds it anew from any snapshot.

    Args:
        preemptive: whether a waiting job may take the GPUs of running jobs after it in the order.
        strict: stop at the first job that does not fit (head-of-line blocking) instead of skipping it.
        scatter: only count GPUs, give any that are free (no topology).
        key_on: (snapshot, waiting job, index of a GPU model) -> the key with which it stops jobs there. A job that
            starts may come to stand later in the order, as its key waiting is that of a faster GPU model. None: a
            waiting job has the same key everywhere.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        order: Order,
        *,
        preemptive: bool,
        strict: bool = False,
        scatter: bool = False,
        key_on: Callable[[Snapshot, int, int], float] | None = None,
    ) -> None:
        self.order, self.preemptive, self.strict = order, preemptive, strict
        workload = snapshot.workload
        self._shapes: Shapes = shapes_of(workload, snapshot.cluster)
        weights = workload.weights if order.clock else None
        self._paced = order.by_gpus or weights is not None
        """Keys of running jobs fall at different paces: by shape, `_pace`."""
        by_gpus = [float(shape.gpus) if order.by_gpus else 1.0 for shape in self._shapes.shapes]
        self._shapes, self._pace = (
            (self._shapes, by_gpus) if weights is None else by_weight(self._shapes, weights, by_gpus)
        )
        self._shape_of = ints(self._shapes.of_job)
        self._gpus = [shape.gpus for shape in self._shapes.shapes]
        self._allowed = [shape.pools for shape in self._shapes.shapes]
        self.pools: list[Pool] = pools_of(snapshot.cluster, snapshot.free_masks(), scatter=scatter)
        self._pool_of_node = {node: index for index, pool in enumerate(self.pools) for node in pool.nodes}
        self._waiting: list[list[Entry]] = [[] for _ in self._gpus]
        self._running: list[list[list[Entry]]] = [[[] for _ in self._gpus] for _ in self.pools]
        """_running[pool][shape]: entries, first in the order first."""
        self._where: dict[int, Placement] = {}
        self._stored: dict[int, float] = {}
        self._jobs_on: dict[int, set[int]] = {node: set() for pool in self.pools for node in pool.nodes}
        self.entered: list[int] = []
        """Jobs that the last plan gave GPUs to (a job that was taken off and put back on the same ones included)."""
        self._keys_at_start: dict[int, float] = {}
        """Where keys go by the GPU model: those with which they waited."""
        self._key_on = key_on
        self._now_s = snapshot.now_s
        self._clearings = [
            Clearing(
                pool,
                self._asked_of(index, pool),
                self._jobs_on,
                self._stored.get,
                self._where,
                self._value,
                falling=self._paced,
            )
            for index, pool in enumerate(self.pools)
        ]
        for job, placement in snapshot.placements.items():
            self._where[job] = placement
            for node in placement.nodes:
                self._jobs_on[node].add(job)
            if (key := order.running_key(snapshot, job)) is not None:
                self._stored[job] = key
                self._entries_of(job).append((key, job))
        for by_shape in self._running:
            for entries in by_shape:
                entries.sort()
        waiting_key, shape_of, waiting = order.waiting_key, self._shape_of, self._waiting
        for job in snapshot.waiting():
            waiting[shape_of[job]].append((waiting_key(snapshot, job), job))
        for heap in waiting:
            heapify(heap)
        self._new_heads: set[int] = set()
        self._freed = True
        self._owed = False
        self._built = True

    # -- events ---------------------------------------------------------------------------------------------

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call (nothing, if this cache was just built from this snapshot)."""
        if self._built:
            self._built = False
            return
        for job in self.entered:
            if job in self._where and job not in self._stored:
                self._enter_running(snapshot, job)
                start = self._keys_at_start.get(job)
                if start is not None and self._value_at(job, self._now_s) > start:
                    self._freed = True  # who waits may now come before it
        self.entered.clear()
        self._keys_at_start.clear()
        for job in snapshot.finished:
            self._leave_running(job)
        for job in snapshot.evicted:
            self._leave_running(job)
        for node in snapshot.nodes_down:
            index = self._pool_of_node[node]
            self.pools[index].node_down(node)
            self._clearings[index].touch(node)  # its GPUs that were free are no room any more
        for node in snapshot.nodes_up:
            self.pools[self._pool_of_node[node]].node_up(node)
            self._touch(node)
        for job in snapshot.evicted:
            self._enter_waiting(snapshot, job)
        for job in snapshot.arrived:
            self._enter_waiting(snapshot, job)
        if self.order.clock:  # at another size the predicted end differs
            for job in snapshot.resized:
                if job in self._stored:
                    self.rekey(snapshot, job)

    def rekey(self, snapshot: Snapshot, job: int) -> None:
        """The order changed for a job (it sank to a lower queue, …)."""
        shape = self._shape_of[job]
        if job in self._where:
            if job in self._stored:
                self._drop_entry(job)
            self._enter_running(snapshot, job)
            for node in self._where[job].nodes:
                self._touch(node)
        else:
            self._waiting[shape] = [entry for entry in self._waiting[shape] if entry[1] != job]
            heapify(self._waiting[shape])
            self._enter_waiting(snapshot, job)

    def expose(self, keys: dict[int, float]) -> None:
        """These running jobs, and no others, may be stopped; with the keys given."""
        for by_shape in self._running:
            for entries in by_shape:
                entries.clear()
        self._stored.clear()
        self._stored.update(keys)
        for job, key in keys.items():
            self._entries_of(job).append((key, job))
        for by_shape in self._running:
            for entries in by_shape:
                entries.sort()
        for clearing in self._clearings:
            clearing.touch_all()
        self._freed = True

    def relocate(self, job: int, placement: Placement) -> None:
        """A running job will have other GPUs, which are free. Call it after `plan`."""
        if job in self._stored:
            self._drop_entry(job)
        before = self._where[job]
        self.pools[self._pool_of_node[before.nodes[0]]].release(before)
        for node in before.nodes:
            self._jobs_on[node].discard(job)
            self._touch(node)
        self.pools[self._pool_of_node[placement.nodes[0]]].claim(placement)
        self._where[job] = placement
        for node in placement.nodes:
            self._jobs_on[node].add(job)
            self._touch(node)
        self.entered.append(job)

    def has_waiting(self, shape: int) -> bool:
        """Whether any waiting job of the shape is being considered."""
        return bool(self._waiting[shape])

    def refill(self, shape: int, entries: list[Entry]) -> None:
        """The waiting jobs of a shape that are to be considered, with their keys."""
        heapify(entries)
        self._waiting[shape] = entries
        if entries:
            self._new_heads.add(shape)

    def _enter_waiting(self, snapshot: Snapshot, job: int) -> None:
        shape = self._shape_of[job]
        heap = self._waiting[shape]
        heappush(heap, (self.order.waiting_key(snapshot, job), job))
        if heap[0][1] == job:
            self._new_heads.add(shape)

    def _enter_running(self, snapshot: Snapshot, job: int) -> None:
        key = self.order.running_key(snapshot, job)
        if key is None:
            return
        self._stored[job] = key
        insort(self._entries_of(job), (key, job))
        placement = self._where[job]
        clearing = self._clearings[self._pool_of_node[placement.nodes[0]]]
        for node in placement.nodes:
            clearing.touch(node)

    def _asked_of(self, index: int, pool: Pool) -> set[int]:
        """Numbers of GPUs of one node that jobs of this pool may ask for."""
        asked: set[int] = set()
        for gpus, pools in zip(self._gpus, self._allowed, strict=True):
            if index in pools:
                if gpus <= pool.size:
                    asked.add(gpus)
                else:
                    sizes = sorted(set(pool.sizes.values()), reverse=True)
                    asked.update(sizes)
                    # The remainder depends on how many whole nodes of each size are found.
                    asked.update(range(1, pool.size) if len(sizes) > 1 else {gpus % pool.size} - {0})
        return asked

    def _entries_of(self, job: int) -> list[Entry]:
        return self._running[self._pool_of_node[self._where[job].nodes[0]]][self._shape_of[job]]

    def _drop_entry(self, job: int) -> None:
        entries = self._entries_of(job)
        del entries[bisect_left(entries, (self._stored.pop(job), job))]

    def _leave_running(self, job: int) -> None:
        if job in self._stored:
            self._drop_entry(job)
        placement = self._where.pop(job)
        self.pools[self._pool_of_node[placement.nodes[0]]].release(placement)
        for node in placement.nodes:
            self._jobs_on[node].discard(job)
            self._touch(node)

    def _touch(self, node: int) -> None:
        """Something on the node changed in favour of jobs that wait."""
        self._freed = True
        self._clearings[self._pool_of_node[node]].touch(node)

    # -- planning -------------------------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot, *, may_preempt: bool | None = None) -> Decision:
        """Everyone who should run now, given the order. Call after `observe`.

        Args:
            may_preempt: None leaves it to the snapshot.
        """
        preempt = self.preemptive and (snapshot.may_preempt if may_preempt is None else may_preempt)
        self._now_s = snapshot.now_s
        for clearing in self._clearings:
            clearing.now_s = snapshot.now_s
        # If no GPUs were freed, a shape with the same head as before is still blocked.
        complete = self._freed or self.strict or (preempt and self._owed)
        # Jobs that could have stopped others, had it been allowed, are looked at again once it is.
        self._owed = self.preemptive and not preempt
        shapes = range(len(self._waiting)) if complete else self._new_heads
        heads = [
            (self._waiting[shape][0][0], self._waiting[shape][0][1], shape) for shape in shapes if self._waiting[shape]
        ]
        self._new_heads.clear()
        if not heads:
            self._freed = False
            return NOTHING
        heapify(heads)
        run: dict[int, Placement] = {}
        stopped: dict[int, Placement] = {}
        last = self._last_running() if preempt else _NOBODY
        while heads:
            key, job, shape = heappop(heads)
            heap = self._waiting[shape]
            if not heap or heap[0][1] != job:
                continue
            placement = self._fit(shape, stopped.get(job))
            if placement is not None:
                heappop(heap)
            elif (key, job) < last:
                # Taken off first: victims of the same shape may come to stand before it.
                heappop(heap)
                before = len(stopped)
                placement = self._preempt(snapshot, key, job, shape, stopped, run, heads)
                if placement is None:
                    heappush(heap, (key, job))
                    continue
                if len(stopped) > before:
                    last = self._last_running()
                    if not complete:
                        # GPUs that the stopped jobs leave over may serve later jobs that were blocked till now.
                        complete = True
                        for other, queue in enumerate(self._waiting):
                            if queue and queue[0] > (key, job):
                                heappush(heads, (queue[0][0], queue[0][1], other))
            elif self.strict or not any(pool.free_gpus for pool in self.pools):
                break
            else:
                continue
            run[job] = placement
            if self._key_on is not None:
                self._keys_at_start[job] = key
            self._where[job] = placement
            clearing = self._clearings[self._pool_of_node[placement.nodes[0]]]
            for node in placement.nodes:
                self._jobs_on[node].add(job)
                clearing.touch(node)
            if heap:
                heappush(heads, (heap[0][0], heap[0][1], shape))
        self.entered.extend(run)
        self._freed = False
        if not stopped:
            return Decision(run) if run else NOTHING
        # A stopped job that was placed again in the same pass moves; on exactly its old GPUs it just goes on.
        for job in [job for job in run if job in stopped]:
            if run[job] == stopped.pop(job):
                del run[job]
        return Decision(run, list(stopped))

    def _fit(self, shape: int, before: Placement | None) -> Placement | None:
        """A place for a job of this shape; the one it had `before` if that is free."""
        if before is not None:
            pool = self.pools[self._pool_of_node[before.nodes[0]]]
            if all(pool.free[node] & mask == mask for node, mask in zip(before.nodes, before.masks, strict=True)):
                pool.claim(before)
                return before
        gpus = self._gpus[shape]
        for index in self._allowed[shape]:
            placement = self.pools[index].take(gpus)
            if placement is not None:
                return placement
        return None

    def _last_running(self) -> Entry:
        """(key, job) of the last in the order among jobs that may be stopped."""
        shift = self._now_s if self.order.clock and not self._paced else 0.0
        last = _NOBODY
        for by_shape in self._running:
            for entries in by_shape:
                if entries:
                    stored, job = entries[-1]
                    last = max(last, (self._value(stored, job) - shift, job))
        return last

    def _preempt(
        self,
        snapshot: Snapshot,
        key: float,
        job: int,
        shape: int,
        stopped: dict[int, Placement],
        run: dict[int, Placement],
        heads: list[tuple[float, int, int]],
    ) -> Placement | None:
        """Make room for `job` by stopping jobs after it in the order; None if that can't make room."""
        gpus = self._gpus[shape]
        for index in self._allowed[shape]:
            pool = self.pools[index]
            there = key if self._key_on is None else self._key_on(snapshot, job, index)
            victims = self._victims(index, gpus, there, job)
            if not victims:
                continue
            for victim in victims:
                self._drop_entry(victim)
                placement = self._where.pop(victim)
                pool.release(placement)
                for node in placement.nodes:
                    self._jobs_on[node].discard(victim)
                    self._clearings[index].touch(node)
                stopped[victim] = placement
                run.pop(victim, None)
                other = self._shape_of[victim]
                victim_key = self.order.waiting_key(snapshot, victim)
                heappush(self._waiting[other], (victim_key, victim))
                heappush(heads, (victim_key, victim, other))
            return pool.take(gpus)
        return None

    def _value_at(self, job: int, now_s: float) -> float:
        """The key of a running job at a time; minus infinity: it must not be stopped."""
        stored = self._stored.get(job, -math.inf)
        return (stored - now_s * self.order.clock) * (self._pace[self._shape_of[job]] if self._paced else 1.0)

    def _value(self, stored: float, job: int) -> float:
        """The present key of a running job. Where all fall at one pace it is shifted by the clock, alike for all."""
        if not self._paced:
            return stored
        return (stored - self._now_s) * self._pace[self._shape_of[job]]

    def _victims(self, index: int, gpus: int, key: float, job: int) -> list[int]:
        """Jobs after (key, job) of a pool, last ones first, whose stop makes room for `gpus`; none if none suffice."""
        pool = self.pools[index]
        if self.order.clock and not self._paced:
            key += self._now_s
        if gpus == 1 or pool.scatter:
            return self._last_jobs(index, gpus - pool.free_gpus, key, job)
        clearing = self._clearings[index]
        if gpus <= pool.size:
            node = clearing.node_for(gpus, key, job)
            return [] if node is None else clearing.victims(node, gpus)
        pieces = clearing.nodes_for(gpus, key, job)
        if pieces is None:
            return []
        return list(dict.fromkeys(victim for node, count in pieces for victim in clearing.victims(node, count)))

    def _last_jobs(self, index: int, missing: int, key: float, job: int) -> list[int]:
        """The last jobs of the order that hold `missing` GPUs together, wherever these are."""
        tails = [
            (-self._value(entries[-1][0], entries[-1][1]), -entries[-1][1], shape, len(entries) - 1)
            for shape, entries in enumerate(self._running[index])
            if entries
        ]
        heapify(tails)
        taken: list[tuple[int, int]] = []
        while missing > 0:
            if not tails or tails[0][:2] >= (-key, -job):
                return []
            _, negative_job, shape, place = tails[0]
            taken.append((-negative_job, self._gpus[shape]))
            missing -= self._gpus[shape]
            if place:
                stored, victim = self._running[index][shape][place - 1]
                heapreplace(tails, (-self._value(stored, victim), -victim, shape, place - 1))
            else:
                heappop(tails)
        # More GPUs may come free than needed: then the first of these jobs in the order stay.
        kept = []
        for victim, count in reversed(taken):
            if missing + count <= 0:
                missing += count
            else:
                kept.append(victim)
        kept.reverse()
        return kept
