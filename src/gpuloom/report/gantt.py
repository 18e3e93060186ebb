"""Some jobs as bars over time: when each one waited and when and where it ran."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.core.units import format_duration
from gpuloom.core.words import plural
from gpuloom.report.axis import time_ticks
from gpuloom.report.metrics import escape
from gpuloom.report.series import span
from gpuloom.report.svg import Frame, chart, fill, shorten, x_axis
from gpuloom.sim.result import Segments, SimResult

JOBS = 60
MOST_BARS = 600
_ROW = 16
_BAR = 10


@dataclass(slots=True)
class Bar:
    """A job on its nodes for a while; `runs` > 1 where runs too close to tell apart were joined."""

    job: int
    start_s: float
    end_s: float
    nodes: dict[int, int]
    """GPUs by node."""
    runs: int = 1


def bars(segments: Segments, jobs: range, still_running_until: float) -> list[Bar]:
    """The runs of these jobs, one bar each (segments of several nodes joined), by job and start."""
    rows = np.flatnonzero((segments.job >= jobs.start) & (segments.job < jobs.stop))
    found: dict[tuple[int, float], Bar] = {}
    for row in rows.tolist():
        job, start, end = int(segments.job[row]), float(segments.start_s[row]), float(segments.end_s[row])
        end = end if math.isfinite(end) else still_running_until
        bar = found.setdefault((job, start), Bar(job, start, end, {}))
        bar.end_s = max(bar.end_s, end)
        node = int(segments.node[row])
        bar.nodes[node] = bar.nodes.get(node, 0) + int(segments.gpu_mask[row]).bit_count()
    return sorted(found.values(), key=lambda bar: (bar.job, bar.start_s))


def thin_out(all_bars: Sequence[Bar], most: int, length_s: float) -> list[Bar]:
    """At most about `most` bars: runs of a job with hardly a gap between them joined, larger gaps if need be."""
    shown, gap = list(all_bars), length_s / 2000
    while len(shown) > most and gap < length_s:
        joined: list[Bar] = []
        for bar in shown:
            last = joined[-1] if joined else None
            if last is not None and last.job == bar.job and bar.start_s - last.end_s <= gap:
                nodes = {node: max(last.nodes.get(node, 0), bar.nodes.get(node, 0)) for node in last.nodes | bar.nodes}
                joined[-1] = Bar(bar.job, last.start_s, max(last.end_s, bar.end_s), nodes, last.runs + bar.runs)
            else:
                joined.append(bar)
        shown, gap = joined, gap * 2
    return shown


def right_edge(results: Sequence[SimResult], jobs: range) -> float:
    """How much time to show, in seconds since the first of the jobs was submitted: a few stragglers may run past it."""
    ends: list[float] = []
    for result in results:
        _, end = span(result)
        times = result.end_s[jobs.start : jobs.stop]
        ends += (np.where(np.isfinite(times), times, end) - _first(result, jobs)).tolist()
    if not ends:
        return 1.0
    most = float(np.sort(ends)[int(0.95 * (len(ends) - 1))])
    return max(max(ends) if max(ends) <= 2.5 * most else 1.25 * most, 1.0)


def _first(result: SimResult, jobs: range) -> float:
    return float(result.submit_s[jobs.start]) if jobs.start < len(result.submit_s) else 0.0


def gantt(result: SimResult, name: str, number: int, jobs: range, edge_s: float) -> str:
    """The chart of one policy, or a sentence that says why there is none."""
    if result.segments is None:
        return '<p class="none">The Gantt chart was not recorded in this run.</p>'
    jobs = range(jobs.start, min(jobs.stop, len(result.job_ids)))
    longest = max([len(shorten(result.job_ids[job], 20)) for job in jobs], default=0)
    frame = Frame(width=1180, height=_ROW * len(jobs) + 70, left=58 + round(6.4 * longest), right=16, top=10, bottom=52)
    zero, end_of_run = span(result)
    origin = _first(result, jobs)
    x = frame.x(0, edge_s)
    ticks = time_ticks(edge_s, 12)
    into = f", {format_duration(origin - zero)} into the run" if origin > zero else ""
    body = x_axis(
        frame,
        x,
        ticks,
        f"time since the first of these was submitted{into} ({ticks.unit})",
    )
    past = 0
    waits = []
    for job in jobs:
        middle = _middle(frame, job - jobs.start)
        identity, gpus = result.job_ids[job], int(result.job_gpus[job])
        body.append(
            f'<text class="row" x="{frame.left - 48}" y="{middle}" dy=".35em" text-anchor="end">'
            f"<title>{escape(identity)}</title>{escape(shorten(identity, 20))}</text>"
            f'<text class="tick" x="{frame.left - 8}" y="{middle}" dy=".35em" text-anchor="end">{gpus}</text>'
        )
        end = float(result.end_s[job])
        until = (end if math.isfinite(end) else end_of_run) - origin
        past += until > edge_s
        begin = float(result.submit_s[job]) - origin
        if begin < edge_s:
            waits.append(f"M{x(begin):.1f} {middle}H{x(min(until, edge_s)):.1f}M{x(begin):.1f} {middle - 3}v6")
    body.append(f'<path class="wait" d="{"".join(waits)}"/>')
    runs = [bar for bar in bars(result.segments, jobs, end_of_run) if bar.start_s - origin < edge_s]
    marks = [
        _mark(
            bar,
            result,
            _middle(frame, bar.job - jobs.start),
            x(bar.start_s - origin),
            x(min(bar.end_s - origin, edge_s)),
            zero,
        )
        for bar in thin_out(runs, MOST_BARS, edge_s)
    ]
    body.append(f"<g {fill(number)}>{''.join(marks)}</g>")
    title = f"When {plural(len(jobs), 'job')} ran under {name}"
    description = "One row per job in order of submission: a thin line while it is in the system, a bar while it runs."
    note = ""
    if past:
        note = f'<p class="hint">{past} of these jobs ended later than the right edge of the chart.</p>'
    return chart(frame, f"gantt-{number}", title, description, body) + note


def _middle(frame: Frame, row: int) -> int:
    return frame.top + _ROW * row + _ROW // 2 + 2


def _mark(bar: Bar, result: SimResult, middle: int, left: float, right: float, origin: float) -> str:
    nodes = [
        f"{result.node_names[node] if node < len(result.node_names) else node} ({plural(gpus, 'GPU')})"
        for node, gpus in sorted(bar.nodes.items())
    ]
    where = ", ".join(nodes[:6]) + (f" and {len(nodes) - 6} more" if len(nodes) > 6 else "")
    when = f"{format_duration(bar.start_s - origin)} to {format_duration(bar.end_s - origin)}"
    runs = f", {bar.runs} runs" if bar.runs > 1 else ""
    text = f"{result.job_ids[bar.job]}\n{when} ({format_duration(bar.end_s - bar.start_s)}{runs})\n{where}"
    width = max(right - left, 0.8)
    return (
        f'<rect x="{left:.1f}" y="{middle - _BAR // 2}" width="{width:.1f}" height="{_BAR}" '
        f'rx="1"><title>{escape(text)}</title></rect>'
    )
