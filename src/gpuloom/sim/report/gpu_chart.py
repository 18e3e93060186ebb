"""Who ran where: a row for each GPU, nodes below each other, a bar for each run of a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.sim.report.axis import PALETTE, time_ticks
from gpuloom.sim.report.metrics import escape
from gpuloom.sim.report.series import span
from gpuloom.sim.report.svg import Frame, Scale, chart, shorten, x_axis
from gpuloom.sim.report.windows import Shown
from gpuloom.sim.result import SimResult

_ROW = 9
_GAP = 5
"""Between nodes."""
_NAME = 22


def gpu_chart(result: SimResult, name: str, number: int, nodes: Sequence[Shown], window: tuple[float, float]) -> str:
    """The chart of one policy, or a sentence that says why there is none."""
    if result.segments is None:
        return '<p class="none">Who ran where was not recorded in this run.</p>'
    begin, end = window
    tops, height = {}, 0
    for node in nodes:
        tops[node.number] = height
        height += _ROW * node.gpus + _GAP
    names = {node.number: f"{node.name} {node.model}".strip() for node in nodes}
    longest = max((len(shorten(text, _NAME)) for text in names.values()), default=0)
    frame = Frame(width=1180, height=height + 70, left=24 + round(6.4 * longest), right=16, top=10, bottom=52)
    x = frame.x(0, end - begin)
    ticks = time_ticks(end - begin, 12)
    offset = begin - span(result)[0]
    from_when = f"{format_duration(offset)} after the first submission" if offset > 0 else "the first submission"
    body = x_axis(frame, x, ticks, f"time since {from_when} ({ticks.unit})")
    for node in nodes:
        top = frame.top + tops[node.number]
        body.append(
            f'<rect class="node" x="{frame.left}" y="{top}" width="{frame.width - frame.left - frame.right}" '
            f'height="{_ROW * node.gpus}"/><text class="row" x="{frame.left - 8}" y="{top + _ROW * node.gpus / 2:g}" '
            f'dy=".35em" text-anchor="end"><title>{escape(names[node.number])}: {plural(node.gpus, "GPU")}</title>'
            f"{escape(shorten(names[node.number], _NAME))}</text>"
        )
    body += _marks(result, frame, x, tops, {node.number: node.gpus for node in nodes}, names, window)
    shown = sum(node.gpus for node in nodes)
    title = f"Who had which GPU under {name}"
    description = f"One row per GPU of {plural(len(nodes), 'node')}, time to the right; a bar is a job."
    note = ""
    if shown < result.gpus:
        note = f'<p class="hint">{shown:,} of {plural(result.gpus, "GPU")}, from nodes all over the cluster.</p>'
    return chart(frame, f"gpus-{number}", title, description, body) + note


def _marks(
    result: SimResult,
    frame: Frame,
    x: Scale,
    tops: dict[int, int],
    sizes: dict[int, int],
    names: dict[int, str],
    window: tuple[float, float],
) -> Iterator[str]:
    segments = result.segments
    if segments is None:
        return
    begin, end = window
    origin, last = span(result)
    layers = int(segments.layer.max()) + 1 if len(segments.layer) else 1
    there = np.isin(segments.node, list(tops)) & (segments.start_s < end) & ~(segments.end_s <= begin)
    for row in np.flatnonzero(there).tolist():
        job, node, layer = int(segments.job[row]), int(segments.node[row]), int(segments.layer[row])
        start, until = float(segments.start_s[row]), float(segments.end_s[row])
        until = until if math.isfinite(until) else last
        left, right = x(max(start, begin) - begin), x(min(until, end) - begin)
        mask = int(segments.gpu_mask[row]) & ((1 << sizes[node]) - 1)
        text = (
            f"{result.job_ids[job]}: {plural(int(result.job_gpus[job]), 'GPU')}\n{format_duration(start - origin)} to "
            f"{format_duration(until - origin)} ({format_duration(until - start)})\n{names[node]}"
        )
        for first, count in _together(mask):
            top = frame.top + tops[node] + _ROW * first + (_ROW * count * layer) / layers
            yield (
                f'<rect class="run" x="{left:.1f}" y="{top:.4g}" width="{max(right - left, 0.6):.1f}" '
                f'height="{_ROW * count / layers:.3g}" fill="var(--s{job % len(PALETTE)})">'
                f"<title>{escape(text)}</title></rect>"
            )


def _together(mask: int) -> Iterator[tuple[int, int]]:
    """(first, count) of each row of neighbouring GPUs."""
    at = 0
    while mask >> at:
        if mask >> at & 1:
            first = at
            while mask >> at & 1:
                at += 1
            yield first, at - first
        else:
            at += 1
