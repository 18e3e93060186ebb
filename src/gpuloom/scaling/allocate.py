"""How many GPUs each job gets so that the sum of their values is largest.

Each job offers values for some sizes; every job gets at least its smallest. If the curves are concave (the value per
GPU falls from size to size) and all steps have one length, it is optimal to give GPUs to the best next step until they
run out (Fox, "Discrete optimization via marginal analysis", 1966). Otherwise `exact` finds the optimum by dynamic
programming over GPUs. `greedy` walks the concave hulls of the curves: no job's values lie above its hull, so it loses
less than the value of one step of a hull.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """The values of a job's sizes.

    Attributes:
        sizes: GPUs, in rising order.
        values: what each size is worth.
        hull: indices of the corners of the upper concave hull, from the smallest size to the size of largest value.
        steps: (- value per GPU, GPUs) from corner to corner.
    """

    sizes: tuple[int, ...]
    values: tuple[float, ...]
    hull: tuple[int, ...]
    steps: tuple[tuple[float, int], ...]

    def times(self, weight: float) -> Offer:
        """The same, worth `weight` (above 0) times as much."""
        steps = tuple([(weight * gain, cost) for gain, cost in self.steps])
        return Offer(self.sizes, tuple([weight * value for value in self.values]), self.hull, steps)


def offer(sizes: tuple[int, ...], values: tuple[float, ...]) -> Offer:
    """Raises InputError unless sizes rise and there is a value for each."""
    if len(sizes) != len(values) or not sizes or any(b <= a for a, b in pairwise(sizes)):
        raise InputError(f"sizes {sizes} must rise, with a value for each ({len(values)} values)")
    hull = _hull(sizes, values)
    steps = tuple((-_slope(sizes, values, a, b), sizes[b] - sizes[a]) for a, b in pairwise(hull))
    return Offer(sizes, values, hull, steps)


def _hull(sizes: tuple[int, ...], values: tuple[float, ...]) -> tuple[int, ...]:
    best = max(range(len(values)), key=lambda i: (values[i], -i))
    corners: list[int] = []
    for i in range(best + 1):
        # A corner goes if the slope after it is steeper than the slope before it. On a straight line all points stay,
        # so that steps are as short as possible.
        while len(corners) > 1:
            before = _slope(sizes, values, corners[-2], corners[-1])
            if _slope(sizes, values, corners[-1], i) - before <= 1e-9 * abs(before):
                break
            corners.pop()
        corners.append(i)
    return tuple(corners)


def _slope(sizes: tuple[int, ...], values: tuple[float, ...], a: int, b: int) -> float:
    return (values[b] - values[a]) / (sizes[b] - sizes[a])


def is_concave(one: Offer) -> bool:
    """Whether all steps of this offer have the same number of GPUs, and none is better per GPU than the one before."""
    steps = {b - a for a, b in pairwise(one.sizes)}
    rising = one.sizes[: one.hull[-1] + 1]
    return len(steps) <= 1 and len(one.hull) == len(rising)


def allocate(offers: list[Offer], gpus: int, *, most_cells: int = 2_000_000) -> list[int]:
    """Index of the size that each job gets, so that the sum of values is largest.

    If the optimum would take more than `most_cells` steps of dynamic programming, the answer of `greedy`, which loses
    less than the value of one step of a hull.

    Args:
        gpus: GPUs for all jobs together.

    Raises:
        InputError: too few GPUs for the smallest sizes.
    """
    extra = gpus - sum_ints(one.sizes[0] for one in offers)
    if extra < 0:
        raise InputError(f"{gpus} GPUs are too few for the smallest sizes, which need {gpus - extra}")
    chosen, whole = _walk(offers, extra)
    if whole or (all(map(is_concave, offers)) and len({_step(one) for one in offers if len(one.sizes) > 1}) <= 1):
        return chosen
    cells = (extra + 1) * sum_ints(len(one.sizes) for one in offers)
    return exact(offers, gpus) if cells <= most_cells else chosen


def _step(one: Offer) -> int:
    return one.sizes[1] - one.sizes[0]


def greedy(offers: list[Offer], gpus: int) -> list[int]:
    """Best step of the hulls first. A step that does not fit is taken in part if possible, else skipped."""
    return _walk(offers, gpus - sum_ints(one.sizes[0] for one in offers))[0]


def _walk(offers: list[Offer], extra: int) -> tuple[list[int], bool]:
    """Sizes by steps of the hulls, and whether every step fitted when its turn came (then they are optimal)."""
    if sum_ints([one.sizes[one.hull[-1]] - one.sizes[0] for one in offers]) <= extra:
        return [one.hull[-1] for one in offers], True
    place = [0] * len(offers)
    steps_of = [one.steps for one in offers]
    heap = [(steps[0][0], job) for job, steps in enumerate(steps_of) if steps]
    heapify(heap)
    passed: list[int] = []
    while heap and extra > 0:
        job = heap[0][1]
        steps, at = steps_of[job], place[job]
        cost = steps[at][1]
        if cost > extra:
            passed.append(job)
            heappop(heap)
            continue
        extra -= cost
        place[job] = at = at + 1
        if at < len(steps):
            heapreplace(heap, (steps[at][0], job))
        else:
            heappop(heap)
    chosen = [one.hull[at] for one, at in zip(offers, place, strict=True)]
    for job in passed:
        # Part of the step: the most valuable size that still fits.
        one, now = offers[job], chosen[job]
        fits = [i for i in range(now, len(one.sizes)) if one.sizes[i] - one.sizes[now] <= extra]
        best = max(fits, key=lambda i: (one.values[i], -i))
        extra -= one.sizes[best] - one.sizes[now]
        chosen[job] = best
    return chosen, not passed


def exact(offers: list[Offer], gpus: int) -> list[int]:
    """The optimum, by dynamic programming over GPUs; of equally good ones the one with the smallest last sizes."""
    extra = gpus - sum_ints(one.sizes[0] for one in offers)
    value: F8 = np.zeros(extra + 1)
    taken: list[NDArray[np.int32]] = []
    for one in offers:
        best = np.full(extra + 1, -np.inf)
        choice = np.zeros(extra + 1, dtype=np.int32)
        for index, (size, worth) in enumerate(zip(one.sizes, one.values, strict=True)):
            cost = size - one.sizes[0]
            if cost > extra:
                break
            candidate = value[: extra + 1 - cost] + worth
            better = candidate > best[cost:]
            best[cost:][better] = candidate[better]
            choice[cost:][better] = index
        value = best
        taken.append(choice)
    left = int(value.argmax()) if len(offers) else 0
    chosen = [0] * len(offers)
    for job in range(len(offers) - 1, -1, -1):
        chosen[job] = int(taken[job][left])
        left -= offers[job].sizes[chosen[job]] - offers[job].sizes[0]
    return chosen
