"""2D-Gittins: the job most likely to end soon for the service spent on it goes first.

Gu et al., "Tiresias" (NSDI'19), section 3.2. With S the GPU-time of a job, drawn from a known distribution, and a
its attained service (work: restart overheads don't count),

    G(a) = sup over Δ > 0 of  P(S − a ≤ Δ | S > a) / E[min(S − a, Δ) | S > a]

and the largest index runs first. The distribution is empirical: the GPU-times of the trace itself (as from last
month's log), or a file of samples. The index is evaluated on `levels` quantiles of the samples, and a job's index
changes when its service crosses one: between two quantiles the jobs of a level are equals, in order of arrival.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.errors import PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.levels import LevelOrder
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.policies.base import Parameter, Policy, Traits, whole


@dataclass(slots=True)
class Memory:
    """Per job: its level and the seconds held that no longer count; the levels' limits and ranks."""

    level: NDArray[np.int16]
    since_s: NDArray[np.float64]
    limits_gpu_s: tuple[float, ...]
    ranks: tuple[int, ...]


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


class Gittins(Policy):
    """See the module."""

    id = "gittins"
    traits = Traits(
        summary="highest Gittins index of attained GPU-time",
        knows="distribution of GPU-time",
        preemptive="yes",
        heterogeneity=False,
        sharing=False,
        paper="Gu et al., NSDI'19 §3.2",
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
    )

    preempts_at_intervals = True
    cache: tuple[LevelOrder, OrderedPlanner] | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        samples = self.values["samples"]
        if samples is None:
            samples = workload.duration_s * workload.gpus
        if isinstance(samples, str):
            raise PolicyError("policy 'gittins': samples must be numbers here (the command line reads the file)")
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
        return Memory(
            np.zeros(len(workload), dtype=np.int16),
            np.zeros(len(workload)),
            limits,
            tuple(int(rank) for rank in ranks),
        )

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            order = LevelOrder(
                snapshot, memory.level, memory.since_s, memory.limits_gpu_s, memory.ranks, overheads=False
            )
            self.cache = order, OrderedPlanner(snapshot, order, preemptive=True)
        order, planner = self.cache
        planner.observe(snapshot)
        order.update(snapshot, planner)
        return order.plan(snapshot, planner), memory
