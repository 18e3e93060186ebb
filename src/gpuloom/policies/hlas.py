"""HLAS: heterogeneity-aware least attained service.

Patent "A heterogeneity-aware method and system for allocating and scheduling GPU resources" (Chinese application,
2021), sections S1 to S5, algorithms 1 and 2. Attained service of a job is A = Σ t · n · p over its
periods on GPUs since its first start or last promotion: seconds, GPUs, performance of the GPU model. Priority is -A.
    Q1 holds new, promoted and evicted jobs by priority, then submission. Nobody in Q1 stops a running job by itself.
    Demote: a running job with A > mean A of the running jobs · `priority_threshold_ratio` is suspended and joins Q2.
    Promote: a job of Q2 with time waited / time run > `starve_threshold_ratio` joins Q1, and A starts from 0.
    Place: a job of Q1 that fits gets the free GPUs of the model on which it is fastest, or swaps with a running job
    that gains more there (placement/swaps.py).
Beyond the patent, each with a switch (`literal` turns all off): GPUs that Q1 can't use are offered to Q2; nobody is
suspended unless a job of Q1 gets to run by it; a swap must pay for its restart; how often a job moves is bounded; a
running job moves to better GPUs that no waiting job can use.
Time run counts since the last promotion, like A; time waited since the job joined Q2. A job that is still starting is
neither suspended nor moved, as it has nothing to save.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision, Reason
from gpuloom.core.policy_state import HlasState
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.policies.base import (
    Parameter,
    Policy,
    Preemptive,
    Traits,
    by_model,
    duration,
    duration_or_0,
    not_negative,
    one_of,
    positive,
    yes_or_no,
)
from gpuloom.policies.hlas_passes import HlasPasses
from gpuloom.policies.hlas_state import hlas_state
from gpuloom.policies.hlas_terms import Memory, Options


class Hlas(Policy):
    """See the module."""

    id = "hlas"
    traits = Traits(
        summary="least attained service by GPU model, with swaps between models",
        knows="throughput per GPU model",
        preemptive=Preemptive.YES,
        heterogeneity=True,
        sharing=False,
        paper="patent application, 2021",
        weights="attained service over weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("priority_threshold_ratio", 2.0, positive, "times the mean service after which a job is suspended"),
        Parameter(
            "starve_threshold_ratio", 1.0, not_negative, "waiting time over run time above which a job rises to Q1"
        ),
        Parameter(
            "performance",
            "fp16",
            by_model("fp16", "fp32", "bandwidth", "typical"),
            "speed of GPU models that weighs service: fp16, fp32, bandwidth, typical, or numbers (V100:2/K80:1)",
            names_measure=True,
        ),
        Parameter(
            "gain",
            "relative",
            one_of("iterations", "relative"),
            "measure a swap's gain in iterations, or in shares of the best speed",
        ),
        Parameter("work_conserving", True, yes_or_no, "offer GPUs that Q1 can't use to Q2", "yes"),
        Parameter("demote_only_if_waiting", True, yes_or_no, "suspend only if that lets a job of Q1 run", "yes"),
        Parameter("gain_horizon", True, yes_or_no, "a swap must gain more than the restart costs", "yes"),
        Parameter("upgrade", True, yes_or_no, "running jobs move to better GPUs that no waiting job can use", "yes"),
        Parameter(
            "min_seconds_between_moves",
            1200.0,
            duration_or_0,
            "least time between moves of a job, and before it is suspended",
            "20m",
        ),
        Parameter(
            "tick",
            360.0,
            duration,
            "between events, passes are made at multiples of this if they can change anything",
            "6m",
        ),
        Parameter("blind", False, yes_or_no, "treat all GPU models as equal", "no"),
        Parameter("literal", False, yes_or_no, "the patent's text only: all switches off, gain in iterations", "no"),
    )

    remembers = (Memory,)
    cache: HlasPasses | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        n = len(workload)
        return Memory(
            np.zeros(n, dtype=np.int8),
            np.zeros((n, len(cluster.models))),
            np.zeros(n),
            np.zeros(n, dtype=np.int16),
            np.zeros(n),
            np.zeros(n),
            np.zeros(n),
            np.full(n, -math.inf),
            cluster.models,
            np.full(len(cluster.models), -math.inf),
        )

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            self.cache = HlasPasses(snapshot, memory, Options.of(self.values))
        scheduler = self.cache
        scheduler.begin(snapshot, self.explains)
        # 1. Who came, ended, lost its node.
        scheduler.observe()
        # 2. Who has had too much. 3. Who starves. 4. Who runs, and where. (Each start and stop makes a record.)
        scheduler.demote()
        scheduler.promote()
        scheduler.place()
        return scheduler.decision(), memory

    def describe(self, snapshot: Snapshot, memory: Memory) -> HlasState:
        return hlas_state(snapshot, memory, Options.of(self.values))

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        """Why a waiting job waits."""
        why = super().reason(snapshot, job)
        return why if self.cache is None else self.cache.in_q2(snapshot, job, why)
