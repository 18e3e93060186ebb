"""Shockwave's traces: Gavel's columns with the mode of batch-size adaptation, and mostly a duration.

Source: github.com/uw-mad-dash/shockwave (NSDI '23). Tab separated, no header: 12 columns, or 11 without the
duration. Times in seconds. The throughputs (`tacc_…`, `wisr_throughputs.json`) give the speeds on other GPU
models; durations come from them only if the trace has none. The adaptation itself is not modelled.
"""

from __future__ import annotations

import numpy as np

from gpuloom.core.words import plural
from gpuloom.core.workload import Speeds
from gpuloom.facts.speeds import fill, unmeasured
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, Table, read_table
from gpuloom.traces.base import Reader
from gpuloom.traces.gavel import COLUMNS as GAVEL_COLUMNS
from gpuloom.traces.gavel import PHYSICAL
from gpuloom.traces.throughputs import Throughputs, find_throughputs, needs_throughputs

OLD = (*PHYSICAL[:7], "mode", *PHYSICAL[7:])
NAMES = (*OLD[:-1], "duration", "arrival_time")
FILES = ("tacc_throughputs.json", "wisr_throughputs.json")
COLUMNS = (*GAVEL_COLUMNS, Column("mode", "word"), Column("duration", minimum=0, optional=True))


def detect(head: Head) -> bool:
    return head.fields("\t") in (len(OLD), len(NAMES)) and "%s" in head.lines[0]


def read(source: Source, options: ReadOptions) -> Part:
    names = OLD if source.head.fields("\t") == len(OLD) else NAMES
    table = read_table(source, options, COLUMNS, names=names, delimiter="\t")
    known = find_throughputs(source, options, FILES)
    if known is None and "duration" not in table:
        raise needs_throughputs(source, FILES[0], "Shockwave")
    table.notes.append(f"{source.name}: batch-size adaptation (accordion, gns) is not modelled")
    speeds = None
    if known is not None:
        rates = known.steps_per_s(table.words["job_type"], table["scale_factor"])
        duration_s = table["duration"] if "duration" in table else _from_steps(table, known, rates[:, 0])
        speeds = _speeds(table, known, rates)
    else:
        duration_s = table["duration"]
    return table.part(
        table["arrival_time"],
        duration_s,
        table["scale_factor"],
        model=table.words["job_type"],
        weight=table["priority_weight"],
        speeds=speeds,
    )


def _from_steps(
    table: Table, known: Throughputs, rate: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    job_type = table.words["job_type"]
    table.reject(
        ~(rate > 0),
        "job_type",
        lambda row: (
            f"no throughput of {job_type[row]!r} on {table['scale_factor'][row]:g} "
            f"{known.reference} in {known.path.name}"
        ),
    )
    table.notes.append(
        f"{table.source.name}: durations are steps over the throughput on {known.reference} in {known.path}"
    )
    return table["total_steps"] / np.where(rate > 0, rate, 1.0)


def _speeds(table: Table, known: Throughputs, rates: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Speeds:
    """Speeds relative to the reference. A job that was not measured there is taken to run only there."""
    measured = rates[:, 0] > 0
    relative = rates / np.where(measured, rates[:, 0], 1.0)[:, None]
    relative[~measured] = 0.0
    relative[:, 0] = 1.0
    factor, estimated = fill(known.models, relative)
    if estimated.any():
        table.notes.append(f"{table.source.name}: {unmeasured(known.models, estimated)}")
    note = f"{table.source.name}: speeds relative to {known.reference} from {known.path}"
    unknown = int((~measured).sum())
    if unknown:
        note += f"; {plural(unknown, 'job')} not measured there: on {known.reference} only"
    table.notes.append(note)
    return Speeds(known.models, factor, estimated if estimated.any() else None)


READER = Reader("shockwave", "Shockwave (NSDI '23)", "Gavel's jobs with adaptive batch sizes.", detect, read)
