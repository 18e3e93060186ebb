"""Axes: nice numbers, and units of time that people read."""

from __future__ import annotations

import math
from dataclasses import dataclass

PALETTE = (
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#f0803c"),
    ("#009e73", "#2cc79b"),
    ("#cc79a7", "#e29ac3"),
    ("#b57d00", "#e69f00"),
    ("#56b4e9", "#8fd0f5"),
    ("#1f1f1f", "#f2f2f2"),
    ("#a89c00", "#f0e442"),
)
"""Okabe and Ito's colours in the order in which policies get them: (on white, on dark). Orange, yellow and
black are made darker or lighter where the original would not stand out from the ground."""

DASHES: tuple[tuple[float, ...], ...] = ((), (6, 2.5), (1.8, 2.2), (8, 2.5, 1.8, 2.5))
"""Line styles: one per round through the palette, so that more policies than colours stay apart."""


def line_width(number: int, count: int) -> float:
    """Lines drawn later are thinner, so that lines that lie on each other all stay visible."""
    return 3.0 - 1.6 * number / max(count - 1, 1) if count > 1 else 2.0


_UNITS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "days"))
_STEPS = {
    "min": (1, 2, 5, 10, 15, 20, 30, 60),
    "h": (1, 2, 3, 4, 6, 8, 12, 24, 48),
}
_LOG_COARSE = (1e-3, 1e-2, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 864e3, 864e4, 864e5, 864e6)
_LOG_FINE = tuple(
    sorted(
        {0.1 * k for k in (1, 2, 5)}
        | {float(k) for k in (1, 2, 5, 10, 20, 30)}
        | {60.0 * k for k in (1, 2, 5, 10, 20, 30)}
        | {3600.0 * k for k in (1, 2, 4, 8, 12)}
        | {86400.0 * k * 10**power for power in range(4) for k in (1, 2, 5)}
    )
)


@dataclass(frozen=True, slots=True)
class Ticks:
    """Where the ticks stand, in data units, and what is written there; `unit` belongs in the axis title."""

    at: tuple[float, ...]
    text: tuple[str, ...]
    unit: str = ""


def nice_step(length: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10^k that divides `length` into at most `most` parts."""
    if not (length > 0 and math.isfinite(length)):
        return 1.0
    rough = length / most
    power = 10.0 ** math.floor(math.log10(rough))
    return next((k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9)), 10 * power)


def linear_ticks(low: float, high: float, most: int = 6, *, whole: bool = False) -> Ticks:
    """Ticks at round numbers within [low, high]; `whole` for things one counts."""
    step = max(nice_step(high - low, most), 1.0 if whole else 0.0)
    at = _multiples(low, high, step)
    return Ticks(at, tuple(_plain(value, step) for value in at))


def percent_ticks(most: int = 5) -> Ticks:
    at = tuple(i / most for i in range(most + 1))
    return Ticks(at, tuple(f"{100 * value:.0f}%" for value in at))


def time_ticks(high_s: float, most: int = 7) -> Ticks:
    """Ticks from 0 to `high_s` in the unit that suits: positions in seconds, texts in the unit."""
    factor, unit = _UNITS[0]
    for candidate, name in _UNITS:
        if high_s >= (2 if name != "days" else 3) * candidate:
            factor, unit = candidate, name
    length = high_s / factor
    step = next((float(k) for k in _STEPS.get(unit, ()) if length / k <= most), nice_step(length, most))
    at = _multiples(0.0, length, step)
    return Ticks(tuple(value * factor for value in at), tuple(_plain(value, step) for value in at), unit)


def log_time_ticks(low_s: float, high_s: float, most: int = 8) -> Ticks:
    """Ticks for a logarithmic axis of durations: 1 s, 10 s, 1 min, 10 min, 1 h, 6 h, 1 d, 10 d, …"""
    fine, coarse = (
        [value for value in values if low_s * (1 - 1e-9) <= value <= high_s * (1 + 1e-9)]
        for values in (_LOG_FINE, _LOG_COARSE)
    )
    at: tuple[float, ...] = tuple(fine if len(fine) <= most else coarse)
    if len(at) < 2:
        at = linear_ticks(low_s, high_s, 4).at or (low_s, high_s)
    return Ticks(at, tuple(time_text(value) for value in at))


def time_text(seconds: float) -> str:
    """A tick: one number and its unit (10 min)."""
    factor, unit = 1.0, "s"
    for candidate, name in ((1.0, "s"), (60.0, "min"), (3600.0, "h"), (86400.0, "d")):
        if seconds >= candidate * (1 - 1e-9):
            factor, unit = candidate, name
    if seconds < 1 - 1e-9:
        return f"{seconds * 1000:g} ms"
    return f"{seconds / factor:.4g} {unit}"


def _multiples(low: float, high: float, step: float) -> tuple[float, ...]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(i * step for i in range(first, last + 1))


def _plain(value: float, step: float) -> str:
    digits = max(0, -math.floor(math.log10(step) + 1e-9)) if step < 1 else 0
    return f"{value:,.{digits}f}"
