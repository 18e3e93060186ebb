"""The comparison as one picture of four panels, drawn by matplotlib."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuloom.core.errors import InputError, MissingDependencyError
from gpuloom.core.sums import sum_ints
from gpuloom.files.whole import binary_output
from gpuloom.report.axis import DASHES, PALETTE, Ticks, line_width, linear_ticks, log_time_ticks, time_ticks
from gpuloom.report.metrics import facts
from gpuloom.report.series import distribution, downsample, labels, relative_jct, span
from gpuloom.sim.result import SimResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
LINE_POINTS = 2000
QUEUE_BINS = 600
BUSY_BINS = 150
_GREY = "#5f6670"
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#b8bec6",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelcolor": _GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "grid.color": "#e6e9ed",
    "grid.linewidth": 0.8,
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "lines.linewidth": 1.7,
    "lines.solid_capstyle": "round",
    "svg.hashsalt": "gpuloom",
}


def save_plot(results: Sequence[SimResult], path: Path) -> None:
    """Draw JCT distribution, queue, GPUs busy and relative JCT into a PNG, SVG or PDF file.

    Raises:
        InputError: another suffix, or nothing to draw.
        MissingDependencyError: matplotlib is not installed.
        OSError: the file can't be written; names it.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InputError(f"a plot is written as {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, not as {str(path)!r}")
    if not results:
        raise InputError("there are no results to plot")
    try:
        import matplotlib
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise MissingDependencyError("a plot", "matplotlib", "plot") from error
    undated: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
    image = BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # names in a script the font lacks
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        layout = ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.1, hspace=0.04, wspace=0.03)
        figure = Figure(figsize=(13, 9.2), dpi=130, layout=layout)
        _draw(figure, results)
        figure.savefig(image, format=suffix[1:], metadata=undated)
    with binary_output(path) as file:
        file.write(image.getbuffer())


def _draw(figure: Figure, results: Sequence[SimResult]) -> None:
    names = [_literal(name) for name in labels(results)]
    panels: Any = figure.subplots(2, 2)
    lines = _cdf(panels[0, 0], results)
    _over_time(panels[0, 1], results, queue=True)
    _over_time(panels[1, 0], results, queue=False)
    _relative(panels[1, 1], results, names)
    marked = [
        f"{name} (interrupted)" if result.interrupted else name for name, result in zip(names, results, strict=True)
    ]
    figure.suptitle(_literal(" · ".join(facts(results))), fontsize=11, color=_GREY)
    rows = math.ceil(sum_ints(len(name) + 8 for name in marked) / 150)
    columns = math.ceil(len(results) / rows)
    figure.legend(lines, marked, loc="outside lower center", ncols=columns, frameon=False, handlelength=2.6)


def _line_style(number: int, count: int) -> dict[str, Any]:
    dash = DASHES[number // len(PALETTE) % len(DASHES)]
    width = 0.8 * line_width(number, count)
    return {"linewidth": width, "color": PALETTE[number % len(PALETTE)][0], "linestyle": (0, dash) if dash else "solid"}


def _cdf(axes: Axes, results: Sequence[SimResult]) -> list[Any]:
    lines = []
    lowest, highest = math.inf, 0.0
    for number, result in enumerate(results):
        found = distribution(result, LINE_POINTS)
        shown = found.jct_s[found.jct_s > 0]
        if len(shown):
            lowest, highest = min(lowest, float(shown[0])), max(highest, float(shown[-1]))
        lines += axes.plot(found.jct_s, found.share, drawstyle="steps-post", **_line_style(number, len(results)))
    if highest <= 0:
        lowest = highest = 1.0
    if highest < 1.5 * lowest:
        lowest, highest = lowest / 2, highest * 2
    axes.set_xscale("log")
    axes.set_xlim(lowest * (lowest / highest) ** 0.02, highest * (highest / lowest) ** 0.02)
    axes.set_ylim(0, 1.02)
    ticks = log_time_ticks(lowest, highest)
    axes.xaxis.set_minor_locator(_fixed(()))
    _set_ticks(axes.xaxis, ticks)
    axes.yaxis.set_major_formatter(_percent())
    axes.set_title("Distribution of job completion time")
    axes.set_xlabel("JCT (logarithmic)")
    axes.set_ylabel("jobs that ended within it")
    return lines


def _over_time(axes: Axes, results: Sequence[SimResult], *, queue: bool) -> None:
    spans = [span(result) for result in results]
    longest = max(end - start for start, end in spans)
    highest = 0.0
    for number, (result, (start, end)) in enumerate(zip(results, spans, strict=True)):
        bins = max(1, math.ceil((QUEUE_BINS if queue else BUSY_BINS) * (end - start) / longest))
        means = downsample(result.timeline, start, end, bins)
        values = means.queue_length if queue else means.busy_gpus / max(result.gpus, 1)
        middle = (means.edges_s[:-1] + means.edges_s[1:]) / 2 - start
        highest = max(highest, float(values.max()))
        axes.plot(middle, values, **_line_style(number, len(results)))
    ticks = time_ticks(longest)
    _set_ticks(axes.xaxis, ticks)
    axes.set_xlim(0, longest)
    axes.set_xlabel(f"time since the first submission ({ticks.unit})")
    if queue:
        axes.set_title("Queue length")
        axes.set_ylabel("jobs that wait")
        axes.set_ylim(0, max(highest, 1.0) * 1.05)
        _set_ticks(axes.yaxis, linear_ticks(0, max(highest, 1.0) * 1.05, 6, whole=True))
    else:
        axes.set_title("GPUs held")
        axes.set_ylabel("of all GPUs")
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(_percent())


def _relative(axes: Axes, results: Sequence[SimResult], names: Sequence[str]) -> None:
    """Average and p99 JCT over the best policy's, a pair of bars per policy."""
    height = 0.36
    ratios = relative_jct(results)
    longest = max([ratio for pair in ratios for ratio in pair if math.isfinite(ratio)], default=1.0)
    for number, (pair, result) in enumerate(zip(ratios, results, strict=True)):
        color = PALETTE[number % len(PALETTE)][0]
        for offset, (ratio, strength) in enumerate(zip(pair, (1.0, 0.45), strict=True)):
            at = number + (offset - 0.5) * height
            length = ratio if math.isfinite(ratio) else 0.0
            axes.barh(at, length, height * 0.92, color=color, alpha=strength)
            if not math.isfinite(ratio) and offset == 1:
                continue
            unknown = "interrupted: not compared" if result.interrupted else "-"
            axes.annotate(
                f"{ratio:.2f}×" if math.isfinite(ratio) else unknown,
                (length, at) if math.isfinite(ratio) else (1.0, number),
                (4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5 if len(results) <= 9 else 7.0 if len(results) <= 13 else 5.5,
                color=_GREY,
            )
    axes.axvline(1.0, color=_GREY, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xlim(0, longest * 1.1)
    axes.set_ylim(len(results) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [name if len(name) <= 24 else f"{name[:23]}…" for name in names])
    axes.tick_params(axis="y", length=0, labelcolor="#2b3036")
    axes.grid(visible=False, axis="y")
    axes.set_title("JCT relative to the best policy (strong: average, pale: p99)")
    axes.set_xlabel("times the best (shorter is better)")


def _set_ticks(axis: Any, ticks: Ticks) -> None:
    axis.set_major_locator(_fixed(ticks.at))
    axis.set_ticklabels(ticks.text)


def _fixed(at: Sequence[float]) -> Any:
    from matplotlib.ticker import FixedLocator

    return FixedLocator(list(at))


def _percent() -> Any:
    from matplotlib.ticker import PercentFormatter

    return PercentFormatter(1.0, decimals=0)


def _literal(text: str) -> str:
    """Text that matplotlib takes as it stands: no formulas, no hidden labels, no unprintable characters."""
    text = "".join(c if c.isprintable() else "�" for c in text).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text
