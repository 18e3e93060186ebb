"""Gavel's traces: job types with a number of steps, tab separated, without a header.

Source: github.com/stanford-futuredata/gavel (OSDI '20), `scheduler/traces`: 10 columns (`physical_cluster`)
and the older 7 columns (`msr`). Submission in seconds. A job's duration is its steps over the measured
throughput of its job type and GPU count, alone, on the reference GPU model (V100 unless chosen).
"""

from __future__ import annotations

import numpy as np

from gpuloom.core.workload import Speeds
from gpuloom.facts.speeds import fill, unmeasured
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader
from gpuloom.traces.throughputs import find_throughputs, needs_throughputs

PHYSICAL = (
    "job_type",
    "command",
    "directory",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "scale_factor",
    "priority_weight",
    "slo",
    "arrival_time",
)
MSR = (
    "job_type",
    "command",
    "num_steps_arg",
    "needs_data_dir",
    "total_steps",
    "arrival_time",
    "scale_factor",
)
FILES = ("simulation_throughputs.json", "physical_cluster_throughputs.json")
COLUMNS = (
    Column("job_type", "word"),
    Column("total_steps", minimum=0),
    Column("scale_factor", "whole", minimum=1),
    Column("priority_weight", above=0, optional=True),
    Column("arrival_time", minimum=0),
)


def detect(head: Head) -> bool:
    return head.fields("\t") in (len(PHYSICAL), len(MSR)) and "%s" in head.lines[0]


def read(source: Source, options: ReadOptions) -> Part:
    names = MSR if source.head.fields("\t") == len(MSR) else PHYSICAL
    table = read_table(source, options, COLUMNS, names=names, delimiter="\t")
    known = find_throughputs(source, options, FILES)
    if known is None:
        raise needs_throughputs(source, FILES[0], "Gavel")
    job_type, gpus = table.words["job_type"], table["scale_factor"]
    rates = known.steps_per_s(job_type, gpus)
    on_reference = rates[:, 0]
    table.reject(
        np.isnan(on_reference),
        "job_type",
        lambda row: f"no throughput of {job_type[row]!r} on {gpus[row]:g} {known.reference} in {known.path.name}",
    )
    table.reject(
        on_reference == 0,
        "job_type",
        lambda row: (
            f"{job_type[row]!r} does not fit {gpus[row]:g} {known.reference} "
            f"(throughput 0 in {known.path.name}): choose another model with --gpu-model"
        ),
    )
    fits = np.where(on_reference > 0, on_reference, 1.0)
    table.notes.append(f"{source.name}: durations are steps over the throughput on {known.reference} in {known.path}")
    factor, estimated = fill(known.models, rates / fits[:, None])
    if estimated.any():
        table.notes.append(f"{source.name}: {unmeasured(known.models, estimated)}")
    part = table.part(
        table["arrival_time"],
        table["total_steps"] / fits,
        gpus,
        model=job_type,
        weight=table.numbers.get("priority_weight"),
        iteration_s=1.0 / fits,
        speeds=Speeds(known.models, factor, estimated if estimated.any() else None),
    )
    part.pairs = known.pairs
    return part


READER = Reader("gavel", "Gavel (OSDI '20)", "Steps by job type; needs throughputs.", detect, read)
