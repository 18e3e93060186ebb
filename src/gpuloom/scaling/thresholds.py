"""The control step of elastic training by thresholds: which jobs get replicas from the elastic pool or give some back.

With A the cluster's GPUs, a those in use and p the elastic share, the pool is M = (A - a)·p. With EU the GPUs that
elastic jobs hold, t = EU / M (infinite for M = 0), and MT = (ET + ST) / 2:
    t < ET   expand, with a budget of (MT - t)·M GPUs: +1 replica each in turn, high priority first;
    t > ST   shrink, with a budget of (t - MT)·M GPUs: -1 replica each in turn, low priority first;
    else     hold.
The source is the patent "elastic distributed training in deep-learning scenarios" (2022), paragraphs 12 to 16 and 27
to 30. In its paragraph 15 "t > ET" is a misprint for t > ST.

EU can be read in two ways: as all GPUs that elastic jobs hold (the letter: with the text's own values hardly any job
then ever grows), or as those above their smallest sizes, which is what the pool has lent.

The text uses `a` in two ways. If `a` is all GPUs in use, the pool shrinks by p for every GPU that elastic jobs gain. A
step then overshoots by MT·p times its length, and sizes settle only if MT·p < 1: `Thresholds` refuses anything else.
If `a` is the GPUs of jobs that are not elastic, the pool does not change with the elastic jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

Action = Literal["expand", "shrink", "hold"]

POLICIES = ("fair", "priority")

TOLERANCE_GPUS = 1e-9
"""Thresholds are decimal fractions, which floats can't represent exactly."""
LEAST_BUDGET_GPUS = 1.0 - 2 * TOLERANCE_GPUS
"""With a smaller budget `resize_in_turn` changes nothing: every replica has at least one GPU."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The configuration.

    proportion: p. expand_threshold, shrink_threshold: ET, ST.
    expand_policy, shrink_policy: `priority`: by priority, then by how often and how long ago; `fair`: by these alone.
    count_elastic_usage: `a` is all GPUs in use; else all but those that EU counts.
    literal: EU is all GPUs of elastic jobs; else those above their smallest sizes.

    Raises:
        ValueError: a value out of its range; the message begins with its name.
    """

    proportion: float = 0.3
    expand_threshold: float = 0.3
    shrink_threshold: float = 0.9
    expand_policy: str = "fair"
    shrink_policy: str = "priority"
    count_elastic_usage: bool = True
    literal: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.proportion <= 1:
            raise ValueError(f"proportion is {self.proportion:g}, must be above 0 and at most 1")
        if not (math.isfinite(self.expand_threshold) and self.expand_threshold > 0):
            raise ValueError(f"expand_threshold is {self.expand_threshold:g}, must be above 0")
        if not (math.isfinite(self.shrink_threshold) and self.shrink_threshold > self.expand_threshold):
            raise ValueError(
                f"shrink_threshold is {self.shrink_threshold:g}, must be above expand_threshold "
                f"({self.expand_threshold:g})"
            )
        for name in ("expand_policy", "shrink_policy"):
            if getattr(self, name) not in POLICIES:
                raise ValueError(f"{name} is {getattr(self, name)!r}, must be one of {', '.join(POLICIES)}")
        if self.count_elastic_usage and self.target * self.proportion >= 1:
            raise ValueError(
                f"shrink_threshold is {self.shrink_threshold:g}: (expand_threshold + shrink_threshold) / 2 · "
                f"proportion is {self.target * self.proportion:g}, must be below 1 where count_elastic_usage is "
                f"true, or jobs would grow and shrink forever; lower the thresholds or the proportion, or set "
                "count_elastic_usage: false"
            )

    @property
    def target(self) -> float:
        """MT."""
        return (self.expand_threshold + self.shrink_threshold) / 2


@dataclass(frozen=True, slots=True)
class ResizeDecision:
    """The action, and the numbers behind it: pool M, utilisation t, budget EM (GPUs)."""

    action: Action
    pool_gpus: float
    utilisation: float
    budget_gpus: float


@dataclass(slots=True)
class ElasticJob:
    """A running elastic job.

    replicas: n0. sizes: the numbers of replicas that it may have, in rising order: N1 first, N2 last.
    replica_gpus: R1. priority: a small number is high. expansions, shrinks: how often so far. last_…_s: when last;
    minus infinity if never.
    """

    job: int
    replicas: int
    sizes: tuple[int, ...]
    replica_gpus: int
    priority: int = 0
    expansions: int = 0
    last_expansion_s: float = -math.inf
    shrinks: int = 0
    last_shrink_s: float = -math.inf
    asked: int = 0


def decide_resize(rules: Thresholds, cluster_gpus: int, used_gpus: int, elastic_gpus: int) -> ResizeDecision:
    """Compare t with the thresholds.

    Args:
        cluster_gpus: A. used_gpus: GPUs in use by all jobs. elastic_gpus: EU, as the rules read it.
    """
    counted = used_gpus if rules.count_elastic_usage else used_gpus - elastic_gpus
    pool = (cluster_gpus - counted) * rules.proportion
    if elastic_gpus == 0 and (rules.literal or pool <= 0):
        # There is nobody to shrink, and nobody to expand, or nothing to expand by.
        return ResizeDecision("hold", pool, 0.0 if pool > 0 else math.inf, 0.0)
    if pool <= 0:
        return ResizeDecision("shrink", 0.0, math.inf, float(elastic_gpus))
    use = elastic_gpus / pool
    if use < rules.expand_threshold:
        # Thresholds above 1 may ask for more than there is.
        budget = min((rules.target - use) * pool, float(cluster_gpus - used_gpus))
        return ResizeDecision("expand", pool, use, budget)
    if use > rules.shrink_threshold:
        return ResizeDecision("shrink", pool, use, (use - rules.target) * pool)
    return ResizeDecision("hold", pool, use, 0.0)


def resize_in_turn(
    rules: Thresholds,
    resize: ResizeDecision,
    jobs: Iterable[ElasticJob],
    may: Callable[[ElasticJob, int], bool] = lambda job, replicas: True,
) -> dict[int, int]:
    """New numbers of replicas of the jobs that change.

    A job for whose next replica the budget does not suffice is skipped. If all replicas have the same size, this is
    where the patent's loop ends.

    Args:
        may: asked before a job gets another number of replicas. False: it can't, and it is not asked again.
    """
    if resize.action == "hold":
        return {}
    grows = resize.action == "expand"
    key = _expand_key if grows else _shrink_key
    by_priority = (rules.expand_policy if grows else rules.shrink_policy) == "priority"
    left = resize.budget_gpus + TOLERANCE_GPUS
    turn = sorted(jobs, key=lambda job: key(job, by_priority))
    now = {job.job: job.sizes.index(job.replicas) for job in turn}
    changed: dict[int, int] = {}
    while turn:
        going = []
        for job in turn:
            place = now[job.job] + (1 if grows else -1)
            if not 0 <= place < len(job.sizes):
                continue
            cost = abs(job.sizes[place] - job.sizes[now[job.job]]) * job.replica_gpus
            if cost > left or not may(job, job.sizes[place]):
                continue
            left -= cost
            now[job.job] = place
            changed[job.job] = job.sizes[place]
            going.append(job)
        turn = going
    return changed


def _expand_key(job: ElasticJob, by_priority: bool) -> tuple[float, ...]:
    often = (job.expansions, job.last_expansion_s, job.job)
    return (job.priority, *often) if by_priority else often


def _shrink_key(job: ElasticJob, by_priority: bool) -> tuple[float, ...]:
    often = (job.shrinks, job.last_shrink_s, job.job)
    return (-job.priority, *often) if by_priority else often
