"""Shortest remaining time first: at every moment the jobs with the least time left run.

Priority is remaining solo time (Schrage, "A proof of the optimality of the SRPT discipline", 1968: optimal for the
average completion time on one machine). As a baseline of GPU scheduling: Tiresias (NSDI'19), section 3; Muri
(SIGCOMM'22), section 6.1.
"""

from __future__ import annotations

from typing import Any, ClassVar

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.remaining import BareRemainingOrder, RemainingOrder
from gpuloom.placement.repack import RepackPlanner
from gpuloom.policies.base import Parameter, Policy, Traits, one_of


class Srtf(Policy):
    """See the module."""

    id = "srtf"
    traits = Traits(
        summary="shortest remaining time first",
        knows="durations",
        preemptive="yes",
        heterogeneity=False,
        sharing=False,
        paper="Schrage 1968",
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
                self.cache = RepackPlanner(snapshot, BareRemainingOrder(by_gpus=False))
            else:
                self.cache = OrderedPlanner(
                    snapshot,
                    RemainingOrder(snapshot, by_gpus=False),
                    preemptive=True,
                    scatter=self.values["placement"] == "scatter",
                )
        self.cache.observe(snapshot)
        return self.cache.plan(snapshot), memory
