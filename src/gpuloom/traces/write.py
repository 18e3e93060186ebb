"""Write a workload as gpuloom's own trace (docs/reference/traces.md), so that reading it gives the same jobs."""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.core.ran import Runs
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.workload import Labels, Workload
from gpuloom.files.source import Head
from gpuloom.files.table import out_of_bounds
from gpuloom.traces import own
from gpuloom.traces.runs import names_text, runs_text, together_text

ROWS = 1 << 15  # rows turned into text at once


def write_trace(workload: Workload, path: Path | str) -> None:
    """Write a trace by the suffix of `path`: .csv, .csv.gz or .parquet. An existing file is replaced.

    The file appears under its name only when it is complete. Not written: the workload's name, notes and
    line numbers. Floats are written so that they read back exactly.

    Raises:
        InputError: another suffix, or a workload that the format can't hold.
        MissingDependencyError: .parquet, and pyarrow is not installed.
        OSError: the file can't be written.
    """
    path = Path(path)
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise InputError(f"{path}: the file's name must end with .csv, .csv.gz or .parquet")
    columns = _columns(workload)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as file:
            if name.endswith(".parquet"):
                _write_parquet(columns, file, workload.cluster, _nodes(workload))
            elif name.endswith(".gz"):
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed:
                    _write_csv(columns, packed, workload.cluster, _nodes(workload))
            else:
                _write_csv(columns, file, workload.cluster, _nodes(workload))
        temporary.replace(path)
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def write_csv(workload: Workload, stream: IO[bytes]) -> None:
    """Write a trace as CSV to an open binary stream (standard output).

    Raises:
        InputError: a workload that the format can't hold.
    """
    _write_csv(_columns(workload), stream, workload.cluster, _nodes(workload))


Columns = dict[str, NDArray[np.generic] | Labels | tuple[str, ...]]


def _columns(workload: Workload) -> Columns:
    """The columns of the file by name, checked by the bounds that the reader applies."""
    columns: Columns = {}
    if workload.job_ids is not None:
        columns["job_id"] = workload.job_ids
    columns |= {name: getattr(workload, name) for name in own.REQUIRED}
    for name in (*own.WORDS, *own.INTS, *own.FLOATS):
        if getattr(workload, name) is not None:
            columns[name] = getattr(workload, name)
    if workload.stage_s is not None:
        columns |= {name: workload.stage_s[:, place] for place, name in enumerate(own.STAGES)}
    if workload.speeds is not None:
        columns |= {
            own.SPEED + model: workload.speeds.factor[:, place] for place, model in enumerate(workload.speeds.models)
        }
    if workload.scaling is not None:
        columns |= _scaling_columns(workload, workload.scaling)
    if workload.ran is not None:
        columns |= {name: getattr(workload.ran, name) for name in own.RAN}
        if workload.ran.runs is not None:
            columns |= _run_columns(workload.ran.runs)
    _check(workload, columns)
    return columns


def _scaling_columns(workload: Workload, scaling: Scaling) -> Columns:
    """Sizes of the jobs and their curves as text; a reference only where it isn't the curve's at the job's GPUs on
    one node."""
    texts = [own.curve_text(curve) for curve in scaling.curves]
    codes = np.where(scaling.curve == NO_CURVE, 0, scaling.curve + 1).astype(np.int32)
    reference = np.full(len(workload), np.nan)
    for job, (index, gpus) in enumerate(zip(scaling.curve.tolist(), workload.gpus.tolist(), strict=True)):
        if index != NO_CURVE and scaling.curves[index][gpus, 0] != scaling.reference[job]:
            reference[job] = scaling.reference[job]
    columns: Columns = {
        "min_gpus": scaling.min_gpus,
        "max_gpus": scaling.max_gpus,
        "replica_gpus": scaling.replica_gpus,
        own.CURVE: Labels(codes, ("", *texts)),
    }
    if not np.isnan(reference).all():
        columns[own.REFERENCE] = reference
    return columns


def _run_columns(runs: Runs) -> Columns:
    columns: Columns = {own.RUNS: Labels.of(map(runs_text, runs.runs))}
    if any(runs.together):
        columns[own.TOGETHER] = Labels.of(map(together_text, runs.together))
    return columns


def _nodes(workload: Workload) -> str:
    """The names of the cluster's nodes; '' if none are known, or so many that a reader would not look past them."""
    runs = None if workload.ran is None else workload.ran.runs
    text = "" if runs is None else names_text(runs.nodes)
    return text if len(text) < Head.SIZE // 2 else ""


def _check(workload: Workload, columns: Columns) -> None:
    where = f"workload {workload.name!r} can't be written"
    if not len(workload):
        raise InputError(f"{where}: it holds no jobs")
    ids = workload.job_ids
    if ids is not None and ("" in ids or len(set(ids)) < len(ids)):
        raise InputError(f"{where}: a job id is empty or used twice")
    known = {column.name: column for column in own.COLUMNS}
    for name, values in columns.items():
        column = known.get(name) or own.speed_column(name)
        if column is None or name != name.strip() or "\n" in name or "\r" in name:
            raise InputError(f"{where}: {name!r} can't be the name of a column")
        if isinstance(values, np.ndarray):
            bad = out_of_bounds(column, values.astype(np.float64))
            if column.empty is not None:
                bad &= ~np.isnan(values.astype(np.float64))
            if bad.any():
                row = int(bad.argmax())
                raise InputError(f"{where}: {name} of job {workload.job_id(row)} is {values[row]}")
        else:
            words = values.names if isinstance(values, Labels) else values
            wrong = next((word for word in words if "\0" in word or not _is_text(word)), None)
            if wrong is not None:
                raise InputError(f"{where}: {name} {wrong!r} is not text")


def _is_text(word: str) -> bool:
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _write_csv(columns: Columns, stream: IO[bytes] | gzip.GzipFile, cluster: str, nodes: str) -> None:
    text = io.TextIOWrapper(stream, encoding="utf-8", newline="", write_through=True)
    for what, said in ((own.CLUSTER, cluster), (own.NODES, nodes)):
        if said:
            text.write(f"{what}{said}\n")
    # csv of Python 3.11 leaves a carriage return unquoted, which a reader takes for the end of the row.
    words = (v.names if isinstance(v, Labels) else v for v in columns.values() if not isinstance(v, np.ndarray))
    quoting: Literal[0, 2] = csv.QUOTE_MINIMAL
    if any("\r" in word for column in words for word in column):
        quoting = csv.QUOTE_NONNUMERIC
    writer = csv.writer(text, lineterminator="\n", quoting=quoting)
    writer.writerow(columns)
    rows = len(columns["submit_s"])
    for start in range(0, rows, ROWS):
        chunk = slice(start, min(start + ROWS, rows))
        writer.writerows(zip(*(_cells(values, chunk) for values in columns.values()), strict=True))
    text.flush()
    text.detach()


def _cells(values: NDArray[np.generic] | Labels | tuple[str, ...], rows: slice) -> Iterable[object]:
    if isinstance(values, Labels):
        return [values.names[code] for code in values.codes[rows].tolist()]
    if isinstance(values, tuple):
        return values[rows]
    cells = values[rows].tolist()
    if values.dtype.kind == "f" and np.isnan(values[rows]).any():
        return ["" if cell != cell else cell for cell in cells]
    return list(cells)


def _write_parquet(columns: Columns, file: IO[bytes], cluster: str, nodes: str) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError("writing Parquet", "pyarrow", "parquet") from error
    arrays = {}
    for name, values in columns.items():
        if isinstance(values, Labels):
            names = pa.array(values.names, pa.string())
            arrays[name] = pa.DictionaryArray.from_arrays(pa.array(values.codes, pa.int32()), names)
        elif isinstance(values, tuple):
            arrays[name] = pa.array(values, pa.string())
        else:
            arrays[name] = pa.array(values)
    said = {key: value for key, value in ((own.KEY, cluster), (own.NODES_KEY, nodes)) if value}
    pq.write_table(pa.table(arrays, metadata=said or None), file)
