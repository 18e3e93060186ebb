"""Pollux' workloads: applications with replicas and a batch size; durations are estimated from its profiles.

Source: github.com/petuum/adaptdl, branch osdi21-artifact (OSDI '21): `simulator/workloads*/workload-N.csv`
and `simulator/traces/<application>/` (here `profiles_traces.tar.gz`, or a folder of the same shape).

A job's duration is iterations · step time:
- iterations: the last `iteration` of `validation-<batch size>.csv`, for the profiled batch size next to the
  job's (in ratio), scaled by the ratio of the two;
- step time: of the job's replicas on the fewest nodes (`placements.csv`, above 16 replicas
  `scalability.csv`), linear between the profiled local batch sizes. A local batch larger than any profiled
  one is split into equal micro-batches that synchronise once.

A job can run on 1 to 64 GPUs at its batch size; its curve by GPUs and nodes comes from the same profiles
(`facts/scaling.py`), and its reference is the placement behind its duration: its replicas on the fewest nodes
(of 4 GPUs; above 16 replicas, the fewest that were profiled). Jobs of more replicas than 64, or than their batch has
samples, are rigid.

Sia's workloads (github.com/siasosp23/artifacts, SOSP '23) have the same columns; its profiles (`profiles.tar.gz`) are
by GPU model, `placements-MODEL.csv` and `scalability-MODEL.csv`. With them durations and curves are those of one
model, and each job has a speed on every other: the ratio of its step times at its replicas and batch size.
"""

from __future__ import annotations

import csv
import io
import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8, Labels, Speeds
from gpuloom.facts.scaling import MOST_GPUS, Curve, micro_step_s, pollux_curve, pollux_fit
from gpuloom.files.load import read_members
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader

PROFILES = "profiles_traces.tar.gz"
MODEL_PROFILES = "profiles.tar.gz"
"""Sia's, by GPU model."""
SOLD_AS = {"aws": "T4", "azure": "V100", "dgx-ext": "A100", "quad": "RTX6000", "rtx": "RTX-2080-TI"}
"""The GPU models behind the names of Sia's profiles."""
_REFERENCE = "aws"
COLUMNS = (
    Column("name", "text"),
    Column("time", minimum=0),
    Column("application", "word"),
    Column("num_replicas", "whole", minimum=1),
    Column("batch_size", "whole", minimum=1),
)


@dataclass(frozen=True, slots=True)
class Profile:
    """One application. `iterations`: by batch size. `steps`: by (replicas, nodes), rows of local batch size,
    seconds per step, and seconds of the step spent synchronising."""

    iterations: dict[int, int]
    steps: dict[tuple[int, int], NDArray[np.float64]]

    def step_s(self, replicas: int, batch_size: int) -> tuple[float, float]:
        """Seconds per iteration, and the ratio of iterations to those of the profiled batch size."""
        count = min({key[0] for key in self.steps}, key=lambda n: (abs(math.log(n / replicas)), n))
        nodes = min(key[1] for key in self.steps if key[0] == count)
        seconds = micro_step_s(self.steps[count, nodes], batch_size / replicas)
        nearest = min(self.iterations, key=lambda size: (abs(math.log(size / batch_size)), size))
        return seconds, self.iterations[nearest] * nearest / batch_size


def detect(head: Head) -> bool:
    return head.has(*(column.name for column in COLUMNS))


def read(source: Source, options: ReadOptions) -> Part:
    table = read_table(source, options, COLUMNS)
    table.unique("name")
    where = _find(source, options)
    by_model = load_profiles_by_model(where, options.gpu_model)
    reference, profiles = next(iter(by_model.items()))
    application = table.words["application"]
    known = np.asarray([name in profiles for name in application.names], dtype=bool)
    table.reject(
        ~known[application.codes],
        "application",
        lambda row: (
            f"application is {application[row]!r}, must be one of {', '.join(sorted(profiles))} "
            f"(the profiles of {where})"
        ),
    )
    iteration_s, iterations = _estimate(profiles, application, table["num_replicas"], table["batch_size"])
    table.notes.append(
        f"{source.name}: durations are estimates, iterations × step time of the profiles in {where} "
        "at the submitted replicas and batch size" + (f", on {reference}" if reference else "")
    )
    return table.part(
        table["time"],
        iterations * iteration_s,
        table["num_replicas"],
        job_ids=table.texts["name"],
        model=application,
        iteration_s=iteration_s,
        scaling=_scaling(profiles, application, table["num_replicas"], table["batch_size"]),
        speeds=_speeds(by_model, application, table["num_replicas"], table["batch_size"]) if reference else None,
    )


def _estimate(profiles: dict[str, Profile], application: Labels, replicas: F8, batch: F8) -> tuple[F8, F8]:
    """Seconds per iteration and number of iterations of every job; 1 and 0 for rows that are bad."""
    seconds, iterations = np.ones(len(application)), np.zeros(len(application))
    cache: dict[tuple[int, float, float], tuple[float, float]] = {}
    for row, key in enumerate(zip(application.codes.tolist(), replicas.tolist(), batch.tolist(), strict=True)):
        profile = profiles.get(application.names[key[0]])
        if profile is None or math.isnan(key[1]) or math.isnan(key[2]):
            continue
        if key not in cache:
            cache[key] = profile.step_s(int(key[1]), int(key[2]))
        seconds[row], iterations[row] = cache[key]
    return seconds, iterations


def _speeds(by_model: dict[str, dict[str, Profile]], application: Labels, replicas: F8, batch: F8) -> Speeds:
    """How much faster than on the first model every job is on each, at its replicas and batch size."""
    seconds = [_estimate(profiles, application, replicas, batch)[0] for profiles in by_model.values()]
    factor = np.column_stack([seconds[0] / others for others in seconds])
    models = list(by_model)
    for column, name in enumerate(by_model):
        if name in SOLD_AS and SOLD_AS[name] not in models:
            models.append(SOLD_AS[name])
            factor = np.column_stack([factor, factor[:, column]])
    return Speeds(tuple(models), factor)


MOST_NODES = 16
"""Pollux' cluster; profiles were taken on up to as many."""
_NODE_GPUS = 4


def _scaling(profiles: dict[str, Profile], application: Labels, replicas: F8, batch: F8) -> Scaling:
    """Sizes and curves of every job; rows that are bad are rigid."""
    n = len(application)
    sizes = np.nan_to_num(replicas, nan=1.0).clip(1, np.iinfo(np.int32).max).astype(np.int32)
    least, most = sizes.copy(), sizes.copy()
    curve, reference = np.full(n, NO_CURVE, dtype=np.int32), np.ones(n)
    fits = {name: pollux_fit(profiles[name]) for name in application.names if name in profiles}
    made: dict[tuple[str, int], tuple[int, Curve]] = {}
    for row, (code, gpus, samples) in enumerate(zip(application.codes.tolist(), sizes.tolist(), batch, strict=True)):
        name = application.names[code]
        if name not in fits or not gpus <= samples or gpus > MOST_GPUS:  # samples may be NaN: a bad row
            continue
        key = name, int(samples)
        if key not in made:
            made[key] = len(made), pollux_curve(profiles[name], key[1], min(MOST_GPUS, key[1]), MOST_NODES, fits[name])
        curve[row], found = made[key]
        least[row], most[row] = 1, len(found.throughput) - 1
        reference[row] = found.throughput[gpus, _reference_nodes(profiles[name], gpus) - 1]
    curves = tuple(found.throughput for _, found in made.values())
    return Scaling(np.ones(n, dtype=np.int32), least, most, curve, reference, curves)


def _reference_nodes(profile: Profile, gpus: int) -> int:
    """Nodes of the placement that a job's duration was estimated for."""
    measured = [nodes for count, nodes in profile.steps if count == gpus and nodes <= MOST_NODES]
    return min(measured, default=min(math.ceil(gpus / _NODE_GPUS), MOST_NODES))


def _find(source: Source, options: ReadOptions) -> Path:
    if options.throughputs is not None:
        return options.throughputs
    if (found := profiles_beside(source)) is not None:
        return found
    raise TraceError(
        f"gives no durations: pass the applications' profiles with --throughputs FILE ({PROFILES} of the "
        "Pollux artifact, or the folder extracted from it; also looked for beside the trace)",
        file=source.name,
    )


def profiles_beside(source: Source) -> Path | None:
    """Profiles of the applications in the folders of a workload."""
    for folder in source.companions():
        for name in (PROFILES, MODEL_PROFILES):
            if (folder / name).is_file():
                return folder / name
        if any(folder.glob("*/placements*.csv")):
            return folder
    return None


_PLACEMENTS = re.compile(r"/placements(-[^/]+)?\.csv$")


def profile_files(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """The files `<application>/<name>.csv` of the archive, or of a folder extracted from it, and the applications.

    Raises:
        TraceError: nothing of the expected shape there.
    """
    if path.is_dir():
        found = sorted(path.glob("*/*.csv")) or sorted(path.glob("traces/*/*.csv"))
        files = {f"{p.parent.name}/{p.name}": p.read_bytes() for p in found}
    else:
        files = {"/".join(Path(name).parts[-2:]): data for name, data in read_members(path).items()}
    names = sorted({name.split("/")[0] for name in files if _PLACEMENTS.search(name)})
    if not names:
        raise TraceError("holds no <application>/placements.csv (or placements-<GPU model>.csv)", file=str(path))
    return files, names


def load_profiles(path: Path) -> dict[str, Profile]:
    """The profiles by application, from the archive or a folder.

    Raises:
        TraceError: nothing of the expected shape there.
    """
    files, names = profile_files(path)
    try:
        return {name: _profile(name, files) for name in names}
    except (KeyError, ValueError, IndexError) as error:
        raise _unreadable(path, error) from error


def load_profiles_by_model(path: Path, reference: str | None = None) -> dict[str, dict[str, Profile]]:
    """Profiles by GPU model and application, the reference first; of profiles without models under the name ''.

    Args:
        reference: a model of the profiles, or what it is sold as (default: `aws`, which Pollux measured too, else the
            first by name).

    Raises:
        TraceError: nothing of the expected shape there; InputError: nothing was measured on the reference.
    """
    files, names = profile_files(path)
    models = sorted({found[1][1:] for file in files if (found := _PLACEMENTS.search(file)) and found[1]})
    models = [model for model in models if all(f"{name}/placements-{model}.csv" in files for name in names)]
    if not models:
        return {"": load_profiles(path)}
    chosen = reference or (_REFERENCE if _REFERENCE in models else models[0])
    if chosen not in models:
        sold = [model for model in models if SOLD_AS.get(model, "").lower() == chosen.lower()]
        if not sold:
            raise InputError(f"{path}: nothing was measured on GPU model {chosen!r}, only on {', '.join(models)}")
        chosen = sold[0]
    models.remove(chosen)
    try:
        return {model: {name: _profile(name, files, model) for name in names} for model in (chosen, *models)}
    except (KeyError, ValueError, IndexError) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> TraceError:
    return TraceError(f"can't be read as profiles of Pollux: {type(error).__name__}: {error}", file=str(path))


def _profile(name: str, files: dict[str, bytes], model: str = "") -> Profile:
    iterations: dict[int, int] = {}
    rows: dict[tuple[int, int, int, str], list[tuple[float, float, float]]] = {}
    for file, data in files.items():
        folder, _, base = file.partition("/")
        if folder == name and base.startswith("validation-"):
            size = int(base.removeprefix("validation-").removesuffix(".csv"))
            iterations[size] = int(_rows(data)[-1]["iteration"])
    suffix = f"-{model}" if model else ""
    for row in _rows(files[f"{name}/placements{suffix}.csv"]):
        digits = [int(digit) for digit in row["placement"]]
        # Of the placements on as few nodes, the one with the most replicas on one node comes first.
        rank = (sum_ints(digits), len(digits), -max(digits), row["placement"])
        rows.setdefault(rank, []).append(_step(row))
    for row in _rows(files.get(f"{name}/scalability{suffix}.csv", b"")):
        rank = (int(float(row["num_replicas"])), int(float(row["num_nodes"])), 0, "")
        rows.setdefault(rank, []).append(_step(row))
    steps: dict[tuple[int, int], NDArray[np.float64]] = {}
    for rank in sorted(rows):
        steps.setdefault(rank[:2], np.asarray(sorted(rows[rank])))
    if not iterations:
        raise KeyError(f"{name}/validation-*.csv")
    return Profile(iterations, steps)


def _step(row: dict[str, str]) -> tuple[float, float, float]:
    return float(row["local_bsz"]), float(row["step_time"]), float(row["sync_time"])


def _rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode("utf-8"))))


READER = Reader("pollux", "Pollux (OSDI '21)", "Applications; durations from its profiles.", detect, read)
