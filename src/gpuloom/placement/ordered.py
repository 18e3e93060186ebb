"""Who runs, when jobs have an order: in order of priority every job that still fits runs (greedy, with skips).

The answer is the one that sorting all jobs and walking down the list would give, reached without sorting:
waiting jobs lie in one heap per shape, and only heads are looked at, since in one pass free GPUs only become
fewer: a shape that did not fit will not fit later in the pass. Running jobs keep their GPUs unless a job before
them in the order needs these (sticky placement): victims are the last in the order, and no more of them, nor on
more nodes, than the newcomer needs.

Keys are floats, small first, ties by submission. A waiting job's key stands still. A running job's key is
`(stored - now · clock) · scale(gpus)`: with clock 0 it stands still as well; with clock 1 it falls with time, as
remaining time does. Jobs of one shape thus never overtake each other while they run.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush
from typing import Protocol

import numpy as np

from gpuloom.core.columns import ints
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.shapes import Shapes, shapes_of

Entry = tuple[float, int]
"""(key, job): job numbers are in order of submission, so ties fall right by themselves."""


class Order(Protocol):
    """Who goes first. Small keys first."""

    clock: int
    """1: a running job's key falls as time passes; 0: it stands still."""
    by_gpus: bool
    """Keys of running jobs are multiplied by the job's GPUs."""

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
    """

    def __init__(
        self,
        snapshot: Snapshot,
        order: Order,
        *,
        preemptive: bool,
        strict: bool = False,
        scatter: bool = False,
    ) -> None:
        self.order, self.preemptive, self.strict = order, preemptive, strict
        workload = snapshot.workload
        self._shapes: Shapes = shapes_of(workload, snapshot.cluster)
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
        self._blocked: list[dict[int, _Blocked]] = [{} for _ in self._gpus]
        """_blocked[shape][pool]: the head of the shape for which the pool can't make room."""
        for job, placement in snapshot.placements.items():
            self._where[job] = placement
            for node in placement.nodes:
                self._jobs_on[node].add(job)
            self._enter_running(snapshot, job)
        for job in snapshot.waiting():
            if job not in snapshot.arrived and job not in snapshot.evicted:
                self._waiting[self._shape_of[job]].append((order.waiting_key(snapshot, job), job))
        for heap in self._waiting:
            heapify(heap)
        self._new_heads: set[int] = set()
        self._freed = True

    # -- events ---------------------------------------------------------------------------------------------

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call."""
        for job in self.entered:
            if job in self._where and job not in self._stored:
                self._enter_running(snapshot, job)
        self.entered.clear()
        for job in snapshot.finished:
            self._leave_running(job)
        for job in snapshot.evicted:
            self._leave_running(job)
        for node in snapshot.nodes_down:
            self.pools[self._pool_of_node[node]].node_down(node)
        for node in snapshot.nodes_up:
            self.pools[self._pool_of_node[node]].node_up(node)
            self._touch(node)
        for job in snapshot.evicted:
            self._enter_waiting(snapshot, job)
        for job in snapshot.arrived:
            self._enter_waiting(snapshot, job)

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
        self._stored = dict(keys)
        for job, key in keys.items():
            self._entries_of(job).append((key, job))
        for by_shape in self._running:
            for entries in by_shape:
                entries.sort()
        for by_pool in self._blocked:
            by_pool.clear()
        self._freed = True

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
        for by_pool in self._blocked:
            for blocked in by_pool.values():
                blocked.touched.add(node)

    # -- planning -------------------------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot) -> Decision:
        """Everyone who should run now, given the order. Call after `observe`."""
        # Without freed GPUs a shape whose head is the old one is as blocked as it was.
        complete = self._freed or self.strict
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
        while heads:
            key, job, shape = heappop(heads)
            heap = self._waiting[shape]
            if not heap or heap[0][1] != job:
                continue
            # Taken off first: victims of the same shape may come to stand before it.
            heappop(heap)
            placement = self._fit(shape)
            if placement is None and self.preemptive:
                before = len(stopped)
                placement = self._preempt(snapshot, key, job, shape, stopped, run, heads)
                if len(stopped) > before and not complete:
                    # What the victims leave over may serve jobs after this one that were blocked till now.
                    complete = True
                    for other, queue in enumerate(self._waiting):
                        if queue and queue[0] > (key, job):
                            heappush(heads, (queue[0][0], queue[0][1], other))
            if placement is None:
                heappush(heap, (key, job))
                if self.strict:
                    break
                continue
            run[job] = placement
            self._where[job] = placement
            for node in placement.nodes:
                self._jobs_on[node].add(job)
            self._blocked[shape].clear()
            if heap:
                heappush(heads, (heap[0][0], heap[0][1], shape))
        self.entered.extend(run)
        self._freed = False
        if not stopped:
            return Decision(run) if run else NOTHING
        # A victim that was placed again in the same pass moves, or, on the very same GPUs, just goes on.
        for job in [job for job in run if job in stopped]:
            if run[job] == stopped.pop(job):
                del run[job]
        return Decision(run, list(stopped))

    def _fit(self, shape: int) -> Placement | None:
        gpus = self._gpus[shape]
        for pool in self._allowed[shape]:
            placement = self.pools[pool].take(gpus)
            if placement is not None:
                return placement
        return None

    def _threshold(self, key: float, gpus: int, now_s: float) -> float:
        """The stored key above which running jobs of this many GPUs come after `key` in the order."""
        if self.order.by_gpus:
            key /= gpus
        return key + now_s if self.order.clock else key

    def _value(self, stored: float, gpus: int, now_s: float) -> float:
        key = stored - now_s if self.order.clock else stored
        return key * gpus if self.order.by_gpus else key

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
        now_s, gpus = snapshot.now_s, self._gpus[shape]
        for index in self._allowed[shape]:
            pool = self.pools[index]
            victims = self._victims_after(key, job, now_s, index)
            if not victims:
                continue
            room = pool.free_gpus
            for other, entries, start in victims:
                room += (len(entries) - start) * self._gpus[other]
            if room < gpus:
                continue
            blocked = self._blocked[shape].get(index)
            if (
                blocked is not None
                and blocked.job == job
                and not self._may_fit_now(blocked, pool, key, job, gpus, now_s)
            ):
                continue
            chosen = self._choose_victims(pool, victims, gpus, now_s)
            if chosen is None:
                self._blocked[shape][index] = _Blocked(job)
                continue
            for victim in chosen:
                self._drop_entry(victim)
                placement = self._where.pop(victim)
                pool.release(placement)
                for node in placement.nodes:
                    self._jobs_on[node].discard(victim)
                    self._touch(node)
                stopped[victim] = placement
                run.pop(victim, None)
                other = self._shape_of[victim]
                victim_key = self.order.waiting_key(snapshot, victim)
                heappush(self._waiting[other], (victim_key, victim))
                heappush(heads, (victim_key, victim, other))
            return pool.take(gpus)
        return None

    def _victims_after(self, key: float, job: int, now_s: float, pool: int) -> list[tuple[int, list[Entry], int]]:
        """Running jobs of a pool after (key, job) in the order: (shape, its entries, index of the first)."""
        found = []
        for shape, entries in enumerate(self._running[pool]):
            if entries:
                after = (self._threshold(key, self._gpus[shape], now_s), job)
                if entries[-1] > after:
                    found.append((shape, entries, bisect_right(entries, after)))
        return found

    def _may_fit_now(self, blocked: _Blocked, pool: Pool, key: float, job: int, gpus: int, now_s: float) -> bool:
        """Whether a node touched since the job was found blocked could make the difference.

        A running job's key never rises without a touch, so nodes that were no use then are no use now.
        """
        if gpus > pool.size or pool.scatter:
            useful = bool(blocked.touched)
        else:
            useful = any(self._room_on(pool, node, key, job, now_s) >= gpus for node in blocked.touched)
        blocked.touched.clear()
        return useful

    def _room_on(self, pool: Pool, node: int, key: float, job: int, now_s: float) -> int:
        """GPUs on a node that are free or held by jobs after (key, job)."""
        if node not in pool.free:
            return 0
        room = pool.free[node].bit_count()
        for other in self._jobs_on[node]:
            stored = self._stored.get(other)
            if stored is None:
                continue
            bound = self._threshold(key, self._gpus[self._shape_of[other]], now_s)
            if (stored, other) > (bound, job):
                placement = self._where[other]
                room += placement.masks[placement.nodes.index(node)].bit_count()
        return room

    def _choose_victims(
        self, pool: Pool, victims: list[tuple[int, list[Entry], int]], gpus: int, now_s: float
    ) -> list[int] | None:
        """The fewest of the last jobs in the order that make room on as few nodes as the job needs."""
        if gpus == 1:
            last = max((self._value(e[-1][0], self._gpus[s], now_s), e[-1][1]) for s, e, _ in victims)
            return [last[1]]
        if (
            not pool.scatter
            and sum(len(entries) - start for _, entries, start in victims) > _SCAN
            and not self._topology_allows(pool, victims, gpus)
        ):
            return None
        # Walk from the last job of the order upwards until the nodes' room suffices.
        walk = [
            (-self._value(entry[0], self._gpus[shape], now_s), -entry[1])
            for shape, entries, start in victims
            for entry in entries[start:]
        ]
        walk.sort()
        room: dict[int, int] = {}
        taken: list[int] = []
        if pool.scatter:
            total = pool.free_gpus
            for _, negative in walk:
                taken.append(-negative)
                total += self._gpus[self._shape_of[-negative]]
                if total >= gpus:
                    return self._prune(pool, taken, gpus)
            return None
        whole, rest = (0, gpus) if gpus <= pool.size else divmod(gpus, pool.size)
        full = {node for node, mask in pool.free.items() if mask.bit_count() == pool.size} if whole else set()
        for _, negative in walk:
            victim = -negative
            taken.append(victim)
            placement = self._where[victim]
            enough = False
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                now_free = room.get(node)
                if now_free is None:
                    now_free = pool.free[node].bit_count()
                now_free += mask.bit_count()
                room[node] = now_free
                if whole:
                    if now_free == pool.size:
                        full.add(node)
                elif now_free >= gpus:
                    enough = True
            if whole and len(full) >= whole:
                enough = self._remainder_fits(pool, room, full, whole, rest)
            if enough:
                return self._prune(pool, taken, gpus)
        return None

    @staticmethod
    def _remainder_fits(pool: Pool, room: dict[int, int], full: set[int], whole: int, rest: int) -> bool:
        if rest == 0 or len(full) > whole:
            return True
        return any(node not in full and room.get(node, mask.bit_count()) >= rest for node, mask in pool.free.items())

    def _topology_allows(self, pool: Pool, victims: list[tuple[int, list[Entry], int]], gpus: int) -> bool:
        """Vectorised: could the job be placed if every job after it in the order stopped?"""
        room = np.zeros(len(self._pool_of_node), dtype=np.int64)
        for node, mask in pool.free.items():
            room[node] = mask.bit_count()
        nodes: list[int] = []
        counts: list[int] = []
        where = self._where
        for _, entries, start in victims:
            for _, victim in entries[start:]:
                placement = where[victim]
                nodes.extend(placement.nodes)
                counts.extend(mask.bit_count() for mask in placement.masks)
        np.add.at(room, nodes, counts)
        if gpus <= pool.size:
            return bool((room >= gpus).any())
        whole, rest = divmod(gpus, pool.size)
        full = int((room >= pool.size).sum())
        return full > whole or (full == whole and (rest == 0 or bool(((room >= rest) & (room < pool.size)).any())))

    def _prune(self, pool: Pool, taken: list[int], gpus: int) -> list[int]:
        """Drop victims that are not needed, the first in the order first."""
        for victim in taken:
            pool.release(self._where[victim])
        kept: list[int] = []
        for victim in reversed(taken):
            pool.claim(self._where[victim])
            if not pool.fits(gpus):
                pool.release(self._where[victim])
                kept.append(victim)
        for victim in kept:
            pool.claim(self._where[victim])
        kept.reverse()
        return kept


_SCAN = 64
"""With more candidates than this, ask first in bulk whether stopping all of them would help."""


class _Blocked:
    """A shape's head for which no room could be made, and the nodes that changed since."""

    __slots__ = ("job", "touched")

    def __init__(self, job: int) -> None:
        self.job = job
        self.touched: set[int] = set()
