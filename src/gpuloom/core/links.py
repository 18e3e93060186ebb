"""How the GPUs of a machine are connected, and which of those that are free belong together.

The words are those of NVIDIA's `nvidia-smi topo -m`, best first: NVLINK, PIX (one PCIe switch), PXB (several), PHB (a
host bridge), NODE (a NUMA node), SYS (between NUMA nodes).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import combinations
from math import comb

from gpuloom.core.sums import sum_ints

WORDS = ("NVLINK", "PIX", "PXB", "PHB", "NODE", "SYS")
WORST = len(WORDS) - 1

Links = tuple[tuple[int, ...], ...]
"""Row i, column j: the place in WORDS of the link between GPUs i and j of a node; () where nothing is known."""

MOST_TRIED = 20_000


def links_of(gpus: int, pairs: Iterable[tuple[int, int, str]]) -> Links:
    """From (GPU, GPU, word), counted from 0. () if no pair of these GPUs is named; a pair that is not named counts as
    the worst, as does a word that is not known."""
    levels = [[0 if i == j else WORST for j in range(gpus)] for i in range(gpus)]
    known = False
    for first, second, word in pairs:
        if first != second and 0 <= first < gpus and 0 <= second < gpus:
            known = True
            levels[first][second] = levels[second][first] = WORDS.index(word) if word in WORDS else WORST
    return tuple(map(tuple, levels)) if known else ()


@lru_cache(maxsize=1 << 16)
def closest(free: int, count: int, links: Links) -> int:
    """Of the free GPUs (a bit mask) those `count` that are connected best, as a mask.

    The slowest link of a ring holds up all of it, so the worst link counts first, then the sum of all links; then that
    the GPUs that are left are connected well; then low numbers.
    """
    gpus = [bit for bit in range(free.bit_length()) if free >> bit & 1]
    if count >= len(gpus):
        return free
    if comb(len(gpus), count) > MOST_TRIED:
        return _grown(gpus, count, links)

    def order(chosen: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...]]:
        left = _within([gpu for gpu in gpus if gpu not in chosen], links)[1]
        return *_within(chosen, links), left, chosen

    best = min(combinations(gpus, count), key=order)
    return _mask(best)


def _grown(gpus: list[int], count: int, links: Links) -> int:
    """Grown from each GPU by the nearest one, for machines with more GPUs than can be tried out."""
    tried = []
    for first in gpus:
        chosen, others = [first], [gpu for gpu in gpus if gpu != first]
        while len(chosen) < count:
            nearest = min(others, key=lambda one: (_within((*chosen, one), links), one))
            chosen.append(nearest)
            others.remove(nearest)
        tried.append((*_within(chosen, links), sorted(chosen)))
    return _mask(min(tried)[2])


def _within(gpus: Iterable[int], links: Links) -> tuple[int, int]:
    """(the worst link between any two of these, the sum of all links between them)."""
    levels = [links[a][b] for a, b in combinations(gpus, 2)]
    return max(levels, default=0), sum_ints(levels)


def _mask(gpus: Iterable[int]) -> int:
    return sum_ints(1 << gpu for gpu in gpus)
