"""ElasticFlow's traces, in seconds, in the two headers that were published.

Sources: github.com/gudiandian/ElasticFlow-artifact (`submit_time`, `ddl`) and
github.com/microsoft/elasticflow-traces (`submission_time`, `deadline`). Deadlines are not read.

Where throughputs lie beside the trace (`throughputs_A100`, else `throughputs_T4`; or `--throughputs FOLDER`), jobs
whose model, batch size and GPUs were measured can run on 1 GPU up to the number on which they are fastest; others are
rigid.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.words import plural
from gpuloom.core.workload import F8, Labels
from gpuloom.facts.scaling import elasticflow_curves
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, read_table
from gpuloom.traces.base import Reader


def detect(head: Head) -> bool:
    common = head.has("job_id", "model_name", "batch_size", "num_gpu", "duration")
    return common and (head.has("submit_time", "ddl") or head.has("submission_time", "deadline"))


def read(source: Source, options: ReadOptions) -> Part:
    submit = "submission_time" if source.head.has("submission_time") else "submit_time"
    table = read_table(
        source,
        options,
        (
            Column("job_id", "text"),
            Column(submit, minimum=0),
            Column("model_name", "word"),
            Column("batch_size", "word", empty=""),
            Column("num_gpu", "whole", minimum=1),
            Column("duration", minimum=0),
        ),
    )
    table.unique("job_id")
    if source.head.has("ddl") or source.head.has("deadline"):
        table.notes.append(f"{source.name}: deadlines are not read")
    folder = _find(source, options)
    scaling = None
    if folder is not None:
        scaling = _scaling(folder, source, table.words["model_name"], table.words["batch_size"], table["num_gpu"])
        known = int((scaling.curve != NO_CURVE).sum())
        table.notes.append(f"{source.name}: speeds by number of GPUs from {folder} for {plural(known, 'job')}")
    return table.part(
        table[submit],
        table["duration"],
        table["num_gpu"],
        job_ids=table.texts["job_id"],
        model=table.words["model_name"],
        scaling=scaling,
    )


def _find(source: Source, options: ReadOptions) -> Path | None:
    if options.throughputs is not None:
        if not options.throughputs.is_dir():
            raise InputError(
                f"{options.throughputs}: is not a folder; ElasticFlow's throughputs are a folder of CSV files"
            )
        return options.throughputs
    found = [folder / name for folder in source.companions() for name in ("throughputs_A100", "throughputs_T4")]
    return next((folder for folder in found if folder.is_dir()), None)


def _scaling(folder: Path, source: Source, model: Labels, batch: Labels, gpus: F8) -> Scaling:
    try:
        tables = elasticflow_curves(folder)
    except InputError as error:
        raise TraceError(f"its throughputs can't be read: {error}", file=source.name) from error
    places = {(name, str(samples)): place for place, (name, samples) in enumerate(tables)}
    curves = tuple(tables.values())
    n = len(model)
    sizes = np.nan_to_num(gpus, nan=1.0).clip(1, np.iinfo(np.int32).max).astype(np.int32)
    least, most = sizes.copy(), sizes.copy()
    curve, reference = np.full(n, NO_CURVE, dtype=np.int32), np.ones(n)
    for row, size in enumerate(sizes.tolist()):
        place = places.get((model[row], batch[row]))
        if place is None or size >= len(curves[place]) or not curves[place][size, 0] > 0:
            continue
        curve[row], reference[row] = place, curves[place][size, 0]
        able = np.flatnonzero(curves[place][:, 0] > 0)
        least[row], most[row] = min(int(able[0]), size), max(int(curves[place][:, 0].argmax()), size)
    return Scaling(np.ones(n, dtype=np.int32), least, most, curve, reference, curves)


READER = Reader(
    "elasticflow",
    "ElasticFlow (ASPLOS '23)",
    "Jobs with models, elastic with the throughputs beside them; no deadlines.",
    detect,
    read,
)
