"""Workloads of Pollux' and Sia's artifacts: jobs, their application, and the GPUs and batch size that users chose."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpuloom.core.errors import TraceError

COLUMNS = ("name", "time", "application", "num_replicas", "batch_size")
_WHOLE = ("num_replicas", "batch_size")


@dataclass(frozen=True, slots=True)
class Submission:
    """A row of a workload. submit_s: seconds; gpus and batch_size: what its user chose."""

    name: str
    submit_s: float
    application: str
    gpus: int
    batch_size: int


def read_submissions(data: bytes, file: str) -> tuple[Submission, ...]:
    """The jobs of a CSV file, in its order.

    Raises:
        TraceError: the file is not a Pollux workload; names line and column.
    """
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig")))
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(f"is not a Pollux workload: the header lacks {', '.join(missing)}", file=file)
        line_of: dict[str, int] = {}
        found = tuple(_submission(row, file, reader.line_num, line_of) for row in reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"is not a Pollux workload: {error}", file=file) from error
    if not found:
        raise TraceError("holds no jobs", file=file)
    return found


def _submission(row: Mapping[str, str | None], file: str, line: int, line_of: dict[str, int]) -> Submission:
    """The job of a row. line_of: the line of each job before it, by name; its own is added."""
    numbers: dict[str, int] = {}
    for column in _WHOLE:
        value = row[column] or ""
        if not (value.isascii() and value.isdecimal() and len(value) < 16 and int(value) >= 1):
            raise TraceError(f"is {value!r}, must be a whole number from 1", file=file, line=line, column=column)
        numbers[column] = int(value)
    at = row["time"] or ""
    if not re.fullmatch(r"\d{1,15}(\.\d{0,15})?", at, re.ASCII):
        raise TraceError(f"is {at!r}, must be a number of seconds from 0", file=file, line=line, column="time")
    name, application = row["name"], row["application"]
    if not name or not application:
        raise TraceError("is empty", file=file, line=line, column="application" if name else "name")
    if (before := line_of.setdefault(name, line)) != line:
        raise TraceError(f"{name!r} was used before, on line {before}", file=file, line=line, column="name")
    return Submission(name, float(at), application, numbers["num_replicas"], numbers["batch_size"])
