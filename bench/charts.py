"""Charts of the result pages: pairs of bars, and curves with bands, with the axes and colours of the reports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuloom.report.axis import PALETTE, Ticks, linear_ticks
from gpuloom.report.picture import legend, line_key, moved, patch_key, picture, text
from gpuloom.report.svg import Frame, Scale, fill, stroke, x_axis, y_axis

OURS, THEIRS = 0, "#b8bec6"
"""Of bars: the series whose colour ours have, and the colour of the published ones."""
DASHED = len(PALETTE)
"""Added to the number of a series: the same colour, dashed."""
_GAP, _HEAD = 14, 24
_ROOM = 27
"""Pixels that a value with two digits after the point needs above its bar."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A drawn chart, its heading, and the (key, name) pairs of its legend."""

    frame: Frame
    title: str
    body: Sequence[str]
    keys: Sequence[tuple[str, str]] = ()

    def drawn(self) -> tuple[list[str], float]:
        """All of it, and how high that is."""
        below = _HEAD + self.frame.height
        keys, height = legend(self.keys, self.frame.width) if self.keys else ("", 0.0)
        title = text(self.frame.left, 8, self.title, "head")
        return [title, moved(0, _HEAD, self.body), moved(0, below, [keys])], below + height


@dataclass(frozen=True, slots=True)
class Curve:
    """A line through points, and a band around it.

    Attributes:
        number: of the series, by which it has its colour.
        low, high: the band's edges at each of `xs`; empty: no band.
        marked: whether the points themselves are drawn.
    """

    number: int
    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    marked: bool = False

    @property
    def drawn(self) -> Iterable[float]:
        """All heights that have to be on the chart."""
        return (value for values in (self.ys, self.low, self.high) for value in values if math.isfinite(value))


def page(rows: Sequence[Sequence[Panel]], keys: Sequence[tuple[str, str]] = ()) -> str:
    """Panels side by side in rows, as a whole SVG file; keys: a legend for all of them, below."""
    width = max(sum(panel.frame.width for panel in row) for row in rows)
    body: list[str] = []
    top = float(_GAP)
    for row in rows:
        left, highest = 0, 0.0
        for panel in row:
            drawn, height = panel.drawn()
            body.append(moved(left, top, drawn))
            left, highest = left + panel.frame.width, max(highest, height)
        top += highest + _GAP
    if keys:
        drawn_keys, height = legend(keys, width)
        body.append(moved(0, top, [drawn_keys]))
        top += height
    return picture(width, top, body)


def keys_of(curves: Iterable[Curve]) -> list[tuple[str, str]]:
    """The legend of curves."""
    return [(line_key(curve.number), curve.name) for curve in curves]


def pairs(frame: Frame, rows: Sequence[tuple[str, float, float]], title: str, *, keys: bool = True) -> Panel:
    """Two bars, ours and the published, for each row of "group\\nlabel" and two values; a line at 1.

    Rows of one group stand together; values that are not finite have no bar.
    """
    known = [value for _, *values in rows for value in values if math.isfinite(value)]
    high = max([1.0, *known]) * 1.1
    y, bottom = frame.y(0, high), frame.height - frame.bottom
    body = [*y_axis(frame, y, linear_ticks(0, high, 5), "times"), *x_axis(frame, frame.x(0, 1), Ticks((), ()), "")]
    width = (frame.width - frame.left - frame.right) / max(len(rows), 1)
    bar = min(0.38 * width, 34.0)
    digits = 2 if bar > _ROOM else 1
    grouped: dict[str, list[float]] = {}
    for at, (names, *values) in enumerate(rows):
        group, _, label = names.partition("\n")
        middle = frame.left + (at + 0.5) * width
        grouped.setdefault(group, []).append(middle)
        body.append(text(middle, bottom + 14, label, anchor="middle"))
        for side, (value, colour) in enumerate(zip(values, (fill(OURS), f'fill="{THEIRS}"'), strict=True)):
            if math.isfinite(value):
                left, top = middle + (side - 1) * bar, y(value)
                body.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{bar - 1:.1f}" height="{bottom - top:.1f}" {colour}/>'
                )
                body.append(text(round(left + bar / 2, 1), round(top - 8, 1), f"{value:.{digits}f}", anchor="middle"))
    body += [text((at[0] + at[-1]) / 2, bottom + 31, group, "row", "middle") for group, at in grouped.items()]
    told = [(patch_key(OURS), "gpuloom"), (patch_key(THEIRS), "published")] if keys else []
    return Panel(frame, title, [*body, _one(frame, y)], told)


def lines(
    frame: Frame,
    title: str,
    curves: Sequence[Curve],
    x_ticks: Ticks,
    x_title: str,
    y: Scale,
    y_ticks: Ticks,
    y_title: str,
    *,
    one: bool = False,
    keys: bool = True,
) -> Panel:
    """Curves, from the first x tick to the last. one: with a line at 1."""
    x = frame.x(x_ticks.at[0], x_ticks.at[-1])
    body = [*y_axis(frame, y, y_ticks, y_title), *x_axis(frame, x, x_ticks, x_title, grid=False)]
    for curve in curves:
        if len(curve.low):
            there = [*zip(curve.xs, curve.high, strict=True), *reversed(list(zip(curve.xs, curve.low, strict=True)))]
            body.append(f'<path {fill(curve.number)} fill-opacity="0.13" d="{_through(there, x, y)}"/>')
    for curve in curves:
        points = list(zip(curve.xs, curve.ys, strict=True))
        body.append(
            f'<path class="line" stroke-width="2" {stroke(curve.number)} d="{_through(points, x, y)}">'
            f"<title>{curve.name}</title></path>"
        )
        for a, b in points if curve.marked else ():
            body.append(f'<rect x="{x(a) - 3:.1f}" y="{y(b) - 3:.1f}" width="6" height="6" {fill(curve.number)}/>')
    return Panel(frame, title, [*body, _one(frame, y)] if one else body, keys_of(curves) if keys else ())


def _through(points: Iterable[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{x(a):.1f} {y(b):.1f}" for a, b in points)


def _one(frame: Frame, y: Scale) -> str:
    return f'<path class="one" d="M{frame.left} {y(1.0):.1f}H{frame.width - frame.right}"/>'
