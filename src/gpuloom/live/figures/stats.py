"""Figures of what ran in a span of time, by the names and definitions of the simulator (`core/metrics.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.core.errors import InputError, NotFoundError
from gpuloom.core.job import EndReason, Phase
from gpuloom.core.metrics import jct_figures, time_mean
from gpuloom.core.sums import sum_floats
from gpuloom.live.figures.sample import Figures, finest
from gpuloom.store.port import Completed, JobQuery, Store

DAY_S = 86_400.0
RESIZES = 1000
"""So many of the last ones are looked through for what they cost."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Of jobs that ran and ended from `since_s` on and before `until_s`; None: there is nothing to compute it of.

    Averages over time are over the `covered_s` seconds of that span in which a scheduler ran. gpu_s: GPU-seconds held,
    a GPU that two jobs share counted for both. resize_s: for how long a job stood still for a resize, on average.
    user: whose jobs alone; utilization is what these hold of all GPUs.
    """

    since_s: float
    until_s: float
    user: str | None
    jobs: int
    finished: int
    failed: int
    cancelled: int
    avg_jct_s: float | None
    median_jct_s: float | None
    p99_jct_s: float | None
    makespan_s: float | None
    covered_s: float
    avg_queue_length: float | None
    blocking_index: float | None
    utilization: float | None
    gpu_s: float
    restarts: int
    preemptions: int
    resizes: int
    resize_s: float | None


def checked_span(since_s: float | None, until_s: float | None, now_s: float) -> tuple[float, float]:
    """The span that is asked for; by default the last day.

    Raises:
        InputError: it ends before it begins, or begins after now.
    """
    until = now_s if until_s is None else until_s
    since = min(until, now_s) - DAY_S if since_s is None else since_s
    if since > now_s:
        raise InputError(f"since {since:.0f} s is later than now ({now_s:.0f} s): give a time in the past")
    if since >= until:
        raise InputError(f"since {since:.0f} s must be before until {until:.0f} s")
    return since, until


def checked_user(store: Store, user: str | None) -> None:
    """Raises NotFoundError: that user has never submitted a job."""
    if user is not None and not store.jobs(JobQuery(users=(user,), limit=1)):
        raise NotFoundError(f"there is no job of a user {user!r}; `gpuloom usage` lists users with jobs")


def series_of(store: Store, since_s: float, until_s: float, *, each: bool = False) -> list[Figures]:
    """The samples that begin in a span; each: as in `finest`. Raises StoreError: they can't be read."""
    return finest(store.samples(since_s=since_s, until_s=until_s), each=each)


def stats_of(store: Store, since_s: float, until_s: float, user: str | None, now_s: float) -> Stats:
    """See `Stats`. Raises StoreError: the store can't be read."""
    ended = store.completed(since_s=since_s, until_s=until_s, user=user)
    jct = jct_figures(np.array([one.ended_s - one.submitted_s for one in ended], dtype=np.float64))
    phases = [one.phase for one in ended]
    runs = store.run_counts(since_s=since_s, until_s=until_s, user=user)
    used = store.usage(since_s=since_s, until_s=min(until_s, now_s), by="user")
    samples = series_of(store, since_s, until_s)
    covered_s = sum_floats(one.span_s for one in samples)
    waits_s = sum_floats(one.span_s * one.of(user).queue_length for one in samples)
    blocked_s = sum_floats(one.span_s * one.of(user).blocking_index for one in samples)
    busy_s = sum_floats(one.span_s * one.of(user).busy_gpus for one in samples)
    gpu_s = sum_floats(one.span_s * one.gpus for one in samples)
    return Stats(
        since_s,
        until_s,
        user,
        jobs=len(ended),
        finished=phases.count(Phase.FINISHED),
        failed=phases.count(Phase.FAILED),
        cancelled=phases.count(Phase.CANCELLED),
        avg_jct_s=jct.avg_jct_s if ended else None,
        median_jct_s=jct.median_jct_s if ended else None,
        p99_jct_s=jct.p99_jct_s if ended else None,
        makespan_s=_makespan_s(ended),
        covered_s=covered_s,
        avg_queue_length=time_mean(waits_s, covered_s) if covered_s else None,
        blocking_index=time_mean(blocked_s, covered_s) if covered_s else None,
        utilization=time_mean(busy_s, gpu_s) if gpu_s else None,
        gpu_s=sum_floats(row.gpu_s for row in used if user in (None, row.key)),
        restarts=runs.restarts,
        preemptions=runs.ended.get(EndReason.PREEMPTED.value, 0),
        resizes=runs.ended.get(EndReason.RESIZED.value, 0),
        resize_s=_resize_s(store, since_s, until_s, user),
    )


def _resize_s(store: Store, since_s: float, until_s: float, user: str | None) -> float | None:
    """The mean of the last resizes of which it was measured."""
    events = store.events(types=("job.resize_cost",), limit=RESIZES, newest=True)
    found = [event for event in events if since_s <= event.at_s < until_s]
    if user is not None:
        ids = tuple({event.job for event in found if event.job is not None})
        theirs = {job.id for job in store.jobs(JobQuery(users=(user,), ids=ids, limit=RESIZES))} if ids else set()
        found = [event for event in found if event.job in theirs]
    return sum_floats(float(event.data["cost_s"]) for event in found) / len(found) if found else None


def _makespan_s(ended: Sequence[Completed]) -> float | None:
    """From the first submission to the last end."""
    if not ended:
        return None
    return max(one.ended_s for one in ended) - min(one.submitted_s for one in ended)
