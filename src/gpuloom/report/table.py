"""The comparison as a table on a terminal or in a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from gpuloom.report.metrics import COST, METRICS, Metric, best, facts, interruption, priced
from gpuloom.report.series import labels
from gpuloom.sim.result import SimResult

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NOT_A_TERMINAL_WIDTH = 120
_GUTTER = 2
_NAME_AT_LEAST = 8
_LEAST_WIDTH = 24


def comparison_table(results: Sequence[SimResult], *, width: int = 200) -> Table:
    """One row per result, one column per metric, as many as fit into `width`.

    Where the room is short, headers shorten first, then the less important columns go (the caption names
    them). Values are never cut; long policy names fold.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    names = [_printable(name) + "*" * result.interrupted for name, result in zip(labels(results), results, strict=True)]
    metrics, headers = _fitting(results, names, width)
    table = Table(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, _GUTTER - 1, 0, 0),
        header_style="bold",
        caption_justify="left",
        caption_style="dim",
    )
    table.add_column("policy", overflow="fold", min_width=min(_NAME_AT_LEAST, max(map(len, names), default=0)))
    for header in headers:
        table.add_column(header, justify="right", no_wrap=True)
    winners = [best(metric, results) for metric in metrics]
    for name, result in zip(names, results, strict=True):
        cells = [Text(name)]
        for metric, winner in zip(metrics, winners, strict=True):
            text = metric.text(metric.value(result))
            wins = text == winner and not result.interrupted
            cells.append(Text(text, style="bold green" if wins else ""))
        table.add_row(*cells)
    table.caption = Text("\n".join(_caption(results, names, metrics)))
    return table


def print_comparison(results: Sequence[SimResult], file: TextIO | None = None, *, width: int | None = None) -> None:
    """Print the table to `file` (stdout).

    On a terminal it takes the terminal's width and emphasises the best value of each column. Elsewhere it is
    plain text of up to COLUMNS (120) columns, in ASCII if the file's encoding can't hold more.
    """
    from rich.console import Console

    out = sys.stdout if file is None else file
    console = Console(file=out, width=width, highlight=False)
    if width is None and not console.is_terminal:
        columns = os.environ.get("COLUMNS", "")
        width = int(columns) if columns.isdecimal() and int(columns) > 0 else NOT_A_TERMINAL_WIDTH
    width = max(width or console.width, _LEAST_WIDTH)
    table = comparison_table(results, width=width)
    if console.is_terminal:
        console.print(table)
        return
    plain = StringIO()
    _render(Console(file=plain, width=width, force_terminal=False, color_system=None), table)
    text = "\n".join(line.rstrip() for line in plain.getvalue().splitlines()) + "\n"
    out.write(_encodable(text, getattr(out, "encoding", None) or "utf-8"))


def _render(console: Console, table: Table) -> None:
    console.print(table, highlight=False)


def _fitting(results: Sequence[SimResult], names: Sequence[str], width: int) -> tuple[list[Metric], list[str]]:
    """The metrics that fit, and their headers."""
    metrics = [*METRICS, COST] if all(map(priced, results)) else list(METRICS)
    name_width = max([*map(len, names), len("policy")])

    def needs(headers: Sequence[str]) -> int:
        total = min(name_width, max(_NAME_AT_LEAST, width // 4))
        for metric, header in zip(metrics, headers, strict=True):
            values = [len(metric.text(metric.value(result))) for result in results]
            total += _GUTTER + max([*values, len(header)])
        return total

    headers = [metric.title for metric in metrics]
    if needs(headers) <= width:
        return metrics, headers
    while True:
        headers = [metric.short for metric in metrics]
        if needs(headers) <= width or len(metrics) == 1:
            return metrics, headers
        metrics.remove(min(metrics, key=lambda metric: metric.keep))


def _caption(results: Sequence[SimResult], names: Sequence[str], shown: Sequence[Metric]) -> list[str]:
    lines = [_printable(" · ".join(facts(results)))]
    for name, result in zip(names, results, strict=True):
        if result.interrupted:
            lines.append(f"* {name.removesuffix('*')} {interruption(result)}: averages are over those that ended")
    lines += [_printable(f"note: {note}") for note in dict.fromkeys(note for r in results for note in r.notes)]
    left_out = [metric.title for metric in METRICS if metric not in shown]
    if left_out:
        lines.append(f"no room for: {', '.join(left_out)}")
    return lines


def _printable(text: str) -> str:
    """Without characters that would steer the terminal."""
    return "".join(c if c.isprintable() else "�" for c in text)


def _encodable(text: str, encoding: str) -> str:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        for nice, simple in (("─", "-"), ("·", "|"), ("× ", "x "), ("−", "-")):
            text = text.replace(nice, simple)
        text = text.encode("ascii", "replace").decode("ascii")
    return text
