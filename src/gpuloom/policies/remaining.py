"""Policies that order by what is left to do, time or GPU-time: srtf and srsf."""

from __future__ import annotations

from typing import Any, ClassVar

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.remaining import planner_by_remaining
from gpuloom.placement.repack import RepackPlanner
from gpuloom.policies.base import PLACEMENT, Parameter
from gpuloom.policies.upgrading import UPGRADE, Upgrading


class ByRemaining(Upgrading):
    """by_gpus: what is left counts times the GPUs."""

    by_gpus: ClassVar[bool]
    parameters: ClassVar[tuple[Parameter, ...]] = (PLACEMENT, UPGRADE)
    preempts_at_intervals = True
    knows_ends = True
    cache: OrderedPlanner | RepackPlanner | None

    def sees(self, gpus: int) -> int | None:
        return None if self.values["placement"] == "repack" else gpus + 1

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = planner_by_remaining(snapshot, self.values["placement"], by_gpus=self.by_gpus)
        self.cache.observe(snapshot)
        decision = self.cache.plan(snapshot)
        if not isinstance(self.cache, OrderedPlanner):  # its nodes are all alike
            return decision, memory
        return self.upgraded(snapshot, decision, self.cache.relocate), memory
