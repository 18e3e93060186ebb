"""Swaps between GPU models: which running job should move to the free GPUs and leave its own to a newcomer.

A newcomer s could start on n_s free GPUs of model k. Instead, a running job i (n_i ≤ n_s GPUs of model j ≠ k) may move
there while s takes i's place and n_s - n_i free GPUs of model j. With M'[m] a job's throughput per GPU on model m:

    gain = n_i · (M'_i[k] - M'_i[j]) + n_s · (M'_s[j] - M'_s[k])

is what total throughput gains over placing s on k. The largest gain above 0 wins (HLAS patent, algorithm 1). It is the
best of all plans that place s on k or swap it with one job: `tests/property/test_swaps.py` tries them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8

I8 = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Swap:
    """A running job that would move from its GPU model `pool` to the free GPUs, and what that gains."""

    job: int
    pool: int
    gain: float


class Running:
    """Running jobs in columns, in no order: added and removed in constant time, searched all at once.

    Columns (views of the rows in use):
        job, pool (its GPU model), gpus.
        since_s: begin of the present period. overhead_s: what a restart costs.
        before, pace: attained service until then, and per second since.
        origin_s: `since_s` less the seconds run before. ready_s, settled_s: when the job may be moved, and suspended,
            at the earliest.
    and of shape (models, rows):
        gain: throughput gained by moving the job to GPUs of the model (-infinity: it can't run there).
        payback_s: seconds after which that has made up for the restart (infinity where nothing is gained).
    """

    __slots__ = ("_floats", "_gain", "_ints", "_payback", "_row", "count")

    def __init__(self, models: int) -> None:
        self._ints = np.zeros((3, 64), dtype=np.int64)
        self._floats = np.zeros((7, 64))
        self._gain, self._payback = np.zeros((models, 64)), np.zeros((models, 64))
        self._row: dict[int, int] = {}
        self.count = 0

    def __contains__(self, job: int) -> bool:
        return job in self._row

    def add(
        self,
        job: int,
        pool: int,
        gpus: int,
        per_gpu: Sequence[float],
        *,
        since_s: float = 0.0,
        overhead_s: float = 0.0,
        before: float = 0.0,
        pace: float = 0.0,
        origin_s: float = 0.0,
        ready_s: float = -math.inf,
        settled_s: float = -math.inf,
    ) -> None:
        """A job begins to run. `per_gpu`: its M', by GPU model; 0 where it can't run."""
        row = self.count
        if row == self._ints.shape[1]:
            for name in ("_ints", "_floats", "_gain", "_payback"):
                column = getattr(self, name)
                setattr(self, name, np.concatenate([column, np.zeros_like(column)], axis=1))
        self._ints[:, row] = (job, pool, gpus)
        self._floats[:, row] = (since_s, overhead_s, before, pace, origin_s, ready_s, settled_s)
        here = per_gpu[pool]
        for model, there in enumerate(per_gpu):
            gain = gpus * (there - here) if there > 0 else -math.inf
            self._gain[model, row] = gain
            self._payback[model, row] = gpus * there * overhead_s / gain if gain > 0 else math.inf
        self._row[job] = row
        self.count += 1

    def remove(self, job: int) -> None:
        row, last = self._row.pop(job), self.count - 1
        if row != last:
            for column in (self._ints, self._floats, self._gain, self._payback):
                column[:, row] = column[:, last]
            self._row[int(self._ints[0, row])] = row
        self.count = last

    def pool_of(self, job: int) -> int:
        return int(self._ints[1, self._row[job]])

    @property
    def job(self) -> I8:
        return self._ints[0, : self.count]

    @property
    def pool(self) -> I8:
        return self._ints[1, : self.count]

    @property
    def gpus(self) -> I8:
        return self._ints[2, : self.count]

    @property
    def since_s(self) -> F8:
        return self._floats[0, : self.count]

    @property
    def overhead_s(self) -> F8:
        return self._floats[1, : self.count]

    @property
    def pace(self) -> F8:
        return self._floats[3, : self.count]

    @property
    def origin_s(self) -> F8:
        return self._floats[4, : self.count]

    @property
    def ready_s(self) -> F8:
        return self._floats[5, : self.count]

    @property
    def settled_s(self) -> F8:
        return self._floats[6, : self.count]

    def gain(self, model: int) -> F8:
        return self._gain[model, : self.count]

    def payback_s(self, model: int) -> F8:
        return self._payback[model, : self.count]

    def attained(self, now_s: float) -> F8:
        """Attained service of each row."""
        rows = self._floats[:, : self.count]
        service: F8 = (now_s - rows[0]) * rows[3]
        service += rows[2]
        return service


def own_gains(per_gpu: F8, gpus: int, onto: int) -> F8:
    """What a newcomer gains by a place on each GPU model over one on `onto`; -infinity where it can't run."""
    gains: F8 = np.where(per_gpu > 0, gpus * (per_gpu - per_gpu[onto]), -math.inf)
    return gains


def swap_gains(running: Running, per_gpu: F8, gpus: int, onto: int) -> F8:
    """The gain of swapping a newcomer with each running job; -infinity where one of the two can't run.

    Args:
        per_gpu: the newcomer's M' by GPU model; 0 on a model on which it can't run (memory, wishes).
        gpus: its n_s. onto: the model k of the free GPUs.
    """
    gain: F8 = running.gain(onto) + own_gains(per_gpu, gpus, onto)[running.pool]
    return gain


def best_swaps(
    running: Running,
    per_gpu: F8,
    gpus: int,
    onto: int,
    free: Sequence[int],
    movable: Callable[[F8], Mask] | None = None,
    own: F8 | None = None,
) -> Iterator[Swap]:
    """Swaps that gain, the best first (ties: the job submitted first), as far as counts and GPU models allow.

    Args:
        per_gpu, gpus, onto: as in `swap_gains`; `gpus` GPUs of the model `onto` must be free.
        free: free GPUs of each model.
        movable: which rows may be moved, given what each would gain (default: all).
        own: `own_gains` of the newcomer, where they are known.
    """
    if running.count == 0:
        return
    gain = swap_gains(running, per_gpu, gpus, onto) if own is None else running.gain(onto) + own[running.pool]
    if not np.maximum.reduce(gain) > 0:
        return
    pool, size = running.pool, running.gpus
    possible = (gain > 0) & (pool != onto) & (size <= gpus) & (size >= gpus - np.array(free)[pool])
    if not np.logical_or.reduce(possible):
        return
    if movable is not None:
        possible &= movable(gain)
    rows = possible.nonzero()[0]
    if len(rows) > 1:
        rows = rows[np.lexsort((running.job[rows], -gain[rows]))]
    for row in rows.tolist():
        yield Swap(int(running.job[row]), int(pool[row]), float(gain[row]))
