"""Calendar times to seconds since 1970-01-01, many at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from gpuloom.core.workload import F8

PLAIN = 19  # 2020-01-31 23:59:59
WITH_OFFSET = 25  # 2020-01-31 23:59:59+08:00
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?\s*(Z|[+-]\d\d:?\d\d)?", re.ASCII)


def timestamps(values: Sequence[str]) -> tuple[F8, bool]:
    """Seconds since 1970-01-01 00:00:00 of each value, and whether the values gave an offset from UTC.

    A time without an offset is counted as if its calendar were UTC.

    Raises:
        ValueError: one of the values is not a time.
    """
    lengths = set(map(len, values))
    if lengths == {PLAIN}:
        joined = "".join(values)
        if joined.isascii() and joined.count("-") == 2 * len(values) and joined.count(":") == 2 * len(values):
            return _plain(list(values)), False
    elif lengths == {WITH_OFFSET} and len({value[PLAIN:] for value in values}) == 1:
        plain, _ = timestamps([value[:PLAIN] for value in values])
        return plain - _offset_s(values[0][PLAIN:]), True
    return _one_by_one(values)


def _plain(values: list[str]) -> F8:
    return np.array(values, dtype="datetime64[s]").astype(np.int64).astype(np.float64)


def _offset_s(text: str) -> int:
    match = re.fullmatch(r"([+-])(\d\d):(\d\d)", text)
    if match is None:
        raise ValueError(f"not an offset from UTC: {text}")
    seconds = int(match.group(2)) * 3600 + int(match.group(3)) * 60
    return -seconds if match.group(1) == "-" else seconds


def _one_by_one(values: Sequence[str]) -> tuple[F8, bool]:
    seconds = np.empty(len(values))
    utc = False
    for row, value in enumerate(values):
        text = value.strip()
        if not _TIME.fullmatch(text):
            raise ValueError(f"not a time: {text}")
        moment = datetime.fromisoformat(text)
        utc |= moment.tzinfo is not None
        seconds[row] = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    return seconds, utc


def describe(seconds: float, *, utc: bool) -> str:
    """A time for people, from seconds since 1970-01-01."""
    moment = datetime.fromtimestamp(seconds, tz=UTC)
    return f"{moment:%Y-%m-%d %H:%M:%S}" + (" UTC" if utc else "")
