"""The objectives of `gavel`: what the shares of jobs are to be best at (sections 4.1 to 4.4 of the paper; AlloX)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import products
from gpuloom.core.errors import PolicyError
from gpuloom.core.workload import F8
from gpuloom.solvers.interior import interior_shares
from gpuloom.solvers.queues import first_in_queues
from gpuloom.solvers.shares import Rows, Shares, fair_in_time

LEAST_S = 1e-6
"""Work left that counts at least, seconds."""
_ALPHA = 0.3
"""Part of the waiting jobs, the oldest, that AlloX looks at (and as many as GPUs are free), so that nobody starves."""


@dataclass(frozen=True, slots=True)
class Present:
    """The jobs that are there.

    speed: shape (jobs, models), work per second on each model, 0 where it can't run. gpus, weight: of each job.
    left_s: work left. age_s: time since submission. had: its shares so far, 0 before its first. kind: equal for jobs
    that are alike in speed, GPUs and weight. capacity: GPUs of each model. price: of each model's GPUs, dollars an
    hour, or None.
    """

    speed: F8
    gpus: F8
    weight: F8
    left_s: F8
    age_s: F8
    had: F8
    kind: NDArray[np.intp]
    capacity: F8
    price: F8 | None

    @property
    def equal(self) -> F8:
        """Throughput with the time spread over the models in proportion to their GPUs (X_equal of section 4.1)."""
        equal: F8 = products.times(self.speed, self.capacity / self.capacity.sum())
        return np.where(equal > 0, equal, 1.0)

    @property
    def isolated(self) -> F8:
        """Throughput with a part of the cluster of its own, in proportion to the weights (1/n with equal ones)."""
        part = (self.weight / self.weight.sum())[:, None] * self.capacity / self.gpus[:, None]
        part = part / np.maximum(part.sum(axis=1, keepdims=True), 1.0)
        alone: F8 = (self.speed * part).sum(axis=1)
        return np.where(alone > 0, alone, 1.0)


def _by_kind(present: Present, solve: Callable[[Shares, F8], F8]) -> F8:
    """Shares from a program in which jobs that are alike have one row."""
    _, first, member = np.unique(present.kind, return_index=True, return_inverse=True)
    count = np.bincount(member).astype(np.float64)
    rows = Rows.single(present.speed[first], present.gpus[first], count)
    level = (present.gpus / present.equal)[first]
    weight = present.weight[first]
    return solve(Shares(rows, present.capacity, weight / level), weight * level)[member]


def max_min_fairness(present: Present) -> F8:
    """Section 4.1: max min_m g_m / w_m · throughput(m, X) / throughput(m, X_equal).

    What is left over goes where weight · g · throughput over throughput with X_equal rises most.
    """
    return _by_kind(present, lambda shares, worth: shares.fair(worth)[0])


def water_filling(present: Present) -> F8:
    """Section 4.4 (of one entity): max-min fairness, in which nobody that can rise stays at the lowest level."""
    return _by_kind(present, lambda shares, worth: shares.filled(worth))


def makespan(present: Present) -> F8:
    """Section 4.2: max min_m throughput(m, X) / work left of m. Weights mean nothing to it."""
    rows = Rows.single(present.speed, present.gpus)
    left = present.left_s / present.left_s.mean()
    return Shares(rows, present.capacity, left).fair(1.0 / left)[0]


def finish_time_fairness(present: Present) -> F8:
    """Section 4.2, Themis' ρ: min max_m (t_m + left_m / throughput(m, X)) / (t_m + left_m / throughput(m, isolated)).

    t_m is the time since submission; isolated is a part of the cluster in proportion to the weight.
    """
    age_s, left_s = present.age_s, present.left_s
    alone_s = age_s + left_s / present.isolated
    rows = Rows.single(present.speed, present.gpus)
    spread = np.where(present.speed > 0, present.capacity, 0.0)
    begin = spread / (np.maximum(present.gpus.sum(), present.capacity.sum()) * max(len(age_s), 1))
    return fair_in_time(
        rows,
        present.capacity,
        lambda done: (age_s + left_s / np.maximum(done, 1e-300)) / alone_s,
        lambda ρ: left_s / np.maximum(ρ * alone_s - age_s, 1e-9 * left_s),
        present.weight * present.gpus / present.equal,
        begin,
    )


def max_sum_throughput(present: Present) -> F8:
    """max Σ_m w_m · throughput(m, X), in work per second: a job that needs few GPUs for its throughput goes first."""
    return _by_kind(present, lambda shares, worth: shares.most(*_summed(present, shares)))


def cost(present: Present) -> F8:
    """max Σ_m Σ_j w_m · T_mj X_mj / price_j: as max_sum_throughput, but a dollar's worth (Gavel's code sums ratios)."""
    if present.price is None and len(present.capacity) > 1:
        raise PolicyError(
            "gavel:objective=cost needs the price of every GPU model of the cluster, and that of one is not known "
            "(see: gpuloom gpus): give prices=MODEL:PRICE/MODEL:PRICE, in dollars per GPU and hour"
        )
    price = np.ones(1) if present.price is None else present.price
    return _by_kind(present, lambda shares, worth: shares.most(_summed(present, shares)[0], price))


def _summed(present: Present, shares: Shares) -> tuple[F8, F8]:
    _, first = np.unique(present.kind, return_index=True)
    return present.weight[first], np.ones(len(present.capacity))


def allox(present: Present) -> F8:
    """Le et al., "AlloX: Compute Allocation in Hybrid Clusters" (EuroSys'20): jobs to GPUs and places in their queues.

    A job that runs k-th from the end of a GPU's queue delays k jobs by its time there; the least sum is an assignment
    problem. Those first in their queues have a GPU to themselves, and keep it. AlloX knows jobs of one
    GPU; a gang counts as its GPU-time here. Weights mean nothing to it.
    """
    share = np.where(present.had == 1.0, 1.0, 0.0)
    free = present.capacity - (present.gpus[:, None] * share).sum(axis=0)
    waiting = np.flatnonzero(share.sum(axis=1) == 0)
    looked_at = max(int(free.sum()), int(_ALPHA * len(waiting)))
    waiting = waiting[np.argsort(-present.age_s[waiting], kind="stable")[:looked_at]]
    if not len(waiting) or not (free > 0).any():
        return share
    with np.errstate(divide="ignore"):
        time_s = (present.gpus * present.left_s)[waiting, None] / present.speed[waiting]
    for job, model in first_in_queues(time_s, free):
        if present.gpus[waiting[job]] <= free[model]:
            share[waiting[job], model] = 1.0
            free[model] -= present.gpus[waiting[job]]
    return share


def released_max_min(present: Present, throughput_term: float = 0.0) -> F8:
    """`max_min_fairness` as the released code has it: every job its own row, the optimum at which ECOS ends.

    Args:
        throughput_term: how much the sum of all (normalised) throughputs counts beside the least; 0 in that code.
    """
    value = present.speed * (present.gpus / (present.weight * present.equal))[:, None]
    return interior_shares(value, present.gpus, present.capacity, throughput_term)


OBJECTIVES: Mapping[str, Callable[[Present], F8]] = {
    "max_min_fairness": max_min_fairness,
    "water_filling": water_filling,
    "finish_time_fairness": finish_time_fairness,
    "makespan": makespan,
    "max_sum_throughput": max_sum_throughput,
    "cost": cost,
    "allox": allox,
}
WITHOUT_WEIGHTS = frozenset({"makespan", "allox"})
"""Objectives to which weights mean nothing."""
