"""What really happened where a trace was taken, in the form of a simulation result, for comparison."""

from __future__ import annotations

import math

import numpy as np

from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.errors import ClusterError
from gpuloom.core.workload import Workload
from gpuloom.sim.result import SimResult, Timeline

NAME = "as it ran"


def taken_at(workload: Workload, otherwise: Cluster) -> Cluster:
    """The cluster on which a trace was taken, if it says so and that can be read."""
    try:
        return parse_cluster(workload.cluster) if workload.cluster else otherwise
    except ClusterError:  # of a cluster that has no short form
        return otherwise


def as_it_ran(workload: Workload, cluster: Cluster) -> SimResult | None:
    """The figures of what happened, as far as the trace says; None where it does not.

    The queue over time takes a job to run from its first start to its end; averages count the time for which it held
    its GPUs. Blocking index and lower bound are not known.

    Args:
        cluster: where it ran.
    """
    ran = workload.ran
    if ran is None:
        return None
    jobs, gpus = len(workload), workload.gpus.astype(np.float64)
    jct = ran.end_s - workload.submit_s
    first, last = float(workload.submit_s.min()), float(ran.end_s.max())
    span = last - first
    held = gpus * ran.held_s
    known = len(cluster.models) == 1
    return SimResult(
        policy=NAME,
        trace=workload.name,
        cluster=str(cluster),
        jobs=jobs,
        gpus=cluster.gpus,
        avg_jct_s=float(jct.mean()),
        median_jct_s=float(np.median(jct)),
        p99_jct_s=float(np.sort(jct)[int(0.99 * jobs)]),
        makespan_s=span,
        avg_queue_length=float((jct - ran.held_s).sum()) / span if span else 0.0,
        blocking_index=math.nan,
        utilization=float(held.sum()) / (cluster.gpus * span) if span else 0.0,
        lower_bound_avg_jct_s=math.nan,
        wall_s=math.nan,
        restarts=int(ran.starts.sum()) - jobs,
        moves=0,
        resizes=0,
        events=0,
        finished=jobs,
        interrupted=False,
        settings={},
        job_ids=workload.job_ids or tuple(map(str, range(jobs))),
        job_gpus=workload.gpus,
        submit_s=workload.submit_s,
        start_s=ran.start_s,
        end_s=ran.end_s,
        jct_s=jct,
        held_gpu_s=held[:, None] if known else np.full((jobs, len(cluster.models)), math.nan),
        gpu_models=cluster.models,
        starts=ran.starts,
        timeline=_timeline(workload),
        segments=None,
        node_names=tuple(node.name for node in cluster.nodes),
    )


def _timeline(workload: Workload) -> Timeline:
    ran = workload.ran
    assert ran is not None  # noqa: S101 - the caller's
    ones, gpus = np.ones(len(workload), dtype=np.int32), workload.gpus
    times = np.concatenate([workload.submit_s, ran.start_s, ran.end_s])
    queue = np.concatenate([ones, -ones, 0 * ones])
    busy = np.concatenate([0 * ones, gpus, -gpus])
    at, place = np.unique(times, return_inverse=True)
    lengths, held = np.zeros(len(at), dtype=np.int64), np.zeros(len(at), dtype=np.int64)
    np.add.at(lengths, place, queue)
    np.add.at(held, place, busy)
    return Timeline(at, lengths.cumsum().astype(np.int32), held.cumsum().astype(np.int32))
