"""Throughput curves by (GPUs, nodes) from measured profiles: Pollux' placements, ElasticFlow's tables.

Curves are those of `core.scaling.Scaling.curves`: shape (G + 1, W), with iterations per second at one global batch size
(strong scaling) on g GPUs on w nodes at `[g, w - 1]`. A row of zeros: a job can't run on so many GPUs. More nodes than
GPUs are impossible; these entries are as for one GPU per node.
Measured points are kept exactly. Between and beyond them the communication model (`learning/comm_model.py`, fitted to
the same measurements) is corrected: the logarithm of measured over modelled throughput is added to the model's
logarithm, averaged over the measured points with weights that fall with their distance in log GPUs and log nodes
(Shepard, 1968).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs, products
from gpuloom.core.errors import InputError
from gpuloom.core.workload import F8
from gpuloom.learning.comm_model import Fit, fit

MOST_GPUS = 64
"""Pollux' and ElasticFlow's measurements end here."""
_ONE_NODE_APART = 3.0
"""The distance between one node and several, in doublings: they use different links."""


class StepTable(Protocol):
    """A profile of Pollux (`sim.traces.pollux.Profile`)."""

    @property
    def steps(self) -> Mapping[tuple[int, int], NDArray[np.float64]]:
        """By (replicas, nodes): rows of local batch size, seconds per step, seconds of it spent synchronising."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """throughput: shape (G + 1, W), iterations per second; measured: of the same shape, False where filled in."""

    throughput: F8
    measured: NDArray[np.bool_]


def micro_step_s(rows: NDArray[np.float64], local_batch: float) -> float:
    """Seconds per iteration with `local_batch` samples a GPU, from rows as in `StepTable`.

    Linear between measured local batches; below the smallest as long as it. A batch larger than any is split into
    equal micro-batches that synchronise once.
    """
    local, step, sync = rows.T
    micro = math.ceil(local_batch / local[-1])
    one = float(np.interp(local_batch / micro, local, step))
    wait = min(one, float(np.interp(local_batch / micro, local, sync)))
    seconds: float = micro * (one - wait) + wait
    return seconds


def pollux_fit(profile: StepTable) -> Fit:
    """The communication model of an application, fitted to all its placements and local batch sizes."""
    rows = [(n, w, local * n, step) for (n, w), table in profile.steps.items() for local, step, _ in table.tolist()]
    gpus, nodes, samples, step_s = np.array(rows, dtype=np.float64).T
    most = max(float(table[-1, 0]) for table in profile.steps.values())
    return fit(gpus, nodes, samples, step_s, most_samples=most)


def pollux_curve(
    profile: StepTable, batch_size: float, max_gpus: int, max_nodes: int, fitted: Fit | None = None
) -> Curve:
    """Iterations per second of an application at a global batch size, by GPUs and nodes.

    Of the measured placements with as many GPUs on as many nodes the table holds one (the one with the most replicas
    on a node).

    Args:
        max_gpus, max_nodes: G and W of the curve.
        fitted: the application's model (default: `pollux_fit`).

    Raises:
        InputError: a size below 1.
    """
    if max_gpus < 1 or max_nodes < 1 or not batch_size > 0:
        raise InputError(f"curve of {max_gpus} GPUs, {max_nodes} nodes, batch {batch_size}: all must be at least 1")
    points = {
        (n, w): 1.0 / micro_step_s(rows, batch_size / n)
        for (n, w), rows in profile.steps.items()
        if n <= max_gpus and w <= max_nodes
    }
    model = (pollux_fit(profile) if fitted is None else fitted).model
    gpus, nodes = _grid(max_gpus, max_nodes)
    return _through(points, 1.0 / model.step_s(gpus, nodes, np.array(float(batch_size))))


def elasticflow_curves(folder: Path) -> dict[tuple[str, int], F8]:
    """{(model, global batch size): curve of shape (G + 1, 1)} of a folder of ElasticFlow's tables.

    A table is `<model>.csv` with columns `global_batch_size,1,2,4,…`; empty, `nan` and 0: not measured. A curve ends
    at the largest measured size, and sizes below the smallest measured one are 0: it does not run so. Between measured
    sizes throughput is linear in logarithms.

    Raises:
        InputError: nothing of that shape there (names file and line).
    """
    files = sorted(folder.glob("*.csv"))
    if not files:
        raise InputError(f"{folder}: holds no <model>.csv with throughputs by GPUs")
    curves: dict[tuple[str, int], F8] = {}
    for file in files:
        reader = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
        names = reader.fieldnames or []
        if not names or names[0] != "global_batch_size" or not all(name.isdigit() for name in names[1:]):
            raise InputError(f"{file}: the header must be global_batch_size and numbers of GPUs")
        for line, row in enumerate(reader, start=2):
            try:
                batch = int(row["global_batch_size"])
                points = {int(name): float(row[name] or "nan") for name in names[1:]}
            except (TypeError, ValueError) as error:
                raise InputError(f"{file}:{line}: {error}") from error
            known = {gpus: value for gpus, value in points.items() if math.isfinite(value) and value != 0}
            if not known or min(known.values()) < 0 or min(known) < 1:
                raise InputError(f"{file}:{line}: needs a throughput above 0 for some number of GPUs")
            curves[file.stem, batch] = _log_linear(known)
    return curves


def _log_linear(known: Mapping[int, float]) -> F8:
    sizes = np.array(sorted(known))
    values = np.array([known[int(size)] for size in sizes])
    gpus = np.arange(sizes[0], sizes[-1] + 1)
    curve = np.zeros((int(sizes[-1]) + 1, 1))
    curve[gpus, 0] = logs.exp(np.interp(logs.log(gpus), logs.log(sizes), logs.log(values)))
    curve[sizes, 0] = values
    return curve


def _grid(max_gpus: int, max_nodes: int) -> tuple[F8, F8]:
    """GPUs and nodes of every cell but row 0."""
    gpus = np.arange(1.0, max_gpus + 1)[:, None]
    return gpus, np.arange(1.0, max_nodes + 1)[None, :]


def _through(points: Mapping[tuple[int, int], float], modelled: F8) -> Curve:
    """Bend modelled throughput, shape (G, W), through measured points {(GPUs, nodes): throughput}."""
    most_gpus, most_nodes = modelled.shape
    measured = np.zeros((most_gpus + 1, most_nodes), dtype=bool)
    curve = np.zeros((most_gpus + 1, most_nodes))
    bent = modelled
    if points:
        at = np.array(sorted(points))
        values = np.array([points[g, w] for g, w in at.tolist()])
        bend = logs.log(values / modelled[at[:, 0] - 1, at[:, 1] - 1])
        bent = modelled * logs.exp(products.times(_shepard_weights(most_gpus, most_nodes, at.tobytes()), bend))
    curve[1:] = bent
    for (g, w), value in points.items():
        curve[g, w - 1], measured[g, w - 1] = value, True
    for g in range(1, min(most_gpus, most_nodes - 1) + 1):
        curve[g, g:] = curve[g, g - 1]  # there are no placements on more nodes than GPUs
    return Curve(curve, measured)


@lru_cache(maxsize=16)
def _shepard_weights(most_gpus: int, most_nodes: int, points: bytes) -> F8:
    """Shape (G, W, points): how much each measured point counts in each cell; sums to 1."""
    at = np.frombuffer(points, dtype=np.int64).reshape(-1, 2)
    gpus, nodes = _grid(most_gpus, most_nodes)
    near = logs.log2(gpus)[..., None] - logs.log2(at[:, 0])
    across = logs.log2(nodes)[..., None] - logs.log2(at[:, 1])
    link = _ONE_NODE_APART * ((nodes > 1)[..., None] != (at[:, 1] > 1))
    square = near**2 + across**2 + link**2
    weights = 1.0 / np.maximum(square, 1e-6) ** 2
    found: F8 = weights / weights.sum(axis=-1, keepdims=True)
    return found
