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
from gpuloom.placement.remaining import planner_by_remaining
from gpuloom.placement.repack import RepackPlanner
from gpuloom.policies.base import PLACEMENT, Parameter, Policy, Traits


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
    parameters: ClassVar[tuple[Parameter, ...]] = (PLACEMENT,)
    preempts_at_intervals = True
    cache: OrderedPlanner | RepackPlanner | None

    def sees(self, gpus: int) -> int | None:
        return None if self.values["placement"] == "repack" else gpus + 1

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = planner_by_remaining(snapshot, self.values["placement"], by_gpus=False)
        self.cache.observe(snapshot)
        return self.cache.plan(snapshot), memory
