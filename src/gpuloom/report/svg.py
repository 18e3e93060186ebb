"""Charts as inline SVG, written by hand so that a page needs no plotting library.

Colours come from the page's CSS variables (--s0, --s1, … per series), so that one chart serves light and dark.
Each series is a group of class `sN`, which the page hides or shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gpuloom.report.axis import DASHES, PALETTE, Ticks, line_width
from gpuloom.report.metrics import escape
from gpuloom.sim.result import F8


@dataclass(frozen=True, slots=True)
class Scale:
    """Data units to pixels, linear or logarithmic."""

    low: float
    high: float
    start_px: float
    end_px: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self.start_px + (value - low) / (high - low) * (self.end_px - self.start_px)


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area of a chart: size, and where the axes lie."""

    width: int = 620
    height: int = 330
    left: int = 58
    right: int = 18
    top: int = 12
    bottom: int = 52

    def x(self, low: float, high: float, *, log: bool = False) -> Scale:
        return Scale(low, high, self.left, self.width - self.right, log)

    def y(self, low: float, high: float) -> Scale:
        return Scale(low, high, self.height - self.bottom, self.top)


def chart(frame: Frame, key: str, title: str, description: str, body: Sequence[str]) -> str:
    """An <svg> with a title and a description for those who can't see it."""
    return (
        f'<svg id="{key}" class="chart" viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-labelledby="{key}-t {key}-d"><title id="{key}-t">{escape(title)}</title>'
        f'<desc id="{key}-d">{escape(description)}</desc>{"".join(body)}</svg>'
    )


def x_axis(frame: Frame, scale: Scale, ticks: Ticks, title: str, *, grid: bool = True) -> list[str]:
    bottom = frame.height - frame.bottom
    parts = []
    for value, text in zip(ticks.at, ticks.text, strict=True):
        at = _px(scale(value))
        if grid:
            parts.append(f'<path class="grid" d="M{at} {frame.top}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{at}" y="{bottom + 17}" text-anchor="middle">{escape(text)}</text>')
    parts.append(f'<path class="axis" d="M{frame.left} {bottom}H{frame.width - frame.right}"/>')
    middle = _px((frame.left + frame.width - frame.right) / 2)
    parts.append(f'<text class="title" x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(title)}</text>')
    return parts


def y_axis(frame: Frame, scale: Scale, ticks: Ticks, title: str) -> list[str]:
    right = frame.width - frame.right
    parts = []
    for value, text in zip(ticks.at, ticks.text, strict=True):
        at = _px(scale(value))
        parts.append(f'<path class="grid" d="M{frame.left} {at}H{right}"/>')
        parts.append(
            f'<text class="tick" x="{frame.left - 8}" y="{at}" dy=".35em" text-anchor="end">{escape(text)}</text>'
        )
    middle = _px((frame.top + frame.height - frame.bottom) / 2)
    parts.append(
        f'<text class="title" transform="translate(13 {middle}) rotate(-90)" text-anchor="middle">'
        f"{escape(title)}</text>"
    )
    return parts


def line(number: int, count: int, xs: F8, ys: F8, x: Scale, y: Scale) -> str:
    """Series `number` of `count` as steps that hold each value until the next point."""
    if len(xs) == 0:
        return ""
    points = [(_px(x(a)), _px(y(b))) for a, b in zip(xs.tolist(), ys.tolist(), strict=True)]
    data = [f"M{points[0][0]} {points[0][1]}"]
    before = points[0]
    for point in points[1:]:
        across = f"H{point[0]}" if point[0] != before[0] else ""
        data.append(across + (f"V{point[1]}" if point[1] != before[1] else ""))
        before = point
    width = f"{line_width(number, count):.2g}"
    return f'<g class="s{number}"><path class="line" stroke-width="{width}" {stroke(number)} d="{"".join(data)}"/></g>'


def stroke(number: int) -> str:
    """The attributes of a line of series `number`: its colour, and dashes once the colours are used up."""
    dash = DASHES[number // len(PALETTE) % len(DASHES)]
    dashes = f' stroke-dasharray="{" ".join(f"{part:g}" for part in dash)}"' if dash else ""
    return f'stroke="var(--s{number % len(PALETTE)})"{dashes}'


def fill(number: int) -> str:
    return f'fill="var(--s{number % len(PALETTE)})"'


def shorten(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
