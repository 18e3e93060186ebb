"""gpuloom's own trace: one header line, one job a line, columns in any order; the same columns in Parquet.

Specified in docs/reference/traces.md. Seconds throughout. Lines that begin with '#' before the header are comments.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gpuloom.core.errors import MissingDependencyError, TraceError
from gpuloom.core.kernel_load import profile_and_load
from gpuloom.core.ran import Runs
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.share_class import CLASSES
from gpuloom.core.words import are
from gpuloom.core.workload import F8, Labels, Ran, Speeds
from gpuloom.facts.speeds import fill, unmeasured
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, Table, check_numbers, match_columns, read_table
from gpuloom.traces.base import Reader
from gpuloom.traces.runs import names_of, runs_of, together_of

Parsed = TypeVar("Parsed")

SPEED = "speed:"
STAGES = ("load_s", "compute_s", "network_s")
REQUIRED = ("submit_s", "duration_s", "gpus")
WORDS = ("model", "user", "group", "gpu_type", "share_class", "kernel_profile")
FLOATS = ("weight", "restart_overhead_s", "estimate_s", "gpu_memory_mib", "iteration_s")
INTS = ("gpu_milli", "priority")
SIZES = ("min_gpus", "max_gpus", "replica_gpus")
RAN = ("start_s", "end_s", "held_s", "starts")
RUNS, TOGETHER = "runs", "together"
CLUSTER = "# cluster: "
"""A comment before the header that says on which cluster the trace was taken."""
NODES = "# nodes: "
"""Another one with the names of its nodes."""
KEY, NODES_KEY = "gpuloom.cluster", "gpuloom.nodes"
"""The same in the metadata of a Parquet file."""
CURVE, REFERENCE = "scaling", "scaling_reference"
COLUMNS = (
    Column("submit_s", minimum=0),
    Column("duration_s", minimum=0),
    Column("gpus", "whole", minimum=1),
    Column("job_id", "text", optional=True),
    *(Column(name, "word", empty="", optional=True) for name in WORDS),
    Column("gpu_milli", "whole", minimum=1, maximum=1000, optional=True),
    Column("priority", "whole", minimum=0, optional=True),
    Column("weight", above=0, optional=True),
    Column("restart_overhead_s", minimum=0, empty=math.nan, optional=True),
    Column("estimate_s", minimum=0, empty=math.nan, optional=True),
    Column("gpu_memory_mib", above=0, empty=math.nan, optional=True),
    Column("iteration_s", minimum=0, empty=math.nan, optional=True),
    *(Column(name, minimum=0, empty=math.nan, optional=True) for name in STAGES),
    *(Column(name, "whole", minimum=1, empty=math.nan, optional=True) for name in SIZES),
    Column("start_s", minimum=0, optional=True),
    Column("end_s", minimum=0, optional=True),
    Column("held_s", minimum=0, optional=True),
    Column("starts", "whole", minimum=1, optional=True),
    Column(RUNS, "word", empty="", optional=True),
    Column(TOGETHER, "word", empty="", optional=True),
    Column(CURVE, "word", empty="", optional=True),
    Column(REFERENCE, above=0, empty=math.nan, optional=True),
)
PARQUET = b"PAR1"


def speed_column(name: str) -> Column | None:
    """The column `speed:<GPU model>`, of any model; what is empty is estimated."""
    return Column(name, minimum=0, empty=math.nan) if name.startswith(SPEED) and len(name) > len(SPEED) else None


def detect(head: Head) -> bool:
    return head.start.startswith(PARQUET) or head.has(*REQUIRED)


def read(source: Source, options: ReadOptions) -> Part:
    if source.data.startswith(PARQUET):
        table = _parquet(source, options)
    else:
        table = read_table(source, options, COLUMNS, exact=True, refuse_unknown=True, extra=speed_column)
    if "job_id" in table:
        table.unique("job_id")
    stages = [name for name in STAGES if name in table]
    if stages and len(stages) < len(STAGES):
        missing = ", ".join(name for name in STAGES if name not in table)
        raise TraceError(f"the header has {', '.join(stages)} but lacks {missing}", file=source.name)
    if stages:
        unknown = np.isnan(np.stack([table[name] for name in STAGES], axis=1)).sum(axis=1)
        table.reject(
            (unknown > 0) & (unknown < len(STAGES)),
            next(iter(STAGES)),
            lambda row: f"of {', '.join(STAGES)} some are empty: give all three or none",
        )
    if "share_class" in table:
        classes = table.words["share_class"]
        wrong = [code for code, name in enumerate(classes.names) if name not in ("", *CLASSES)]
        table.reject(
            np.isin(classes.codes, wrong),
            "share_class",
            lambda row: f"share_class is {classes[row]!r}, must be {' or '.join(CLASSES)}, or empty",
        )
    if "kernel_profile" in table:
        _parsed(table, "kernel_profile", table.words["kernel_profile"], profile_and_load)
    models = tuple(name.removeprefix(SPEED) for name in table.numbers if name.startswith(SPEED))
    first = {model.lower(): model for model in reversed(models)}
    for model in models:
        if (other := first[model.lower()]) != model:
            raise TraceError(f"the header has {SPEED}{other} and {SPEED}{model}, one GPU model", file=source.name)
    columns: dict[str, Any] = {name: table.words[name] for name in WORDS if name in table}
    columns |= {name: table[name] for name in FLOATS if name in table}
    columns |= {name: table.ints(name) for name in INTS if name in table}
    if models:
        factor, estimated = fill(models, np.stack([table[SPEED + model] for model in models], axis=1))
        if estimated.any():
            table.notes.append(f"{source.name}: {unmeasured(models, estimated)}")
        columns["speeds"] = Speeds(models, factor, estimated if estimated.any() else None)
    if CURVE in table or any(name in table for name in SIZES):
        columns["scaling"] = _scaling(table)
    there = [name for name in RAN if name in table]
    if there and len(there) < len(RAN):
        missing = ", ".join(name for name in RAN if name not in table)
        raise TraceError(f"the header has {', '.join(there)} but lacks {missing}", file=source.name)
    if there:
        table.reject(
            (table["start_s"] < table["submit_s"]) | (table["end_s"] < table["start_s"]),
            "start_s",
            lambda row: "submit_s, start_s and end_s must follow each other",
        )
        runs = _runs(table, source)
        columns["ran"] = Ran(table["start_s"], table["end_s"], table["held_s"], table.ints("starts"), runs)
    elif RUNS in table or TOGETHER in table:
        raise TraceError(f"the header has {RUNS} or {TOGETHER} but lacks {', '.join(RAN)}", file=source.name)
    part = table.part(
        table["submit_s"],
        table["duration_s"],
        table["gpus"],
        job_ids=table.texts.get("job_id"),
        stage_s=np.stack([table[name] for name in STAGES], axis=1) if stages else None,
        **columns,
    )
    part.cluster = table.cluster or _said(source, CLUSTER)
    return part


def _said(source: Source, what: str) -> str:
    """What a comment before the header says that begins like this; '' if there is none."""
    if source.data.startswith(PARQUET):
        return ""
    for line in source.data[: Head.SIZE].splitlines():
        if line.strip() and not line.startswith(b"#"):
            break
        if line.startswith(what.encode()):
            return line.removeprefix(what.encode()).decode("utf-8", "replace").strip()
    return ""


def _runs(table: Table, source: Source) -> Runs | None:
    """Runs and times together of all rows; None if the file does not say. Bad rows are rejected."""
    if RUNS not in table:
        if TOGETHER in table:
            raise TraceError(f"the header has {TOGETHER} but lacks {RUNS}", file=source.name)
        return None
    empty = Labels(np.zeros(len(table), dtype=np.int32), ("",))
    runs = _parsed(table, RUNS, table.words[RUNS], runs_of)
    together = _parsed(table, TOGETHER, table.words.get(TOGETHER, empty), together_of)
    return Runs(runs, together, names_of(table.nodes or _said(source, NODES)))


def _parsed(
    table: Table, column: str, words: Labels, parse: Callable[[str], tuple[Parsed, ...]]
) -> tuple[tuple[Parsed, ...], ...]:
    """A column of texts, each parsed once."""
    found: list[tuple[Parsed, ...]] = []
    wrong: dict[int, str] = {}
    for code, text in enumerate(words.names):
        try:
            found.append(parse(text))
        except ValueError as error:
            found.append(())
            wrong[code] = str(error)
    table.reject(np.isin(words.codes, list(wrong)), column, lambda row: wrong[int(words.codes[row])])
    return tuple(found[code] for code in words.codes.tolist())


def curve_text(curve: F8) -> str:
    """A throughput curve as text: `1:1/2:1.9/4:3.5|3.1`, GPUs, a colon, and values by nodes from one node on. GPUs
    on which jobs can't run are left out, and so are nodes from which on nothing changes."""
    points = []
    for gpus in range(1, len(curve)):
        values = curve[gpus].tolist()
        while len(values) > 1 and values[-1] == values[-2]:
            values.pop()
        if values[0] > 0:
            points.append(f"{gpus}:{'|'.join(map(repr, values))}")
    return "/".join(points)


def curve_of(text: str) -> F8:
    """The curve of such a text.

    Raises:
        ValueError: says what is wrong.
    """
    rows: dict[int, list[float]] = {}
    for point in text.split("/"):
        gpus, colon, values = point.partition(":")
        try:
            size, speeds = int(gpus), [float(value) for value in values.split("|")]
        except ValueError:
            size, speeds = 0, []
        if not colon or not 1 <= size <= _MOST_GPUS or not all(math.isfinite(x) and x > 0 for x in speeds):
            raise ValueError(
                f"{point!r} must be GPUs, a colon and throughputs above 0, by nodes with '|' between: 4:3.5 or 4:3.5|3"
            )
        if size in rows:
            raise ValueError(f"{are(size, 'GPU')} given twice")
        rows[size] = speeds
    width = max(map(len, rows.values()))
    curve = np.zeros((max(rows) + 1, width))
    for size, speeds in rows.items():
        curve[size] = [*speeds, *[speeds[-1]] * (width - len(speeds))]
    return curve


_MOST_GPUS = 1 << 16
"""A longer curve is a typing error, and would take much memory."""


def _scaling(table: Table) -> Scaling:
    """Sizes and curves of all rows. Bad rows are rejected, and rigid in the result."""
    n = len(table)
    gpus = np.nan_to_num(table["gpus"], nan=1.0).astype(np.int64)
    given = {name: table[name] if name in table else np.full(n, np.nan) for name in SIZES}
    step = np.where(np.isnan(given["replica_gpus"]), 1, given["replica_gpus"]).astype(np.int64)
    low = np.where(np.isnan(given["min_gpus"]), gpus, given["min_gpus"]).astype(np.int64)
    high = np.where(np.isnan(given["max_gpus"]), gpus, given["max_gpus"]).astype(np.int64)
    words = table.words.get(CURVE, Labels(np.zeros(n, dtype=np.int32), ("",)))
    curves: list[F8] = []
    place = np.full(len(words.names), NO_CURVE)
    wrong: dict[int, str] = {}
    for code, name in enumerate(words.names):
        if not name.strip():
            continue
        try:
            curves.append(curve_of(name))
        except ValueError as error:
            wrong[code] = str(error)
        else:
            place[code] = len(curves) - 1
    table.reject(np.isin(words.codes, list(wrong)), CURVE, lambda row: wrong[int(words.codes[row])])
    curve = place[words.codes]
    given_reference = table[REFERENCE] if REFERENCE in table else np.full(n, np.nan)
    reference = np.ones(n)
    reasons: dict[int, str] = {}
    for row in range(n):
        index, size = int(curve[row]), int(gpus[row])
        why = None
        if low[row] > high[row] or low[row] % step[row] or high[row] % step[row]:
            why = "min_gpus and max_gpus must be multiples of replica_gpus, and min_gpus not above max_gpus"
        elif not low[row] <= size <= high[row] or size % step[row]:
            why = f"gpus ({size}) must lie between min_gpus and max_gpus, and be a multiple of replica_gpus"
        elif index == NO_CURVE:
            if low[row] < high[row]:
                why = "a job of several sizes needs its throughputs in 'scaling'"
        elif high[row] >= len(curves[index]):
            why = f"max_gpus is {high[row]}, but 'scaling' ends at {len(curves[index]) - 1} GPUs"
        elif not curves[index][size, 0] > 0:
            why = f"'scaling' has no throughput for the {size} GPUs of the job"
        else:
            known = given_reference[row]
            reference[row] = curves[index][size, 0] if np.isnan(known) else known
        if why is not None:
            reasons[row] = why
            step[row], low[row], high[row], curve[row] = 1, size, size, NO_CURVE
    bad = np.zeros(n, dtype=bool)
    bad[list(reasons)] = True
    table.reject(bad, next((name for name in (*SIZES, CURVE) if name in table), None), lambda row: reasons[row])
    return Scaling(
        step.astype(np.int32),
        (low // step).astype(np.int32),
        (high // step).astype(np.int32),
        curve.astype(np.int32),
        reference,
        tuple(curves),
    )


def _parquet(source: Source, options: ReadOptions) -> Table:
    """The table of a Parquet file. Rows are counted from 1; errors name the row as the line."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise MissingDependencyError("reading Parquet", "pyarrow", "parquet") from error
    try:
        data = pq.read_table(io.BytesIO(source.data))
    except (pa.ArrowException, OSError) as error:
        raise TraceError(f"is not a readable Parquet file: {error}", file=source.name) from error
    columns, _ = match_columns(source, data.column_names, COLUMNS, True, speed_column)
    if not data.num_rows:
        raise TraceError("holds no jobs, only column names", file=source.name)
    line = np.arange(1, data.num_rows + 1, dtype=np.int32)
    table = Table(source, options, line, {}, {}, {}, {})
    said = data.schema.metadata or {}
    table.cluster, table.nodes = (said.get(key.encode(), b"").decode("utf-8", "replace") for key in (KEY, NODES_KEY))
    for column in columns:
        values = data.column(column.name)
        if column.kind in ("word", "text"):
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                raise TraceError(f"has type {values.type}, must be text", file=source.name, column=column.name)
            texts = ["" if value is None else value for value in values.to_pylist()]
            if column.kind == "word":
                table.words[column.name] = Labels.of(texts)
            else:
                table.texts[column.name] = texts
                empty = np.asarray([not text for text in texts], dtype=bool)
                table.reject(empty, column.name, lambda row, name=column.name: f"{name} is empty")  # type: ignore[misc]
            continue
        if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            raise TraceError(f"has type {values.type}, must be a number", file=source.name, column=column.name)
        array = values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        table.numbers[column.name] = array
        missing = np.isnan(array) if column.empty is not None else np.zeros(len(array), dtype=bool)
        check_numbers(table, column, missing=missing)
    return table


READER = Reader(
    "gpuloom", "gpuloom's own CSV or Parquet", "The format of write_trace.", detect, read, throughputs=False
)
