"""2D-Gittins: the job most likely to end soon for the service spent on it goes first.

Gu et al., "Tiresias" (NSDI'19), section 3.2. With S the GPU-time of a job, drawn from a known distribution, and a
its attained service (work: restart overheads don't count),

    G(a) = sup over Δ > 0 of  P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]

and the largest index runs first. The distribution is empirical: the GPU-times of the trace itself (as from last
month's log), a file of samples, or, where durations are not known, those of the jobs that have ended so far
(`learn_from`); until there are enough of these the levels are Tiresias's, least attained service first. The index is
evaluated on `levels` quantiles of the samples, and a job's index changes when its service crosses one: between two
quantiles the jobs of a level are equals, in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpuloom.core.carrying import Rows
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.errors import PolicyError
from gpuloom.core.policy_state import LevelsState
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.levels import UNKNOWN, LevelMemory, LevelOrder, levels_state
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.policies.base import Parameter, Preemptive, Traits, whole
from gpuloom.policies.upgrading import UPGRADE, Upgrading

FEWEST_SAMPLES = 20
"""Ended jobs from which a distribution is taken."""
LEAST_SERVICE_GPU_S = (3250.0, 7200.0)
"""Limits of the levels while there are fewer."""


@dataclass(slots=True)
class Memory(LevelMemory):
    """Levels of jobs, and the levels' limits and ranks."""

    limits_gpu_s: tuple[float, ...] = ()
    ranks: tuple[int, ...] = (0,)


def gittins_index(samples: F8, attained: F8) -> F8:
    """G(a) for each attained service, from samples of the total service (any unit; the index is 1/unit).

    The supremum is taken over Δ that end at a sample, where alone it can lie. 0 beyond the last sample.
    """
    ordered = np.sort(np.asarray(samples, dtype=np.float64))
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    n = len(ordered)
    ends = np.unique(ordered)
    through = np.searchsorted(ordered, ends, side="right")
    index = np.zeros(len(attained))
    for i, a in enumerate(np.asarray(attained, dtype=np.float64)):
        first = int(np.searchsorted(ordered, a, side="right"))
        if first == n:
            continue
        later = ends > a
        end, upto = ends[later], through[later]
        done = upto - first
        spent = (sums[upto] - sums[first]) - a * done + (end - a) * (n - upto)
        index[i] = float((done / np.maximum(spent, 1e-9)).max())
    return index


class Gittins(Upgrading):
    """See the module."""

    id = "gittins"
    traits = Traits(
        summary="highest Gittins index of attained GPU-time",
        knows="distribution of GPU-time",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=False,
        paper="Gu et al., NSDI'19 §3.2",
        weights="attained service over weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("levels", 32, whole, "levels of service, bounded by quantiles of the samples"),
        Parameter(
            "samples",
            None,
            str,
            "file of GPU-times, one a line (default: the trace's own)",
            shown="none",
            names_file=True,
        ),
        UPGRADE,
    )

    preempts_at_intervals = True
    remembers = (Memory,)
    cache: tuple[LevelOrder, OrderedPlanner] | None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._ended_gpu_s: F8 | None = None

    def learn_from(self, ended_gpu_s: F8) -> None:
        self._ended_gpu_s = np.asarray(ended_gpu_s, dtype=np.float64)

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        memory = Memory.of(len(workload))
        memory.limits_gpu_s, memory.ranks = self._levels(workload)
        return memory

    def carried(self, memory: Memory, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Memory:
        found: Memory = super().carried(memory, rows, nodes, workload, cluster)
        if self._ended_gpu_s is not None:
            limits, ranks = self._levels(workload)
            if (limits, ranks) != (found.limits_gpu_s, found.ranks):
                found.limits_gpu_s, found.ranks = limits, ranks
                found.level[:] = UNKNOWN
        return found

    def _levels(self, workload: Workload) -> tuple[tuple[float, ...], tuple[int, ...]]:
        """Limits and ranks of the levels, by the samples at hand."""
        samples = self.values["samples"]
        if isinstance(samples, str):
            raise PolicyError("policy 'gittins': samples must be numbers here (the command line reads the file)")
        if samples is None and self._ended_gpu_s is not None:
            samples = self._ended_gpu_s[self._ended_gpu_s > 0]
            if len(samples) < FEWEST_SAMPLES:
                return LEAST_SERVICE_GPU_S, tuple(range(len(LEAST_SERVICE_GPU_S) + 1))
        elif samples is None:
            samples = workload.duration_s * workload.gpus
        samples = np.asarray(samples, dtype=np.float64)
        samples = samples[samples > 0]
        count = self.values["levels"]
        if len(samples) == 0 or count < 1:
            limits: tuple[float, ...] = ()
        else:
            # Beyond the largest sample nothing is known: the last level has no end.
            at = np.arange(1, count) / count
            quantiles = np.unique(np.quantile(samples, at, method="inverted_cdf")) if count > 1 else np.zeros(0)
            limits = tuple(float(q) for q in quantiles)
        index = gittins_index(samples, np.array([0.0, *limits]))
        _, ranks = np.unique(-index, return_inverse=True)
        return limits, tuple(int(rank) for rank in ranks)

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            order = LevelOrder(snapshot, memory, memory.limits_gpu_s, memory.ranks, overheads=False)
            self.cache = order, OrderedPlanner(snapshot, order, preemptive=True)
        order, planner = self.cache
        planner.observe(snapshot)
        order.update(snapshot, planner)
        decision = order.plan(snapshot, planner)
        return self.upgraded(snapshot, decision, partial(order.relocate, snapshot, planner)), memory

    def describe(self, snapshot: Snapshot, memory: Memory) -> LevelsState:
        return levels_state(snapshot, memory, memory.limits_gpu_s, memory.ranks)
