"""Where a job ran, and why: a simulation in which one job is watched.

The policy is wrapped: what it sees and what it decides for the job are recorded. This part works for every policy; a
policy that heeds `Policy.explains` adds its own reasons (`Decision.why`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision, Placement, Reason, is_resize
from gpuloom.core.errors import InputError
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import Speeds, Workload
from gpuloom.engine.progress import Progress
from gpuloom.engine.suspending import goes_on, homed
from gpuloom.facts.gpus import HOUR_S, price_usd_per_hour, with_known_memory
from gpuloom.facts.speeds import with_speeds
from gpuloom.placement.pool import pools_of
from gpuloom.placement.shapes import (
    gpu_memories_mib,
    impossible_jobs,
    model_allowed,
    shapes_of,
    why_impossible,
)
from gpuloom.policies.base import Policy
from gpuloom.sim.result import SimResult
from gpuloom.sim.simulator import simulate


class SpeedSource(StrEnum):
    """Where a job's speed on a GPU model is from."""

    MEASURED = "measured"
    """The trace's own."""
    REFERENCE = "reference"
    """The job's duration is of this model."""
    ESTIMATED = "estimated"
    """From facts of the models."""
    ASSUMED = "assumed"
    """Nothing is known of the model."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One GPU model of the cluster, when the job was placed.

    speed: of the job there, relative to the model its duration is of; it_per_s: its iterations per second there, where
        the trace tells them. estimated: the speed on the model was estimated from facts. source: where the speed is
        from (`SpeedSource`), with 'by its curve' where the job has not the size or nodes of its duration.
        price_usd_per_hour: of one GPU, on demand; None: not known.
        free: GPUs free then, those that the job gave back included. fits_now: they would have held it (nodes too).
        cant: why the job can't run there at all, or ''.
    """

    model: str
    speed: float
    it_per_s: float | None
    estimated: bool
    source: str
    free: int
    fits_now: bool
    cant: str
    chosen: bool
    price_usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class Company:
    """Jobs on the same GPUs: their ids, the share of its speed alone that the job keeps, and where it is known from."""

    jobs: tuple[str, ...]
    share: float
    source: str


@dataclass(frozen=True, slots=True)
class Step:
    """What happened to the job at a moment.

    what: submit, start, restart, resume (where it was suspended), move, resize, stop, rise (in its policy's queues),
        lose (its node failed), end.
    company: who else is on its GPUs from then on.
    """

    time_s: float
    what: str
    model: str = ""
    nodes: tuple[str, ...] = ()
    gpus: int = 0
    waited_s: float = 0.0
    alternatives: tuple[Alternative, ...] = ()
    why: Reason | None = None
    company: Company | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The story of one job, and the run that it comes from."""

    job_id: str
    job: int
    gpus: int
    policy: str
    steps: tuple[Step, ...]
    result: SimResult = field(repr=False)

    @property
    def cost_usd(self) -> float | None:
        """Of the GPUs that it held, at on-demand prices; None where that of a GPU model that it held is not known."""
        held = dict(zip(self.result.gpu_models, self.result.held_gpu_s[self.job].tolist(), strict=True))
        prices = {model: price_usd_per_hour(model) for model, seconds in held.items() if seconds > 0.0}
        known = [held[model] / HOUR_S * price for model, price in prices.items() if price is not None]
        return sum_floats(known) if len(known) == len(prices) else None


def explain(
    workload: Workload, cluster: Cluster, policy: Policy, job_id: str, *, name: str | None = None, **settings: Any
) -> Explanation:
    """Simulate, and tell what became of one job and why.

    Args:
        settings: as for `simulate`; the policy must have got its parameters already.

    Raises:
        InputError: the workload has no such job, or it can never be placed (says why).
    """
    job = find_job(workload, job_id)
    if job < 0:
        raise InputError(no_such_job(workload, job_id))
    if settings.get("skip_impossible"):
        cluster = with_known_memory(cluster)
        workload = with_speeds(workload, cluster)
        if job in impossible_jobs(shapes_of(workload, cluster), cluster).tolist():
            why = why_impossible(workload, cluster, job)
            raise InputError(f"job {workload.job_id(job)} can never be placed, and is left out: {why}")
    job_id = workload.job_id(job)
    watched = Watched(policy, job_id)
    result = simulate(workload, cluster, watched, **settings)
    steps = watched.finish(result)
    gpus = int(result.job_gpus[watched.job])
    result = replace(result, policy=name or policy.id)
    return Explanation(job_id, watched.job, gpus, name or policy.id, tuple(steps), result)


def find_job(workload: Workload, text: str) -> int:
    """Number of a job by its id or, where none has it, by its number in order of submission, from 0; -1: none."""
    if workload.job_ids is not None and text in workload.job_ids:
        return workload.job_ids.index(text)
    return int(text) if text.isdecimal() and int(text) < len(workload) else -1


def no_such_job(workload: Workload, text: str) -> str:
    """Says which ids there are."""
    n, shown = len(workload), 3
    ids = ", ".join(workload.job_id(job) for job in range(min(n, shown))) + (", …" if n > shown else "")
    named = f"its {n:,} jobs are named {ids}" if n > 1 else f"its one job is named {ids}"
    return f"{workload.name} has no job {text!r}; {named}"


class Watched(Policy):
    """A policy whose decisions for one job are written down."""

    id = "watched"

    def __init__(self, inner: Policy, job_id: str) -> None:
        self._policy, self.job_id, self.job = inner, job_id, -1
        self.stands_for(inner)
        self.steps: list[Step] = []
        self._since_s = 0.0
        self._progress: Progress | None = None
        self._sharing: Sharing | None = None
        self._facts: bool | None = None

    def forget(self) -> None:
        self._policy.forget()

    def new_memory(self, workload: Workload, cluster: Cluster) -> Any:
        self._policy.forget()
        ids = workload.job_ids
        self.job = int(self.job_id) if ids is None else ids.index(self.job_id) if self.job_id in ids else -1
        if self.job < 0:
            raise InputError(f"job {self.job_id} can never be placed, and is left out")
        self._policy.explains = frozenset([self.job])
        self._progress = Progress(workload, cluster, np.zeros(len(workload)))
        self._shapes = shapes_of(workload, cluster)
        return self._policy.new_memory(workload, cluster)

    def sharing(self, workload: Workload) -> Sharing | None:
        self._sharing = self._policy.sharing(workload)
        return self._sharing

    def saved(self, memory: Any) -> str | None:
        return self._policy.saved(memory)

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        job, now_s = self.job, snapshot.now_s
        if job in snapshot.arrived:
            self.steps.append(Step(now_s, "submit"))
            self._since_s = now_s
        if job in snapshot.evicted:
            self.steps.append(Step(now_s, "lose"))
            self._since_s = now_s
        held = snapshot.placements.get(job)
        free = list(snapshot.free_masks())
        starts = snapshot.starts(job)
        before = dict(snapshot.placements) if len(self._shapes.shapes) else {}
        decision, memory = self._policy.decide(snapshot, memory)
        if (better := homed(snapshot._state, decision)) is not decision:  # as the engine will have it
            decision = better
            self._policy.forget()
        why = decision.why.get(job)
        placement = decision.run.get(job)
        if placement is not None:
            if held is None:
                away = job in snapshot._state.away
                resumes = away and goes_on(snapshot._state, job, placement)
                what = "resume" if resumes else "restart" if starts else "start"
            else:
                what = "resize" if self.resizes and is_resize(held, placement) else "move"
            waited_s = now_s - self._since_s if held is None else 0.0
            gone = [before[other] for other in (*decision.wait, *decision.run) if other in before]
            alternatives = self._alternatives(snapshot, free, gone, placement)
            model, nodes = self._where(snapshot.cluster, placement)
            company = self._company(snapshot, decision, placement, model)
            self.steps.append(Step(now_s, what, model, nodes, placement.gpus, waited_s, alternatives, why, company))
        elif job in decision.wait and held is not None:
            model, nodes = self._where(snapshot.cluster, held)
            self.steps.append(Step(now_s, "stop", model, nodes, held.gpus, why=why))
            self._since_s = now_s
        elif why is not None:
            self.steps.append(Step(now_s, "rise", why=why))
        return decision, memory

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        return self._policy.reason(snapshot, job)

    def finish(self, result: SimResult) -> list[Step]:
        """The steps, with the job's end."""
        if np.isfinite(result.end_s[self.job]):
            self.steps.append(Step(float(result.end_s[self.job]), "end"))
        return self.steps

    def _where(self, cluster: Cluster, placement: Placement) -> tuple[str, tuple[str, ...]]:
        nodes = cluster.nodes
        return nodes[placement.nodes[0]].gpu_model, tuple(nodes[node].name for node in placement.nodes)

    def _company(self, snapshot: Snapshot, decision: Decision, placement: Placement, gpu_model: str) -> Company | None:
        """Who is on the same GPUs once the decision is carried out."""
        if self._sharing is None:
            return None
        after = {job: held for job, held in snapshot.placements.items() if job not in decision.wait}
        after.update(decision.run)
        here = dict(zip(placement.nodes, placement.masks, strict=True))
        others = []
        for job, held in after.items():
            shared = any(here.get(node, 0) & mask for node, mask in zip(held.nodes, held.masks, strict=True))
            if shared and job != self.job:
                others.append((held.layer, job))
        others.sort()
        if not others:
            return None
        workload, sharing = snapshot.workload, self._sharing
        return Company(
            tuple(workload.job_id(job) for _, job in others),
            sharing.rate(self.job, placement.layer, others, gpu_model),
            sharing.source(self.job, others, gpu_model),
        )

    def _alternatives(
        self, snapshot: Snapshot, free: Sequence[int], gone: Sequence[Placement], placement: Placement
    ) -> tuple[Alternative, ...]:
        """Every GPU model of the cluster as it was for the job, once those that stop or move have given GPUs back."""
        workload, cluster, job = snapshot.workload, snapshot.cluster, self.job
        masks = list(free)
        for other in gone:
            if other.layer == 0:
                for node, mask in zip(other.nodes, other.masks, strict=True):
                    masks[node] |= mask
        chosen = cluster.nodes[placement.nodes[0]].gpu_model
        able = self._shapes.shapes[int(self._shapes.of_job[job])].pools
        found = []
        for index, (model, pool) in enumerate(zip(cluster.models, pools_of(cluster, masks), strict=True)):
            speed = self._speed(pool.nodes[0], placement)
            source = self._source(workload, cluster, model)
            said = f"{source}, by its curve" if self._by_its_curve(workload, placement) else source.value
            it_per_s = None
            if workload.iteration_s is not None and workload.iteration_s[job] > 0:
                it_per_s = speed / float(workload.iteration_s[job])
            cant = "" if index in able else why_not(workload, cluster, job, index)
            fits = not cant and pool.fits(placement.gpus)
            estimated, taken = source is SpeedSource.ESTIMATED, model == chosen
            price = price_usd_per_hour(model)
            found.append(Alternative(model, speed, it_per_s, estimated, said, pool.free_gpus, fits, cant, taken, price))
        return tuple(found)

    def _speed(self, node: int, placement: Placement) -> float:
        assert self._progress is not None  # noqa: S101 - set when the run begins
        return self._progress.solo_rate(self.job, replace(placement, nodes=(node, *placement.nodes[1:])))

    def _source(self, workload: Workload, cluster: Cluster, model: str) -> SpeedSource:
        """Where the job's speed on a model is from."""
        speeds = workload.speeds
        if speeds is None:
            return SpeedSource.REFERENCE if len(cluster.models) == 1 else SpeedSource.ASSUMED
        known = [name.lower() for name in speeds.models]
        if model.lower() not in known:
            return SpeedSource.ASSUMED
        if speeds.estimated is not None and speeds.estimated[self.job, known.index(model.lower())]:
            return SpeedSource.ESTIMATED
        return SpeedSource.REFERENCE if self._of_facts(speeds) else SpeedSource.MEASURED

    def _by_its_curve(self, workload: Workload, placement: Placement) -> bool:
        """Whether the job's size or nodes there differ from those of its duration: then its speed is by its curve."""
        job, scaling = self.job, workload.scaling
        if scaling is None or scaling.curve[job] == NO_CURVE:
            return False
        nodes = len(placement.nodes)
        return placement.gpus != workload.gpus[job] or scaling.speed(job, placement.gpus, nodes) != 1.0

    def _of_facts(self, speeds: Speeds) -> bool:
        """Whether no speed of the workload was measured: all but the reference model's 1 are estimates."""
        if self._facts is None:
            marked = speeds.estimated
            self._facts = marked is not None and bool((marked | (speeds.factor == 1.0)).all())
        return self._facts


def why_not(workload: Workload, cluster: Cluster, job: int, model: int) -> str:
    """Why a job can't run on a GPU model (its index in the cluster)."""
    name, memory = cluster.models[model], gpu_memories_mib(cluster)[model]
    wanted = workload.gpu_type[job] if workload.gpu_type is not None else ""
    if not model_allowed(wanted, name):
        return f"asks for {wanted}"
    if workload.gpu_memory_mib is not None and workload.gpu_memory_mib[job] > memory:
        return f"needs {workload.gpu_memory_mib[job]:g} MiB, it has {memory:g}"
    return "by its measured speeds it does not fit"


def plain(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain values, for JSON."""
    return {
        "job_id": explanation.job_id,
        "gpus": explanation.gpus,
        "policy": explanation.policy,
        "trace": explanation.result.trace,
        "cluster": explanation.result.cluster,
        "interrupted": explanation.result.interrupted,
        "cost_usd": explanation.cost_usd,
        "steps": [_plain_step(step) for step in explanation.steps],
    }


def _plain_step(step: Step) -> dict[str, Any]:
    row: dict[str, Any] = {"time_s": step.time_s, "what": step.what}
    if step.model:
        row |= {"gpu_model": step.model, "nodes": list(step.nodes), "gpus": step.gpus}
    if step.alternatives:
        row["waited_s"] = step.waited_s
        row["alternatives"] = [
            {
                "gpu_model": a.model,
                "speed": a.speed,
                "it_per_s": a.it_per_s,
                "estimated": a.estimated,
                "source": a.source,
                "free_gpus": a.free,
                "fits_now": a.fits_now,
                "cant": a.cant,
                "chosen": a.chosen,
                "price_usd_per_hour": a.price_usd_per_hour,
            }
            for a in step.alternatives
        ]
    if step.company is not None:
        company = step.company
        row["beside"] = {"jobs": list(company.jobs), "share": company.share, "source": company.source}
    if step.why is not None:
        numbers: Mapping[str, float] = step.why.numbers
        row["why"] = {
            "code": step.why.code,
            "text": step.why.text,
            "numbers": {k: float(v) for k, v in numbers.items()},
        }
    return row
