"""The picture of measured stage profiles: a bar for each GPU model, the parts of an iteration one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuloom.core.measured import Measured
from gpuloom.report.axis import linear_ticks
from gpuloom.report.picture import legend, moved, patch_key, picture, save_picture, text
from gpuloom.report.svg import Frame, fill, shorten, x_axis

PARTS = ("storage", "CPU", "computing", "network", "turns", "rest")
_BAR, _LANE, _NAME = 22, 34, 26


def parts_of(measured: Measured) -> tuple[float, ...]:
    """Seconds of an iteration by part, in the order of `PARTS`; they add up to it."""
    m = measured
    return m.storage_s, m.cpu_s, m.gpu_s, m.network_s, m.turn_s, m.rest_s


def save_stages(title: str, rows: Sequence[tuple[str, Measured]], path: Path) -> None:
    """Write the picture of these (name, profile) rows as SVG, PNG or PDF.

    Raises:
        InputError, MissingDependencyError, OSError: as `picture.save_picture`.
    """
    longest_ms = max(measured.iteration_s for _, measured in rows) * 1e3
    frame = Frame(width=760, height=12 + _LANE * len(rows) + 52, left=190)
    x = frame.x(0.0, longest_ms * 1.02)
    body = x_axis(frame, x, linear_ticks(0.0, longest_ms * 1.02), "milliseconds of an iteration")
    for at, (name, measured) in enumerate(rows):
        y, from_ms = frame.top + _LANE * at + (_LANE - _BAR) / 2, 0.0
        body.append(text(frame.left - 10, y + _BAR / 2, shorten(name, _NAME), "row", "end"))
        for number, seconds in enumerate(parts_of(measured)):
            to_ms = from_ms + seconds * 1e3
            wide = x(to_ms) - x(from_ms)
            if wide > 0.05:
                body.append(f'<rect x="{x(from_ms):.1f}" y="{y:g}" width="{wide:.1f}" height="{_BAR}" {fill(number)}/>')
            from_ms = to_ms
    shown = [at for at in range(len(PARTS)) if any(parts_of(measured)[at] > 0.0 for _, measured in rows)]
    keys, high = legend([(patch_key(at), PARTS[at]) for at in shown], frame.width - 40)
    whole = [moved(20, 26, [text(0, 0, title, "head")]), moved(0, 44, body), moved(20, 52 + frame.height, [keys])]
    save_picture(picture(frame.width, 60 + frame.height + high, whole), path)
