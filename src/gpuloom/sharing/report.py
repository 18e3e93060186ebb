"""The timeline of a shared GPU as a picture: SMs by program, requests, and when launches waited and why."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuloom.core.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpuloom.sharing.simulate import Outcome, Span

SUFFIXES = (".png", ".svg", ".pdf")
POINTS = 1500
_HIGH, _BEST, _WAIT, _QUEUE, _GREY = "#c2410c", "#2f6fb0", "#d9b44a", "#b9cfe4", "#5f6670"


def save_timeline(
    outcomes: Sequence[Outcome], window_s: tuple[float, float], sm_count: int, path: Path, title: str
) -> None:
    """Draw one panel per rule into a PNG, SVG or PDF file.

    Args:
        outcomes: made with `trace_s=window_s`.
        window_s: from when to when.

    Raises:
        InputError: another suffix, or nothing to draw.
        MissingDependencyError: matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: a plot is written to a file that ends in {', '.join(SUFFIXES)}")
    if not outcomes or window_s[1] <= window_s[0]:
        raise InputError("a timeline needs at least one outcome and a time above 0")
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise MissingDependencyError("a plot", "matplotlib", "plot") from error
    style: dict[Any, Any] = {
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "svg.hashsalt": "gpuloom",
    }
    with rc_context(style):
        figure = Figure(figsize=(11, 0.9 + 1.9 * len(outcomes)), layout="constrained")
        panels = figure.subplots(len(outcomes), 1, sharex=True, squeeze=False)[:, 0]
        for axes, outcome in zip(panels, outcomes, strict=True):
            _panel(axes, outcome, window_s, sm_count)
        panels[-1].set_xlabel("milliseconds")
        figure.suptitle(title, x=0.01, ha="left", weight="bold")
        keys = [Patch(color=_HIGH, label="SMs of the service"), Patch(color=_BEST, label="SMs of the training job")]
        keys += [
            Patch(color=_WAIT, label="a launch is held"),
            Patch(color=_QUEUE, label="held: enough is queued"),
            Patch(color=_GREY, label="request waits, then runs"),
        ]
        figure.legend(handles=keys, loc="outside lower center", ncols=5, frameon=False)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
        figure.savefig(path, dpi=130, metadata=metadata)


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


def _panel(axes: Any, outcome: Outcome, window_s: tuple[float, float], sm_count: int) -> None:
    start, scale = window_s[0] * 1e9, 1e-6
    times = np.linspace(0, (window_s[1] - window_s[0]) * 1e3, POINTS, endpoint=False)
    high = sms_over_time(outcome.spans, "high", window_s)
    best = sms_over_time(outcome.spans, "best-effort", window_s)
    axes.stackplot(times, high, best, colors=(_HIGH, _BEST), linewidth=0, step="post")
    for colour, queued in ((_WAIT, False), (_QUEUE, True)):
        holds = [s for s in outcome.spans if s.kind == "hold" and (s.value == "window") == queued]
        bars = [((s.start_ns - start) * scale, (s.end_ns - s.start_ns) * scale) for s in holds]
        axes.broken_barh(bars, (sm_count * 1.03, sm_count * 0.07), facecolor=colour, linewidth=0)
    for index, (arrived, begun, finished) in enumerate(outcome.served):
        row = sm_count * (1.14 + 0.07 * (index % 3))
        at = [(moment - start) * scale for moment in (arrived, begun, finished)]
        axes.plot(at[:2], [row, row], color=_GREY, linewidth=0.8, linestyle=":")
        axes.plot(at[1:], [row, row], color=_GREY, linewidth=2.2, solid_capstyle="butt")
    axes.set_xlim(0, (window_s[1] - window_s[0]) * 1e3)
    axes.set_ylim(0, sm_count * 1.36)
    axes.set_yticks([0, sm_count // 2, sm_count])
    axes.set_ylabel("SMs")
    told = f"p99 {outcome.p99_over_alone:.2f} x alone, training {outcome.best_effort_over_alone:.2f} of alone"
    axes.set_title(f"{outcome.rule}: {told}", loc="left", fontsize=9)
