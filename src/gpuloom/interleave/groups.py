"""Profiles of jobs, and how long an iteration of a group takes by the stage times of its jobs.

Jobs with the same stage times (and the same measured speeds beside others, which `worth.py` takes into account) are
alike, so everything is computed once per multiset of profiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.columns import floats, ints
from gpuloom.core.pairs import NO_KIND, PairSpeeds
from gpuloom.core.share_class import HIGH
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import F8, Workload
from gpuloom.interleave.efficiency import Interleaving

Profiles = tuple[int, ...]
"""The profiles of a group's jobs, in rising order: all that the model knows of a group."""

_KEPT = 200_000
"""For how many groups times are remembered."""
UNKNOWN = -1
"""Profile of a job of which neither stage times nor speeds beside others are known: it runs alone."""


class GroupTimes:
    """Seconds per iteration and efficiency of groups of jobs.

    Args:
        noise: a profiler's error. Plans use stage times multiplied by a factor drawn evenly from 1 - noise to
            1 + noise, once per profile and stage. Jobs run by the true times.
        floor: no group's iteration is shorter than that of any of its jobs alone, whatever the stages add up to.
        rng: draws the noise.
    """

    def __init__(
        self,
        workload: Workload,
        interleaving: Interleaving,
        *,
        noise: float = 0.0,
        floor: bool = True,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.interleaving, self._floor = interleaving, floor
        n = len(workload)
        of_job = np.full(n, UNKNOWN, dtype=np.int32)
        rows = np.zeros((0, 6))
        pairs = workload.pairs
        if workload.stage_s is not None or pairs is not None:
            stage_s, alone, known = _staged(workload)
            memory = np.zeros(n) if workload.gpu_memory_mib is None else np.nan_to_num(workload.gpu_memory_mib)
            kind = np.full(n, NO_KIND, dtype=np.float64) if pairs is None else pairs.of_job.astype(np.float64)
            able = known | (kind != NO_KIND)
            if workload.share_class is not None:  # a job that must keep its latency is not woven with others
                able &= ~np.array([name == HIGH for name in workload.share_class.names])[workload.share_class.codes]
            rows, of_job[able] = _distinct(np.column_stack([stage_s, alone, memory, kind])[able])
        self.pairs: PairSpeeds | None = pairs
        """What was measured of jobs beside each other."""
        self.kind: list[int] = rows[:, 5].astype(np.int64).tolist()
        """Kind by profile, as `pairs` numbers them; `NO_KIND`: nothing was measured."""
        self.staged: list[bool] = (rows[:, :3].sum(axis=1) > 0).tolist()
        """By profile: its stage times are known."""
        self.of_job = ints(of_job)
        """Profile of each job."""
        self.stage_s: F8 = rows[:, :3]
        self.solo_s = floats(np.ascontiguousarray(rows[:, 3]))
        """Seconds per iteration alone, by profile."""
        self.memory_mib = floats(np.ascontiguousarray(rows[:, 4]))
        """GPU memory by profile, 0 where unknown."""
        self.planned_s = self.stage_s
        if noise > 0 and rng is not None:
            self.planned_s = self.stage_s * rng.uniform(1.0 - noise, 1.0 + noise, self.stage_s.shape)
        self._busy_s: list[float] = self.planned_s.sum(axis=1).tolist()
        self._true: dict[Profiles, float] = {}
        self._planned: dict[Profiles, float] = {}

    def profiles_of(self, jobs: Iterable[int]) -> Profiles:
        of_job = self.of_job
        return tuple(sorted([of_job[job] for job in jobs]))

    def iteration_s(self, profiles: Profiles) -> float:
        """Seconds in which every job of the group makes one iteration."""
        if len(profiles) == 1:
            return self.solo_s[profiles[0]]
        found = self._true.get(profiles)
        if found is None:
            self._fill([profiles])
            found = self._true[profiles]
        return found

    def planned_iteration_s(self, groups: Sequence[Profiles]) -> list[float]:
        """The same for many groups, by the stage times that plans use."""
        known, solo = self._planned, self.solo_s
        if len(known) > _KEPT:
            known.clear()
            self._true.clear()
        missing = [group for group in groups if len(group) > 1 and group not in known]
        if missing:
            self._fill(missing)
        return [known[group] if len(group) > 1 else solo[group[0]] for group in groups]

    def efficiency(self, groups: Sequence[Profiles]) -> list[float]:
        """γ of each group, by the stage times that plans use."""
        busy, resources = self._busy_s, 4 if self.interleaving.model == "measured" else self.stage_s.shape[1]
        seconds = self.planned_iteration_s(groups)
        return [
            sum_floats([busy[profile] for profile in group]) / (resources * s) if s > 0 else 0.0
            for group, s in zip(groups, seconds, strict=True)
        ]

    def gains(self, groups: Sequence[Profiles]) -> list[float]:
        """Normalised throughput of each group: Σ over its jobs of speed / solo speed, by planned times."""
        solo = self.solo_s
        return [
            sum_floats([solo[profile] for profile in group]) / s if s > 0 else 0.0
            for group, s in zip(groups, self.planned_iteration_s(groups), strict=True)
        ]

    def pays(self, profiles: Profiles) -> bool:
        """Whether the group, by planned times, is no slower than its jobs one after another."""
        return self.gains([profiles])[0] >= 1.0

    def fits(self, profiles: Profiles, gpu_memory_mib: float) -> bool:
        """Whether a GPU's memory holds the group."""
        return sum_floats([self.memory_mib[profile] for profile in profiles]) <= gpu_memory_mib

    def _fill(self, groups: Sequence[Profiles]) -> None:
        by_size: dict[int, list[Profiles]] = {}
        for group in dict.fromkeys(groups):
            by_size.setdefault(len(group), []).append(group)
        for alike in by_size.values():
            members = np.array(alike, dtype=np.intp)
            true_s, planned_s = self.interleaving.planned(self.stage_s[members], self.planned_s[members])
            slowest = np.asarray(self.solo_s)[members].max(axis=1) if self._floor else 0.0
            self._planned.update(zip(alike, np.maximum(planned_s, slowest).tolist(), strict=True))
            self._true.update(zip(alike, np.maximum(true_s, slowest).tolist(), strict=True))


def _staged(workload: Workload) -> tuple[F8, F8, NDArray[np.bool_]]:
    """Of each job its stage times (0 where unknown), its iteration alone (1 there), and whether they are known."""
    n = len(workload)
    if workload.stage_s is None:
        return np.zeros((n, 3)), np.ones(n), np.zeros(n, dtype=bool)
    total = workload.stage_s.sum(axis=1)
    alone = total if workload.iteration_s is None else workload.iteration_s
    alone = np.where(np.isfinite(alone) & (alone > 0), alone, total)
    known = np.isfinite(total) & (total > 0)
    return np.where(known[:, None], workload.stage_s, 0.0), np.where(known, alone, 1.0), known


def _distinct(table: F8) -> tuple[F8, NDArray[np.intp]]:
    """The distinct rows of a table, in rising order, and which of them each row is.

    There are few distinct rows. Comparing bytes first is many times faster than sorting all rows.
    """
    width = table.shape[1] * table.itemsize
    data = (table + 0.0).tobytes()  # -0.0 is 0.0
    rows = [data[at : at + width] for at in range(0, len(data), width)]
    number = {row: index for index, row in enumerate(dict.fromkeys(rows))}
    few = np.frombuffer(b"".join(number), dtype=np.float64).reshape(-1, table.shape[1])
    distinct, place = np.unique(few, axis=0, return_inverse=True)
    of_row = np.fromiter([number[row] for row in rows], dtype=np.intp, count=len(rows))
    return distinct, place.reshape(-1)[of_row]
