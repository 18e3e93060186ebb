"""Jobs grouped by what they need. If one job of a shape does not fit, none of that shape does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import ANY_MODEL, Cluster
from gpuloom.core.errors import ClusterError
from gpuloom.core.sums import sum_ints
from gpuloom.core.words import plural
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.pool import pools_of


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of GPUs at once, in one of these pools (indices of GPU models of the cluster)."""

    gpus: int
    pools: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shapes:
    """`of_job[j]` is the index in `shapes` of job j's shape."""

    shapes: tuple[Shape, ...]
    of_job: NDArray[np.int32]


def model_allowed(wanted: str, model: str) -> bool:
    """Whether a job that asks for GPU models `wanted` ('A|B'; '' for any) may run on `model`."""
    return wanted == "" or model == ANY_MODEL or model.lower() in (name.strip().lower() for name in wanted.split("|"))


def shapes_of(workload: Workload, cluster: Cluster) -> Shapes:
    """Group jobs by GPUs and by the GPU models they may run on (their wish, and where their speed is above 0)."""
    n = len(workload)
    models = cluster.models
    if len(models) > 31:
        raise ClusterError(f"the cluster has {len(models)} GPU models; at most 31 are supported")
    allowed = np.ones((n, len(models)), dtype=bool)
    if workload.gpu_type is not None:
        table = np.array(
            [[model_allowed(name, model) for model in models] for name in workload.gpu_type.names], dtype=bool
        ).reshape(-1, len(models))
        allowed &= table[workload.gpu_type.codes]
    if workload.speeds is not None:
        allowed &= speeds_on(workload, models) > 0
    if workload.gpu_memory_mib is not None:
        allowed &= ~(workload.gpu_memory_mib[:, None] > np.array(gpu_memories_mib(cluster)))
    weights = 1 << np.arange(len(models), dtype=np.int64)
    key = workload.gpus.astype(np.int64) << 32 | allowed.astype(np.int64) @ weights
    unique, of_job = np.unique(key, return_inverse=True)
    shapes = tuple(
        Shape(int(value >> 32), tuple(pool for pool in range(len(models)) if value >> pool & 1))
        for value in unique.tolist()
    )
    return Shapes(shapes, of_job.astype(np.int32))


def gpu_memories_mib(cluster: Cluster) -> list[float]:
    """GPU memory by GPU model: the largest if nodes differ; infinity if a node does not tell it."""
    known: dict[str, float] = dict.fromkeys(cluster.models, 0.0)
    for node in cluster.nodes:
        memory = float("inf") if node.gpu_memory_mib is None else float(node.gpu_memory_mib)
        known[node.gpu_model] = max(known[node.gpu_model], memory)
    return list(known.values())


def by_weight(shapes: Shapes, weights: F8, scale: Sequence[float]) -> tuple[Shapes, list[float]]:
    """Shapes in which jobs have the same weight, too, and the scale of each over that weight.

    Args:
        scale: of each shape.
    """
    pairs, of_job = np.unique(np.column_stack([shapes.of_job, weights]), axis=0, return_inverse=True)
    split = tuple(shapes.shapes[int(shape)] for shape in pairs[:, 0].tolist())
    paces = [scale[int(shape)] / weight for shape, weight in pairs.tolist()]
    return Shapes(split, of_job.reshape(-1).astype(np.int32)), paces


def speeds_on(workload: Workload, models: Sequence[str]) -> F8:
    """Speed of each job on each GPU model, relative to its reference: shape (jobs, models), 1 where unknown."""
    speed = np.ones((len(workload), len(models)))
    if workload.speeds is not None:
        known = {name.lower(): column for column, name in enumerate(workload.speeds.models)}
        for index, model in enumerate(models):
            column = known.get(model.lower())
            if column is not None:
                speed[:, index] = workload.speeds.factor[:, column]
    return speed


def speeds_by_pool(workload: Workload, cluster: Cluster, shapes: Shapes) -> F8:
    """The same for the cluster's GPU models, 0 where the job may not run."""
    allowed = np.zeros((len(shapes.shapes), len(cluster.models)), dtype=bool)
    for index, shape in enumerate(shapes.shapes):
        allowed[index, list(shape.pools)] = True
    return np.where(allowed[shapes.of_job], speeds_on(workload, cluster.models), 0.0)


def best_speeds(workload: Workload, cluster: Cluster) -> F8:
    """Speed of each job on the fastest of the cluster's GPU models that it may use (1 if it may use none)."""
    if workload.speeds is None:
        return np.ones(len(workload))
    best = speeds_by_pool(workload, cluster, shapes_of(workload, cluster)).max(axis=1)
    return np.where(best > 0, best, 1.0)


def impossible_jobs(shapes: Shapes, cluster: Cluster) -> NDArray[np.intp]:
    """Jobs that don't fit even the empty cluster."""
    pools = pools_of(cluster)
    bad = np.array(
        [not any(pools[pool].fits(shape.gpus) for pool in shape.pools) for shape in shapes.shapes], dtype=bool
    )
    return np.flatnonzero(bad[shapes.of_job]) if len(shapes.of_job) else np.zeros(0, dtype=np.intp)


def why_impossible(workload: Workload, cluster: Cluster, job: int) -> str:
    """One sentence on why the job can never be placed."""
    return f"job {workload.job_id(job)} {asks_too_much(workload, cluster, job)}"


def asks_too_much(workload: Workload, cluster: Cluster, job: int) -> str:
    """The same without its subject, the job."""
    gpus = int(workload.gpus[job])
    wanted = workload.gpu_type[job] if workload.gpu_type is not None else ""
    text = f"asks for {plural(gpus, 'GPU')}"
    if wanted:
        text += f" of model {wanted}"
    if workload.speeds is not None:
        speeds = speeds_on(workload, cluster.models)[job]
        able = [model for model, speed in zip(cluster.models, speeds, strict=True) if speed > 0]
        if len(able) < len(cluster.models):
            text += f" and by its speeds runs on {' and '.join(able) or 'no GPU model'} of this cluster only"
    needs = float("nan") if workload.gpu_memory_mib is None else float(workload.gpu_memory_mib[job])
    memories = gpu_memories_mib(cluster)
    if any(needs > memory for memory in memories):
        have = ", ".join(
            f"{memory:g} MiB" + ("" if model == ANY_MODEL else f" on {model}")
            for model, memory in zip(cluster.models, memories, strict=True)
        )
        text += f" and needs {needs:g} MiB on each, where GPUs have {have}"
    largest = max(node.gpus for node in cluster.nodes)
    by_model = {model: sum_ints(n.gpus for n in cluster.nodes if n.gpu_model == model) for model in cluster.models}
    have = ", ".join(str(total) + ("" if model == ANY_MODEL else f" {model}") for model, total in by_model.items())
    text += f"; the cluster {cluster} has {have} GPUs (up to {largest} a node"
    return text + ", and a job stays on one GPU model)" if len(by_model) > 1 else text + ")"
