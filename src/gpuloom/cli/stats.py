"""`gpuloom stats`: figures of what ran here, and how they went over time."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from gpuloom.cli.bars import bars, binned
from gpuloom.cli.live import Moment, connect, live_options, plain, say_json, short
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.cli.stats_each import csv_of_each, say_each
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.views.cluster_answers import PointView, SeriesView, StatsView

WIDTH = 32
"""Bars of a line, at most."""


@click.command()
@click.option("--since", type=Moment(), metavar="TIME", help="What ran since then: 7d (ago), or 2026-11-21 [24h].")
@click.option("--until", type=Moment(), metavar="TIME", help="What ran until then [now].")
@click.option("--user", metavar="NAME", help="Jobs of this user alone.")
@click.option("--series", is_flag=True, help="How it went over time, sample by sample.")
@click.option(
    "--by",
    type=click.Choice(["node", "gpu", "user", "job"]),
    help="With --series: what each of these used, by the monitors, in the last hour.",
)
@click.option("--of", "name", metavar="NAME", help="With --by: this one alone; a GPU: NODE:INDEX.")
@click.option("--csv", "as_csv", is_flag=True, help="With --series: print CSV.")
@live_options
def stats(
    since: float | None,
    until: float | None,
    user: str | None,
    series: bool,
    by: Literal["node", "gpu", "user", "job"] | None,
    name: str | None,
    as_csv: bool,
    as_json: bool,
    home: Path | None,
) -> None:
    """Show figures of what ran here: JCT, makespan, queue, utilisation; by the simulator's names.

    \b
    Examples:
      gpuloom stats
      gpuloom stats --since 7d --user ada --json
      gpuloom stats --series --since 1h
      gpuloom stats --series --by node
      gpuloom stats --series --by gpu --of node3:0 --since 10m
      gpuloom stats --series --csv > series.csv
    """
    if as_csv and not series:
        raise click.UsageError("--csv prints the series: add --series")
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two forms of the same: give one")
    if by is not None and not series:
        raise click.UsageError("--by is of the series: add --series")
    if name is not None and by is None:
        raise click.UsageError("--of is one of --by: add --by node, gpu, user or job")
    if by is not None and user is not None:
        raise click.UsageError(f"--user does not go with --by; the figures of one user: --by user --of {user}")
    if user == "":
        raise click.UsageError("--user needs a name")
    with connect(home) as client:
        if by is not None:
            each = client.each_series(by, name=name, since_s=since, until_s=until)
            _say_text(csv_of_each(each)) if as_csv else say_json(each) if as_json else say_each(each)
        elif series:
            points = client.series(user=user, since_s=since, until_s=until)
            _say_csv(points) if as_csv else say_json(points) if as_json else _say_series(points)
        else:
            found = client.stats(user=user, since_s=since, until_s=until)
            say_json(found) if as_json else _say(found)


def _say(found: StatsView) -> None:
    of = f" of user {plain(found['user'])}" if found["user"] is not None else ""
    ended = ", ".join(f"{found[key]:,} {key}" for key in ("finished", "failed", "cancelled") if found[key])
    click.echo(f"{plural(found['jobs'], 'job')}{of} ran and ended" + (f" ({ended})" if ended else ""))
    span_s = found["until_s"] - found["since_s"]
    lines = (
        ("avg JCT", short(found["avg_jct_s"])),
        ("median JCT", short(found["median_jct_s"])),
        ("p99 JCT", short(found["p99_jct_s"])),
        ("makespan", short(found["makespan_s"])),
        ("avg queue", _number(found["avg_queue_length"])),
        ("blocking index", _number(found["blocking_index"])),
        ("utilization", "-" if found["utilization"] is None else f"{100 * found['utilization']:.1f}%"),
        ("GPU-hours", f"{found['gpu_s'] / 3600:,.2f}"),
        ("restarts", f"{found['restarts']:,}"),
        ("preemptions", f"{found['preemptions']:,}"),
        ("resizes", f"{found['resizes']:,}"),
        *([("avg resize", short(found["resize_s"]))] if found["resize_s"] is not None else []),
    )
    for name, text in lines:
        click.echo(f"{name:<15} {text}")
    if found["covered_s"] < 0.99 * span_s:
        text = (
            f"Queue, blocking and utilization are of {short(found['covered_s'])} in which a scheduler ran and sampled"
        )
        click.echo(f"{text}, out of {short(span_s)}.")


def _say_text(text: str) -> None:
    click.echo(text, nl=False)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


# -- the series --------------------------------------------------------------------------------------------------------


def _part(used: float | None, whole: float | None) -> float | None:
    return 100 * used / whole if used is not None and whole else None


def _gib(value: float | None) -> float | None:
    return None if value is None else value / 1024


LINES: Sequence[tuple[str, Callable[[PointView], float | None]]] = (
    ("jobs waiting", lambda point: point["queue_length"]),
    ("jobs running", lambda point: point["running"]),
    ("GPUs held", lambda point: point["busy_gpus"]),
    ("utilization %", lambda point: _part(point["busy_gpus"], point["gpus"])),
    ("blocking index", lambda point: point["blocking_index"]),
    ("avg JCT so far, s", lambda point: point["avg_jct_so_far_s"]),
    ("users", lambda point: point["users"]),
    ("nodes up", lambda point: point["nodes_up"]),
    ("GPU use %", lambda point: point["gpu_utilization"]),
    ("GPU memory %", lambda point: _part(point["gpu_memory_used_mib"], point["gpu_memory_mib"])),
    ("CPU %", lambda point: point["cpu_percent"]),
    ("memory %", lambda point: _part(point["memory_used_mib"], point["memory_mib"])),
    ("disk free, GiB", lambda point: _gib(point["disk_free_mib"])),
    ("read MiB/s", lambda point: point["read_mib_per_s"]),
    ("write MiB/s", lambda point: point["write_mib_per_s"]),
    ("received MiB/s", lambda point: point["received_mib_per_s"]),
    ("sent MiB/s", lambda point: point["sent_mib_per_s"]),
)
"""Lines of the table, and what each shows of a sample."""


def _say_series(found: SeriesView) -> None:
    points = found["points"]
    if not points:
        click.echo("no samples in that time: one is taken every ten seconds while the scheduler runs")
        return
    span_s = points[-1]["from_s"] + points[-1]["span_s"] - points[0]["from_s"]
    from_s, spans_s = [point["from_s"] for point in points], [point["span_s"] for point in points]
    rows = []
    for name, value in LINES:
        known = [one for point in points if (one := value(point)) is not None]
        if known:
            drawn = bars(binned(from_s, spans_s, [value(point) for point in points], min(WIDTH, len(points))))
            rows.append((name, drawn, known[-1], min(known), max(known)))
    columns: Sequence[Column[tuple[str, str, float, float, float]]] = (
        Column("figure", lambda row: row[0]),
        Column("over time", lambda row: row[1], gives=True),
        Column("last", lambda row: _number(row[2]), right=True),
        Column("least", lambda row: _number(row[3]), right=True),
        Column("most", lambda row: _number(row[4]), right=True),
    )
    show_table(columns, rows)
    click.echo()
    click.echo(f"{plural(len(points), 'sample')} over {short(span_s)}; --csv and --json have each")


def _say_csv(found: SeriesView) -> None:
    """A row for each sample; empty where a figure is not known. What each user had is in --json."""
    from gpuloom.live.views.cluster_answers import PointView

    names = [name for name in PointView.__annotations__ if name != "by_user"]
    rows: Sequence[Mapping[str, Any]] = [{**point} for point in found["points"]]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow(["" if (value := row[name]) is None else value for name in names])
    _say_text(stream.getvalue())
