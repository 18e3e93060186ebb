"""Durations and sizes as people write them. Inside gpuloom time is seconds (float), memory MiB (int)."""

from __future__ import annotations

import math
import re

from gpuloom.core.errors import InputError

_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
LONGEST_S, SHORTEST_S = 1e12, 1e-6
"""Limits of plausible durations: thirty thousand years and a microsecond."""
_MIB = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}


def parse_duration_s(text: str | float) -> float:
    """Seconds of '90', '90s', '6m', '1.5h', '2d'.

    Raises:
        InputError: not a duration, negative, not finite, or beyond LONGEST_S or below SHORTEST_S (0 is taken).
    """
    match = re.fullmatch(r"\s*([0-9.eE+-]{1,40})\s*([a-z]{0,3})\s*", str(text)[:100], re.ASCII)
    try:
        value = float(match.group(1)) * _SECONDS[match.group(2)] if match else math.nan
    except (ValueError, KeyError):
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise InputError(
            f"{str(text)[:60]!r} is not a duration: write seconds, or a number with ms, s, m, h, d or w (6m)"
        )
    if value > LONGEST_S or 0 < value < SHORTEST_S:
        raise InputError(f"{text!r} is not a possible duration: give 0, or a microsecond to 1e12 seconds")
    return value


def parse_memory_mib(text: str | float) -> int:
    """MiB of '16GiB', '16G', '512MiB'; a bare number is MiB.

    Raises:
        InputError: not a size, or not above 0.
    """
    match = re.fullmatch(r"\s*([0-9.]{1,40})\s*([kmgt]?)(?:i?b)?\s*", str(text)[:100].lower())
    try:
        value = float(match.group(1)) * _MIB[match.group(2)] if match else math.nan
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and round(value) > 0):
        raise InputError(
            f"{str(text)[:60]!r} is not a memory size of 1 MiB or more: write a number with MiB, GiB or TiB (16GiB)"
        )
    return round(value)


def format_duration(seconds: float) -> str:
    """A duration for people: '47s', '12m 30s', '3h 05m', '2d 04h'."""
    if not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.0f}s" if seconds >= 9.95 or seconds == int(seconds) else f"{seconds:.2g}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    minutes = round(seconds / 60)
    if minutes < 1440:
        return f"{minutes // 60}h {minutes % 60:02d}m"
    hours = round(seconds / 3600)
    return f"{hours // 24}d {hours % 24:02d}h"


def is_multiple(now_s: float, step_s: float) -> bool:
    """Whether `now_s` is a multiple of the step as `next_multiple` makes them."""
    return now_s == step_s * round(now_s / step_s)


def next_multiple(now_s: float, step_s: float) -> float:
    """The first multiple of the step after `now_s`, also where rounding would give `now_s` itself again."""
    count = math.floor(now_s / step_s) + 1
    while step_s * count <= now_s:
        count += 1
    return step_s * count


def money(usd: float) -> str:
    """US dollars; below a cent one digit that counts."""
    if usd == 0.0 or usd >= 0.01:
        return f"${usd:,.2f}"
    return f"${usd:.1g}" if usd >= 0.0001 else "<$0.0001"
