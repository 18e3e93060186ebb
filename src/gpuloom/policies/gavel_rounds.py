"""The rounds of `gavel`: who runs where until the next one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import plain_model
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import next_multiple
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.shapes import shapes_of, speeds_by_pool
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.policies.gavel_objectives import LEAST_S, OBJECTIVES, Present


@dataclass(frozen=True, slots=True)
class Terms:
    """The policy's parameters. prices: of GPU models by plain name."""

    objective: str
    round_s: float
    reset_s: float
    one_queue: bool
    blind: bool
    prices: Mapping[str, float]
    throughput_term: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Terms:
        return cls(
            values["objective"],
            values["round"],
            values["reset"],
            values["queue"] == "global",
            values["blind"],
            values["prices"] if isinstance(values["prices"], Mapping) else {},
            values["throughput_term"],
        )


class Cluster:
    """Who is there, who runs where, what is free: the part that rounds of both kinds have. Caches only."""

    def __init__(self, snapshot: Snapshot, memory: Memory, terms: Terms) -> None:
        workload, cluster = snapshot.workload, snapshot.cluster
        self.memory, self.terms = memory, terms
        shapes = shapes_of(workload, cluster)
        size = np.array([shape.gpus for shape in shapes.shapes], dtype=np.intp)
        self._gpus: list[int] = size[shapes.of_job].tolist()
        self.speed = speeds_by_pool(workload, cluster, shapes)
        self.counted = (self.speed > 0).astype(np.float64) if terms.blind else self.speed
        """The speeds that the program goes by."""
        self.weight = workload.weight if workload.weight is not None else np.ones(len(workload))
        self.pools: list[Pool] = pools_of(cluster, snapshot.free_masks())
        self._pool_of_node = {node: index for index, pool in enumerate(self.pools) for node in pool.nodes}
        self._capacity = np.array([sum_ints(pool.sizes.values()) for pool in self.pools], dtype=np.float64)
        known = [terms.prices.get(plain_model(model)) for model in cluster.models]
        self._price = None if None in known else np.array(known, dtype=np.float64)
        profile = np.column_stack([self.counted, workload.gpus, self.weight])
        _, kind = np.unique(profile, axis=0, return_inverse=True)
        self._kind = kind.reshape(-1)
        self.where: dict[int, Placement] = dict(snapshot.placements)
        self.present: dict[int, None] = dict.fromkeys(sorted((*self.where, *snapshot.waiting())))
        self._down: set[int] = set(snapshot.nodes_out)
        gone = (*snapshot.evicted, *snapshot.finished)
        self.lost = {job: pool for job in gone if (pool := memory.on.item(job)) >= 0}
        """Jobs that ran until now on these models, of a cache that has just been built."""
        memory.on[:] = -1
        for job, placement in self.where.items():
            memory.on[job] = self._pool_of_node[placement.nodes[0]]
        self._built = True

    def observe(self, snapshot: Snapshot) -> bool:
        """Take in what happened (nothing, if this was just built); whether GPUs may have come free."""
        if snapshot.finished or snapshot.arrived:
            self.memory.stale = True
        if self._built:
            self._built = False
            return True
        for job in (*snapshot.finished, *snapshot.evicted):
            if job in self.where:
                self.release(job)
        for job in snapshot.finished:
            del self.present[job]
        self._down.update(snapshot.nodes_down)
        self._down.difference_update(snapshot.nodes_up)
        for node in snapshot.nodes_down:
            self.pools[self._pool_of_node[node]].node_down(node)
        for node in snapshot.nodes_up:
            self.pools[self._pool_of_node[node]].node_up(node)
        self.present.update(dict.fromkeys(snapshot.arrived))
        return bool(snapshot.finished or snapshot.evicted or snapshot.nodes_up)

    def release(self, job: int) -> Placement:
        """The job no longer runs."""
        placement = self.where.pop(job)
        self.memory.on[job] = -1
        self.pools[self._pool_of_node[placement.nodes[0]]].release(placement)
        return placement

    def take(self, job: int, pool: int) -> Placement | None:
        """Place the job on this model; None if it does not fit."""
        taken = self.pools[pool].take(self.gpus(job))
        if taken is not None:
            self.where[job] = taken
            self.memory.on[job] = pool
        return taken

    def gpus(self, job: int) -> int:
        return self._gpus[job]

    def in_service(self) -> list[int]:
        """GPUs of each model on nodes in service."""
        return [sum_ints(size for node, size in pool.sizes.items() if node not in self._down) for pool in self.pools]

    def described(self, snapshot: Snapshot) -> tuple[NDArray[np.intp], Present]:
        """The jobs that are there, for an objective."""
        jobs = np.array(list(self.present), dtype=np.intp)
        left_s = np.array([max(snapshot.remaining_s(job), LEAST_S) for job in jobs.tolist()])
        return jobs, Present(
            self.counted[jobs],
            snapshot.workload.gpus[jobs].astype(np.float64),
            self.weight[jobs],
            left_s,
            np.maximum(snapshot.now_s - snapshot.workload.submit_s[jobs], 0.0),
            np.where(self.memory.known[jobs, None], self.memory.share[jobs], 0.0),
            self._kind[jobs],
            self._capacity,
            self._price,
        )

    def pairs(self, jobs: NDArray[np.intp], models: Sequence[int]) -> list[tuple[int, int]]:
        """(job, model) in the order in which they are looked at: model by model, or in one queue for all.

        models: in order, if each has a queue of its own.
        """
        priority = self.memory.priorities(jobs, self.terms.round_s)
        able = self.speed[jobs] > 0
        queues = {model: self.memory.queue(jobs, model, priority) for model in models}
        if not self.terms.one_queue:
            found: list[tuple[int, int]] = []
            for model in models:
                queue = queues[model]
                found += [(job, model) for job in jobs[queue[able[queue, model]]].tolist()]
            return found
        at = np.concatenate([queues[model] for model in models])
        on = np.repeat(models, len(jobs))
        owed, share = self.memory.deficit_s[jobs[at], on], self.memory.share[jobs[at], on]
        order = np.lexsort((-share, -owed, -priority[at, on]))
        order = order[able[at[order], on[order]]]
        return list(zip(jobs[at[order]].tolist(), on[order].tolist(), strict=True))


class Rounds(Cluster):
    """Rounds at multiples of their length; GPUs that fall free in between go to waiting jobs at once."""

    def decide(self, snapshot: Snapshot) -> Decision:
        now_s = snapshot.now_s
        # 1. Time received, and what happened.
        self.account(now_s)
        freed = self.observe(snapshot)
        waiting = len(self.present) > len(self.where)
        # On one GPU model nobody gains from a move; on several, turns are taken even if nobody waits.
        if not self.present or not (waiting or len(self.pools) > 1):
            return NOTHING
        # 2. At a round everyone is ranked; in between, waiting jobs only.
        if now_s >= self.memory.round_at_s:
            self.memory.round_at_s = next_multiple(now_s, self.terms.round_s)
            decision = self._rank(snapshot, everyone=True)
        elif waiting and (freed or snapshot.arrived):
            decision = self._rank(snapshot, everyone=False)
        else:
            decision = NOTHING
        return Decision(decision.run, decision.wait, self.memory.round_at_s)

    def account(self, now_s: float) -> None:
        """Count the time that jobs have run since the last call."""
        memory = self.memory
        elapsed = now_s - memory.since_s
        memory.since_s = now_s
        if elapsed > 0:
            for job in self.where:
                memory.receive(job, memory.on.item(job), elapsed)
            for job, pool in self.lost.items():
                memory.receive(job, pool, elapsed)
        self.lost.clear()

    def _allocate(self, snapshot: Snapshot) -> None:
        memory, reset_s = self.memory, self.terms.reset_s
        if not memory.stale or snapshot.now_s < memory.solved_at_s + reset_s:
            return
        jobs, present = self.described(snapshot)
        memory.allocate(jobs, snapshot.now_s, self.terms.round_s)
        memory.share[jobs] = OBJECTIVES[self.terms.objective](present)

    def _rank(self, snapshot: Snapshot, *, everyone: bool) -> Decision:
        self._allocate(snapshot)
        present = list(self.present) if everyone else [job for job in self.present if job not in self.where]
        jobs = np.array(present, dtype=np.intp)
        # The fastest first: what it has to spare goes to whoever comes next in its queue.
        models = np.argsort(-self.speed[jobs].sum(axis=0), kind="stable").tolist()
        pairs = self.pairs(jobs, models)
        return self._assign_round(snapshot, pairs) if everyone else Decision(self._fill(pairs))

    def _assign_round(self, snapshot: Snapshot, pairs: Sequence[tuple[int, int]]) -> Decision:
        free = self.in_service()
        on, gpus = self.memory.on, self._gpus
        chosen: dict[int, int] = {}
        for job in self.where:
            # Where starts take longer than rounds nobody would ever end.
            if snapshot.now_s - snapshot.works_from_s(job) < snapshot.again_s[job]:
                chosen[job] = pool = on.item(job)
                free[pool] -= self.gpus(job)
        for job, pool in pairs:
            if gpus[job] <= free[pool] and job not in chosen:
                chosen[job] = pool
                free[pool] -= gpus[job]
                if not any(free):
                    break
        stopped = {job: self.release(job) for job in list(self.where) if chosen.get(job) != on.item(job)}
        run: dict[int, Placement] = {}
        # Large jobs first: they need whole nodes.
        for job in sorted((j for j in chosen if j not in self.where), key=lambda j: -self.gpus(j)):
            if (taken := self.take(job, chosen[job])) is not None:
                run[job] = taken
        run |= self._fill(pairs)
        for job in [job for job in run if job in stopped]:
            if run[job] == stopped.pop(job):
                del run[job]
        return Decision(run, list(stopped))

    def _fill(self, pairs: Sequence[tuple[int, int]]) -> dict[int, Placement]:
        """Give free GPUs to waiting jobs, in this order."""
        run: dict[int, Placement] = {}
        full: set[tuple[int, int]] = set()
        for job, pool in pairs:
            shape = (self.gpus(job), pool)
            if job in self.where or shape in full:
                continue
            if not any(pool.free_gpus for pool in self.pools):
                break
            if (taken := self.take(job, pool)) is None:
                full.add(shape)
            else:
                run[job] = taken
        return run
