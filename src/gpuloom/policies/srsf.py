"""Shortest remaining service first: remaining solo time × GPUs, small first.

The two-dimensional form of SRTF: Tiresias (NSDI'19), section 3.1; Muri-S orders by it (SIGCOMM'22, section 4.2).
"""

from __future__ import annotations

from typing import Any, ClassVar

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.remaining import planner_by_remaining
from gpuloom.placement.repack import RepackPlanner
from gpuloom.policies.base import PLACEMENT, Parameter, Policy, Traits


class Srsf(Policy):
    """See the module."""

    id = "srsf"
    traits = Traits(
        summary="shortest remaining GPU-time first",
        knows="durations",
        preemptive="yes",
        heterogeneity=False,
        sharing=False,
        paper="Tiresias NSDI'19 §3.1",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (PLACEMENT,)
    preempts_at_intervals = True
    cache: OrderedPlanner | RepackPlanner | None

    def sees(self, gpus: int) -> int | None:
        return None if self.values["placement"] == "repack" else gpus + 1

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = planner_by_remaining(snapshot, self.values["placement"], by_gpus=True)
        self.cache.observe(snapshot)
        return self.cache.plan(snapshot), memory
