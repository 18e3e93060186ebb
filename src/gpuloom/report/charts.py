"""The page's charts: each as an SVG, with the numbers that its tooltips need."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuloom.report.axis import Ticks, linear_ticks, log_time_ticks, percent_ticks, time_ticks
from gpuloom.report.metrics import escape
from gpuloom.report.series import distribution, downsample, relative_jct, span
from gpuloom.report.svg import Frame, Scale, chart, fill, line, shorten, x_axis, y_axis
from gpuloom.sim.result import F8, SimResult

CDF_POINTS = 400
QUEUE_BINS = 400
BUSY_BINS = 120


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawn chart. `hover` is what the page's script reads off it under the pointer; None: nothing."""

    key: str
    svg: str
    hover: dict[str, Any] | None
    title: str
    frame: Frame

    def at(self, x: float, y: float) -> str:
        """The chart as a part of a picture."""
        size = f'x="{x:g}" y="{y:g}" width="{self.frame.width}" height="{self.frame.height}"'
        return self.svg.replace("<svg ", f"<svg {size} ", 1)


def jct_chart(results: Sequence[SimResult]) -> Chart:
    """The distribution of JCT, on a logarithmic axis."""
    frame = Frame()
    found = [distribution(result, CDF_POINTS) for result in results]
    above = [each.jct_s[each.jct_s > 0] for each in found]
    low = min((float(jct[0]) for jct in above if len(jct)), default=1.0)
    high = max((float(jct[-1]) for jct in above if len(jct)), default=1.0)
    if high < 1.5 * low:
        low, high = low / 2, high * 2
    pad = (high / low) ** 0.02
    x, y = frame.x(low / pad, high * pad, log=True), frame.y(0, 1.02)
    body = y_axis(frame, y, percent_ticks(), "jobs that ended within it")
    body += x_axis(frame, x, log_time_ticks(low, high), "job completion time (logarithmic)")
    for number, each in enumerate(found):
        ends = len(each.jct_s) > 0  # from the axis up to the first job that ended
        xs = np.concatenate([each.jct_s[:1], each.jct_s]) if ends else each.jct_s
        ys = np.concatenate([[0.0], each.share]) if ends else each.share
        body.append(line(number, len(results), xs, ys, x, y))
    body.append(_cross(frame))
    series = [{"x": _digits(each.jct_s, 5), "y": _digits(each.share, 4)} for each in found]
    title = "Distribution of job completion time"
    description = "For each policy the share of jobs that ended within the time on the horizontal axis."
    return Chart(
        "jct", chart(frame, "jct", title, description, body), _hover(frame, x, "percent", series), title, frame
    )


def queue_chart(results: Sequence[SimResult]) -> Chart:
    """Waiting jobs over time."""
    return _over_time(
        results,
        "queue",
        "Queue length over time",
        "For each policy the number of jobs that wait, as means over equal bins of time.",
        "jobs that wait",
        QUEUE_BINS,
        None,
    )


def busy_chart(results: Sequence[SimResult]) -> Chart:
    """The part of the GPUs that jobs hold, over time."""
    return _over_time(
        results,
        "busy",
        "GPU utilisation over time",
        "For each policy the share of all GPUs that jobs hold, as means over equal bins of time.",
        "GPUs held",
        BUSY_BINS,
        percent_ticks(),
    )


def relative_chart(results: Sequence[SimResult], names: Sequence[str]) -> Chart:
    """Average and p99 JCT, as multiples of the best policy's."""
    row, bar = 38, 14
    left = 24 + round(6.9 * max([len(shorten(name, 18)) for name in names], default=0))
    frame = Frame(height=max(330, 64 + row * len(results)), left=left, right=64)
    row = max(row, min(58, (frame.height - frame.top - frame.bottom) // max(len(results), 1)))
    ratios = relative_jct(results)
    high = max((ratio for pair in ratios for ratio in pair if math.isfinite(ratio)), default=1.0)
    x = frame.x(0, max(high, 1.0) * 1.02)
    ticks = linear_ticks(0, max(high, 1.0) * 1.02, 6)
    ticks = Ticks(ticks.at, tuple(f"{text}×" for text in ticks.text))
    body = x_axis(frame, x, ticks, "times the best policy (shorter is better)")
    for number, name in enumerate(names):
        top = frame.top + 4 + number * row + (row - 2 * bar - 4) / 2
        parts = [
            f'<text class="row" x="{left - 10}" y="{top + bar:.1f}" dy=".35em" text-anchor="end">'
            f"<title>{escape(name)}</title>{escape(shorten(name, 18))}</text>"
        ]
        for offset, (label, strength) in enumerate((("average", 1.0), ("p99", 0.45))):
            ratio, at = ratios[number][offset], top + offset * (bar + 2)
            if math.isfinite(ratio):
                text = f"{ratio:.2f}×"
                parts.append(
                    f'<rect x="{left}" y="{at:.1f}" width="{x(ratio) - left:.1f}" height="{bar}" rx="2" {fill(number)} '
                    f'fill-opacity="{strength}"><title>{escape(name)}: {label} JCT {text} the best</title></rect>'
                    f'<text class="tick" x="{x(ratio) + 5:.1f}" y="{at + bar / 2:.1f}" dy=".35em">{text}</text>'
                )
            elif offset == 0:
                text = "interrupted: not compared" if results[number].interrupted else "-"
                parts.append(f'<text class="tick" x="{left + 6}" y="{top + bar:.1f}" dy=".35em">{text}</text>')
        body.append(f'<g class="s{number}">{"".join(parts)}</g>')
    one = f"{x(1.0):.1f}"
    body.append(f'<path class="one" d="M{one} {frame.top}V{frame.height - frame.bottom}"/>')
    title = "JCT relative to the best policy"
    description = "Per policy two bars: average JCT (strong) and p99 JCT (pale), each over the best policy's."
    return Chart("relative", chart(frame, "relative", title, description, body), None, title, frame)


def _over_time(
    results: Sequence[SimResult],
    key: str,
    title: str,
    description: str,
    y_title: str,
    bins: int,
    fraction: Ticks | None,
) -> Chart:
    spans = [span(result) for result in results]
    longest = max(end - start for start, end in spans)
    found: list[tuple[F8, F8]] = []
    for result, (start, end) in zip(results, spans, strict=True):
        means = downsample(result.timeline, start, end, max(1, math.ceil(bins * (end - start) / longest)))
        values = means.queue_length if fraction is None else means.busy_gpus / max(result.gpus, 1)
        found.append((means.edges_s - start, values))
    high = 1.02 if fraction else max(*(float(values.max()) for _, values in found), 1.0) * 1.05
    y_ticks = fraction or linear_ticks(0, high, 6, whole=True)
    frame = Frame(left=max(58, 34 + 7 * max(map(len, y_ticks.text))))
    x, y = frame.x(0, longest), frame.y(0, high)
    ticks = time_ticks(longest)
    body = y_axis(frame, y, y_ticks, y_title)
    body += x_axis(frame, x, ticks, f"time since the first submission ({ticks.unit})")
    for number, (edges, values) in enumerate(found):
        body.append(line(number, len(results), edges, np.append(values, values[-1]), x, y))
    body.append(_cross(frame))
    series = [{"dx": edges[1].item(), "end": edges[-1].item(), "y": _digits(values, 4)} for edges, values in found]
    shown = _hover(frame, x, "percent" if fraction else "number", series)
    return Chart(key, chart(frame, key, title, description, body), shown, title, frame)


def _hover(frame: Frame, x: Scale, kind: str, series: list[dict[str, Any]]) -> dict[str, Any]:
    axis = {"low": x.low, "high": x.high, "log": x.log, "from": x.start_px, "to": x.end_px}
    return {"width": frame.width, "x": axis, "kind": kind, "series": series}


def _cross(frame: Frame) -> str:
    return f'<path class="cross" d="M0 {frame.top}V{frame.height - frame.bottom}"/>'


def _digits(values: F8, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values.tolist()]
