"""Exact grouping of the jobs of several buckets that share a cluster. Equal buckets are solved once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuloom.core.sums import sum_ints
from gpuloom.interleave.grouping import Measured, group_jobs
from gpuloom.interleave.groups import UNKNOWN, GroupTimes, Profiles
from gpuloom.interleave.rounds import Bucket, Node
from gpuloom.interleave.worth import GroupWorth

_KEPT = 20_000


class ExactGroups:
    """Forms the groups of largest normalised throughput; remembers what it has solved.

    Args:
        size: most jobs in a group.
        gpu_memory_mib: the most memory that the jobs of a group may need together on a GPU.
        worth: what groups are worth; None: by stage times alone.
    """

    def __init__(self, times: GroupTimes, size: int, gpu_memory_mib: float, worth: GroupWorth | None = None) -> None:
        self._gain = None if worth is None or not worth.measured else worth.pair_gains()
        self._times, self._size, self._memory_mib = times, size, gpu_memory_mib
        self._solved: dict[tuple[Profiles, int], tuple[Node, ...]] = {}

    def form(self, buckets: Sequence[Bucket], passes: Sequence[int], capacity: int) -> list[list[Node]]:
        """Groups of each bucket's jobs.

        Args:
            passes: how many groups each bucket may form at least. GPUs left over go to the buckets in order.
            capacity: number of GPUs.
        """
        spare = capacity - sum_ints(bucket.gpus * count for bucket, count in zip(buckets, passes, strict=True))
        formed: list[list[Node]] = []
        for bucket, count in zip(buckets, passes, strict=True):
            more = min(max(spare, 0) // bucket.gpus, len(bucket.jobs) - count)
            spare -= bucket.gpus * more
            formed.append(self._bucket(bucket.jobs, count + more))
        return formed

    def _bucket(self, jobs: Sequence[int], most: int) -> list[Node]:
        if len(jobs) <= most:
            return [(job,) for job in jobs]
        of_job, memory_mib = self._times.of_job, self._times.memory_mib
        # Nobody joins a job whose stages are unknown, or that is too large for a GPU even alone.
        lonely = {job for job in jobs if (p := of_job[job]) == UNKNOWN or memory_mib[p] > self._memory_mib}
        known = sorted([job for job in jobs if job not in lonely], key=lambda job: of_job[job])
        alone: list[Node] = [(job,) for job in jobs if job in lonely]
        if not known:
            return alone
        key = (tuple([of_job[job] for job in known]), max(most - len(alone), 1))
        groups = self._solved.get(key)
        if groups is None:
            if len(self._solved) > _KEPT:
                self._solved.clear()
            groups = self._solved[key] = self._solve(*key)
        return [*alone, *(tuple([known[place] for place in group]) for group in groups)]

    def _solve(self, profiles: Profiles, most: int) -> tuple[Node, ...]:
        times, rows = self._times, np.array(profiles, dtype=np.intp)
        return group_jobs(
            times.planned_s[rows],
            method="exact",
            size=self._size,
            groups=most,
            interleaving=times.interleaving,
            objective="throughput",
            solo_s=np.asarray(times.solo_s)[rows],
            memory_mib=np.asarray(times.memory_mib)[rows],
            gpu_memory_mib=self._memory_mib,
            measured=None if self._gain is None else Measured(profiles, self._gain),
        ).groups
