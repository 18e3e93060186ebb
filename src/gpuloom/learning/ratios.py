"""Compute over communication of each job: the one number by which learnt placement tells jobs apart."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import numpy as np

from gpuloom.core import logs
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.workload import F8, Workload
from gpuloom.learning.comm_model import CommModel, fit

MOST_LOG_RATIO = float(logs.log(1e6))
"""The limit of the logarithm, for jobs that don't communicate or hardly compute."""

_STARTS = (1.0, 2.5)


def models_of(workload: Workload) -> tuple[CommModel, ...]:
    """The compute and communication model of each curve of the workload's scaling; the batch counts as one sample."""
    if workload.scaling is None:
        return ()
    return tuple(_fitted(curve.tobytes(), curve.shape) for curve in workload.scaling.curves)


def fingerprint(curve: F8) -> str:
    """A name for a throughput curve that is the same in every workload that has it."""
    return sha256(repr(curve.shape).encode() + np.ascontiguousarray(curve).tobytes()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def _fitted(curve: bytes, shape: tuple[int, int]) -> CommModel:
    table = np.frombuffer(curve).reshape(shape)
    most_gpus, most_nodes = shape[0] - 1, shape[1]
    sizes = [g for k in range(most_gpus.bit_length()) for g in (1 << k, 3 << k) if g <= most_gpus]
    counts = [1 << k for k in range(most_nodes.bit_length()) if 1 << k <= most_nodes]
    points = [(g, w, table[g, w - 1]) for g in sorted({*sizes, most_gpus}) for w in counts if w <= g]
    gpus, nodes, throughput = np.array([point for point in points if point[2] > 0]).T
    return fit(gpus, nodes, np.ones(len(gpus)), 1.0 / throughput, starts=_STARTS).model


def log_ratios(workload: Workload, models: tuple[CommModel, ...]) -> F8:
    """Logarithm of compute over communication of each job; NaN where nothing is known.

    Where the workload has stage times: seconds of GPU compute over seconds of synchronisation per iteration. Else, from
    the job's scaling curve: compute of an iteration on one GPU over one transfer of its gradients (`CommModel.ratio`).
    """
    found = np.full(len(workload), np.nan)
    scaling = workload.scaling
    if scaling is not None:
        by_curve = np.array([*(model.ratio(1.0) for model in models), np.nan])
        with np.errstate(divide="ignore"):
            found = logs.log(by_curve)[np.where(scaling.curve == NO_CURVE, len(models), scaling.curve)]
    if workload.stage_s is not None:
        compute, network = workload.stage_s[:, 1], workload.stage_s[:, 2]
        known = np.isfinite(compute) & np.isfinite(network) & (compute + network > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(known, logs.log(compute / network), found)
    clipped: F8 = np.clip(found, -MOST_LOG_RATIO, MOST_LOG_RATIO)
    return clipped
