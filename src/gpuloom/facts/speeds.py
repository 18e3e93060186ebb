"""Speeds on GPU models on which a job was not measured, estimated from the models' facts.

A job's speed is assumed to be in proportion to √(FP32 rate × memory bandwidth), from the measured model that is nearest
by this number. On Gavel's K80, P100 and V100 the estimate is off by a factor of about 1.4 in the median, hardly more
than by bandwidth alone; on most of ElasticFlow's T4 and A100 by less than that. So it was chosen;
docs/results/heterogeneity.md has the figures of all rules that were tried. Measured speeds, and models that a job does
not fit, are never changed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.cluster import ANY_MODEL, Cluster
from gpuloom.core.errors import InputError
from gpuloom.core.words import plural
from gpuloom.core.workload import F8, Speeds, Workload
from gpuloom.facts.gpus import find_gpu, measure_of

MEASURE = "typical"


def with_speeds(workload: Workload, cluster: Cluster) -> Workload:
    """The workload with estimated speeds on those models of the cluster for which it has none.

    A workload without any speeds stays as it is (all models count as equally fast; see `from_facts`), and so do models
    that the table of facts does not know: jobs are as fast there as where their durations were measured.
    """
    speeds = workload.speeds
    if speeds is None:
        return workload
    known = {model.lower() for model in speeds.models}
    missing = [model for model in cluster.models if model.lower() not in known and model != ANY_MODEL]
    estimable = [model for model in missing if find_gpu(model) is not None]
    if not estimable:
        return workload
    factor = np.column_stack([speeds.factor, np.full((len(workload), len(estimable)), np.nan)])
    marked = np.zeros(factor.shape, dtype=bool)
    if speeds.estimated is not None:
        marked[:, : len(speeds.models)] = speeds.estimated
    filled, estimated = fill((*speeds.models, *estimable), factor, marked)
    note = (
        f"speeds on {', '.join(estimable)} were not measured: estimated from FP32 rate and memory bandwidth, "
        f"relative to the nearest of {', '.join(speeds.models)}"
    )
    new = Speeds((*speeds.models, *estimable), filled, estimated)
    return replace(workload, speeds=new, notes=(*workload.notes, note))


def all_alike(workload: Workload, cluster: Cluster) -> str | None:
    """A warning if GPU models count as equally fast only because their speeds are not known.

    None where they are known, or no job has a choice between models.
    """
    named = [model for model in cluster.models if model != ANY_MODEL]
    if workload.speeds is not None:
        known = {model.lower() for model in workload.speeds.models}
        if not (unknown := [model for model in named if model.lower() not in known and find_gpu(model) is None]):
            return None
        return (
            f"nothing is known of GPU model {', '.join(unknown)}: jobs count as fast there as where their durations "
            "were measured; give the trace columns speed:MODEL"
        )
    if len(named) < 2:
        return None
    if workload.gpu_type is not None:
        lower = {model.lower() for model in named}
        used = {workload.gpu_type.names[code] for code in np.unique(workload.gpu_type.codes).tolist()}
        if all(name and len(lower & {word.strip().lower() for word in name.split("|")}) <= 1 for name in used):
            return None
    alike = f"the trace has no speeds: {', '.join(named[:-1])} and {named[-1]} count as equally fast"
    facts = {model: find_gpu(model) for model in named}
    if any(gpu is None for gpu in facts.values()):
        return f"{alike}; give the trace columns speed:MODEL (docs/reference/traces.md)"
    ratings = sorted((rating_of(model), model) for model in named)
    (least, slow), (most, fast) = ratings[0], ratings[-1]
    if most / least < 1.01:
        return None
    return (
        f"{alike}, though by their facts {fast} is {most / least:.1f} times as fast as {slow}: use --speeds facts, "
        f"or give the trace columns speed:MODEL"
    )


def fill(models: Sequence[str], factor: F8, marked: NDArray[np.bool_] | None = None) -> tuple[F8, NDArray[np.bool_]]:
    """Estimate the entries of `factor` (jobs, models) that are NaN; (factor, which of them are estimated).

    0 stands for a model that the job does not fit: it stays, and nothing is estimated from it. What can't be
    estimated (no facts of the model, or the job measured nowhere) becomes 1.

    Args:
        marked: entries that are estimates already: nothing is estimated from them.
    """
    out = factor.copy()
    estimated = np.zeros(factor.shape, dtype=bool) if marked is None else marked.copy()
    facts = [find_gpu(model) for model in models]
    rating = np.array([math.nan if gpu is None else measure_of(gpu, MEASURE) for gpu in facts])
    source = np.where(estimated | ~(factor > 0), np.nan, factor)
    for column in np.flatnonzero(np.isnan(factor).any(axis=0)).tolist():
        rows = np.flatnonzero(np.isnan(factor[:, column]))
        with np.errstate(invalid="ignore"):
            distance = np.abs(logs.log(rating / rating[column]))
        usable = np.where(np.isnan(source[rows]) | np.isnan(distance), np.inf, distance)
        nearest = usable.argmin(axis=1)
        found = np.isfinite(usable[np.arange(len(rows)), nearest])
        guess = source[rows, nearest] * rating[column] / rating[nearest]
        out[rows, column] = np.where(found, guess, 1.0)
        estimated[rows, column] = True
    return out, estimated


def unmeasured(models: Sequence[str], estimated: NDArray[np.bool_]) -> str:
    """A sentence on estimated entries, for a trace's notes."""
    parts = [
        f"{plural(int(count), 'job')} on {model}"
        for model, count in zip(models, estimated.sum(axis=0), strict=True)
        if count
    ]
    return f"speeds that were not measured are estimated from FP32 rate and memory bandwidth: {', '.join(parts)}"


def from_facts(workload: Workload, cluster: Cluster, reference: str | None = None) -> Workload:
    """A workload without speeds, with speeds on the cluster's models estimated from their facts (`--speeds facts`).

    Args:
        reference: the GPU model on which the trace's durations were measured; None: the slowest of the cluster.

    Raises:
        InputError: nothing is known of the reference model, or of a model of the cluster.
    """
    if workload.speeds is not None:
        return with_speeds(workload, cluster)
    named = [model for model in cluster.models if model != ANY_MODEL]
    if len(named) < len(cluster.models):
        raise InputError("speeds from facts need the GPU model of every node (8x8:V100), see: gpuloom gpus")
    ratings = [rating_of(model) for model in named]
    base = rating_of(reference) if reference else min(ratings)
    slowest = reference or named[ratings.index(base)]
    factor = np.tile(np.array(ratings) / base, (len(workload), 1))
    estimated = np.ones(factor.shape, dtype=bool)
    for column, model in enumerate(named):
        if find_gpu(model) == find_gpu(slowest):
            estimated[:, column] = False
    note = (
        f"durations are taken as those on {slowest}; speeds on {', '.join(named)} are estimated from FP32 rate and "
        "memory bandwidth: " + ", ".join(f"{m} {r / base:.2f}" for m, r in zip(named, ratings, strict=True))
    )
    return replace(workload, speeds=Speeds(tuple(named), factor, estimated), notes=(*workload.notes, note))


def rating_of(model: str) -> float:
    """The number to which speeds on a GPU model are assumed to be in proportion.

    Raises:
        InputError: nothing is known of the model.
    """
    gpu = find_gpu(model)
    if gpu is None:
        raise InputError(f"nothing is known of GPU model {model!r}, so no speeds can be estimated; see: gpuloom gpus")
    return measure_of(gpu, MEASURE)
