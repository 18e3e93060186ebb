"""Measured speeds of pairs: jobs that share GPUs, by GPU model. Read from gpuloom's CSV or Gavel's throughputs.

CSV, a row per pair (docs/reference/data.md): `model_a, model_b, gpu_model, gpus, speed_a, speed_b`. Both jobs are of so
many GPUs (1 where the column is missing), and a speed is the share of its speed alone on that GPU model that the job
keeps beside the other. 0 for both: they do not fit together.

The JSON of Gavel's throughputs: `facts/gavel_rates.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from gpuloom.core.errors import EmptyTableError, InputError, TraceError
from gpuloom.core.pairs import NO_KIND, Kind, PairSpeeds, PairTable
from gpuloom.core.words import plural
from gpuloom.core.workload import Workload
from gpuloom.facts.gavel_rates import load_rates, speeds_of_pairs
from gpuloom.files.load import load
from gpuloom.files.source import ReadOptions, Source
from gpuloom.files.table import Column, raise_or_collect, read_table

MOST_SHARE = 1.25
"""Largest speed beside another job, relative to alone: more than noise is a mistake."""


def read_pairs(path: Path | str) -> PairTable:
    """Measured pairs of a file, CSV or Gavel's JSON (packed or not).

    Raises:
        InputError: no such file, or no pairs in it.
        TraceError: a row that can't be; names line, column and value.
    """
    if Path(path).is_dir():
        raise InputError(f"pairs file {path}: is a folder, must be a CSV file or Gavel's JSON")
    if str(path) != "-" and not Path(path).is_file():
        raise InputError(f"pairs file {path}: no such file")
    source = load(path)
    if source.data.lstrip()[:1] == b"{":
        table = PairTable(source.name, speeds_of_pairs(load_rates(source.data, source.name), source.name))
        if not table:
            raise InputError(f"{source.name}: holds no pairs, only speeds alone")
        return table
    return _csv(source)


def _csv(source: Source) -> PairTable:
    words = [Column(name, "text") for name in ("model_a", "model_b", "gpu_model")]
    gpus = Column("gpus", "whole", minimum=1, empty=1.0, optional=True)
    speeds = [Column(name, minimum=0) for name in ("speed_a", "speed_b")]
    try:
        table = read_table(source, ReadOptions(), [*words, gpus, *speeds], refuse_unknown=True)
    except EmptyTableError as error:
        raise InputError(f"{source.name}: holds no pairs") from error
    for name in ("speed_a", "speed_b"):
        table.reject(
            table[name] > MOST_SHARE,
            name,
            lambda row, name=name: (  # type: ignore[misc]
                f"{table[name][row]:g} is not a share of the speed alone (0 to 1): divide by the speed alone on the "
                "same GPU model"
            ),
        )
    table.reject(
        (table["speed_a"] == 0) != (table["speed_b"] == 0),
        None,
        lambda row: "one speed is 0, the other not; 0 means that they do not fit together: then both are 0",
    )
    share: dict[tuple[str, Kind, Kind], tuple[float, float]] = {}
    line_of: dict[tuple[str, Kind, Kind], int] = {}
    counts = table["gpus"] if "gpus" in table else np.ones(len(table))
    for row, line in enumerate(table.line.tolist()):
        if line in table.bad:
            continue
        each = int(counts[row])
        one, two = (table.texts["model_a"][row], each), (table.texts["model_b"][row], each)
        key = (table.texts["gpu_model"][row].upper(), one, two)
        before = line_of.get(key) or line_of.get((key[0], two, one))
        if before is not None:
            table.bad[line] = TraceError(
                f"this pair was told before, on line {before}", file=source.name, line=line, column="model_a"
            )
            continue
        line_of[key] = line
        share[key] = float(table["speed_a"][row]), float(table["speed_b"][row])
    raise_or_collect(table.bad, table.options)
    return PairTable(source.name, share)


def with_pairs(workload: Workload, table: PairTable) -> Workload:
    """The workload with what was measured of its jobs' models beside each other; as it is where that is nothing."""
    labels = workload.model
    if labels is None or not table:
        return workload
    rows = np.stack([labels.codes, workload.gpus], axis=1)
    distinct, place = np.unique(rows, axis=0, return_inverse=True)
    present = {(labels.names[code], gpus): row for row, (code, gpus) in enumerate(distinct.tolist())}
    entries = [(key, shares) for key, shares in table.share.items() if key[1] in present and key[2] in present]
    if not entries:
        return workload
    kinds = sorted({kind for (_, one, two), _ in entries for kind in (one, two)})
    number = {kind: index for index, kind in enumerate(kinds)}
    models = tuple(sorted({model for (model, _, _), _ in entries}))
    share = np.full((len(models), len(kinds), len(kinds)), np.nan)
    for (model, one, two), (mine, its) in entries:
        a, b, at = number[one], number[two], models.index(model)
        if a == b:
            share[at, a, a] = (mine + its) / 2
        else:
            share[at, a, b], share[at, b, a] = mine, its
    kind_of_row = np.full(len(distinct), NO_KIND, dtype=np.int32)
    for kind, index in number.items():
        kind_of_row[present[kind]] = index
    of_job = kind_of_row[place.reshape(-1)]
    pairs = PairSpeeds(of_job, models, tuple(kinds), share, table.source)
    note = (
        f"speeds of pairs from {table.source}: of {plural(len(kinds), 'kind')} of jobs, "
        f"{int((of_job != NO_KIND).sum()):,} of {plural(len(workload), 'job')}, on {', '.join(models)}"
    )
    return replace(workload, pairs=pairs, notes=(*workload.notes, note))
