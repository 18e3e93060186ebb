"""Gavel: heterogeneity-aware shares by linear program, realised in rounds.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI'20). A program
gives job m on GPU model j the share X_mj of its time (`policies/gavel_objectives.py` has the objectives); rounds
(section 5) realise the shares: in every one the pairs (m, j) run whose share is largest over what they have received
(`policies/gavel_ledger.py`), model by model from the fastest on. A job that is chosen again on the same model keeps its
GPUs, and so does one that has not yet worked for as long as its start took. The program is solved again when the set of
jobs has changed and `reset` has passed since it last was; time received counts from then on.

`gavel:packed` may put two jobs on the same GPUs (`policies/gavel_packed.py`).
`gavel:released` is the released simulator (`policies/gavel_released.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from gpuloom.core.carrying import Rows as RowsOf
from gpuloom.core.carrying import carry
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.errors import PolicyError
from gpuloom.core.policy_state import ShareJob, SharesState
from gpuloom.core.sharing import Sharing
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
    yes_or_no,
)
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.policies.gavel_objectives import OBJECTIVES, WITHOUT_WEIGHTS
from gpuloom.policies.gavel_packed import PackedRounds, PairSharing
from gpuloom.policies.gavel_released import Released
from gpuloom.policies.gavel_rounds import Rounds, Terms
from gpuloom.solvers.interior import require_ecos

INTERIOR = ("max_min_fairness", "finish_time_fairness", "max_sum_throughput", "makespan")
"""Objectives that `released` has ECOS solve."""
RELEASED_WITHOUT = {"finish_time_fairness", "max_sum_throughput"}
"""Objectives to which weights mean nothing in the released code."""
_NAMES = {
    "max_min_fairness_water_filling": "water_filling",
    "max_sum_throughput_normalized_by_cost": "cost",
    "min_total_duration": "makespan",
}
"""What Gavel's code calls some objectives, with `_perf` behind."""


def _objective(text: str) -> str:
    """An objective, by its name here or in Gavel's code."""
    plain = text.removesuffix("_perf")
    return one_of(*OBJECTIVES)(_NAMES.get(plain, plain) if plain != text else text)


class Gavel(Policy):
    """See the module."""

    id = "gavel"
    traits = Traits(
        summary="heterogeneity-aware shares by linear program, in rounds",
        knows="throughput per GPU model (some: durations)",
        preemptive=Preemptive.AT_ROUNDS,
        heterogeneity=True,
        sharing=False,
        paper="Narayanan et al., OSDI'20",
        weights="shares by weight (most objectives)",
    )
    shares_with = "packed"
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("objective", "max_min_fairness", _objective, f"one of {', '.join(OBJECTIVES)}"),
        Parameter("round", 360.0, duration, "length of a round", "6m"),
        Parameter("reset", 1920.0, duration_or_0, "least time between two allocations", "32m"),
        Parameter("queue", "model", one_of("model", "global"), "a queue for each GPU model, or one for all"),
        Parameter(
            "packed",
            False,
            yes_or_no,
            "two jobs of equally many GPUs may share them, where it was measured how fast each then runs",
            "no",
        ),
        Parameter("released", False, yes_or_no, "the released simulator's rounds, and its solver (ECOS)", "no"),
        Parameter(
            "throughput_term",
            0.0,
            not_negative,
            "released, max_min_fairness: how much the sum of all throughputs counts beside the least",
        ),
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
    cache: Rounds | PackedRounds | Released | None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        said = self.values
        unweighed = WITHOUT_WEIGHTS | (RELEASED_WITHOUT if said["released"] else set())
        self.heeds_weights = said["objective"] not in unweighed
        if said["packed"]:
            if said["objective"] != "max_min_fairness" or said["released"]:
                other = "released" if said["released"] else f"objective={said['objective']}"
                raise PolicyError(f"gavel:packed is for max_min_fairness, not for {other}")
            self.max_jobs_per_gpu = 2
            self.traits = replace(self.traits, sharing=True)  # type: ignore[misc]
        elif said["released"] and said["objective"] in INTERIOR:
            require_ecos("gavel:released")
        if said["throughput_term"] and not (said["released"] and said["objective"] == "max_min_fairness"):
            raise PolicyError("gavel:throughput_term is for gavel:released with objective=max_min_fairness")

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        kinds = tuple(workload.pairs.kinds) if self.values["packed"] and workload.pairs is not None else ()
        return Memory.of(len(workload), cluster.models, kinds)

    def carried(self, memory: Memory, rows: RowsOf, nodes: RowsOf, workload: Workload, cluster: Cluster) -> Memory:
        fresh = self.new_memory(workload, cluster)
        width = fresh.beside.shape[1]
        if memory.models != fresh.models or memory.kinds != fresh.kinds:
            # Other columns: what was to be alone and beside whom is settled anew.
            beside = np.zeros((len(memory.known), width))
            mate = np.full(len(memory.known), len(fresh.kinds), dtype=np.int32)
            memory = replace(
                memory,
                beside=beside,
                beside_s=beside.copy(),
                mate=mate,
                kinds=fresh.kinds,
                stale=True,
                solved_at_s=math.nan,
            )
        return carry(memory, fresh, rows, nodes)

    def sharing(self, workload: Workload) -> Sharing | None:
        return PairSharing(workload) if self.values["packed"] else None

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            kind = PackedRounds if self.values["packed"] else Released if self.values["released"] else Rounds
            self.cache = kind(snapshot, memory, Terms.of(self.values))
        return self.cache.decide(snapshot), memory

    def describe(self, snapshot: Snapshot, memory: Memory) -> SharesState:
        models, running = memory.models, sorted(snapshot.placements)

        def one(job: int) -> ShareJob:
            on = memory.on.item(job) if job in snapshot.placements else -1
            share, received_s = tuple(memory.share[job].tolist()), tuple(memory.received_s[job].tolist())
            return ShareJob(snapshot.workload.job_id(job), share, received_s, models[on] if on >= 0 else "")

        jobs = tuple([one(job) for job in (*running, *snapshot.waiting())])
        return SharesState(models, memory.solved_at_s, memory.stale, memory.round_at_s, jobs)
