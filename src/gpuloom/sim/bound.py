"""A lower bound of the average job completion time that no schedule can beat.

Three bounds hold for every schedule that gives a job its GPUs all at once and not to others; the largest is taken.
Write d_j for the duration at the job's best speed, g_j for its GPUs, r_j for its submission, G for the cluster's GPUs,
and w_j = d_j · g_j / G: the time the whole cluster would need for the job's GPU-seconds.

1. JCT_j ≥ d_j: mean of d_j.
2. Let one machine do job j in w_j, preemptively, one at a time. It can do whatever the cluster does (give job j the
   share g_j / G of its time), so its optimum is no worse; that optimum is shortest remaining time first (Schrage
   1968): mean of its completion times.
3. Let M_j be the mean of the times at which job j's work is done. On the cluster a job works at an even pace in a
   set of times of length d_j before its end, so C_j ≥ M_j + d_j / 2. The sum of M_j over all schedules of the
   machine in 2 is least when, at every moment, the submitted job with the smallest w_j goes first (Goemans,
   Queyranne, Schulz, Skutella, Wang, "Single machine scheduling with release dates", 2002): its mean plus d_j / 2.
   This takes into account that a job can't use the whole cluster, and that the cluster is busy with others.

Where up to k_j jobs may be on a job's GPUs at once, w_j is divided by k_j: those on the same GPUs then take no more of
the machine than one job without company. k_j is 1 for jobs of which it is not known how fast they run beside others.
A policy that resizes jobs is given each job's best speed at any of its sizes for d_j, and its fewest GPU-seconds at any
of them for w_j; in 3 the pace then is not even, but never above 1 / d_j, which is what counts. Restart overheads are
left out, which only lowers the bound.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.shapes import best_speeds


def lower_bound_avg_jct_s(
    workload: Workload, cluster: Cluster, *, jobs_per_gpu: int | NDArray[np.intp] = 1, resizes: bool = False
) -> float:
    """The largest of the three bounds, seconds. NaN for no jobs.

    Args:
        jobs_per_gpu: how many jobs may be on the GPUs of each job at once, itself included.
    """
    if len(workload) == 0:
        return float("nan")
    duration = workload.duration_s / best_speeds(workload, cluster)
    speed, gpus_per_speed = _best_sizes(workload, cluster.gpus, resizes=resizes)
    work = duration * gpus_per_speed / (cluster.gpus * jobs_per_gpu)
    duration = duration / speed
    submit = workload.submit_s
    alone = float(duration.mean())
    shortest_first = float((_shortest_remaining_first(submit, work) - submit).mean())
    mean_busy = float((_mean_busy_times(submit, work) - submit + duration / 2).mean())
    return max(alone, shortest_first, mean_busy)


def _best_sizes(workload: Workload, most_gpus: int, *, resizes: bool) -> tuple[F8, F8]:
    """Of each job its best speed, and its fewest GPUs per speed, over the sizes that it may be given."""
    scaling = workload.scaling
    gpus = workload.gpus.astype(np.float64)
    if scaling is None:
        return np.ones(len(workload)), gpus
    fastest, leanest = np.ones(len(workload)), gpus
    ends = (scaling.min_gpus, scaling.max_gpus) if resizes else (workload.gpus, workload.gpus)
    found: dict[tuple[int, int, int, int], tuple[float, float]] = {}
    keys = np.stack([scaling.curve, *ends, scaling.replica_gpus], axis=1).tolist()
    for job, (curve, low, high, step) in enumerate(keys):
        if curve == NO_CURVE:
            continue
        key = (curve, low, high, step)
        if key not in found:
            sizes = np.arange(low, max(min(high, most_gpus), low) + 1, step)
            speeds = scaling.curves[curve][sizes].max(axis=1)
            found[key] = (float(speeds.max()), float((sizes / np.maximum(speeds, 1e-300)).min()))
        fastest[job] = found[key][0] / scaling.reference[job]
        leanest[job] = found[key][1] * scaling.reference[job]
    return fastest, leanest


def _shortest_remaining_first(submit: F8, work: F8) -> F8:
    """Completion times on one machine, shortest remaining time first."""
    ends = np.zeros(len(submit))
    queue: list[tuple[float, int]] = []
    now = 0.0
    submits, works = submit.tolist(), work.tolist()
    for job, arrival in enumerate([*submits, float("inf")]):
        while queue and now < arrival:
            left, first = queue[0]
            if now + left <= arrival:
                heappop(queue)
                now += left
                ends[first] = now
            else:
                # The head keeps its place: it only became shorter.
                queue[0] = (left - (arrival - now), first)
                now = arrival
        if job < len(works):
            now = max(now, arrival)
            heappush(queue, (works[job], job))
    return ends


def _mean_busy_times(submit: F8, work: F8) -> F8:
    """Mean busy times on one machine when the submitted job with the least total work goes first."""
    weighted = np.zeros(len(submit))
    queue: list[tuple[float, int]] = []
    left = work.tolist()
    works = work.tolist()
    now = 0.0
    means = submit.copy()
    for job, arrival in enumerate([*submit.tolist(), float("inf")]):
        while queue and now < arrival:
            _, first = queue[0]
            step = min(left[first], arrival - now)
            weighted[first] += step * (now + step / 2)
            left[first] -= step
            now += step
            if left[first] <= 0 or now < arrival:
                heappop(queue)
                means[first] = weighted[first] / works[first]
        if job < len(works):
            now = max(now, arrival)
            if works[job] > 0:
                heappush(queue, (works[job], job))
    return means
