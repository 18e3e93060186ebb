"""How much memory a job needs on one GPU, where its user does not say: as the monitor saw it.

A job that found no memory left beside others is taken to need more than they left (`raised_mib`).

Counted is what a run used at its peak while it had its GPUs for itself, the mean over them, once it had reported a step
or run for `SETTLED_S`. Of the job's own attempts the largest counts; of earlier runs of the same job that finished
well, of the last `KEEP` on each GPU model the largest, and of the models the least: a framework may take what there is.
The larger of both is needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

from gpuloom.core.job import Attempt, Job
from gpuloom.live.planning.estimates import MOST_NAMES, Like, like_of
from gpuloom.live.planning.size_speeds import KEEP
from gpuloom.store.port import MeasuredRun

SETTLED_S = 60.0
"""From then on a run counts as using what it needs."""
REMEMBER = 60
"""Measured runs of a name that are looked through."""
GROWS = 1.05
"""By more than this, more memory is worth another decision."""
RAISED = 1.25
"""So many times what it was thought to need, a job gets that found too little beside others, where no more is known."""


class MemorySource(StrEnum):
    """Whence it is known."""

    GIVEN = "given"
    """Its user says so."""
    MEASURED = "measured"
    """The monitor saw it, in this job or in earlier runs of the same one."""


class Need(NamedTuple):
    """MiB on one GPU. runs: in how many earlier runs it was measured; 0: in attempts of the job itself."""

    mib: int
    source: MemorySource
    runs: int = 0


class _Run(NamedTuple):
    like: Like
    gpu_model: str
    mib: float


class GpuMemory:
    """Asks the store once for what was before. Any thread may ask."""

    def __init__(
        self,
        earlier: Callable[[str, str, int], Sequence[MeasuredRun]],
        attempts: Callable[[Sequence[int]], Iterable[Attempt]] = lambda jobs: (),
    ) -> None:
        """earlier: (user, name, limit) → runs that finished well and of which something was measured, the oldest first.
        attempts: of these jobs."""
        self._earlier, self._attempts = earlier, attempts
        self._own: dict[int, float] = {}
        """Of jobs that have not ended; 0: nothing was seen."""
        self._runs: OrderedDict[tuple[str, str], tuple[_Run, ...]] = OrderedDict()
        self._known: dict[Like, Need | None] = {}
        self._lock = threading.Lock()

    def copy(self) -> GpuMemory:
        """What is known now, for another thread."""
        twin = GpuMemory(self._earlier, self._attempts)
        with self._lock:
            twin._own, twin._runs, twin._known = dict(self._own), self._runs.copy(), dict(self._known)
        return twin

    def saw(self, job: int, mib: float) -> bool:
        """An attempt of a job uses so much; whether that is news to decide by."""
        with self._lock:
            before = self._own.get(job, 0.0)
            if mib > before:
                self._own[job] = mib
            return mib > before * GROWS

    def ended(self, job: int) -> None:
        """It is over."""
        with self._lock:
            self._own.pop(job, None)

    def finished(self, like: Like, gpu_model: str, mib: float) -> None:
        """A run of such a job has finished well, and used so much."""
        key = like.user, like.name
        with self._lock:
            if (runs := self._runs.get(key)) is not None:
                self._runs[key] = (*runs, _Run(like, gpu_model, mib))[-REMEMBER:]
            self._known.clear()

    def look_up(self, jobs: Iterable[Job]) -> None:
        """Read what was seen of attempts of these jobs that have not ended, by a scheduler before this one."""
        with self._lock:
            unknown = [
                job.id for job in jobs if job.attempts and job.id not in self._own and job.spec.gpu_memory is None
            ]
        if not unknown:
            return
        found = dict.fromkeys(unknown, 0.0)
        for attempt in self._attempts(unknown):
            found[attempt.job] = max(found[attempt.job], attempt.gpu_memory_mib or 0.0)
        with self._lock:
            self._own = {**found, **self._own}

    def own(self) -> dict[int, float]:
        """MiB that attempts of jobs that have not ended used, as far as anything was seen. After `look_up`."""
        with self._lock:
            return {job: mib for job, mib in self._own.items() if mib > 0.0}

    def of_like(self, like: Like) -> Need | None:
        """What earlier runs of such a job used; None: nothing was seen of any."""
        with self._lock:
            if like in self._known:
                return self._known[like]
        known = self._of_runs(like)
        with self._lock:
            if len(self._known) >= MOST_NAMES:
                self._known.clear()
            self._known[like] = known
        return known

    def of_job(self, job: Job) -> Need | None:
        """What a job needs; None: it is not known."""
        if job.spec.gpu_memory is not None:
            return Need(job.spec.gpu_memory, MemorySource.GIVEN)
        with self._lock:
            own = self._own.get(job.id)
        if own is None and job.attempts:
            own = max((attempt.gpu_memory_mib or 0.0 for attempt in self._attempts([job.id])), default=0.0)
        return larger(self.of_like(like_of(job.spec, job.user, job.gpus, job.array_id)), own or 0.0)

    def _of_runs(self, like: Like) -> Need | None:
        same = [run for run in self._measured(like) if run.like.gpus == like.gpus and run.like.similar == like.similar]
        same = [run for run in same if run.like.exact == like.exact] or same
        by_model: dict[str, list[float]] = {}
        for run in same:
            by_model.setdefault(run.gpu_model, []).append(run.mib)
        if not by_model:
            return None
        return Need(ceil(least_of_largest(by_model)), MemorySource.MEASURED, len(same))

    def _measured(self, like: Like) -> tuple[_Run, ...]:
        key = like.user, like.name
        with self._lock:
            if (known := self._runs.get(key)) is not None:
                self._runs.move_to_end(key)
                return known
        found = tuple(  # without the lock: the store may be slow to answer
            _Run(like_of(run.spec, like.user, run.gpus, run.array_id), run.gpu_model, run.gpu_memory_mib)
            for run in self._earlier(*key, REMEMBER)
            if run.gpu_memory_mib is not None
        )
        with self._lock:
            if len(self._runs) >= MOST_NAMES:
                self._runs.popitem(last=False)
            return self._runs.setdefault(key, found)


def raised_mib(need_mib: float, others_mib: Sequence[float | None], gpu_mib: float | None) -> float | None:
    """What a job is taken to need, on one GPU, that found no memory left beside others.

    It needs more than they left, as far as that is known; else `RAISED` times as much. No more than the GPU has: alone
    it may run.

    Args:
        need_mib: what was known of it; 0: nothing. others_mib: what the others need; None: not known. gpu_mib: what the
            GPU has; None: not known. None: nothing is known of any.
    """
    known = [mib for mib in others_mib if mib is not None]
    told = gpu_mib is not None and len(known) == len(others_mib)
    more = gpu_mib - sum(known) + 1.0 if told and gpu_mib is not None else 0.0
    found = max(need_mib * (GROWS if more > need_mib else RAISED), more)
    return None if found <= 0.0 else found if gpu_mib is None else min(found, float(gpu_mib))


def larger(known: Need | None, own_mib: float) -> Need | None:
    """What a job needs whose earlier runs needed that, and whose own attempts used so much (0: not seen)."""
    if known is not None and known.mib >= own_mib:
        return known
    return Need(ceil(own_mib), MemorySource.MEASURED) if own_mib > 0.0 else None


def least_of_largest(by_model: Mapping[str, Sequence[float]]) -> float:
    """Of each GPU model the largest of the last runs, and the least of these."""
    return min(max(found[-KEEP:]) for found in by_model.values())
