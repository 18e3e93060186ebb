"""Parts of a learner by table: groups by k-means on a number, the Q-table and its update, exploration.

Watkins and Dayan, "Q-learning" (1992); Arthur and Vassilvitskii, "k-means++" (2007). Everything is a pure function of
its arguments. Random numbers come from `uniform(seed, draw)`, so a restart only has to keep a counter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import products
from gpuloom.core.workload import F8

_WORD = (1 << 64) - 1
_LLOYD_ROUNDS = 100


def uniform(seed: int, draw: int) -> float:
    """The `draw`-th random number of a seed, in [0, 1): splitmix64 (Steele, Lea, Flood, OOPSLA '14)."""
    z = (seed * 0xD1342543DE82EF95 + (draw + 1) * 0x9E3779B97F4A7C15) & _WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _WORD
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


def epsilon(handled: int, start: float, end: float, over: int) -> float:
    """Chance of an exploratory action after so many jobs; it falls linearly from start to end."""
    return start + (end - start) * min(handled / over, 1.0)


def k_means(values: F8, groups: int, seed: int, draw: int) -> F8:
    """Centres, rising, of at most `groups` groups of numbers: k-means++ by `uniform(seed, …)`, then Lloyd's rounds.

    There are fewer centres than groups if there are fewer different values. Uses `groups` draws.
    """
    distinct, weight = np.unique(values, return_counts=True)
    if len(distinct) <= groups:
        return distinct
    centres = [float(distinct[_drawn(weight.astype(np.float64), uniform(seed, draw))])]
    away = np.full(len(distinct), np.inf)
    for index in range(1, groups):
        away = np.minimum(away, (distinct - centres[-1]) ** 2)
        centres.append(float(distinct[_drawn(weight * away, uniform(seed, draw + index))]))
    found = np.unique(centres)
    weighted = weight * distinct
    before: NDArray[np.intp] | None = None
    for _ in range(_LLOYD_ROUNDS):
        # Groups of sorted numbers lie side by side: a group is where it begins and where the next one does.
        edges = np.searchsorted(distinct, (found[1:] + found[:-1]) / 2.0, side="right")
        if before is not None and np.array_equal(edges, before):
            break
        begin = np.concatenate([[0], edges])
        some = begin < np.concatenate([edges, [len(distinct)]])
        found = found.copy()
        found[some] = np.add.reduceat(weighted, begin[some]) / np.add.reduceat(weight, begin[some])
        before, kept = edges, np.unique(found)
        if len(kept) < len(found):
            before, found = None, kept
    return found


def _drawn(weight: F8, chance: float) -> int:
    """Index drawn in proportion to weight."""
    total = np.cumsum(weight)
    return min(int(np.searchsorted(total, chance * total[-1], side="right")), len(weight) - 1)


def nearest(centres: F8, values: F8) -> NDArray[np.intp]:
    """Index of the nearest centre for each value; of two equally near ones the lower. Centres are in rising order."""
    return np.searchsorted((centres[1:] + centres[:-1]) / 2.0, values, side="left")


def carried_over(table: F8, before: F8, after: F8, values: F8) -> F8:
    """The table's rows for new centres: averages of old rows, weighted by how many values came from each old group.

    NaN stands for 'nothing known': the result is NaN only if all these rows are. A new group without any value takes
    the row of the old group that it lies in.

    Args:
        table: shape (old groups, actions).
        before, after: old and new centres, rising.
        values: the recorded numbers.
    """
    came = np.zeros((len(after), len(before)))
    np.add.at(came, (nearest(after, values), nearest(before, values)), 1.0)
    empty = came.sum(axis=1) == 0
    came[empty, nearest(before, after[empty])] = 1.0
    known = ~np.isnan(table)
    weight = products.product(came, known.astype(np.float64))
    total = products.product(came, np.where(known, table, 0.0))
    found: F8 = np.where(weight > 0, total / np.where(weight > 0, weight, 1.0), np.nan)
    return found


def counts_over(counts: F8, before: F8, after: F8, values: F8) -> F8:
    """Counts by old group and action shared out to new groups, in proportion to how many values went where; their sums
    stay. What an old group without any value had goes to the new group that it lies in. Args: as `carried_over`."""
    came = np.zeros((len(after), len(before)))
    np.add.at(came, (nearest(after, values), nearest(before, values)), 1.0)
    empty = came.sum(axis=0) == 0
    came[nearest(after, before[empty]), empty] = 1.0
    found: F8 = products.product(came / came.sum(axis=0), counts)
    return found


def bellman(value: float, reward: float, next_value: float, alpha: float, gamma: float) -> float:
    """Q(s, a) after R and max_a' Q(s', a'): Q + α · (R + γ · max Q' - Q)."""
    return value + alpha * (reward + gamma * next_value - value)
