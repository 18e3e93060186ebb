"""Measured applications: step times by placement and local batch, progress and gradient noise by epoch.

Sources: github.com/petuum/adaptdl, branch osdi21-artifact (Pollux, OSDI '21), `simulator/traces/<application>/`, and
github.com/siasosp23/artifacts (Sia, SOSP '23), `sia-simulator/traces/`, where step times are by GPU model, in
`placements-MODEL.csv` and `scalability-MODEL.csv`:
- `placements.csv`: seconds of a step and of its synchronisation, by placement (one digit a node: its replicas) and
  local batch size, for every placement on up to 4 nodes of 4 GPUs;
- `scalability.csv`: the same by number of nodes and of replicas, on 6, 8, 12 and 16 nodes;
- `validation-<batch size>.csv`: after each epoch, progress (in iterations at the smallest batch size), iterations
  done, and squared norm and variance of the gradient.

Between measurements step times are interpolated as in the artifact. For measured placements (which may be rotated) and
measured numbers of nodes and replicas: along the local batch size. Else: in the simplices of a Delaunay triangulation
of (nodes, replicas, local batch) (`delaunay.py`). Between two batch sizes of the validations: linearly.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8
from gpuloom.goodput.delaunay import Interpolation
from gpuloom.traces.pollux import profile_files

EPOCHS = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
"""Epochs after which a job of the application is done (the artifact's `applications.py`)."""
MOST_LOCAL = {"yolov3": 8}
"""Largest local batch size, where it is not the largest measured one."""
MOST_LOCAL_ON = {("deepspeech2", "rtx"): 57}
"""The same, by GPU model (Sia's `applications.py`)."""
MOST_NODES = 16
"""Most nodes of any measurement; placements on more count as on this many."""
RESTART_S = 30.0
"""Seconds in which a job that was given other GPUs holds them and does not train, where nothing else is known."""
RESTARTS_S = {"cifar10": 50.0, "deepspeech2": 25.0, "bert": 120.0, "yolov3": 80.0, "imagenet": 250.0, "ncf": 15.0}
"""The same by application, as Sia measured it."""
SLOWDOWNS = {"cifar10": 1.8, "imagenet": 1.2, "yolov3": 1.2, "bert": 1.2, "deepspeech2": 1.2, "ncf": 1.5}
"""How many times longer than measured step by step an application trains on a real cluster (Sia's calibration)."""

MEASURED = ("local_bsz", "step_time", "sync_time")

Placement = tuple[int, ...]
"""GPUs on each node, all above 0."""


@dataclass(eq=False)
class Application:
    """One application, on one GPU model.

    Attributes:
        epochs: length of a job.
        batch_sizes: those of the validations, in rising order, shape (B,).
        progress, iterations: after each epoch, shape (B, epochs).
        squared, variance: of the gradient during each epoch, shape (B, epochs).
        restart_s: seconds that a change of GPUs costs.
        slowdown: how many times longer than measured all training takes.
    """

    name: str
    epochs: int
    least_local: int
    most_local: int
    batch_sizes: NDArray[np.int64]
    progress: F8
    iterations: F8
    squared: F8
    variance: F8
    placements: Mapping[Placement, F8]
    """By placement (its smallest rotation): rows of local batch, step seconds, synchronisation seconds."""
    scalability: F8
    """Rows of nodes, replicas, local batch, step seconds, synchronisation seconds."""
    restart_s: float = RESTART_S
    slowdown: float = 1.0
    model: str = ""
    """GPU model of the measurements; empty where they don't say."""
    _steps: dict[tuple[Placement, int], tuple[float, float]] = field(default_factory=dict)
    _noise: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    @property
    def least_batch(self) -> int:
        return int(self.batch_sizes[0])

    @property
    def most_batch(self) -> int:
        return int(self.batch_sizes[-1])

    @cached_property
    def progress_after(self) -> list[float]:
        """Progress at which n epochs are done, by n; the slowest batch size decides."""
        return [0.0, *self.progress.min(axis=0).tolist()]

    def step_s(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        """Seconds of a step and of its synchronisation.

        Raises:
            InputError: nothing was measured around there.
        """
        key = min(placement[i:] + placement[:i] for i in range(len(placement))), local_batch
        found = self._steps.get(key)
        if found is None:
            found = self._steps[key] = self._interpolate(*key)
        return found

    def _interpolate(self, placement: Placement, local_batch: int) -> tuple[float, float]:
        nodes, gpus = min(len(placement), MOST_NODES), sum_ints(placement)
        rows = self.placements.get(placement)
        # This also holds on more nodes than placements were measured on: the triangulation contains these edges.
        line = self._lines.get((nodes, gpus)) if rows is None else rows
        if line is not None and line[0, 0] <= local_batch <= line[-1, 0]:
            at = max(1, int(np.searchsorted(line[:, 0], local_batch)))
            (low, *before), (high, *after) = line[at - 1].tolist(), line[at].tolist()
            step, sync = ((b - a) / (high - low) * (local_batch - low) + a for a, b in zip(before, after, strict=True))
            return step, sync
        if rows is None:
            found = self._between((nodes, gpus, local_batch))
            if found is not None:
                return float(found[0]), float(found[1])
        raise InputError(
            f"application {self.name}: nothing was measured around {sum_ints(placement)} GPUs on {len(placement)} "
            f"nodes ({'+'.join(map(str, placement))}) with {local_batch} samples a GPU"
        )

    @cached_property
    def _lines(self) -> dict[tuple[int, int], F8]:
        """By nodes and replicas of `scalability`: rows like those of `placements`."""
        lines: dict[tuple[int, int], list[list[float]]] = {}
        for nodes, gpus, *row in self.scalability.tolist():
            lines.setdefault((int(nodes), int(gpus)), []).append(row)
        return {key: np.array(sorted(rows)) for key, rows in lines.items() if len(rows) > 1}

    @cached_property
    def _between(self) -> Interpolation:
        return Interpolation(*self.measured())

    def measured(self) -> tuple[F8, F8]:
        """Points (nodes, replicas, local batch), shape (P, 3), and seconds of step and synchronisation, (P, 2).

        Placements with the same numbers of replicas and nodes count as one point, with the mean of their times.
        """
        same: dict[tuple[float, ...], list[list[float]]] = {}
        for placement, rows in self.placements.items():
            for local, *seconds in rows.tolist():
                same.setdefault((len(placement), sum_ints(placement), local), []).append(seconds)
        points = np.array(sorted(same))
        values = np.array([np.mean(same[key], axis=0) for key in sorted(same)])
        return np.vstack([points, self.scalability[:, :3]]), np.vstack([values, self.scalability[:, 3:]])

    @cached_property
    def _most_by_gpus(self) -> dict[int, int]:
        """The largest local batch measured in any placement of so many GPUs."""
        found: dict[int, int] = {}
        for placement, rows in self.placements.items():
            gpus = sum_ints(placement)
            found[gpus] = max(found.get(gpus, 0), int(rows[-1, 0]))
        return found

    def most_local_at(self, gpus: int) -> int | None:
        """The largest local batch measured in any placement of so many GPUs; None: in none was."""
        return self._most_by_gpus.get(gpus)

    def most_local_on(self, placement: Placement) -> int | None:
        """The largest local batch that fits a placement; None where nothing as large was measured."""
        rows = self.placements.get(min(placement[i:] + placement[:i] for i in range(len(placement))))
        if rows is not None:
            return int(rows[-1, 0])
        nodes, gpus = len(placement), sum_ints(placement)
        fits = self.scalability[(self.scalability[:, 0] >= nodes) & (self.scalability[:, 1] >= gpus)]
        return int(fits[:, 2].max()) if len(fits) else None

    def seconds_per_sample(self) -> float:
        """Seconds per sample on one GPU, at its largest local batch. What Sia compares GPU models by."""
        rows = self.placements[1,]
        return float(rows[:, 1].max() / rows[-1, 0])

    def iterations_after(self, batch: int, epoch: int) -> float:
        """Iterations at a batch size that end with epoch number `epoch` (from 0)."""
        return self._by_batch(self.iterations, batch, epoch)

    def noise(self, batch: int, epoch: int) -> tuple[float, float]:
        """Squared norm and variance of the gradient in an epoch."""
        found = self._noise.get((batch, epoch))
        if found is None:
            found = self._by_batch(self.squared, batch, epoch), self._by_batch(self.variance, batch, epoch)
            self._noise[batch, epoch] = found
        return found

    def _by_batch(self, table: F8, batch: int, epoch: int) -> float:
        sizes = self.batch_sizes
        high = int(np.searchsorted(sizes, batch))
        if high == len(sizes) or batch < sizes[0]:
            raise InputError(f"application {self.name}: batch size {batch} is outside {sizes[0]} to {sizes[-1]}")
        if sizes[high] == batch:
            return float(table[high, epoch])
        low_size, high_size = int(sizes[high - 1]), int(sizes[high])
        low, up = float(table[high - 1, epoch]), float(table[high, epoch])
        return ((batch - low_size) * up + (high_size - batch) * low) / (high_size - low_size)

    def gain(self, batch: int, epoch: int) -> float:
        """Progress of one iteration: (σ² + μ²) / (σ² / s + μ²), where s is the batch over the smallest batch."""
        squared, variance = self.noise(batch, epoch)
        return (variance + squared) / (variance / (batch / self.least_batch) + squared)


def load_applications(path: Path) -> dict[str, Application]:
    """Pollux' applications by name, from the archive `profiles_traces.tar.gz` or the folder extracted from it.

    Raises:
        InputError: no such file.
        TraceError: the files are not those of the artifact.
    """
    files, names = _files(path)
    return {name: _application(name, files, str(path)) for name in names}


def load_models(path: Path, models: Sequence[str]) -> dict[str, dict[str, Application]]:
    """Applications by GPU model and name, from Sia's `profiles.tar.gz` or the folder extracted from it.

    Raises:
        InputError: no such file, or a model without measurements; TraceError: nothing of the expected shape there.
    """
    files, names = _files(path)
    known = models_in(files)
    missing = [model for model in models if model not in known]
    if missing:
        raise InputError(
            f"profiles {path}: nothing was measured on GPU model {missing[0]!r}, must be one of "
            f"{', '.join(sorted(known)) or '(none: these profiles are not by model)'}"
        )
    return {
        model: {
            name: replace(
                _application(name, files, str(path), model),
                restart_s=RESTARTS_S.get(name, RESTART_S),
                slowdown=SLOWDOWNS.get(name, 1.0),
            )
            for name in names
            if f"{name}/placements-{model}.csv" in files
        }
        for model in models
    }


def models_in(files: Mapping[str, bytes]) -> set[str]:
    """GPU models of the files `<application>/placements-<model>.csv`."""
    bases = [file.partition("/")[2] for file in files]
    begin, end = "placements-", ".csv"
    return {base[len(begin) : -len(end)] for base in bases if base.startswith(begin) and base.endswith(end)}


def _files(path: Path) -> tuple[dict[str, bytes], list[str]]:
    if not path.exists():
        raise InputError(f"profiles {path}: no such file or folder")
    return profile_files(path)


def _application(name: str, files: Mapping[str, bytes], where: str, model: str = "") -> Application:
    sizes, tables, epochs = _validations(name, files, where)
    suffix = f"-{model}" if model else ""
    placements = _placements(files, f"{name}/placements{suffix}.csv", where)
    local = [size for rows in placements.values() for size in rows[:, 0].tolist()]
    most = MOST_LOCAL_ON.get((name, model)) if model else MOST_LOCAL.get(name)
    return Application(
        name=name,
        epochs=epochs,
        least_local=int(min(local)),
        most_local=most or int(max(local)),
        batch_sizes=np.array(sizes, dtype=np.int64),
        progress=tables[:, :, 0],
        iterations=tables[:, :, 1],
        squared=tables[:, :, 2],
        variance=tables[:, :, 3],
        placements=placements,
        scalability=_columns(files, f"{name}/scalability{suffix}.csv", where, ("num_nodes", "num_replicas", *MEASURED)),
        model=model,
    )


def _validations(name: str, files: Mapping[str, bytes], where: str) -> tuple[list[int], F8, int]:
    """Batch sizes, rows of (progress, iteration, squared norm, variance) by batch size and epoch, and the epochs."""
    prefix = f"{name}/validation-"
    validations = {
        int(file.removeprefix(prefix).removesuffix(".csv")): _columns(
            files, file, where, ("progress", "iteration", "grad_sqr", "grad_var")
        )
        for file in files
        if file.startswith(prefix) and file.removeprefix(prefix).removesuffix(".csv").isdigit()
    }
    if not validations:
        raise TraceError(f"application {name} has no validation-<batch size>.csv", file=where)
    shortest = min(len(table) for table in validations.values())
    epochs = EPOCHS.get(name, shortest)
    if not 0 < epochs <= shortest:
        raise TraceError(f"application {name}: a validation ends after {shortest} of {epochs} epochs", file=where)
    sizes = sorted(validations)
    return sizes, np.stack([validations[size][:epochs] for size in sizes]), epochs


def _placements(files: Mapping[str, bytes], file: str, where: str) -> dict[Placement, F8]:
    by_placement: dict[Placement, list[list[float]]] = {}
    for placement, *row in _columns(files, file, where, ("placement", *MEASURED)).tolist():
        by_placement.setdefault(tuple(int(digit) for digit in str(int(placement))), []).append(row)
    placements = {placement: np.array(sorted(rows)) for placement, rows in by_placement.items()}
    for placement, rows in placements.items():
        if len(rows) < 2 or not all(placement):
            raise TraceError(
                f"{file}: placement {''.join(map(str, placement))} needs a GPU on each node, and two local batch sizes",
                file=where,
            )
    return placements


def _columns(files: Mapping[str, bytes], file: str, where: str, columns: tuple[str, ...]) -> F8:
    if file not in files:
        raise TraceError(f"holds no {file}", file=where)
    found = []
    for line, row in enumerate(csv.DictReader(io.StringIO(files[file].decode("utf-8"))), start=2):
        try:
            numbers = [float(row[column]) for column in columns]
            if not all(math.isfinite(number) and number >= 0 for number in numbers):
                raise ValueError(f"{numbers} are not all finite and at least 0")
            found.append(numbers)
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(
                f"{file}: needs a number in each of {', '.join(columns)}: {error}", file=where, line=line
            ) from error
    if not found:
        raise TraceError(f"{file} has no rows", file=where)
    return np.array(found)
