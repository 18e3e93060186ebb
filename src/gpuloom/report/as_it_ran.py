"""What really happened where a trace was taken, in the form of a simulation result, for comparison."""

from __future__ import annotations

import math

import numpy as np

from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.errors import ClusterError
from gpuloom.core.ran import Runs
from gpuloom.core.sums import sum_floats
from gpuloom.core.words import plural
from gpuloom.core.workload import Workload
from gpuloom.report.ran_on import RanOn, ran_on
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

    Where the trace does not tell of runs, the queue over time takes a job to run from its first start to its end;
    averages count the time for which it held its GPUs. Blocking index and lower bound are not known.

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
    runs = None if ran.runs is None else ran_on(workload, ran.runs, cluster)
    waited_s = float((jct - ran.held_s).sum()) if runs is None else runs.waited_s
    busy_gpu_s = float(held.sum()) if runs is None else runs.busy_gpu_s
    by_model = held[:, None] if known else np.full((jobs, len(cluster.models)), math.nan)
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
        avg_queue_length=waited_s / span if span else 0.0,
        blocking_index=math.nan,
        utilization=busy_gpu_s / (cluster.gpus * span) if span else 0.0,
        lower_bound_avg_jct_s=math.nan,
        wall_s=math.nan,
        restarts=int(ran.starts.sum()) - jobs,
        moves=0 if runs is None else runs.moves,
        resizes=0 if runs is None else runs.resizes,
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
        held_gpu_s=by_model if runs is None else runs.held_gpu_s,
        gpu_models=cluster.models,
        starts=ran.starts,
        timeline=_timeline(workload) if runs is None else runs.timeline,
        segments=None if runs is None else runs.segments,
        node_names=(ran.runs.nodes if ran.runs is not None and runs is not None else ())
        or tuple(node.name for node in cluster.nodes),
        notes=() if runs is None or ran.runs is None else _shared(ran.runs, runs),
    )


def _shared(told: Runs, runs: RanOn) -> tuple[str, ...]:
    """What sharing came to; nothing where nobody shared."""
    groups = told.groups()
    if not groups or not runs.shared_gpu_s:
        return ()
    known = [(one.until_s - one.since_s, one.efficiency) for one in groups if one.efficiency is not None]
    whole_s = sum_floats(span for span, _ in known)
    text = f"{NAME}: {100 * runs.shared_gpu_s / runs.busy_gpu_s:.0f} % of the GPU time in use was shared"
    text += f", in {plural(len(groups), 'group')}"
    if whole_s > 0:
        text += f" of mean efficiency {sum_floats(span * gamma for span, gamma in known) / whole_s:.2f}"
    return (text,)


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
