"""Gavel: heterogeneity-aware shares by linear program, realised in rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI'20). A program
gives job m on GPU model j the share X_mj of its time (`policies/gavel_objectives.py` has the objectives); rounds
(section 5) realise the shares: in every one the pairs (m, j) run whose share is largest over what they have received
(`policies/gavel_ledger.py`), model by model from the fastest on. A job that is chosen again on the same model keeps its
GPUs, and so does one that has not yet worked for as long as its start took. The program is solved again when the set of
jobs has changed and `reset` has passed since it last was; time received counts from then on.

`gavel:released` is the released simulator (`policies/gavel_released.py`).
"""

from __future__ import annotations

from typing import Any, ClassVar

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
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
    one_of,
    yes_or_no,
)
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.policies.gavel_objectives import OBJECTIVES, WITHOUT_WEIGHTS
from gpuloom.policies.gavel_rounds import Rounds, Terms


class Gavel(Policy):
    """See the module."""

    id = "gavel"
    traits = Traits(
        summary="heterogeneity-aware shares by linear program, in rounds",
        knows="throughput per GPU model (makespan, finish_time_fairness, allox: durations)",
        preemptive=Preemptive.AT_ROUNDS,
        heterogeneity=True,
        sharing=False,
        paper="Narayanan et al., OSDI'20",
        weights="shares by weight (not makespan, allox)",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("objective", "max_min_fairness", one_of(*OBJECTIVES), f"one of {', '.join(OBJECTIVES)}"),
        Parameter("round", 360.0, duration, "length of a round", "6m"),
        Parameter("reset", 1920.0, duration_or_0, "least time between two allocations", "32m"),
        Parameter("queue", "model", one_of("model", "global"), "a queue for each GPU model, or one for all"),
        Parameter("blind", False, yes_or_no, "the program takes all models for equally fast", "no"),
        Parameter(
            "prices",
            "price",
            by_model("price"),
            "for cost: price (the on-demand prices that ship), or dollars per GPU and hour (V100:2.48/K80:0.45)",
            names_measure=True,
        ),
    )

    remembers = (Memory,)
    cache: Rounds | None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.heeds_weights = self.values["objective"] not in WITHOUT_WEIGHTS

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        return Memory.of(len(workload), cluster.models)

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            self.cache = Rounds(snapshot, memory, Terms.of(self.values))
        return self.cache.decide(snapshot), memory
