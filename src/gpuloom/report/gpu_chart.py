"""Who ran where: a row for each GPU, nodes below each other, a bar for each run of a job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuloom.core.sums import sum_ints
from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.report.axis import PALETTE, time_ticks
from gpuloom.report.metrics import escape
from gpuloom.report.series import span
from gpuloom.report.svg import Frame, Scale, chart, shorten, x_axis
from gpuloom.report.windows import Shown
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
    shown = sum_ints(node.gpus for node in nodes)
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
    runs: dict[int, list[_Stay]] = {node: [] for node in tops}
    there = np.isin(segments.node, list(tops)) & (segments.start_s < end) & ~(segments.end_s <= begin)
    for row in np.flatnonzero(there).tolist():
        node, until = int(segments.node[row]), float(segments.end_s[row])
        mask = int(segments.gpu_mask[row]) & ((1 << sizes[node]) - 1)
        start, until = float(segments.start_s[row]), until if math.isfinite(until) else last
        runs[node].append(_Stay(int(segments.job[row]), start, until, mask, int(segments.layer[row])))
    for node, each in runs.items():
        for run in each:
            text = (
                f"{result.job_ids[run.job]}: {plural(int(result.job_gpus[run.job]), 'GPU')}\n"
                f"{format_duration(run.start_s - origin)} to {format_duration(run.end_s - origin)} "
                f"({format_duration(run.end_s - run.start_s)})\n{names[node]}"
            )
            for start, until, place, count in _pieces(run, each, begin, end):
                left, right = x(start - begin), x(until - begin)
                for first, gpus in _together(run.mask):
                    high = _ROW * gpus / count
                    top = frame.top + tops[node] + _ROW * first + place * high
                    yield (
                        f'<rect class="run" x="{left:.1f}" y="{top:.1f}" '
                        f'width="{max(right - left, 0.6):.1f}" height="{high:.3g}" '
                        f'fill="var(--s{run.job % len(PALETTE)})"><title>{escape(text)}</title></rect>'
                    )


@dataclass(frozen=True, slots=True)
class _Stay:
    """A job on GPUs of a node."""

    job: int
    start_s: float
    end_s: float
    mask: int
    layer: int


def _pieces(run: _Stay, others: Sequence[_Stay], begin: float, end: float) -> Iterator[tuple[float, float, int, int]]:
    """The run cut where partners on its GPUs come and go: from, to, its place among them, how many they are."""
    start, until = max(run.start_s, begin), min(run.end_s, end)
    beside = [o for o in others if o.mask & run.mask and o.start_s < until and o.end_s > start]
    cuts = sorted({start, until, *(t for o in beside for t in (o.start_s, o.end_s) if start < t < until)})
    last: tuple[float, float, int, int] | None = None
    for left, right in pairwise(cuts):
        present = sorted({o.layer for o in beside if o.start_s <= left and o.end_s >= right})
        here = (present.index(run.layer), len(present))
        if last is not None and last[2:] == here:
            last = (last[0], right, *here)
            continue
        if last is not None:
            yield last
        last = (left, right, *here)
    if last is not None:
        yield last


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
