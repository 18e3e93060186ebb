"""The timeline of a shared GPU as a picture: SMs by program, requests, and when launches waited and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gpuloom.core.errors import InputError
from gpuloom.report.axis import Ticks, linear_ticks
from gpuloom.report.picture import check_picture, legend, moved, patch_key, picture, save_picture, text
from gpuloom.report.svg import Frame, Scale, x_axis, y_axis

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuloom.sharing.simulate import Outcome, Span

POINTS = 1500
_HIGH, _BEST, _WAIT, _QUEUE, _GREY = "#c2410c", "#2f6fb0", "#d9b44a", "#b9cfe4", "#5f6670"
_KEYS = (
    (_HIGH, "SMs of the service"),
    (_BEST, "SMs of the training job"),
    (_WAIT, "a launch is held"),
    (_QUEUE, "held: enough is queued"),
    (_GREY, "request waits, then runs"),
)
_FRAME = Frame(width=1100, height=214, left=56, right=14, top=26, bottom=30)


def save_timeline(
    outcomes: Sequence[Outcome], window_s: tuple[float, float], sm_count: int, path: Path, title: str
) -> None:
    """Draw one panel per rule into a PNG, SVG or PDF file.

    Args:
        outcomes: made with `trace_s=window_s`.
        window_s: from when to when.

    Raises:
        InputError: another suffix, or nothing to draw.
        MissingDependencyError: matplotlib is not installed (SVG does without).
        OSError: the file can't be written; names it.
    """
    check_picture(path)
    if not outcomes or window_s[1] <= window_s[0]:
        raise InputError("a timeline needs at least one outcome and a time above 0")
    body, top = [text(12, 20, title, "head")], 36.0
    for outcome in outcomes:
        body.append(moved(0, top, _panel(outcome, window_s, sm_count, last=outcome is outcomes[-1])))
        top += _FRAME.height
    keys, height = legend([(patch_key(colour), name) for colour, name in _KEYS], _FRAME.width)
    body.append(moved(0, top + 18, [keys]))
    save_picture(picture(_FRAME.width, top + height + 28, body), path)


def sms_over_time(
    spans: Sequence[Span], kind: str, window_s: tuple[float, float], points: int = POINTS
) -> NDArray[np.float64]:
    """SMs held by a program, on average over each of `points` equal parts of the window."""
    start, width = window_s[0] * 1e9, (window_s[1] - window_s[0]) * 1e9 / points
    held = np.zeros(points + 1)
    for span in spans:
        if span.kind != kind:
            continue
        low, high = (min(max((at - start) / width, 0.0), float(points)) for at in (span.start_ns, span.end_ns))
        first, last, value = int(low), int(high), float(span.value)
        if first == last:
            held[first] += value * (high - low)
        else:
            held[first] += value * (first + 1 - low)
            held[first + 1 : last] += value
            held[last] += value * (high - last)
    return held[:points]


def _panel(outcome: Outcome, window_s: tuple[float, float], sm_count: int, *, last: bool) -> list[str]:
    start, long_ms = window_s[0] * 1e9, (window_s[1] - window_s[0]) * 1e3
    x, y = _FRAME.x(0, long_ms), _FRAME.y(0, sm_count * 1.36)

    def at(moment_ns: float) -> float:
        return x(min(max((moment_ns - start) * 1e-6, 0.0), long_ms))

    high = sms_over_time(outcome.spans, "high", window_s)
    both = high + sms_over_time(outcome.spans, "best-effort", window_s)
    marks = (0, sm_count // 2, sm_count)
    ticks = linear_ticks(0, long_ms, 8)
    told = f"p99 {outcome.p99_over_alone:.2f} x alone, training {outcome.best_effort_over_alone:.2f} of alone"
    body = [text(_FRAME.left, 12, f"{outcome.rule}: {told}", "row")]
    body += y_axis(_FRAME, y, Ticks(marks, tuple(map(str, marks))), "SMs")
    body += x_axis(_FRAME, x, ticks if last else Ticks((), ()), "milliseconds" if last else "")
    body += [_area(both, x, y, _BEST), _area(high, x, y, _HIGH)]
    for colour, queued in ((_WAIT, False), (_QUEUE, True)):
        held = [s for s in outcome.spans if s.kind == "hold" and (s.value == "window") == queued]
        body.append(_bars(((at(s.start_ns), at(s.end_ns)) for s in held), y(sm_count * 1.065), 9, colour))
    for index, moments in enumerate(outcome.served):
        row = y(sm_count * (1.14 + 0.07 * (index % 3)))
        arrived, begun, finished = map(at, moments)
        body.append(_bars([(arrived, begun)], row, 1, _GREY, ' stroke-dasharray="1 2"'))
        body.append(_bars([(begun, finished)], row, 3, _GREY))
    return body


def _area(values: NDArray[np.float64], x: Scale, y: Scale, colour: str) -> str:
    """From 0 to the values, each of which holds for an equal part of the time."""
    edges = np.linspace(x.low, x.high, len(values) + 1).tolist()
    data, before = [f"M{x(0):.1f} {y(0):.1f}"], 0.0
    for edge, value in zip(edges, [*values.tolist(), 0.0], strict=True):
        if value != before:
            data.append(f"H{x(edge):.2f}V{y(value):.1f}")
        before = value
    return f'<path fill="{colour}" d="{"".join(data)}"/>'


def _bars(spans: Iterable[tuple[float, float]], y: float, thick: float, colour: str, more: str = "") -> str:
    data = "".join(f"M{left:.2f} {y:.1f}H{right:.2f}" for left, right in spans if right > left)
    return f'<path fill="none" stroke="{colour}" stroke-width="{thick:g}"{more} d="{data}"/>' if data else ""
