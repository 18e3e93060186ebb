"""How many GPUs each job gets so that the sum of their values is largest, where all GPUs are alike: the optimum, by
dynamic programming. Each job offers values for some sizes; every job gets at least its smallest.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """sizes: GPUs, rising; values: what each size is worth."""

    sizes: tuple[int, ...]
    values: tuple[float, ...]


def offer(sizes: tuple[int, ...], values: tuple[float, ...]) -> Offer:
    """Raises InputError unless sizes rise and there is a value for each."""
    if len(sizes) != len(values) or not sizes or any(b <= a for a, b in pairwise(sizes)):
        raise InputError(f"sizes {sizes} must rise, with a value for each ({len(values)} values)")
    return Offer(sizes, values)


def exact(offers: list[Offer], gpus: int) -> list[int]:
    """Index of the size of each job: the optimum; of equally good ones the one with the smallest last sizes.

    Args:
        gpus: GPUs for all of them together; the smallest sizes must fit.

    Raises:
        InputError: they don't.
    """
    extra = gpus - sum_ints(one.sizes[0] for one in offers)
    if extra < 0:
        raise InputError(f"{gpus} GPUs are too few for the smallest sizes, which need {gpus - extra}")
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
