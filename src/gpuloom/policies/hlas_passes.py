"""The passes of `hlas`: its two queues, and which jobs are suspended, promoted and placed where (see hlas.py)."""

from __future__ import annotations

import math
from functools import partial
from heapq import heappop, heappush

import numpy as np

from gpuloom.core import products
from gpuloom.core.columns import floats, ints
from gpuloom.core.decision import NOTHING, Decision, Placement, Reason
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.units import next_multiple
from gpuloom.core.workload import F8
from gpuloom.placement.feedback import Entry, FeedbackQueues
from gpuloom.placement.making_room import make_room
from gpuloom.placement.pool import Pool, pool_of_node, pools_of
from gpuloom.placement.shapes import shapes_of, speeds_by_pool
from gpuloom.placement.swaps import Mask, Running, best_swaps, own_gains
from gpuloom.policies.hlas_terms import IN_Q1, IN_Q2, ON_GPUS, Memory, Options, per_gpu_throughput, performance_of
from gpuloom.policies.hlas_why import Explanations, waits_in_q2

FIRST_GUESS_S = 3600.0
"""Expected run time of a job before any has ended."""


class HlasPasses:
    """Caches: the two queues, running jobs in columns, free GPUs. Built from any snapshot and the memory."""

    def __init__(self, snapshot: Snapshot, memory: Memory, options: Options) -> None:
        workload, cluster = snapshot.workload, snapshot.cluster
        self.memory, self._options = memory, options
        shapes = shapes_of(workload, cluster)
        self._gpus = ints(workload.gpus)
        self._overhead = snapshot.again_s
        weight = snapshot.workload.weight
        self._weight = floats(np.ones(len(snapshot.workload)) if weight is None else weight)
        self._performance = performance_of(cluster, options)
        self._per_gpu = per_gpu_throughput(workload, speeds_by_pool(workload, cluster, shapes), options)
        kinds, kind_of = np.unique(self._per_gpu, axis=0, return_inverse=True)
        self._kind_of = ints(np.ascontiguousarray(kind_of.reshape(-1).astype(np.int32)))
        self._rows: list[list[float]] = kinds.tolist()
        """By kind of job: its M'."""
        self._own: dict[tuple[int, int, int], F8] = {}
        """By (kind, GPUs, GPU model): what a newcomer gains by other models."""
        self._choices = [choices(kind) for kind in kinds]
        """By kind of job: the GPU models on which it can run, the fastest first (ties: the cluster's order)."""
        self._pools: list[Pool] = pools_of(cluster, snapshot.free_masks())
        self._pool_of_node = pool_of_node(cluster)
        self._where: dict[int, Placement] = {}
        self._running = Running(len(self._pools))
        self._queues = FeedbackQueues(ints(shapes.of_job), len(shapes.shapes))
        self._due: list[tuple[float, int]] = []
        self._several = len(self._pools) > 1
        self._upgrade_at_s = floats(memory.upgrade_at_s)
        self._refused: set[int] = set()
        """Running jobs that have had more than their share, and were left alone in this pass."""
        self._risen = False
        """Jobs rose to Q1 in this pass, after it was seen who has to make room."""
        self.swaps = self.upgrades = self.promotions = 0
        self._snapshot, self._now_s = snapshot, snapshot.now_s
        self._say = Explanations(snapshot, self._per_gpu, frozenset(), iterations=options.iterations)
        self._run: dict[int, Placement] = {}
        self._stopped: dict[int, Placement] = {}
        self._built = True
        for job, placement in snapshot.placements.items():
            fresh = memory.state[job] != ON_GPUS
            if fresh:
                self._open(job, placement)
            self._enter_running(job, placement, fresh=fresh)
        for job in snapshot.waiting():
            self._wait_anew(job)
        for job in (*snapshot.finished, *snapshot.evicted):
            if (model := memory.model.item(job)) >= 0:
                self._upgrade_at_s[model] = -math.inf
        for node in snapshot.nodes_up:
            self._upgrade_at_s[self._pool_of_node[node]] = -math.inf
        happened = snapshot.finished or snapshot.evicted or snapshot.arrived or snapshot.nodes_up
        self._stirred = memory.stirred or bool(happened)
        """GPUs came free, or jobs came to a queue, since jobs were last placed."""

    # -- events ---------------------------------------------------------------------------------------------

    def begin(self, snapshot: Snapshot, explains: frozenset[int]) -> None:
        """A pass begins."""
        self._snapshot, self._now_s = snapshot, snapshot.now_s
        if explains or self._say.about:
            self._say = Explanations(snapshot, self._per_gpu, explains, iterations=self._options.iterations)
        self._run, self._stopped = {}, {}

    def observe(self) -> None:
        """Take in what happened since the last call (nothing, if this cache was just built)."""
        snapshot, memory = self._snapshot, self.memory
        for job in snapshot.finished:
            if job in self._running:
                self._leave_running(job)
            memory.ended += 1
            memory.ended_run_s += snapshot.held_s(job)
        if self._built:
            self._built = False
            return
        for job in snapshot.evicted:
            self._leave_running(job)
        for node in snapshot.nodes_down:
            self._pools[self._pool_of_node[node]].node_down(node)
        for node in snapshot.nodes_up:
            self._pools[self._pool_of_node[node]].node_up(node)
            self._stirred = True
            self._upgrade_at_s[self._pool_of_node[node]] = -math.inf
        for job in (*snapshot.evicted, *snapshot.arrived):
            self._wait_anew(job)

    def _wait_anew(self, job: int) -> None:
        """Put a waiting job where its memory says; one that was on GPUs has lost them."""
        state = int(self.memory.state[job])
        if state == ON_GPUS:
            self._close(job)
        if state in (IN_Q1, IN_Q2):
            self._enqueue(job, state, float(self.memory.queued_s[job]))
        else:
            self._enqueue(job, IN_Q1, self._now_s)

    # -- records: the periods of service --------------------------------------------------------------------

    def _open(self, job: int, placement: Placement) -> None:
        memory = self.memory
        memory.state[job] = ON_GPUS
        memory.model[job] = self._pool_of_node[placement.nodes[0]]
        memory.since_s[job] = self._now_s
        memory.held_before_s[job] = self._snapshot.held_s(job)

    def _close(self, job: int) -> None:
        """The open period ends. Seconds held are true even if nobody looked when it ended."""
        memory = self.memory
        ran_s = self._snapshot.held_s(job) - memory.held_before_s[job]
        if memory.model[job] >= 0:  # else its GPU model is gone, and so is what it had there
            memory.gpu_s[job, memory.model[job]] += ran_s * self._gpus[job]
        memory.ran_s[job] += ran_s

    def _attained(self, job: int) -> float:
        """Service of the closed periods."""
        if self.memory.ran_s.item(job) == 0.0:
            return 0.0
        return products.dot(self.memory.gpu_s[job], self._performance) / self._weight[job]

    # -- queues and GPUs ------------------------------------------------------------------------------------

    def _enqueue(self, job: int, state: int, since_s: float) -> None:
        memory = self.memory
        memory.state[job], memory.queued_s[job] = state, since_s
        self._queues.put(job, state - IN_Q1, self._attained(job))
        self._stirred = True
        if state == IN_Q2:
            heappush(self._due, (since_s + self._options.starve * float(memory.ran_s[job]), job))

    def _enter_running(self, job: int, placement: Placement, *, fresh: bool = True) -> None:
        self._where[job] = placement
        memory, gpus = self.memory, self._gpus[job]
        pool, since_s = self._pool_of_node[placement.nodes[0]], float(memory.since_s[job])
        overhead_s = self._overhead[job]
        ready_s = max(since_s + overhead_s, float(memory.moved_s[job]) + self._options.between_moves_s)
        settle_s = max(self._options.settle * overhead_s, self._options.between_moves_s)
        per_gpu = self._rows[self._kind_of[job]]
        if self._several and fresh:
            here = per_gpu[pool]
            for model, there in enumerate(per_gpu):
                if there > here and ready_s < self._upgrade_at_s[model]:
                    self._upgrade_at_s[model] = ready_s
        self._running.add(
            job,
            pool,
            gpus,
            per_gpu,
            since_s=since_s,
            overhead_s=overhead_s,
            before=self._attained(job),
            pace=gpus * float(self._performance[pool]) / self._weight[job],
            origin_s=since_s - float(memory.ran_s[job]),
            ready_s=ready_s,
            settled_s=since_s + settle_s,
        )

    def _leave_running(self, job: int) -> Placement:
        self._running.remove(job)
        placement = self._where.pop(job)
        pool = self._pool_of_node[placement.nodes[0]]
        self._pools[pool].release(placement)
        self._stirred = True
        self._upgrade_at_s[pool] = -math.inf
        return placement

    def _start(self, job: int, placement: Placement) -> None:
        """The job runs from now on these GPUs, which its pool has given it."""
        self._open(job, placement)
        self._enter_running(job, placement)
        self._run[job] = placement

    def _stop(self, job: int) -> None:
        """The job gives its GPUs back."""
        placement = self._leave_running(job)
        self._close(job)
        if job in self._run:  # started or moved in this very pass
            del self._run[job]
        else:
            self._stopped[job] = placement

    # -- 2. demote ------------------------------------------------------------------------------------------

    def demote(self) -> None:
        """Suspend running jobs that have had more than their share."""
        running, options = self._running, self._options
        self._refused = set()
        if running.count == 0 or (options.only_if_waiting and not self._crowded()):
            return
        attained = running.attained(self._now_s)
        limit = options.over * float(np.add.reduce(attained)) / running.count
        over = attained > limit
        over &= running.settled_s < self._now_s
        rows = over.nonzero()[0]
        if not len(rows):
            return
        found = sorted(zip((-attained[rows]).tolist(), running.job[rows].tolist(), strict=True))
        candidates = [(-least, job) for least, job in found]
        chosen = self._needed(candidates) if options.only_if_waiting else candidates
        self._refused = {job for _, job in candidates}
        for service, job in chosen:
            self._stop(job)
            self._enqueue(job, IN_Q2, self._now_s)
            if job in self._say.about:
                self._say.demoted(job, service, limit, options.over, needed=options.only_if_waiting)

    def _crowded(self) -> bool:
        """Whether jobs of Q1 may need more than the free GPUs."""
        waiting = self._queues.waiting[0]
        if waiting != 1:
            return waiting > 1
        job = self._queues.first(0)[1]
        return not any(self._pools[model].fits(self._gpus[job]) for model in self._choices[self._kind_of[job]])

    def _needed(self, candidates: list[Entry]) -> list[Entry]:
        """Those of the candidates (most service first) whose GPUs let jobs of Q1 run that do not fit now."""
        return make_room(
            self._pools,
            self._queues.in_order(0),
            candidates,
            gpus=self._gpus,
            models_of=lambda job: self._choices[self._kind_of[job]],
            where=self._where,
            pool_of_node=self._pool_of_node,
        )

    # -- 3. promote -----------------------------------------------------------------------------------------

    def promote(self) -> None:
        """Jobs of Q2 that starve join Q1, with their service forgotten."""
        memory, options, now_s = self.memory, self._options, self._now_s
        again: list[tuple[float, int]] = []
        self._risen = False
        while self._due and self._due[0][0] <= now_s:
            due_s, job = heappop(self._due)
            ran_s, queued_s = float(memory.ran_s[job]), float(memory.queued_s[job])
            if memory.state[job] != IN_Q2 or due_s != queued_s + options.starve * ran_s:
                continue  # it has run since
            waited_s = now_s - queued_s
            if ran_s > 0 and not waited_s > options.starve * ran_s:
                again.append((due_s, job))
                continue
            self._queues.drop(job)
            memory.gpu_s[job] = 0.0
            memory.ran_s[job] = 0.0
            self._enqueue(job, IN_Q1, now_s)
            self.promotions += 1
            self._risen = True
            if job in self._say.about:
                self._say.promoted(job, waited_s, ran_s, options.starve)
        for entry in again:
            heappush(self._due, entry)

    # -- 4. place -------------------------------------------------------------------------------------------

    def place(self) -> None:
        """Q1 in order, then what is left over."""
        waiting = self._queues.waiting
        self.memory.stirred = False
        while True:
            if self._stirred:
                if waiting[0]:
                    self._queues.walk(0, self._place)
                if waiting[1] and self._options.work_conserving:
                    self._queues.walk(1, self._place)
                self._stirred = False
            if self._options.upgrade and self._several:
                self._upgrade()
            if not self._stirred:
                return

    def _place(self, entry: Entry) -> bool:
        """Start a waiting job on the best free GPUs, or by a swap; False: it does not fit."""
        job = entry[1]
        gpus, pools = self._gpus[job], self._pools
        onto = -1
        for model in self._choices[self._kind_of[job]]:
            if pools[model].fits(gpus):
                onto = model
                break
        if onto < 0:
            return False
        # a. The free GPUs of the model on which it is fastest. b., c. Or the best swap that can be done.
        if self._several and not self._options.blind and self._running.count and self._swap(job, onto):
            return True
        placement = pools[onto].take(gpus)
        if placement is None:
            return False
        if job in self._say.about:
            self._say.placed(job, onto, entry[0], from_q2=self.memory.state[job] == IN_Q2)
        self._queues.drop(job)
        self._start(job, placement)
        return True

    def _swap(self, job: int, onto: int) -> bool:
        """Start the job in the place of a running one that gains more on the free GPUs; False: there is none."""
        pools, gpus = self._pools, self._gpus[job]
        free = [pool.free_gpus for pool in pools]
        movable = partial(self._movable, job, onto)
        key = (self._kind_of[job], gpus, onto)
        own = self._own.get(key)
        if own is None:
            own = self._own[key] = own_gains(self._per_gpu[job], gpus, onto)
        for swap in best_swaps(self._running, self._per_gpu[job], gpus, onto, free, movable, own):
            other, pool = swap.job, swap.pool
            moved = pools[onto].take(self._gpus[other])
            if moved is None:
                continue
            before = self._where[other]
            pools[pool].release(before)
            placement = pools[pool].take(gpus)
            if placement is None:  # the nodes don't allow it
                pools[pool].claim(before)
                pools[onto].release(moved)
                continue
            # The book-keeping of `_move` gives `before` back once more: the newcomer's GPUs are claimed after it.
            self._say.swapped(job, other, onto, pool, swap.gain)
            self._move(other, moved)
            pools[pool].claim(placement)
            self._queues.drop(job)
            self._start(job, placement)
            self.swaps += 1
            return True
        return False

    def _movable(self, job: int, onto: int, gain: F8) -> Mask:
        """Rows that may be moved now and whose move would pay. One that starts in this very pass moves for nothing."""
        running, now_s = self._running, self._now_s
        movable: Mask = now_s > running.ready_s
        if self._options.horizon:
            lost = running.gpus * self._per_gpu[running.job, onto] * running.overhead_s
            expected_s = np.minimum(self._expected_s(), max(float(self.memory.ran_s[job]), self._mean_s()))
            movable &= gain * expected_s > lost
        movable |= running.since_s == now_s
        return movable

    def _mean_s(self) -> float:
        """Run time of a job, on average over those that ended."""
        return (self.memory.ended_run_s + FIRST_GUESS_S) / (self.memory.ended + 1)

    def _expected_s(self) -> F8:
        """Run time that each running job is expected to have left: as much as it had, but no less than the mean."""
        expected: F8 = np.maximum(self._now_s - self._running.origin_s, self._mean_s())
        return expected

    def _move(self, job: int, placement: Placement) -> None:
        fresh = job in self._run
        self._stop(job)
        self._stopped.pop(job, None)
        if not fresh:
            self.memory.moved_s[job] = self._now_s
        self._start(job, placement)

    def _upgrade(self) -> None:
        """Running jobs move to free GPUs on which they gain, those that gain most first, while it pays."""
        running, now_s = self._running, self._now_s
        for onto, pool in enumerate(self._pools):
            if now_s < self._upgrade_at_s[onto]:
                continue
            if running.count and pool.free_gpus:
                self._upgrade_onto(onto, pool)
            self._upgrade_at_s[onto] = self._upgrade_from_s(onto, pool.free_gpus)

    def _upgrade_onto(self, onto: int, pool: Pool) -> None:
        running, now_s = self._running, self._now_s
        gain = running.gain(onto)
        if not np.maximum.reduce(gain) > 0:
            return
        possible = (gain > 0) & (running.gpus <= pool.free_gpus) & (now_s > running.ready_s)
        possible &= running.since_s < now_s
        if self._options.horizon:
            possible &= running.payback_s(onto) < self._expected_s()
        rows = possible.nonzero()[0]
        # A move changes nothing for those behind it, except that fewer GPUs are free.
        for less, job in sorted(zip((-gain[rows]).tolist(), running.job[rows].tolist(), strict=True)):
            placement = pool.take(self._gpus[job])
            if placement is not None:
                if job in self._say.about:
                    self._say.upgraded(job, running.pool_of(job), onto, -less)
                self._move(job, placement)
                self.upgrades += 1

    def _upgrade_from_s(self, onto: int, free: int) -> float:
        """When the next running job may move to these free GPUs, if none come free or start before."""
        running = self._running
        if not free or not running.count:
            return math.inf
        gain = running.gain(onto)
        if not np.maximum.reduce(gain) > 0:
            return math.inf
        at_s = running.ready_s
        if self._options.horizon:
            at_s = np.maximum(at_s, running.origin_s + running.payback_s(onto))
        at_s = np.where((gain > 0) & (running.gpus <= free), at_s, math.inf)
        return _first_from(at_s, self._now_s)

    # -- the decision, and when time alone changes something ------------------------------------------------

    def decision(self) -> Decision:
        held = self._snapshot.placements
        run = {job: placement for job, placement in self._run.items() if held.get(job) != placement}
        wait = [job for job in self._stopped if job not in self._run]
        look_s = self._look_s()
        wake_s = look_s if look_s == math.inf else next_multiple(max(look_s, self._now_s), self._options.tick_s)
        if not run and not wait and wake_s == math.inf:
            return NOTHING
        return Decision(run, wait, wake_s, self._say.why)

    def _look_s(self) -> float:
        """When the next pass can differ from this one although nothing happens; infinity: never."""
        look_s = self._due[0][0] if self._due else math.inf
        running, options = self._running, self._options
        if running.count:
            if self._queues.waiting[0] or not options.only_if_waiting:
                look_s = min(look_s, self._crossing_s())
            if options.upgrade and self._several:
                look_s = min(look_s, *self._upgrade_at_s)
        return look_s

    def _crossing_s(self) -> float:
        """When the next running job has had more than its share: both sides of the comparison grow evenly.

        Who is over already and was left alone will be needed no more than now until somebody else crosses.
        """
        running, over, now_s = self._running, self._options.over, self._now_s
        attained, pace, share = running.attained(now_s), running.pace, over / running.count
        short = share * np.add.reduce(attained) - attained
        closes = pace - share * np.add.reduce(pace)
        at_s = now_s + short / np.maximum(closes, 1e-12)
        at_s = np.maximum(at_s, running.settled_s)
        over_now = running.job[at_s < now_s].tolist()
        if over_now and (self._risen or not self._refused.issuperset(over_now)):
            return now_s
        return _first_from(at_s, now_s)

    # -- reasons --------------------------------------------------------------------------------------------

    def in_q2(self, snapshot: Snapshot, job: int, why: Reason) -> Reason:
        """Why a job waits, if it waits in Q2."""
        memory = self.memory
        if memory.state[job] != IN_Q2:
            return why
        ran_s = float(memory.ran_s[job])
        return waits_in_q2(why, snapshot.now_s - float(memory.queued_s[job]), ran_s, self._options.starve * ran_s)


def choices(per_gpu: F8) -> tuple[int, ...]:
    """GPU models on which a job with these M' can run, the fastest first (ties: the cluster's order)."""
    order = np.argsort(-per_gpu, kind="stable").tolist()
    return tuple(model for model in order if per_gpu[model] > 0)


def _first_from(times_s: F8, now_s: float) -> float:
    later = times_s[times_s >= now_s]
    return float(np.minimum.reduce(later)) if len(later) else math.inf
