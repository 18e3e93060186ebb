"""The comparison as one picture of four panels: the page's charts in a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.report.charts import busy_chart, jct_chart, queue_chart, relative_chart
from gpuloom.report.metrics import facts
from gpuloom.report.picture import check_picture, legend, line_key, picture, save_picture, text
from gpuloom.report.series import labels
from gpuloom.sim.result import SimResult

_WIDTH, _MARGIN, _HEAD = 1300, 20, 34
_TITLES = {"relative": "JCT relative to the best policy (strong: average, pale: p99)"}
_FACTS = 190
"""Characters of the headline."""


def save_plot(results: Sequence[SimResult], path: Path) -> None:
    """Draw JCT distribution, queue, GPUs busy and relative JCT into a PNG, SVG or PDF file.

    Raises:
        InputError: another suffix, or nothing to draw.
        MissingDependencyError: matplotlib is not installed (SVG does without).
        OSError: the file can't be written; names it.
    """
    check_picture(path)
    if not results:
        raise InputError("there are no results to plot")
    names = labels(results)
    panels = ((jct_chart(results), queue_chart(results)), (busy_chart(results), relative_chart(results, names)))
    body = [text(_WIDTH / 2, 20, " · ".join(facts(results))[:_FACTS], anchor="middle")]
    top = 40.0
    for row in panels:
        for column, panel in enumerate(row):
            left = _MARGIN + column * (_WIDTH - _MARGIN) / 2
            body.append(text(left + 8, top + 12, _TITLES.get(panel.key, panel.title), "head"))
            body.append(panel.at(left, top + _HEAD))
        top += _HEAD + max(panel.frame.height for panel in row) + 12
    marked = [f"{name} (interrupted)" if r.interrupted else name for name, r in zip(names, results, strict=True)]
    keys, height = legend([(line_key(number), name) for number, name in enumerate(marked)], _WIDTH)
    body.append(f'<g transform="translate(0 {top:g})">{keys}</g>')
    save_picture(picture(_WIDTH, top + height + 12, body), path)
