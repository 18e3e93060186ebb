"""Elastic training by thresholds: a share of the free GPUs is lent to elastic jobs while no other job needs it.

After the patent "elastic distributed training in deep-learning scenarios" (2022). Every `check_minutes` the utilisation
t = EU / M of the elastic pool M = (A - a)·p is compared with two thresholds (`scaling/thresholds.py` has the step and
both readings of `a`). Below the one replicas are added, above the other they are taken away, else nothing happens. A
job starts with its fewest replicas and never has fewer; those above are borrowed: a job that waits and could run if
they were given back gets them at once; which job that is, the base policy decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar

from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import is_multiple, next_multiple
from gpuloom.core.workload import Workload
from gpuloom.policies.base import Parameter, Preemptive, Traits, one_of, positive, share, yes_or_no
from gpuloom.policies.composed import BASE, Composed, Memory
from gpuloom.scaling.base_view import replicas_of
from gpuloom.scaling.lending import Lending
from gpuloom.scaling.thresholds import (
    LEAST_BUDGET_GPUS,
    POLICIES,
    ElasticJob,
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
"""The patent's names of the keys."""
SECTIONS = ("elastic", "elasticConfig", "elasticconfig")


def _order(text: str) -> str:
    return one_of(*POLICIES)("fair" if text == "fail" else text)  # the patent's example prints "fail"


def _config(data: Any) -> dict[str, Any]:
    """Values of parameters from what a YAML file holds.

    Raises:
        ValueError: names the key and the reason.
    """
    if isinstance(data, Mapping) and len(data) == 1 and next(iter(data)) in SECTIONS:
        data = next(iter(data.values()))
    if not isinstance(data, Mapping):
        raise ValueError("must hold 'elastic:' with keys and values below it")
    known = {parameter.name: parameter for parameter in Elastic.parameters if parameter.name not in ("config", "base")}
    found: dict[str, Any] = {}
    for key, value in data.items():
        name = ALIASES.get(str(key), str(key))
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
    _rules(defaults | found)
    return found


def _rules(values: Mapping[str, Any]) -> Thresholds:
    return Thresholds(**{field.name: values[field.name] for field in fields(Thresholds)})


class Elastic(Composed):
    """See the module."""

    id = "elastic"
    traits = Traits(
        summary="elastic jobs borrow part of the free GPUs, between thresholds",
        knows="sizes of jobs, and what the base knows",
        preemptive=Preemptive.AS_BASE,
        heterogeneity=False,
        sharing=False,
        paper="patent application, 2022",
        weights="as the base",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        BASE,
        Parameter("proportion", 0.3, share, "share of the free GPUs that elastic jobs may borrow"),
        Parameter("expand_threshold", 0.3, positive, "below this utilisation of the pool jobs grow"),
        Parameter("expand_policy", "fair", _order, "which jobs grow first: fair (fewest expansions) or priority"),
        Parameter("shrink_threshold", 0.9, positive, "above this utilisation jobs shrink"),
        Parameter("shrink_policy", "priority", _order, "which jobs shrink first: priority (low first) or fair"),
        Parameter("check_minutes", 5.0, positive, "minutes between two checks of the pool", "5"),
        Parameter("count_elastic_usage", True, yes_or_no, "GPUs of elastic jobs count as used in the pool", "yes"),
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
        if config is not None:
            values |= {name: value for name, value in config.items() if name not in self._written}
        try:
            self._settled = config, _rules(values), 60.0 * values["check_minutes"]
        except ValueError as error:
            raise PolicyError(f"policy {self.id!r}: {error}") from error
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
        if stirred and not memory.dirty:
            memory.dirty = True
            due = is_multiple(now_s, period_s) and memory.checked_s < now_s
            memory.check_at_s = now_s if due else next_multiple(now_s, period_s)
        if not memory.dirty or not lending.gpus:
            return math.inf
        if now_s >= memory.check_at_s:
            # Nothing but events and its own steps changes what a check finds.
            memory.dirty = self._check(snapshot, memory, lending, rules)
            memory.checked_s = now_s
            memory.check_at_s = next_multiple(now_s, period_s)
        return memory.check_at_s if memory.dirty else math.inf

    def _check(self, snapshot: Snapshot, memory: Memory, lending: Lending, rules: Thresholds) -> bool:
        """One control step; whether anything changed."""
        out = snapshot.nodes_out
        in_service = sum_ints([node.gpus for index, node in enumerate(snapshot.cluster.nodes) if index not in out])
        free = sum_ints([mask.bit_count() for mask in lending.free])
        resize = decide_resize(rules, in_service, in_service - free, sum_ints(lending.gpus.values()))
        if resize.action == "hold":
            return False
        grows = resize.action == "expand"
        touched = set(lending.reclaimed)
        if resize.budget_gpus < LEAST_BUDGET_GPUS:
            return bool(touched)

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

        changed = resize_in_turn(rules, resize, self._candidates(snapshot, memory, lending, grows, touched), may)
        for job in changed:
            if grows:
                self.note_expansion(snapshot, memory, job)
            else:
                self.note_shrink(snapshot, memory, job)
        return bool(changed) or bool(touched)

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
                )
            )
        return found


def _priority(snapshot: Snapshot, job: int) -> int:
    """Small is high."""
    priority = snapshot.workload.priority
    return 0 if priority is None else priority.item(job)
