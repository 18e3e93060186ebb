"""Results as files for other programs: JSON and CSV."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuloom.files.whole import text_output
from gpuloom.sim.result import SimResult

JOB_COLUMNS = (
    "policy",
    "job_id",
    "gpus",
    "submit_s",
    "start_s",
    "end_s",
    "jct_s",
    "attained_gpu_s",
    "starts",
)


def write_json(results: SimResult | Sequence[SimResult], target: str | Path) -> None:
    """The summaries as JSON: one result as an object, several as a list; NaN as null. '-' is stdout.

    Raises:
        OSError: the target can't be written; names it.
    """
    if isinstance(results, SimResult):
        data: Any = plain(results.to_dict())
    else:
        data = [plain(result.to_dict()) for result in results]
    with text_output(target) as file:
        file.write(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_csv(results: Sequence[SimResult], target: str | Path) -> None:
    """The summaries, one row per result; settings as JSON in the last column, NaN as an empty field.

    Raises:
        OSError: as for `write_json`.
    """
    rows = [plain(result.to_dict()) for result in results]
    columns = list(rows[0]) if rows else []
    with text_output(target) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_field(row[column]) for column in columns] for row in rows)


def write_jobs_csv(results: Sequence[SimResult], target: str | Path) -> None:
    """One row per result and job; the columns are `JOB_COLUMNS`, what did not happen is an empty field.

    Raises:
        OSError: as for `write_json`.
    """
    with text_output(target) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(JOB_COLUMNS)
        for result in results:
            writer.writerows(_job_rows(result))


def plain(value: Any) -> Any:
    """The value in JSON's types: NaN and infinities become None, what JSON does not know becomes text."""
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)


def _job_rows(result: SimResult) -> Iterable[list[str]]:
    columns = zip(
        result.job_ids,
        result.job_gpus.tolist(),
        result.submit_s.tolist(),
        result.start_s.tolist(),
        result.end_s.tolist(),
        result.jct_s.tolist(),
        result.attained_gpu_s.tolist(),
        result.starts.tolist(),
        strict=True,
    )
    for job_id, gpus, submit, start, end, jct, attained, starts in columns:
        times = [_field(value) for value in (submit, start, end, jct, attained)]
        yield [result.policy, job_id, str(gpus), *times, str(starts)]


def _field(value: Any) -> str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
