"""Shortest job first: whoever will run shortest starts first; no job is preempted.

Durations are known. A job that does not fit is passed by shorter-than-others that do. Optimal for the average wait
on one machine without arrivals; with the time over the weight, for the weighted average (Smith, "Various optimizers for
single-stage production", 1956).
"""

from __future__ import annotations

from typing import Any, ClassVar

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.policies.base import Parameter, Preemptive, Traits
from gpuloom.policies.upgrading import UPGRADE, Upgrading


class DurationOrder:
    """By the work left over the weight."""

    clock = 0
    by_gpus = False

    def __init__(self, workload: Workload) -> None:
        self._weights = workload.weights

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        left_s = snapshot.remaining_s(job)
        return left_s if self._weights is None else left_s / self._weights.item(job)

    running_key = waiting_key


class Sjf(Upgrading):
    """See the module."""

    id = "sjf"
    traits = Traits(
        summary="shortest job first",
        knows="durations",
        preemptive=Preemptive.NO,
        heterogeneity=False,
        sharing=False,
        paper="Smith 1956",
        weights="remaining time over weight (Smith)",
    )

    parameters: ClassVar[tuple[Parameter, ...]] = (UPGRADE,)
    knows_ends = True
    cache: OrderedPlanner | None

    def sees(self, gpus: int) -> int | None:
        return gpus + 1

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = OrderedPlanner(snapshot, DurationOrder(snapshot.workload), preemptive=False)
        self.cache.observe(snapshot)
        return self.upgraded(snapshot, self.cache.plan(snapshot), self.cache.relocate), memory
