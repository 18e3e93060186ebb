"""Gavel: heterogeneity-aware shares by linear program, realised in rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI'20). With
T_mj the throughput of job m on GPU model j, g_m its GPUs, w_m its weight, W_j the GPUs of model j, X_mj is the share
of time that m runs on j, with Σ_j X_mj ≤ 1 and Σ_m g_m X_mj ≤ W_j, and throughput(m, X) = Σ_j T_mj X_mj.
    - max_min_fairness (section 4.1): maximise min_m g_m / w_m · throughput(m, X) / throughput(m, X_equal), where
      X_equal spreads a job's time over the models in proportion to their GPUs.
    - makespan (section 4.2): maximise min_m throughput(m, X) / steps left of m.
Rounds (section 5): at every `round` the pairs (m, j) with the largest X_mj over the share of its time that m has
received on j run; a job that is chosen again on the same model keeps its GPUs, and so does one that has not yet worked
for as long as its start took: where starts take longer than rounds nobody would ever end. Between rounds free GPUs are
given to waiting jobs in the same order. Jobs that are alike (throughputs, GPUs, weight) share one column of the
program, which is exact for max_min_fairness; the program is solved again only when the set of jobs has changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import MODELS, PER_JOB_A_MODEL, PER_JOB_AND_MODEL
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import next_multiple
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.pool import Pool, pools_of
from gpuloom.placement.shapes import shapes_of, speeds_by_pool
from gpuloom.policies.base import Parameter, Policy, Preemptive, Traits, duration, one_of
from gpuloom.solvers.linear import maximize


@dataclass(slots=True)
class Memory:
    """Of job m on GPU model j: received_s[m, j], the seconds run (true until since_s; NaN: nothing was seen yet), and
    share[m, j], the share that the last program gave; on[m], the model that it runs on (-1: none). models: names of the
    columns. stale: jobs have come or gone
    since; round_at_s: when the next round is due."""

    received_s: F8 = field(metadata=PER_JOB_AND_MODEL)
    share: F8 = field(metadata=PER_JOB_AND_MODEL)
    on: NDArray[np.int16] = field(metadata=PER_JOB_A_MODEL)
    models: tuple[str, ...] = field(metadata=MODELS)
    since_s: float = math.nan
    round_at_s: float = -math.inf
    stale: bool = True


class Gavel(Policy):
    """See the module."""

    id = "gavel"
    traits = Traits(
        summary="heterogeneity-aware shares by linear program, in rounds",
        knows="throughput per GPU model (makespan: durations)",
        preemptive=Preemptive.AT_ROUNDS,
        heterogeneity=True,
        sharing=False,
        paper="Narayanan et al., OSDI'20",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "objective",
            "max_min_fairness",
            one_of("max_min_fairness", "makespan"),
            "max_min_fairness or makespan",
        ),
        Parameter("round", 360.0, duration, "length of a round", "6m"),
    )

    remembers = (Memory,)
    cache: _Rounds | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        shape = (len(workload), len(cluster.models))
        return Memory(np.zeros(shape), np.zeros(shape), np.full(len(workload), -1, dtype=np.int16), cluster.models)

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            self.cache = _Rounds(snapshot, memory, self.values["objective"], self.values["round"])
        return self.cache.decide(snapshot), memory


class _Rounds:
    """Caches: the shares of the last program, who is present, the free GPUs."""

    def __init__(self, snapshot: Snapshot, memory: Memory, objective: str, round_s: float) -> None:
        workload, cluster = snapshot.workload, snapshot.cluster
        self._memory, self._objective, self._round_s = memory, objective, round_s
        self._shapes = shapes_of(workload, cluster)
        self._speed = speeds_by_pool(workload, cluster, self._shapes)
        self._weight = workload.weight if workload.weight is not None else np.ones(len(workload))
        self._pools: list[Pool] = pools_of(cluster, snapshot.free_masks())
        self._pool_of_node = {node: index for index, pool in enumerate(self._pools) for node in pool.nodes}
        self._gpus_of_pool = np.array([sum_ints(pool.sizes.values()) for pool in self._pools], dtype=np.float64)
        profile = np.column_stack([self._speed, workload.gpus, self._weight])
        _, self._alike = np.unique(profile, axis=0, return_inverse=True)
        self._where: dict[int, Placement] = dict(snapshot.placements)
        self._present: dict[int, None] = dict.fromkeys(sorted((*self._where, *snapshot.waiting())))
        self._down: set[int] = set(snapshot.nodes_out)
        self._lost = {job: pool for job in snapshot.evicted if (pool := memory.on.item(job)) >= 0}
        """Jobs that ran until now on these models, of a cache that has just been built."""
        memory.on[:] = -1
        for job, placement in self._where.items():
            memory.on[job] = self._pool_of_node[placement.nodes[0]]
        self._built = True

    def decide(self, snapshot: Snapshot) -> Decision:
        now_s = snapshot.now_s
        # 1. Time received, and what happened.
        self._account(now_s)
        freed = self._observe(snapshot)
        waiting = len(self._present) > len(self._where)
        # On one GPU model nobody gains from a move; on several, turns are taken even if nobody waits.
        if not self._present or not (waiting or len(self._pools) > 1):
            return NOTHING
        # 2. At a round everyone is ranked; in between, waiting jobs only.
        if now_s >= self._memory.round_at_s:
            self._memory.round_at_s = next_multiple(now_s, self._round_s)
            decision = self._rank(snapshot, everyone=True)
        elif waiting and (freed or snapshot.arrived):
            decision = self._rank(snapshot, everyone=False)
        else:
            decision = NOTHING
        return Decision(decision.run, decision.wait, self._memory.round_at_s)

    def _account(self, now_s: float) -> None:
        elapsed = now_s - self._memory.since_s
        self._memory.since_s = now_s
        if elapsed > 0:
            for job, placement in self._where.items():
                self._memory.received_s[job, self._pool_of_node[placement.nodes[0]]] += elapsed
            for job, pool in self._lost.items():
                self._memory.received_s[job, pool] += elapsed
        self._lost.clear()

    def _observe(self, snapshot: Snapshot) -> bool:
        """Take in what happened (nothing, if this cache was just built); whether GPUs may have come free."""
        if snapshot.finished or snapshot.arrived:
            self._memory.stale = True
        if self._built:
            self._built = False
            return True
        for job in (*snapshot.finished, *snapshot.evicted):
            self._release(job)
        for job in snapshot.finished:
            del self._present[job]
        self._down.update(snapshot.nodes_down)
        self._down.difference_update(snapshot.nodes_up)
        for node in snapshot.nodes_down:
            self._pools[self._pool_of_node[node]].node_down(node)
        for node in snapshot.nodes_up:
            self._pools[self._pool_of_node[node]].node_up(node)
        self._present.update(dict.fromkeys(snapshot.arrived))
        return bool(snapshot.finished or snapshot.evicted or snapshot.nodes_up)

    def _release(self, job: int) -> Placement:
        placement = self._where.pop(job)
        self._memory.on[job] = -1
        self._pools[self._pool_of_node[placement.nodes[0]]].release(placement)
        return placement

    def _rank(self, snapshot: Snapshot, *, everyone: bool) -> Decision:
        if self._memory.stale:
            self._solve(snapshot)
        present = list(self._present) if everyone else [job for job in self._present if job not in self._where]
        jobs = np.array(present, dtype=np.intp)
        # Priority of each pair: share over share received; never served before all others.
        age_s = np.maximum(snapshot.now_s - snapshot.workload.submit_s[jobs], self._round_s)
        received = self._memory.received_s[jobs] / age_s[:, None]
        priority = self._memory.share[jobs] / np.maximum(received, 1e-6)
        # Where the program gives no share a job may still use what nobody else wants, at the very end.
        priority = np.where(self._speed[jobs] > 0, priority + 1e-9 * self._speed[jobs], -1.0)
        pairs = np.argsort(-priority, axis=None, kind="stable")
        models = priority.shape[1]
        if everyone:
            return self._assign_round(snapshot, jobs, pairs, priority.ravel(), models)
        return Decision(self._fill(jobs, pairs, priority.ravel(), models))

    def _assign_round(
        self, snapshot: Snapshot, jobs: NDArray[np.intp], pairs: NDArray[np.intp], priority: F8, models: int
    ) -> Decision:
        gpus_of = self._shapes
        free = [sum_ints(size for node, size in pool.sizes.items() if node not in self._down) for pool in self._pools]
        chosen: dict[int, int] = {}
        for job, placement in self._where.items():
            if snapshot.now_s - snapshot.works_from_s(job) < snapshot.restart_overhead_s[job]:
                chosen[job] = pool = self._pool_of_node[placement.nodes[0]]
                free[pool] -= self._gpus(job)
        for pair in pairs.tolist():
            if priority[pair] < 0:
                break
            job, pool = int(jobs[pair // models]), pair % models
            gpus = gpus_of.shapes[gpus_of.of_job[job]].gpus
            if job not in chosen and gpus <= free[pool]:
                chosen[job] = pool
                free[pool] -= gpus
                if not any(free):
                    break
        stopped = {}
        for job, placement in list(self._where.items()):
            if chosen.get(job) != self._pool_of_node[placement.nodes[0]]:
                stopped[job] = self._release(job)
        run: dict[int, Placement] = {}
        # Large jobs first: they need whole nodes.
        for job in sorted((j for j in chosen if j not in self._where), key=lambda j: -int(self._gpus(j))):
            taken = self._pools[chosen[job]].take(self._gpus(job))
            if taken is not None:
                run[job] = self._where[job] = taken
                self._memory.on[job] = chosen[job]
        run |= self._fill(jobs, pairs, priority, models)
        for job in [job for job in run if job in stopped]:
            if run[job] == stopped.pop(job):
                del run[job]
        return Decision(run, list(stopped))

    def _gpus(self, job: int) -> int:
        return self._shapes.shapes[int(self._shapes.of_job[job])].gpus

    def _fill(self, jobs: NDArray[np.intp], pairs: NDArray[np.intp], priority: F8, models: int) -> dict[int, Placement]:
        """Give free GPUs to waiting jobs in order of priority."""
        run: dict[int, Placement] = {}
        full: set[tuple[int, int]] = set()
        for pair in pairs.tolist():
            if priority[pair] < 0 or not any(pool.free_gpus for pool in self._pools):
                break
            job, pool = int(jobs[pair // models]), pair % models
            if job in self._where:
                continue
            shape = (self._gpus(job), pool)
            if shape in full:
                continue
            placement = self._pools[pool].take(shape[0])
            if placement is None:
                full.add(shape)
            else:
                run[job] = self._where[job] = placement
                self._memory.on[job] = pool
        return run

    # -- the linear programs --------------------------------------------------------------------------------

    def _solve(self, snapshot: Snapshot) -> None:
        self._memory.stale = False
        jobs = np.array(list(self._present), dtype=np.intp)
        if self._objective == "max_min_fairness":
            _, first, member = np.unique(self._alike[jobs], return_index=True, return_inverse=True)
            heads = jobs[first]
            count = np.bincount(member).astype(np.float64)
            speed, gpus = self._speed[heads], snapshot.workload.gpus[heads].astype(np.float64)
            equal = speed @ (self._gpus_of_pool / self._gpus_of_pool.sum())
            value = speed * (gpus / self._weight[heads] / equal)[:, None]
            self._memory.share[jobs] = self._max_min(value, gpus, count)[member]
            return
        left = np.array([max(snapshot.remaining_s(job), 1e-6) for job in jobs.tolist()])
        value = self._speed[jobs] / left[:, None] * left.mean()
        gpus = snapshot.workload.gpus[jobs].astype(np.float64)
        self._memory.share[jobs] = self._max_min(value, gpus, np.ones(len(jobs)))

    def _max_min(self, value: F8, gpus: F8, count: F8) -> F8:
        """X, shape (rows of value, models), that maximises min_m Σ_j value_mj X_mj; `count` jobs stand behind each."""
        n, models = value.shape
        level = n * models
        cells = np.arange(level)
        row, model = cells // models, cells % models
        entries_row = np.concatenate([row, np.arange(n), n + row, 2 * n + model])
        entries_column = np.concatenate([cells, np.full(n, level), cells, cells])
        used = (gpus * count)[row]
        entries = np.concatenate([value.ravel(), -np.ones(n), np.ones(level), used])
        lower = np.concatenate([np.zeros(n), np.full(n + models, -np.inf)])
        upper = np.concatenate([np.full(n, np.inf), np.ones(n), self._gpus_of_pool])
        # What is left after the worst-off is served goes where it helps most, at a weight too small to matter before.
        total = float((value * count[:, None]).sum()) or 1.0
        cost = np.append(1e-4 * (value * count[:, None]).ravel() / total, 1.0)
        bound = np.append((value > 0).ravel().astype(np.float64), np.inf)
        x = maximize(cost, entries_row, entries_column, entries, lower, upper, bound)
        return np.clip(x[:level].reshape(n, models), 0.0, 1.0)
