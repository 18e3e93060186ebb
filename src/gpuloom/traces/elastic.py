"""Jobs of a trace made elastic: sizes by a range that the user gives, speeds by the best source there is.

A job's curve is that of the trace; else that of its model in a folder of measured tables (ElasticFlow's format); else
Amdahl's law with the parallel share `PARALLEL`. Sizes beyond the fastest one are left out: a job is never made slower.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuloom.core.errors import InputError
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.words import plural
from gpuloom.core.workload import F8, Workload
from gpuloom.facts.scaling import elasticflow_curves

PARALLEL = 0.86
"""Speed on g GPUs is 1 / ((1 - f) + f / g): f fitted by least squares in logarithms to each of ElasticFlow's 26 tables
(A100 and T4, up to their fastest size) and the median taken; the middle half lies between 0.73 and 0.94."""
MOST_GPUS = 64
"""Where a default curve ends: nothing beyond was measured."""


@dataclass(frozen=True, slots=True)
class Range:
    """From `low` to `high`: GPUs, or, `relative`, times the GPUs that a job asks for."""

    low: float
    high: float
    relative: bool

    def of(self, gpus: int) -> tuple[int, int]:
        """Fewest and most GPUs of a job that asks for `gpus`; these are always among its sizes."""
        low, high = self.low, self.high
        if self.relative:
            low, high = math.ceil(gpus * low - 1e-9), math.floor(gpus * high + 1e-9)
        return max(min(int(low), gpus), 1), max(int(high), gpus)


def parse_range(text: str) -> Range:
    """'1-8': GPUs; '0.5x-4x': times what each job asks for.

    Raises:
        InputError: neither.
    """
    low, dash, high = text.strip().lower().partition("-")
    relative = low.endswith("x") and high.endswith("x")
    try:
        least, most = float(low.removesuffix("x")), float(high.removesuffix("x"))
    except ValueError:
        least = most = math.nan
    right = dash and low.endswith("x") == high.endswith("x") and math.isfinite(least) and math.isfinite(most)
    if not right or not 0 < least <= most or (not relative and (least % 1 or most % 1)):
        raise InputError(
            f"{text!r} is not a range of sizes: give two whole numbers of GPUs (1-8), or factors on what a job asks "
            f"for "
            "(0.5x-4x), the smaller one first"
        )
    return Range(least, most, relative)


def amdahl_curve(most_gpus: int, parallel: float = PARALLEL) -> F8:
    """Speed by GPUs, one GPU being 1: shape (most_gpus + 1, 1)."""
    gpus = np.arange(1, most_gpus + 1)
    return np.concatenate([[0.0], 1.0 / ((1.0 - parallel) + parallel / gpus)])[:, None]


def make_elastic(workload: Workload, sizes: Range, profiles: Path | None = None) -> Workload:
    """The workload with these sizes for every job, and a note on where the speeds are from.

    Jobs larger than what is known of their curve stay rigid.

    Args:
        profiles: a folder of measured tables, `<model>.csv`; of several batch sizes the middle one counts.

    Raises:
        InputError: the folder holds no such tables.
    """
    n = len(workload)
    curves: list[F8] = [] if workload.scaling is None else list(workload.scaling.curves)
    known = np.full(n, NO_CURVE) if workload.scaling is None else workload.scaling.curve
    curve = np.full(n, NO_CURVE, dtype=np.int32)
    reference = np.ones(n) if workload.scaling is None else workload.scaling.reference.copy()
    replica = np.ones(n, dtype=np.int32) if workload.scaling is None else workload.scaling.replica_gpus.copy()
    tables = {} if profiles is None else _by_model(elasticflow_curves(profiles))
    places: dict[str, int] = {}
    counts = {"trace": 0, "profiles": 0, "default": 0, "rigid": 0}
    default = NO_CURVE
    low, high = workload.gpus.copy(), workload.gpus.copy()
    for job, gpus in enumerate(workload.gpus.tolist()):
        name = "" if workload.model is None else workload.model[job].lower()
        source = "trace"
        if known[job] != NO_CURVE:
            index = int(known[job])
        elif name in tables:
            source = "profiles"
            index = places.setdefault(name, len(curves))
            if index == len(curves):
                curves.append(tables[name])
        else:
            source = "default"
            if default == NO_CURVE:
                default = len(curves)
                curves.append(amdahl_curve(MOST_GPUS))
            index = default
        table = curves[index]
        if gpus >= len(table) or not table[gpus, 0] > 0:
            counts["rigid"] += 1
            reference[job] = 1.0
            replica[job] = 1
            continue
        counts[source] += 1
        curve[job] = index
        if source != "trace":
            reference[job] = table[gpus, 0]
        step = int(replica[job])
        least, most = sizes.of(gpus)
        fastest = int(table.max(axis=1).argmax())
        low[job] = -(-least // step) * step
        high[job] = min(most, max(fastest, gpus)) // step * step
    scaling = Scaling(
        replica, (low // replica).astype(np.int32), (high // replica).astype(np.int32), curve, reference, tuple(curves)
    )
    return replace(workload, scaling=scaling, notes=(*workload.notes, _note(sizes, counts, profiles)))


def trimmed(workload: Workload) -> Workload:
    """The workload with each job's curve cut at its largest size: what gpuloom's own format stores."""
    scaling = workload.scaling
    if scaling is None:
        return workload
    places: dict[tuple[int, int], int] = {}
    curves: list[F8] = []
    curve = scaling.curve.copy()
    for job, most in enumerate(scaling.max_gpus.tolist()):
        index = int(curve[job])
        if index == NO_CURVE:
            continue
        place = places.setdefault((index, most), len(curves))
        if place == len(curves):
            curves.append(scaling.curves[index][: most + 1])
        curve[job] = place
    return replace(workload, scaling=replace(scaling, curve=curve, curves=tuple(curves)))


def _by_model(tables: Mapping[tuple[str, int], F8]) -> dict[str, F8]:
    batches: dict[str, list[int]] = {}
    for model, batch in tables:
        batches.setdefault(model, []).append(batch)
    return {model.lower(): tables[model, sorted(own)[len(own) // 2]] for model, own in batches.items()}


def _note(sizes: Range, counts: Mapping[str, int], profiles: Path | None) -> str:
    if sizes.relative:
        text = f"elastic: {sizes.low:.10g} to {sizes.high:.10g} times the GPUs that a job asks for"
    else:
        text = f"elastic: {sizes.low:,.10g} to {sizes.high:,.10g} GPUs"
    sources = {
        "trace": "speeds of the trace for",
        "profiles": f"of {profiles} for",
        "default": f"by Amdahl's law with a parallel share of {PARALLEL:g} for",
        "rigid": "larger than what is known, and rigid:",
    }
    told = [f"{sources[key]} {plural(count, 'job')}" for key, count in counts.items() if count]
    return f"{text}; {', '.join(told)}"
