"""What each node, GPU, user and job used over a span of time.

There may be thousands of them, so a sample has a bounded number, the fewer the longer it is kept (MOST): those that use
most.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8


class Of(StrEnum):
    """What figures are of."""

    NODE = "node"
    GPU = "gpu"
    """Named NODE:INDEX."""
    USER = "user"
    JOB = "job"


_RUNS = ("cpu_cores", "memory_used_mib", "gpu_utilization", "gpu_memory_used_mib", "read_mib_per_s", "write_mib_per_s")
COLUMNS: Mapping[Of, tuple[str, ...]] = {
    Of.NODE: (
        "cpu_percent",
        "memory_used_mib",
        "memory_mib",
        "disk_free_mib",
        "read_mib_per_s",
        "write_mib_per_s",
        "received_mib_per_s",
        "sent_mib_per_s",
        "gpu_utilization",
        "gpu_utilization_most",
        "gpu_memory_used_mib",
        "gpu_memory_mib",
    ),
    Of.GPU: ("gpu_utilization", "gpu_memory_used_mib", "gpu_memory_mib"),
    Of.USER: _RUNS,
    Of.JOB: _RUNS,
}
"""What is known of each. Of a span all are means but `_most`."""
_RANKS: Mapping[Of, tuple[str, str]] = {
    Of.NODE: ("gpu_utilization", "cpu_percent"),
    Of.GPU: ("gpu_utilization", "gpu_memory_used_mib"),
    Of.USER: ("gpu_memory_used_mib", "cpu_cores"),
    Of.JOB: ("gpu_memory_used_mib", "cpu_cores"),
}
"""By what it is seen who uses most."""
MOST: Mapping[int, Mapping[Of, int]] = {
    10: {Of.NODE: 1024, Of.GPU: 512, Of.USER: 32, Of.JOB: 128},
    60: {Of.NODE: 128, Of.GPU: 64, Of.USER: 32, Of.JOB: 64},
    3600: {Of.NODE: 32, Of.GPU: 8, Of.USER: 16, Of.JOB: 8},
}
"""How many of each a sample of each width has."""


@dataclass(frozen=True, eq=False)
class Table:
    """values: a row for each name, a column for each of COLUMNS; NaN: not known."""

    names: tuple[str, ...]
    values: F8

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Table)
            and self.names == other.names
            and np.array_equal(self.values, other.values, equal_nan=True)
        )

    __hash__ = None  # type: ignore[assignment]


Each = Mapping[Of, Table]


def table(of: Of, rows: Mapping[str, Sequence[float | None]]) -> Table:
    """Of figures by name, in the order of COLUMNS; a name of which nothing is known is left out."""
    values = np.array(list(rows.values()), dtype=np.float64).reshape(len(rows), len(COLUMNS[of]))  # None becomes NaN
    known: NDArray[np.bool_] = ~np.all(np.isnan(values), axis=1)
    return Table(tuple(name for name, told in zip(rows, known.tolist(), strict=True) if told), values[known])


def mean(parts: Sequence[tuple[Each, float]]) -> Each:
    """One for several, each with the seconds that it stands for: means over the time in which a figure is known."""
    return {of: _mean(of, [(each[of], span) for each, span in parts if of in each]) for of in Of if _any(parts, of)}


def _any(parts: Sequence[tuple[Each, float]], of: Of) -> bool:
    return any(of in each and each[of].names for each, _ in parts)


def _mean(of: Of, parts: Sequence[tuple[Table, float]]) -> Table:
    row_of = {name: row for row, name in enumerate(dict.fromkeys(name for part, _ in parts for name in part.names))}
    shape = len(row_of), len(COLUMNS[of])
    sums, spans, most = np.zeros(shape), np.zeros(shape), np.full(shape, np.nan)
    for part, span in parts:
        rows = [row_of[name] for name in part.names]
        known = ~np.isnan(part.values)
        sums[rows] += np.where(known, part.values, 0.0) * span
        spans[rows] += known * span
        most[rows] = np.fmax(most[rows], part.values)
    with np.errstate(invalid="ignore"):
        means = sums / spans  # 0 / 0: never known
    highest = np.array([column.endswith("_most") for column in COLUMNS[of]])
    return Table(tuple(row_of), np.where(highest, most, means))


def kept(each: Each, width_s: int) -> Each:
    """What a sample of that width has of it: those that use most, in the order of their names."""
    return {of: _first(of, one, MOST[width_s][of]) for of, one in each.items()}


def _first(of: Of, one: Table, most: int) -> Table:
    if len(one.names) <= most:
        return one
    first, second = (np.nan_to_num(one.values[:, COLUMNS[of].index(column)], nan=-1.0) for column in _RANKS[of])
    rows = sorted(np.lexsort((np.array(one.names), -second, -first))[:most].tolist())
    return Table(tuple(one.names[row] for row in rows), one.values[rows])


# -- as the store has it -----------------------------------------------------------------------------------------------


def text_of(each: Each) -> str:
    """A text of its own within a sample's, so that who asks for other figures does not pay for reading it. With four
    digits: they are measured, and there are many."""
    data = {of: dict(zip(one.names, map(_short, one.values.tolist()), strict=True)) for of, one in each.items()}
    return json.dumps(data, separators=(",", ":"), ensure_ascii=False)


def _short(row: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else round(value) if value >= 1000.0 else float(f"{value:.4g}") for value in row]


def each_of(text: str) -> Each:
    """The same back. Raises LookupError, TypeError, ValueError or AttributeError: gpuloom did not write it."""
    return {Of(key): table(Of(key), rows) for key, rows in json.loads(text).items()}
