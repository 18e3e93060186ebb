"""Elastic training by thresholds: a share of the free GPUs is lent to elastic jobs while no other job needs it.

After the patent "elastic distributed training in deep-learning scenarios" (2022). Every `check_minutes` the utilisation
t = EU / M of the elastic pool M = (A - a)·p is compared with two thresholds (`scaling/thresholds.py` has the step and
both readings of `a`). Below the one replicas are added, above the other they are taken away, else nothing happens. A
job starts with its fewest replicas and never has fewer; those above are borrowed: a job that waits and could run if
they were given back gets them at once; which job that is, the base policy decides.

By the letter EU is all that elastic jobs hold, and a job starts with its fewest replicas: one that is alone on the
cluster stays there, as the pool counts as used up (`literal`). The purpose of the text is that elastic jobs use what is
free. By default EU is therefore what they hold above their smallest sizes, all that is free is lent, a job that starts
gets the size that it asks for if that is free, those below the size that they ask for grow before others, and jobs go
to other GPU models where that pays (`policies/gpu_allocator.py`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar

from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import PolicyError
from gpuloom.core.policy_state import ElasticPool, PoolAction, ResizeWhy
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import is_multiple, next_multiple
from gpuloom.core.workload import Workload
from gpuloom.policies.base import Parameter, Preemptive, Traits, one_of, positive, share, yes_or_no
from gpuloom.policies.composed import BASE, Composed, Memory
from gpuloom.policies.gpu_allocator import GpuAllocator
from gpuloom.policies.growth import GOODPUT
from gpuloom.scaling.base_view import replicas_of
from gpuloom.scaling.lending import Lending
from gpuloom.scaling.thresholds import (
    LEAST_BUDGET_GPUS,
    POLICIES,
    ElasticJob,
    ResizeDecision,
    Thresholds,
    decide_resize,
    resize_in_turn,
)

ALIASES: Mapping[str, str] = {
    "elasticProportion": "proportion",
    "expandThreshold": "expand_threshold",
    "expandPolicy": "expand_policy",
    "scalingThreshold": "shrink_threshold",
    "scalingPolicy": "shrink_policy",
    "hpaCheckMinutes": "check_minutes",
}
"""The patent's names of the keys, which are read in any case, as are those of the parameters."""
LETTER: Mapping[str, Any] = {
    "proportion": 0.3,
    "expand_threshold": 0.3,
    "shrink_threshold": 0.9,
    "count_elastic_usage": True,
}
"""The values of the patent's example: where `literal` is on, of those that are not written."""
SECTIONS = ("elastic", "elasticconfig")


def _order(text: str) -> str:
    return one_of(*POLICIES)("fair" if text == "fail" else text)  # the patent's example prints "fail"


def _config(data: Any) -> dict[str, Any]:
    """Values of parameters from what a YAML file holds.

    Raises:
        ValueError: names the key and the reason.
    """
    if isinstance(data, Mapping) and len(data) == 1 and str(next(iter(data))).lower() in SECTIONS:
        data = next(iter(data.values()))
    if not isinstance(data, Mapping):
        raise ValueError("must hold 'elastic:' with keys and values below it")
    known = {parameter.name: parameter for parameter in Elastic.parameters if parameter.name not in ("config", "base")}
    names = {name.lower(): name for name in (*known, "base")} | {key.lower(): name for key, name in ALIASES.items()}
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = names.get(str(key).lower(), str(key))
        if name == "base":
            raise ValueError(f"key {key!r}: the base policy is chosen with --base, or elastic:base=...")
        if name not in known:
            raise ValueError(f"unknown key {key!r}; known are {', '.join(known)} and {', '.join(ALIASES)}")
        if name in found:
            raise ValueError(f"key {key!r}: {name} is given twice")
        if isinstance(value, bool):
            value = "yes" if value else "no"
        if not isinstance(value, str | int | float):
            raise ValueError(f"key {key!r} is {value!r}, must be one value")
        try:
            found[name] = known[name].parse(str(value))
        except ValueError as error:
            raise ValueError(f"key {key!r} is {value!r}: {error}") from error
    defaults = {parameter.name: parameter.default for parameter in Elastic.parameters}
    _rules(defaults | (dict(LETTER) if found.get("literal") else {}) | found)
    return found


def _rules(values: Mapping[str, Any]) -> Thresholds:
    return Thresholds(**{field.name: values[field.name] for field in fields(Thresholds)})


class Elastic(Composed):
    """See the module."""

    id = "elastic"
    traits = Traits(
        summary="elastic jobs borrow free GPUs, between thresholds",
        knows="sizes of jobs, and what the base knows",
        preemptive=Preemptive.AS_BASE,
        heterogeneity=True,
        sharing=False,
        paper="patent application, 2022",
        weights="as the base",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        BASE,
        Parameter("literal", False, yes_or_no, "the patent's text only: its reading of EU, and its values", "no"),
        Parameter("proportion", 1.0, share, "share of the free GPUs that elastic jobs may borrow (literal: 0.3)"),
        Parameter("expand_threshold", 1.0, positive, "below this utilisation of the pool jobs grow (literal: 0.3)"),
        Parameter("expand_policy", "fair", _order, "which jobs grow first: fair (fewest expansions) or priority"),
        Parameter("shrink_threshold", 1.2, positive, "above this utilisation jobs shrink (literal: 0.9)"),
        Parameter("shrink_policy", "priority", _order, "which jobs shrink first: priority (low first) or fair"),
        Parameter("check_minutes", 5.0, positive, "minutes between two checks of the pool", "5"),
        Parameter(
            "count_elastic_usage",
            False,
            yes_or_no,
            "GPUs of elastic jobs count as used (literal: yes)",
            "no",
        ),
        Parameter(
            "config",
            None,
            str,
            "YAML file with these values (the patent's names of the keys work too); parameters written here take "
            "precedence",
            shown="none",
            names_file=True,
            yaml=True,
            content=_config,
        ),
    )

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.ranks_priorities = True
        self._settled: tuple[Any, Thresholds, float] | None = None
        self._written = {name for name in values if name != "config"}
        if not isinstance(self.values["config"], str):
            self.rules()

    def rules(self) -> tuple[Thresholds, float]:
        """The thresholds, and seconds between two looks.

        Raises:
            PolicyError: values that don't go together.
        """
        config = self.values["config"]
        if self._settled is not None and self._settled[0] is config:
            return self._settled[1:]
        if isinstance(config, str):
            raise PolicyError(f"policy {self.id!r}: config must be a mapping here (the caller reads the file)")
        values = dict(self.values)
        given = {} if config is None else {name: value for name, value in config.items() if name not in self._written}
        if given.get("literal", values["literal"]):
            values |= {name: value for name, value in LETTER.items() if name not in self._written}
        values |= given
        try:
            self._settled = config, _rules(values), 60.0 * values["check_minutes"]
        except ValueError as error:
            raise PolicyError(f"policy {self.id!r}: {error}") from error
        # By the letter nobody grows over models: only the base may tell them apart.
        knows = not values["literal"] or self.inner.traits.heterogeneity
        self.traits = replace(type(self).traits, heterogeneity=knows)  # type: ignore[misc]
        return self._settled[1:]

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        self.rules()
        return super().new_memory(workload, cluster)

    def first_to_shrink(self, snapshot: Snapshot, memory: Memory, job: int) -> Any:
        """As in a control step that shrinks."""
        often = (int(memory.shrinks[job]), float(memory.last_shrink_s[job]))
        by_priority = self.rules()[0].shrink_policy == "priority"
        return (-_priority(snapshot, job), *often) if by_priority else often

    def lend(self, snapshot: Snapshot, memory: Memory, lending: Lending, *, stirred: bool) -> float:
        rules, period_s = self.rules()
        now_s = snapshot.now_s
        if not lending.gpus:
            memory.dirty = False  # a look that was due when the last one ended is no reason to look at once at the next
            return math.inf
        if stirred and not memory.dirty:
            memory.dirty = True
            due = is_multiple(now_s, period_s) and memory.checked_s < now_s
            memory.check_at_s = now_s if due else next_multiple(now_s, period_s)
        if not memory.dirty:
            return math.inf
        if now_s >= memory.check_at_s:
            # Nothing but events and its own steps changes what a check finds.
            memory.dirty = self._check(snapshot, memory, lending, rules)
            memory.checked_s = now_s
            memory.check_at_s = next_multiple(now_s, period_s)
        elif not rules.literal and lending.run:
            self._as_asked(snapshot, memory, lending, rules)
        return memory.check_at_s if memory.dirty else math.inf

    def pool(self, snapshot: Snapshot, memory: Memory, lending: Lending | None) -> ElasticPool:
        rules, _ = self.rules()
        service, used, elastic = self._gpus(snapshot, lending, rules)
        resize = decide_resize(rules, service, used, elastic)
        return ElasticPool(
            service,
            used,
            elastic,
            resize.pool_gpus,
            resize.utilisation,
            rules.expand_threshold,
            rules.shrink_threshold,
            rules.target,
            PoolAction(resize.action),
            resize.budget_gpus,
            memory.checked_s,
            memory.check_at_s if memory.dirty else math.inf,
        )

    def _utilisation(self, snapshot: Snapshot, lending: Lending, rules: Thresholds) -> ResizeDecision:
        """What the thresholds say now."""
        return decide_resize(rules, *self._gpus(snapshot, lending, rules))

    def _gpus(self, snapshot: Snapshot, lending: Lending | None, rules: Thresholds) -> tuple[int, int, int]:
        """A, GPUs in use by all jobs, and EU as the rules read it. lending: None: no job is elastic."""
        out = snapshot.nodes_out
        in_service = sum_ints([node.gpus for index, node in enumerate(snapshot.cluster.nodes) if index not in out])
        if lending is None:
            return in_service, in_service - snapshot.free_gpus, 0
        free = sum_ints([mask.bit_count() for mask in lending.free])
        elastic = sum_ints(lending.gpus.values())
        if not rules.literal:
            elastic -= sum_ints([lending.sizes.of[job][0] for job in lending.gpus])
        return in_service, in_service - free, elastic

    def _check(self, snapshot: Snapshot, memory: Memory, lending: Lending, rules: Thresholds) -> bool:
        """One control step; whether anything changed."""
        touched = set(lending.reclaimed)
        changed = bool(touched)
        resize = self._utilisation(snapshot, lending, rules)
        grows = resize.action == "expand"
        if resize.action != "hold" and resize.budget_gpus >= LEAST_BUDGET_GPUS:
            if grows and not rules.literal:
                # Whoever has less than it asks for comes first.
                below = _below(self._candidates(snapshot, memory, lending, grows, touched))
                grown = sum_ints(self._resized(snapshot, memory, lending, rules, resize, below).values())
                resize = replace(resize, budget_gpus=resize.budget_gpus - grown)
                changed = changed or grown > 0
            jobs = self._candidates(snapshot, memory, lending, grows, touched)
            changed = bool(self._resized(snapshot, memory, lending, rules, resize, jobs)) or changed
        if not rules.literal and len(lending.nodes_of) > 1:
            changed = self._to_other_models(snapshot, memory, lending, rules) or changed
        return changed

    def _as_asked(self, snapshot: Snapshot, memory: Memory, lending: Lending, rules: Thresholds) -> None:
        """Jobs that start get the sizes that they ask for, as far as GPUs are free."""
        resize = self._utilisation(snapshot, lending, rules)
        if resize.action == "expand" and resize.budget_gpus >= LEAST_BUDGET_GPUS:
            jobs = _below(self._candidates(snapshot, memory, lending, True, set(lending.reclaimed)))
            begun = [job for job in jobs if job.job in lending.run]
            self._resized(snapshot, memory, lending, rules, resize, begun, ResizeWhy.AS_ASKED)
        if len(lending.nodes_of) > 1:
            # To begin elsewhere costs nothing, and the next look may be minutes away.
            self._to_other_models(snapshot, memory, lending, rules, among=lending.run)

    def _resized(
        self,
        snapshot: Snapshot,
        memory: Memory,
        lending: Lending,
        rules: Thresholds,
        resize: ResizeDecision,
        jobs: list[ElasticJob],
        why: ResizeWhy = ResizeWhy.BELOW_EXPAND_THRESHOLD,
    ) -> dict[int, int]:
        """Carry the step out on these jobs: by job that changed, by how many GPUs it grew. why: jobs that grow do."""
        grows = resize.action == "expand"
        before = {job.job: lending.gpus[job.job] for job in jobs}

        def may(job: ElasticJob, replicas: int) -> bool:
            gpus = replicas * job.replica_gpus
            if grows:
                pieces = lending.extended(job.job, gpus)
                if pieces is None:
                    return False
                lending.put(job.job, pieces)
            else:
                lending.shrink(job.job, gpus)
            return True

        changed = resize_in_turn(rules, resize, jobs, may)
        for job in changed:
            if grows:
                self.note_expansion(snapshot, memory, job, why)
            else:
                self.note_shrink(snapshot, memory, job, ResizeWhy.ABOVE_SHRINK_THRESHOLD)
        return {job: lending.gpus[job] - before[job] for job in changed}

    def _to_other_models(
        self,
        snapshot: Snapshot,
        memory: Memory,
        lending: Lending,
        rules: Thresholds,
        among: Collection[int] | None = None,
    ) -> bool:
        """Jobs (all, or some) go to free GPUs of another model where that pays, larger if all that is free may be
        lent."""
        if not isinstance(lending.attached, GpuAllocator):
            values = {parameter.name: parameter.default for parameter in GOODPUT}
            lending.attached = GpuAllocator(values, snapshot, lending)
        desk: GpuAllocator = lending.attached
        desk.grown, desk.shrunk = [], []
        quiet_s = snapshot.now_s - memory.stirred_s
        desk.move(snapshot, quiet_s=quiet_s, larger=rules.proportion == 1.0, among=among)
        for job in desk.grown:
            self.note_expansion(snapshot, memory, job)
        return bool(desk.grown or desk.shrunk)

    def _candidates(
        self, snapshot: Snapshot, memory: Memory, lending: Lending, grows: bool, touched: set[int]
    ) -> list[ElasticJob]:
        """Jobs that are not at their largest, or smallest, size; none that had to give GPUs back in this very call."""
        replica_gpus = snapshot.workload.scaling.replica_gpus  # type: ignore[union-attr]  # some job is elastic
        found = []
        for job, gpus in sorted(lending.gpus.items()):
            sizes = lending.sizes.of[job]
            if gpus == sizes[-1 if grows else 0] or job in touched:
                continue
            replica = replica_gpus.item(job)
            found.append(
                ElasticJob(
                    job,
                    gpus // replica,
                    sizes if replica == 1 else replicas_of(sizes, replica),
                    replica,
                    _priority(snapshot, job),
                    memory.expansions.item(job),
                    memory.last_expansion_s.item(job),
                    memory.shrinks.item(job),
                    memory.last_shrink_s.item(job),
                    snapshot.workload.gpus.item(job) // replica,
                )
            )
        return found


def _priority(snapshot: Snapshot, job: int) -> int:
    """Small is high."""
    priority = snapshot.workload.priority
    return 0 if priority is None else priority.item(job)


def _below(jobs: list[ElasticJob]) -> list[ElasticJob]:
    """Those that have less than they ask for, to grow no further than that."""
    capped = [replace(job, sizes=tuple([size for size in job.sizes if size <= job.asked])) for job in jobs]
    return [job for job in capped if job.sizes and job.replicas < job.sizes[-1]]
