"""weave: which GPUs, with whom, and how many, by value per GPU and second. gpuloom's own policy.

It joins the ideas of the other policies here under one objective, the value per second of the whole cluster less what
restarts and resizes cost. It is told no durations (`durations=known`: it is, as by the simulator).
    1. Worth of a job, per second of its work: as Muri-XL's (`policies/muri_x.py`), by the Gittins index of the work
       done so far, learnt from the jobs that have ended; old jobs gain. On several GPU models, while nobody waits, a
       second saved is worth nearly the same to every job.
    2. Which GPU model: worth · speed there, less the price of the GPUs. Prices are such that those who want a model
       most just fill it (`solvers/assignment.py`); a job thus takes the fast GPUs not because it comes first, but
       because it gains more from them than others would.
    3. With whom: groups by value on the nodes of each model (`interleave/valued.py`), jobs of which nothing is known
       alone. Then members change between the models (`interleave/across.py`). Prices take jobs as if they could be
       split, so where gangs wait there is a second plan: jobs of all models bid for the nodes of each.
    4. When: what runs goes on unless the new plan is worth more within `horizon`, restarts and moves between GPU
       models paid (`policies/valued_score.py`). Jobs move to faster GPUs that are idle even then if they end sooner so
       (`placement/upgrades.py`).
    5. How many: jobs that can be of several sizes enter 1 to 4 at their smallest, and alone if they ask for more: stage
       times and pairs were measured at the size that they ask for. GPUs that are left over go where they bring most
       (`policies/elastic_goodput.py`), and come back as soon as a job can start on them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.interleave.efficiency import MAX_GROUP
from gpuloom.placement.upgrades import Upgrades, merged
from gpuloom.policies.base import Parameter, Policy, Preemptive, Traits, duration, one_of
from gpuloom.policies.growth import GOODPUT, Growing
from gpuloom.policies.valued import Learning
from gpuloom.policies.valued_rooms import Jobs

_DEFAULTS: dict[str, tuple[Any, str | None]] = {
    "power": (0.4, None),
    "ageing": (0.1, None),
    "patience": (20.0, "20"),
    "horizon": (900.0, "15m"),
    "sticky": (0.1, None),
    "alpha": (-0.5, None),
}


def _own(parameter: Parameter) -> Parameter:
    """A parameter with weave's own default."""
    if parameter.name not in _DEFAULTS:
        return parameter
    default, shown = _DEFAULTS[parameter.name]
    return replace(parameter, default=default, shown=shown)


DURATIONS = Parameter("durations", "unknown", one_of("unknown", "known"), "whether it knows how long jobs take")


class _Woven(Learning):
    """Which jobs run, where and with which others, every job at one size."""

    id = "weave"
    traits = Traits("weave at one size", "nothing", Preemptive.YES, True, True, "gpuloom", "worth times weight")
    parameters: ClassVar[tuple[Parameter, ...]] = (*map(_own, Learning.parameters), DURATIONS)
    weighs_models = True

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self._upgrades: Upgrades | None = None
        self.of_class: Jobs | None = None
        """The class of each job, by the GPUs that its user asked for; None: by those it has."""

    def classes(self, workload: Workload) -> Jobs:
        found: Jobs = super().classes(workload) if self.of_class is None else self.of_class
        return found

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        decision, memory = super().decide(snapshot, memory)
        return self._upgraded(snapshot, decision) if snapshot.may_preempt else decision, memory

    def _upgraded(self, snapshot: Snapshot, decision: Decision) -> Decision:
        """Plans are made within `horizon`. A job that goes on for longer moves to faster idle GPUs even if its restart
        takes long."""
        workload, cluster = snapshot.workload, snapshot.cluster
        upgrades = self._upgrades
        if upgrades is None or upgrades.workload is not workload or upgrades.cluster is not cluster:
            known = self.values["durations"] == "known"
            self._upgrades = upgrades = Upgrades(workload, cluster, known=known, sharing=self.sharing(workload))
        if not upgrades.possible or not (snapshot.placements or decision.run):
            return decision
        return merged(decision, upgrades.plan(snapshot, decision, self.explains))

    def time_s(self, snapshot: Snapshot, memory: Any, jobs: Jobs, left_s: F8) -> F8:
        if self.values["durations"] == "known":
            return np.maximum(left_s, 1e-3)
        return super().time_s(snapshot, memory, jobs, left_s)


class Weave(Growing):
    """See the module."""

    id = "weave"
    traits = Traits(
        summary="chooses GPUs, partners and sizes of jobs by value",
        knows="speeds by GPU model and size",
        preemptive=Preemptive.YES,
        heterogeneity=True,
        sharing=True,
        paper="gpuloom",
        weights="worth times weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *_Woven.parameters,
        *(_own(p) for p in GOODPUT if p.name in {"alpha", "least", "period"}),
        Parameter("resize_horizon", 1800.0, duration, "longest time a new size is expected to last", "30m"),
    )
    max_jobs_per_gpu = MAX_GROUP

    inner: _Woven

    def new_memory(self, workload: Workload, cluster: Cluster) -> Any:
        self.inner.of_class = Learning.classes(self.inner, workload)
        return super().new_memory(workload, cluster)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.inner.of_class = Learning.classes(self.inner, snapshot.workload)
        return super().decide(snapshot, memory)

    def made_inner(self) -> Policy:
        return _Woven(**{p.name: self.values[p.name] for p in _Woven.parameters})

    def sharing(self, workload: Workload) -> Sharing | None:
        return self.inner.sharing(workload)

    def lending_values(self) -> dict[str, Any]:
        own = {name: self.values[name] for name in ("alpha", "least", "period")}
        return {p.name: p.default for p in GOODPUT} | own | {"horizon": self.values["resize_horizon"]}
