"""Tiresias: discretised two-dimensional least attained service (2D-LAS).

Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning" (NSDI'19), section 3.2 and 3.3. Attained
service is GPUs × seconds held. Queues Q_1 … Q_K are bounded by service limits: a job begins in the first and sinks
when its service passes the limit; lower queues run only on what higher ones leave, in order of arrival within a
queue. `promote` is the paper's PROMOTEKNOB: a job that has waited so many times its run time rises to Q_1.
Limits by default: 3,250 and 7,200 GPU-seconds (the released simulators of Tiresias and Muri).
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.policy_state import LevelsState
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.placement.levels import LevelMemory, LevelOrder, levels_state
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.policies.base import Parameter, Preemptive, Traits, not_negative, rising_numbers, yes_or_no
from gpuloom.policies.upgrading import UPGRADE, Upgrading


class Tiresias(Upgrading):
    """See the module."""

    id = "tiresias"
    traits = Traits(
        summary="least attained GPU-time, in discrete queues",
        knows="nothing",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=False,
        paper="Gu et al., NSDI'19",
        weights="attained service over weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("thresholds", (3250.0, 7200.0), rising_numbers, "limits of the queues in GPU-seconds", "3250/7200"),
        Parameter("promote", 0.0, not_negative, "waiting time over run time above which a job rises; 0: never", "0"),
        Parameter("scatter", False, yes_or_no, "count GPUs only: a job may spread over any nodes", "no"),
        Parameter("whole_seconds", False, yes_or_no, "queues change at whole seconds (Muri's artifact)", "no"),
        UPGRADE,
    )

    preempts_at_intervals = True
    remembers = (LevelMemory,)
    cache: tuple[LevelOrder, OrderedPlanner] | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> LevelMemory:
        return LevelMemory.of(len(workload))

    def decide(self, snapshot: Snapshot, memory: LevelMemory) -> tuple[Decision, LevelMemory]:
        if self.cache is None:
            limits = self.values["thresholds"]
            order = LevelOrder(
                snapshot,
                memory,
                limits,
                tuple(range(len(limits) + 1)),
                whole_seconds=self.values["whole_seconds"],
                promote=self.values["promote"],
            )
            self.cache = order, OrderedPlanner(snapshot, order, preemptive=True, scatter=self.values["scatter"])
        order, planner = self.cache
        # 1. Who came, ended, lost its node. 2. Who sinks. 3. Who runs.
        planner.observe(snapshot)
        order.update(snapshot, planner)
        decision = order.plan(snapshot, planner)
        return self.upgraded(snapshot, decision, partial(order.relocate, snapshot, planner)), memory

    def describe(self, snapshot: Snapshot, memory: LevelMemory) -> LevelsState:
        limits = self.values["thresholds"]
        return levels_state(snapshot, memory, limits, tuple(range(len(limits) + 1)))
