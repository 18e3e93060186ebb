"""Shortest remaining service first: remaining solo time × GPUs, small first.

The two-dimensional form of SRTF: Tiresias (NSDI'19), section 3.1; Muri-S orders by it (SIGCOMM'22, section 4.2).
"""

from __future__ import annotations

from typing import Any, ClassVar

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.remaining import BareRemainingOrder, RemainingOrder
from gpuloom.placement.repack import RepackPlanner
from gpuloom.policies.base import Parameter, Policy, Traits, one_of


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
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "placement",
            "sticky",
            one_of("sticky", "scatter", "repack"),
            "sticky: on as few nodes as possible, running jobs stay; scatter: any free GPUs, running jobs stay; "
            "repack: all are placed anew at every event (Muri's artifact)",
        ),
    )

    preempts_at_intervals = True
    cache: OrderedPlanner | RepackPlanner | None

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            if self.values["placement"] == "repack":
                self.cache = RepackPlanner(snapshot, BareRemainingOrder(by_gpus=True))
            else:
                self.cache = OrderedPlanner(
                    snapshot,
                    RemainingOrder(snapshot, by_gpus=True),
                    preemptive=True,
                    scatter=self.values["placement"] == "scatter",
                )
        self.cache.observe(snapshot)
        return self.cache.plan(snapshot), memory
