"""What the policies that interleave jobs have in common: their parameters, and the model that these choose."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.sharing import Sharing
from gpuloom.core.workload import Workload
from gpuloom.interleave.efficiency import MAX_GROUP, MEASURED_OVERHEAD, Interleaving
from gpuloom.interleave.groups import GroupTimes
from gpuloom.interleave.worth import GroupSharing
from gpuloom.policies.base import Parameter, Policy, fraction, number, one_of, seed, whole, yes_or_no

ONE, OWN = "one", "own"
"""Values of `processes`."""


def group_size(text: str) -> int:
    value = whole(text)
    if value > MAX_GROUP:
        raise ValueError(f"must be 1 to {MAX_GROUP}")
    return value


def overhead(text: str) -> tuple[float, ...]:
    """'measured', 'none', one factor for all groups, or one for 2, 3 and 4 jobs ('1.3/1.5/1.4')."""
    if text == "measured":
        return MEASURED_OVERHEAD
    if text == "none":
        return (1.0,) * MAX_GROUP
    factors = [number(part) for part in text.split("/")]
    if min(factors) < 1:
        raise ValueError("factors must be at least 1: sharing makes no job faster")
    if len(factors) == 1:
        factors *= MAX_GROUP - 1
    if len(factors) == MAX_GROUP and factors[0] == 1.0:
        return tuple(factors)
    if len(factors) != MAX_GROUP - 1:
        raise ValueError("must be 'measured', 'none', one factor, or three for 2, 3 and 4 jobs (1.3/1.5/1.4)")
    return (1.0, *factors)


WEAVING = (
    Parameter("group_size", MAX_GROUP, group_size, "most jobs that share GPUs, 1 to 4"),
    Parameter(
        "ordering",
        "best",
        one_of("best", "worst", "none"),
        "order of the jobs inside a group: the best, the worst, or none (as they come)",
    ),
    Parameter(
        "interleave_overhead",
        MEASURED_OVERHEAD,
        overhead,
        "what sharing adds to a group's iteration: measured (Muri's factors for 2, 3, 4 jobs), none, or 1.3/1.5/1.4",
        "measured",
    ),
    Parameter(
        "floor",
        True,
        yes_or_no,
        "a group's iteration takes at least as long as that of each of its jobs alone, even if the stages add up to "
        "less",
        "yes",
    ),
    Parameter("profile_noise", 0.0, fraction, "relative error of the stage times that plans are made with, at most"),
    Parameter("seed", 0, seed, "seed of the noise"),
    Parameter(
        "restart_partners",
        True,
        yes_or_no,
        "a job that joins a group restarts its running members (they share one process)",
        "yes",
    ),
    Parameter(
        "processes",
        ONE,
        one_of(ONE, OWN),
        "one: jobs that share GPUs run in one process and start one after another in it; own: each in its own, so that "
        "a job that joins restarts nobody (as live)",
    ),
)


def partners_restart(values: Mapping[str, Any]) -> bool:
    """Whether a job that joins a group restarts the members that run."""
    return bool(values["restart_partners"]) and values["processes"] == ONE


class Weaving(Policy):
    """A policy whose jobs share GPUs in groups, by the model that its parameters choose."""

    parameters: ClassVar[tuple[Parameter, ...]] = WEAVING
    max_jobs_per_gpu = MAX_GROUP
    uses_stages = True
    weaves = True
    preempts_at_intervals = True

    _model: tuple[Workload, GroupTimes] | None = None

    def sharing(self, workload: Workload) -> Sharing | None:
        return GroupSharing(self.times(workload), together=self.values["processes"] == ONE)

    def times(self, workload: Workload) -> GroupTimes:
        """The model of groups of these jobs, made once: progress and plans ask for the same groups."""
        if self._model is None or self._model[0] is not workload:
            self._model = (workload, group_times(workload, self.values))
        return self._model[1]

    def twin(self) -> Policy:
        twin = super().twin()
        twin._model = None  # type: ignore[attr-defined]
        return twin


def smallest_memory_mib(cluster: Cluster) -> float:
    """Memory of the cluster's smallest GPU, as far as known; infinity if of none."""
    return min([float(m) for node in cluster.nodes if (m := node.gpu_memory_mib) is not None], default=float("inf"))


def group_times(workload: Workload, values: Mapping[str, Any]) -> GroupTimes:
    """The model of groups that a policy's parameters choose."""
    interleaving = Interleaving("measured", values["ordering"], values["interleave_overhead"])
    return GroupTimes(
        workload,
        interleaving,
        noise=values["profile_noise"],
        floor=values["floor"],
        rng=np.random.default_rng(values["seed"]),
    )
