"""Muri-XS and Muri-XL: gpuloom's own weaving policies, with durations known and unknown.

Muri orders jobs first and matches them afterwards, by how full a group keeps the resources. Here one choice, by value,
says which jobs run, with which others and on how many GPUs: every job has a worth, and groups are chosen so that the
value per second of the whole cluster is large (`interleave/valued.py`).
    1. Price of a job: the GPU-seconds that a second of its solo work costs when its GPU count's profiles are woven as
       well as can be (`SetTable.prices`), so that a job that others hardly notice counts as short.
    2. Worth, per second of solo work:
           price · size^-power · (1 + waited / time)^ageing · max(1, waited / time / patience)
       Muri-XS: time is the solo time left, size = time · price.
       Muri-XL: time is 1 / Gittins index of the work done so far, learnt from the jobs that have ended
       (`learning/hazard.py`); size = time · price. Running jobs are worth `sticky` more.
       power 1 would be Smith's rule (1956). With GPUs to share a power well below 1 ends jobs sooner on average: a
       short job alone on GPUs keeps several others waiting that would have hardly slowed it down.
    3. If all jobs fit alone, they run alone. Else nodes are shared out among GPU counts and filled with groups
       (`share_nodes`), what is left over is filled or used to split groups, and groups exchange members.
    4. At a scheduling interval the new groups are taken only if they are worth more than leaving things as they are
       and filling free GPUs, where a group that would have to start loses its start-up time of the next `horizon`.
Between two intervals new groups start on free GPUs, and nothing else changes. What the parts bring:
docs/results/weaving.md.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8
from gpuloom.policies.base import Parameter, Preemptive, Traits
from gpuloom.policies.upgrading import UPGRADE, Upgrading
from gpuloom.policies.valued import Learning, Valued
from gpuloom.policies.valued_rooms import Jobs


class MuriXS(Upgrading, Valued):
    """See the module."""

    id = "muri-xs"
    traits = Traits(
        summary="weaves jobs by value per GPU, short ones first",
        knows="durations",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=True,
        paper="gpuloom",
        weights="worth times weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (*Valued.parameters, UPGRADE)
    knows_ends = True

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, memory = super().decide(snapshot, memory)
        return self.upgraded(snapshot, decision), memory

    def time_s(self, snapshot: Snapshot, memory: Any, jobs: Jobs, left_s: F8) -> F8:
        return np.maximum(left_s, 1e-3)


class MuriXL(Upgrading, Learning):
    """See the module."""

    id = "muri-xl"
    traits = Traits(
        summary="weaves jobs by value per GPU, those likely to end soon first",
        knows="nothing",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=True,
        paper="gpuloom",
        weights="worth times weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (*Learning.parameters, UPGRADE)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, memory = super().decide(snapshot, memory)
        return self.upgraded(snapshot, decision), memory
