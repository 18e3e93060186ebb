"""Scaling of jobs, from plain columns."""

from collections.abc import Sequence

import numpy as np

from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.workload import F8, I4


def scaling_of(
    gpus: I4,
    curves: Sequence[F8],
    curve: I4,
    min_gpus: I4,
    max_gpus: I4,
    nodes: I4 | None = None,
) -> Scaling:
    """Scaling of jobs whose `duration_s` holds for `gpus` GPUs on `nodes` nodes (default: on one), one GPU a replica.

    The range of a job is cut to the sizes up to which its curve is known.
    """
    at = np.ones(len(gpus), dtype=np.int32) if nodes is None else nodes
    reference = np.ones(len(gpus))
    most = max_gpus.copy()
    for job, index in enumerate(curve.tolist()):
        if index != NO_CURVE:
            table = curves[index]
            reference[job] = table[gpus[job], min(int(at[job]), table.shape[1]) - 1]
            most[job] = min(int(most[job]), len(table) - 1)
    return Scaling(np.ones(len(gpus), dtype=np.int32), min_gpus.copy(), most, curve.copy(), reference, tuple(curves))
