"""Shared by every command that reads a trace."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from gpuloom.traces import TraceRead

BAD_ROWS_SHOWN = 5


def reading_options(command: Any) -> Any:
    """The arguments and options of every command that reads a trace."""
    for decorate in (
        click.option("--gpu-model", metavar="MODEL", help="GPU model that durations are for [V100]."),
        click.option(
            "--throughputs",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="Measured throughputs, for traces of Gavel, Shockwave, Pollux, Sia and ElasticFlow; also looked for "
            "beside the trace.",
        ),
        click.option("--skip-bad-rows", is_flag=True, help="Skip rows that can't be read, and count them."),
        click.option("--format", "format_", metavar="ID", help="Format of the trace (see: gpuloom trace formats)."),
        click.argument("traces", nargs=-1, required=True, metavar="TRACE..."),
    ):
        command = decorate(command)
    return command


def read(
    traces: tuple[str, ...],
    format_: str | None,
    skip_bad_rows: bool,
    throughputs: Path | None,
    gpu_model: str | None,
    pairs: Path | None = None,
) -> TraceRead:
    """Read a trace as the options say."""
    from gpuloom.traces import read_trace

    return read_trace(
        list(traces),
        format=format_,
        skip_bad_rows=skip_bad_rows,
        throughputs=throughputs,
        gpu_model=gpu_model,
        pairs=pairs,
    )


def say_notes(found: TraceRead) -> None:
    """Tell on standard error what the reader left out or assumed."""
    for note in found.workload.notes:
        click.echo(f"note: {note}", err=True)
    for error in found.bad_rows[:BAD_ROWS_SHOWN]:
        click.echo(f"skipped: {error}", err=True)
    if len(found.bad_rows) > BAD_ROWS_SHOWN:
        click.echo(f"skipped: {len(found.bad_rows) - BAD_ROWS_SHOWN:,} more", err=True)
