"""gpuloom's own trace: one header line, one job a line, columns in any order; the same columns in Parquet.

Specified in docs/traces.md. Seconds throughout. Lines that begin with '#' before the header are comments.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from gpuloom.core.errors import MissingDependencyError, TraceError
from gpuloom.core.workload import Labels, Speeds
from gpuloom.sim.traces.base import Head, Part, Reader, ReadOptions, Source
from gpuloom.sim.traces.table import Column, Table, check_numbers, match_columns, read_table

SPEED = "speed:"
STAGES = ("load_s", "compute_s", "network_s")
REQUIRED = ("submit_s", "duration_s", "gpus")
WORDS = ("model", "user", "group", "gpu_type")
FLOATS = ("weight", "restart_overhead_s", "estimate_s", "gpu_memory_mib", "iteration_s")
INTS = ("gpu_milli", "priority")
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
)
PARQUET = b"PAR1"


def speed_column(name: str) -> Column | None:
    """The column `speed:<GPU model>`, of any model."""
    return Column(name, minimum=0) if name.startswith(SPEED) and len(name) > len(SPEED) else None


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
    models = tuple(name.removeprefix(SPEED) for name in table.numbers if name.startswith(SPEED))
    columns: dict[str, Any] = {name: table.words[name] for name in WORDS if name in table}
    columns |= {name: table[name] for name in FLOATS if name in table}
    columns |= {name: table.ints(name) for name in INTS if name in table}
    if models:
        columns["speeds"] = Speeds(models, np.stack([table[SPEED + model] for model in models], axis=1))
    return table.part(
        table["submit_s"],
        table["duration_s"],
        table["gpus"],
        job_ids=table.texts.get("job_id"),
        stage_s=np.stack([table[name] for name in STAGES], axis=1) if stages else None,
        **columns,
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


READER = Reader("gpuloom", "gpuloom's own CSV or Parquet", "The format of write_trace.", detect, read)
