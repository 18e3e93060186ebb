"""What each node, GPU, user or job used over time, as `gpuloom stats --series --by` prints it."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from gpuloom.cli.bars import bars, binned
from gpuloom.cli.live import short
from gpuloom.cli.live_tables import Column, gib, show_table
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.views.cluster_answers import EachLineView, EachSeriesView, FigureOfEach

WIDTH = 24
"""Bars of a line, at most."""
Row = tuple["EachLineView", str]
"""A line, and its bars."""


def _last(line: EachLineView, figure: FigureOfEach) -> float | None:
    """What it was last known to be."""
    return next((value for value in reversed(line["figures"].get(figure, [])) if value is not None), None)


def _number(figure: FigureOfEach, digits: int = 0) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        value = _last(row[0], figure)
        return "-" if value is None else f"{value:,.{digits}f}"

    return cell


def _gib(figure: FigureOfEach) -> Callable[[Row], str]:
    return lambda row: gib(_last(row[0], figure))


def _part(used: FigureOfEach, whole: FigureOfEach) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        part, of = _last(row[0], used), _last(row[0], whole)
        return "-" if part is None or not of else f"{100 * part / of:.0f}"

    return cell


_GPU: Sequence[Column[Row]] = (
    Column("GPU %", _number("gpu_utilization"), right=True),
    Column("GPU memory %", _part("gpu_memory_used_mib", "gpu_memory_mib"), right=True),
)
_DISK: Sequence[Column[Row]] = (
    Column("read MiB/s", _number("read_mib_per_s", 1), right=True, least=100),
    Column("write MiB/s", _number("write_mib_per_s", 1), right=True, least=100),
)
_RUNS: Sequence[Column[Row]] = (
    Column("cores", _number("cpu_cores", 1), right=True),
    Column("memory GiB", _gib("memory_used_mib"), right=True),
    Column("GPU %", _number("gpu_utilization"), right=True),
    Column("GPU GiB", _gib("gpu_memory_used_mib"), right=True),
    *_DISK,
)
COLUMNS: Mapping[str, Sequence[Column[Row]]] = {
    "node": (
        Column("CPU %", _number("cpu_percent"), right=True),
        Column("memory %", _part("memory_used_mib", "memory_mib"), right=True),
        Column("disk free GiB", _gib("disk_free_mib"), right=True),
        *_DISK,
        Column("in MiB/s", _number("received_mib_per_s", 1), right=True, least=90),
        Column("out MiB/s", _number("sent_mib_per_s", 1), right=True, least=90),
        *_GPU,
        Column("busiest %", _number("gpu_utilization_most"), right=True),
    ),
    "gpu": _GPU,
    "user": _RUNS,
    "job": _RUNS,
}
"""By kind: what was known last of each."""
DRAWN: Sequence[tuple[FigureOfEach, str]] = (
    ("gpu_utilization", "GPU use"),
    ("cpu_percent", "CPU use"),
    ("cpu_cores", "CPU cores"),
)
"""Of these bars are drawn: of the first of which anything is known."""


def say_each(found: EachSeriesView) -> None:
    """A line for each, with how it went and what was last."""
    if not found["lines"]:
        what = "GPU" if found["by"] == "gpu" else found["by"]
        click.echo(f"no samples of any {what} in that time: monitors look while the scheduler runs")
        return
    figure, title = next(
        (pair for pair in DRAWN if any(_last(line, pair[0]) is not None for line in found["lines"])), DRAWN[0]
    )
    bins = min(WIDTH, len(found["from_s"]))

    def drawn(line: EachLineView) -> str:
        values = line["figures"].get(figure)
        return "" if values is None else bars(binned(found["from_s"], found["span_s"], values, bins))

    columns: Sequence[Column[Row]] = (
        Column(found["by"], lambda row: row[0]["name"]),
        Column(f"{title} over time", lambda row: row[1], gives=True),
        *COLUMNS[found["by"]],
    )
    show_table(columns, [(line, drawn(line)) for line in found["lines"]])
    click.echo()
    span_s = found["from_s"][-1] + found["span_s"][-1] - found["from_s"][0]
    click.echo(f"{plural(len(found['from_s']), 'sample')} over {short(span_s)}; --csv and --json have each")


def csv_of_each(found: EachSeriesView) -> str:
    """A row for each sample and name; empty where a figure is not known."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    figures = list({name: None for line in found["lines"] for name in line["figures"]})
    writer.writerow(["from_s", "span_s", found["by"], *figures])
    for place, (from_s, span_s) in enumerate(zip(found["from_s"], found["span_s"], strict=True)):
        for line in found["lines"]:
            values = [line["figures"][name][place] for name in figures]
            if any(value is not None for value in values):
                writer.writerow([from_s, span_s, line["name"], *("" if v is None else v for v in values)])
    return stream.getvalue()
