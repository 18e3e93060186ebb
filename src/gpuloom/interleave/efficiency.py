"""How long an iteration of interleaved jobs takes, and how well it uses the resources.

Jobs that share GPUs are shifted against each other by whole stages, so that no two are in the same stage at a time.
Two models of the result, both from Zhao et al., "Multi-Resource Interleaving for Deep Learning Training"
(SIGCOMM'22):
    barrier: the paper's formula (section 4.1), for k stages on k resources with a barrier after every step. With job
        i in slot i,  T = Σ_j max_i t[i][(i+j) mod k].
    measured: the recurrence of the released simulator, for three measured stages (data loading, GPU compute,
        network). Loading spans two of four slots. The next iteration of a job begins as soon as its resources are
        free, so T is the steady state of a pipeline. T is then multiplied by `overhead`. The authors measured 1.33,
        1.5 and 1.37 on V100s for 2, 3 and 4 jobs; each is divided by the 1.015 that their solo iteration times
        contain too.
Efficiency of a group: γ = 1 - (1/k) Σ_j (T - Σ_i t[i][j]) / T = Σ_ij t[i][j] / (k·T), the mean busy share of the
k resources; the measured model counts four resources, as storage and CPU are one stage there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import permutations

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError
from gpuloom.core.workload import F8

MAX_GROUP = 4
SLOTS = 4
"""Slots of the measured model: loading takes two, compute and network one each."""
SOLO_OVERHEAD = 1.015
MEASURED_OVERHEAD = (1.0, 1.33 / SOLO_OVERHEAD, 1.5 / SOLO_OVERHEAD, 1.37 / SOLO_OVERHEAD)
"""By number of jobs, from 1. Source: jobs.py of the Muri artifact."""
MODELS = ("measured", "barrier")
ORDERINGS = ("best", "worst", "none")
_ROUNDS = 2
_CHUNK = 4096
_STEADY = 1e-3
_MANY = 1024
"""From this many groups on, one array per way and step costs less than one array of all ways."""


@dataclass(frozen=True, slots=True)
class Interleaving:
    """The model by which jobs that share GPUs slow each other down.

    Attributes:
        model: 'measured' or 'barrier'.
        ordering: 'best' or 'worst' of all orders of the jobs, 'none': in the order given.
        overhead: factor on T for groups of 1, 2, 3, … jobs.
    """

    model: str = "measured"
    ordering: str = "best"
    overhead: tuple[float, ...] = MEASURED_OVERHEAD

    def __post_init__(self) -> None:
        if self.model not in MODELS or self.ordering not in ORDERINGS:
            raise InputError(
                f"interleaving model {self.model!r}, ordering {self.ordering!r}: must be one of {', '.join(MODELS)} "
                f"and one of {', '.join(ORDERINGS)}"
            )
        if len(self.overhead) != MAX_GROUP or min(self.overhead) < 1:
            raise InputError(f"interleaving overhead {self.overhead}: must be {MAX_GROUP} factors of at least 1")

    def iteration_s(self, stage_s: F8) -> F8:
        """Seconds per iteration of each group, all its jobs making one.

        Args:
            stage_s: shape (groups, jobs, stages), seconds per iteration.
        """
        return self.scheduled(stage_s)[0]

    def scheduled(self, stage_s: F8) -> tuple[F8, NDArray[np.int8]]:
        """Seconds per iteration of each group, and the slot of each of its jobs: shapes (groups,), (groups, jobs)."""
        stage_s = np.asarray(stage_s, dtype=np.float64)
        ways = self._ways(stage_s)
        seconds, chosen = np.empty(len(stage_s)), np.zeros(len(stage_s), dtype=np.intp)
        for part in _chunks(len(stage_s)):
            tried = self._tried(stage_s[part], ways)
            chosen[part] = pick = self._pick(tried)
            seconds[part] = _taken(tried, pick)
        return seconds * self.overhead[stage_s.shape[1] - 1], ways[chosen]

    def planned(self, true_s: F8, planned_s: F8) -> tuple[F8, F8]:
        """Seconds per iteration of each group when the order is chosen by `planned_s` instead of the true times.

        Returns:
            By the true stage times, and by the planned ones: shapes (groups,).
        """
        ways = self._ways(true_s)
        really, planned = np.empty(len(true_s)), np.empty(len(true_s))
        for part in _chunks(len(true_s)):
            tried = self._tried(planned_s[part], ways)
            pick = self._pick(tried)
            planned[part] = _taken(tried, pick)
            really[part] = _taken(tried if true_s is planned_s else self._tried(true_s[part], ways), pick)
        factor = self.overhead[true_s.shape[1] - 1]
        return really * factor, planned * factor

    def _ways(self, stage_s: F8) -> NDArray[np.int8]:
        """The slots to try for groups of this shape. Raises InputError for shapes that the model does not take."""
        _, jobs, stages = stage_s.shape
        if not 1 <= jobs <= MAX_GROUP:
            raise InputError(f"a group has 1 to {MAX_GROUP} jobs, not {jobs}")
        if self.model == "measured" and stages != 3:
            raise InputError(f"the measured model takes 3 stages (load, compute, network), not {stages}")
        if self.model == "barrier" and jobs > stages:
            raise InputError(f"the barrier model interleaves at most as many jobs as stages: {jobs} on {stages}")
        return _slots(jobs, stages if self.model == "barrier" else SLOTS, self.model, self.ordering)

    def _tried(self, stage_s: F8, ways: NDArray[np.int8]) -> F8:
        """T by way: shape (groups, ways)."""
        if stage_s.shape[1] == 1:
            alone: F8 = stage_s.sum(axis=2)
            return alone
        if self.model == "barrier":
            return _barrier_s(stage_s, ways)
        return _measured_many_s(stage_s, ways) if len(stage_s) >= _MANY else _measured_s(stage_s, ways)

    def _pick(self, tried: F8) -> NDArray[np.intp]:
        pick: NDArray[np.intp] = tried.argmax(axis=1) if self.ordering == "worst" else tried.argmin(axis=1)
        return pick

    def efficiency(self, stage_s: F8, iteration_s: F8) -> F8:
        """γ of each group, from its stages (groups, jobs, stages) and its seconds per iteration."""
        resources = SLOTS if self.model == "measured" else stage_s.shape[2]
        busy: F8 = stage_s.sum(axis=(1, 2))
        return np.divide(busy, resources * iteration_s, out=np.zeros(len(busy)), where=iteration_s > 0)


def _chunks(groups: int) -> list[slice]:
    """Pieces of a size that stays in the processor's cache."""
    return [slice(first, first + _CHUNK) for first in range(0, groups, _CHUNK)]


def _taken(tried: F8, pick: NDArray[np.intp]) -> F8:
    taken: F8 = np.take_along_axis(tried, pick[:, None], axis=1)[:, 0]
    return taken


@cache
def _slots(jobs: int, slots: int, model: str, ordering: str) -> NDArray[np.int8]:
    """The ways to try: slot of each job, shape (ways, jobs)."""
    if ordering == "none" or jobs == 1:
        return np.arange(jobs, dtype=np.int8)[None, :]
    ways = list(permutations(range(jobs)))
    if model == "barrier" and jobs == slots:
        ways = [way for way in ways if way[0] == 0]  # a rotation of a full round gives the same T
    if model == "measured" and jobs == 2:
        ways.append((0, 2))  # two jobs may also stand half a round apart
    return np.array(ways, dtype=np.int8)


def _barrier_s(stage_s: F8, slots: NDArray[np.int8]) -> F8:
    """T by way: shape (groups, ways)."""
    _, jobs, stages = stage_s.shape
    total = np.zeros((len(stage_s), len(slots)))
    for step in range(stages):
        longest = np.zeros_like(total)
        for job in range(jobs):
            np.maximum(longest, stage_s[:, job, (slots[:, job] + step) % stages], out=longest)
        total += longest
    return total


def _measured_s(stage_s: F8, slots: NDArray[np.int8]) -> F8:
    """T by way: shape (groups, ways). Slots that no job stands in are empty."""
    groups, jobs, _ = stage_s.shape
    apart = jobs == 2 and len(slots) > 1
    orders = slots[:-1] if apart else slots
    in_slot = np.argsort(orders, axis=1)  # (ways, slot) -> job
    load = stage_s[:, in_slot, 0]  # (groups, ways, slot)
    compute = stage_s[:, in_slot, 1]
    network = stage_s[:, in_slot, 2]
    ends = [np.zeros((groups, len(orders)))]
    total = np.zeros((groups, len(orders)))
    steps = SLOTS * _ROUNDS
    for step in range(steps):
        end = np.zeros((groups, len(orders)))
        if (slot := (step + 1) % SLOTS) < jobs:
            np.maximum(end, ends[step] + network[:, :, slot], out=end)
        if (slot := (step + 2) % SLOTS) < jobs:
            np.maximum(end, ends[step] + compute[:, :, slot], out=end)
        if step > 0 and (slot := (step + 3) % SLOTS) < jobs:
            np.maximum(end, ends[step - 1] + load[:, :, slot], out=end)
        ends.append(end)
        if step >= SLOTS:
            now, before = end - ends[step - 3], ends[step] - ends[step - 4]
            steady = np.abs(now - before) <= _STEADY * np.maximum(np.abs(now), np.abs(before))
            np.copyto(total, now, where=steady & (total <= 0))
    np.copyto(total, ends[steps] - ends[steps - SLOTS], where=total <= 0)
    if apart:
        first, second = stage_s[:, 0], stage_s[:, 1]
        half = np.maximum(first[:, 0], second[:, 1] + second[:, 2])
        half = half + np.maximum(second[:, 0], first[:, 1] + first[:, 2])
        total = np.concatenate([total, half[:, None]], axis=1)
    return total


def _measured_many_s(stage_s: F8, slots: NDArray[np.int8]) -> F8:
    """The same as `_measured_s`, bit for bit, but laid out for many groups: 4 to 5 times as fast for thousands."""
    groups, jobs, _ = stage_s.shape
    apart = jobs == 2 and len(slots) > 1
    orders = slots[:-1] if apart else slots
    # One row per job and stage: every operation runs over adjacent numbers, and only a few steps read each row.
    times = np.ascontiguousarray(stage_s.transpose(1, 2, 0))
    total = np.empty((len(slots), groups))
    steps = SLOTS * _ROUNDS
    ends, work, other = np.zeros((steps + 1, groups)), np.empty(groups), np.empty(groups)
    shared: dict[tuple[int, int], F8] = {}
    for way, in_slot in enumerate(np.argsort(orders, axis=1).tolist()):
        for step in range(steps):
            end, one, two, three = ends[step + 1], *((step + ahead) % SLOTS for ahead in (1, 2, 3))
            network, compute = (in_slot[one] if one < jobs else -1), (in_slot[two] if two < jobs else -1)
            if network < 0 and compute < 0:
                end.fill(0.0)
            else:
                longest = shared.get((network, compute))
                if longest is None:
                    if network < 0 or compute < 0:
                        longest = times[compute, 1] if network < 0 else times[network, 2]
                    else:
                        longest = np.maximum(times[network, 2], times[compute, 1])
                    shared[network, compute] = longest
                np.add(ends[step], longest, out=end)
            if step > 0 and three < jobs:
                np.add(ends[step - 1], times[in_slot[three], 0], out=work)
                np.maximum(end, work, out=end)
        round_s = ends[SLOTS:] - ends[: steps + 1 - SLOTS]  # of the rounds that end at steps 4 to 8
        np.copyto(total[way], round_s[-1])
        for at in range(len(round_s) - 2, 0, -1):  # the first one that is steady counts
            now, before = round_s[at], round_s[at - 1]
            np.subtract(now, before, out=work)
            np.abs(work, out=work)
            np.maximum(now, before, out=other)
            other *= _STEADY
            np.copyto(total[way], now, where=(work <= other) & (now > 0))
    if apart:
        first, second = times[0], times[1]
        half = np.maximum(first[0], second[1] + second[2])
        total[-1] = half + np.maximum(second[0], first[1] + first[2])
    return total.T
