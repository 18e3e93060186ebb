"""`gpuloom events`, `history` and `usage`: what happened."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Choice, Group
from gpuloom.cli.live import (
    Moment,
    connect,
    dollars,
    live_options,
    one_number,
    plain,
    say_json,
    say_json_line,
    short,
)
from gpuloom.cli.live_tables import MOVED, Column, show_table
from gpuloom.cli.outputs import check_outputs, overwrite_option
from gpuloom.core.errors import InputError
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.views.cluster_answers import UsageRow
    from gpuloom.live.views.job_answers import EventView

UNTOLD = ("estimates", "boot_id", "start_ticks", "failure")
"""Fields of events that say nothing to people; --json has them."""
GUESSES = ("unknown", "time_limit")
"""Sources of estimates that are guesses of the scheduler, not known numbers."""


@click.command()
@click.option(
    "--follow", "-f", is_flag=True, help="Keep printing new events until Ctrl-C, also across restarts of the scheduler."
)
@click.option("--job", metavar="JOB", help="Only events about this job.")
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Only events of this type, such as attempt.ended (repeatable).",
)
@click.option("--after", type=click.IntRange(0), metavar="ID", help="Events after this number, oldest first.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    metavar="N",
    help="At most N events (with -f: to begin with).",
)
@live_options
def events(
    follow: bool,
    job: str | None,
    types: tuple[str, ...],
    after: int | None,
    lines: int,
    as_json: bool,
    home: Path | None,
) -> None:
    """Show the event log: everything that happened to jobs, nodes and the scheduler.

    With --json a list, or with -f one object a line.

    \b
    Examples:
      gpuloom events -n 50
      gpuloom events --job 12
      gpuloom events -f --type attempt.ended --json
    """
    with connect(home, follows=follow) as client:
        about = None if job is None else one_number(client, job)
        last = client.last_event() if follow and after is None else None
        found: list[EventView] = []
        if lines:
            found = client.events(after=after or 0, job=about, types=types, limit=lines, newest=after is None)
            found = [event for event in found if last is None or event["id"] <= last]
        if not follow:
            if as_json:
                say_json(found)
            for event in [] if as_json else found:
                click.echo(_line(event))
            return
        try:
            for event in found:
                say_json_line(event) if as_json else click.echo(_line(event))
            start = last if last is not None else found[-1]["id"] if found else after
            for event in client.follow_events(after=start, job=about, types=types):
                say_json_line(event) if as_json else click.echo(_line(event))
        except KeyboardInterrupt:
            return


def _line(event: EventView) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at_s"]))
    about = "" if event["job"] is None else f"job {event['job']}"
    return plain(
        f"{event['id']:>6}  {at}  {event['type']:<18} {about:<10} {_data_text(event['data'], event['at_s'])}"
    ).rstrip()


EPOCH_S = 1e8
"""Seconds beyond are a point in time, not a duration (three years)."""


def _seconds(name: str, value: float) -> str:
    if abs(value) < EPOCH_S:
        return f"{name.removesuffix('_s').replace('_', ' ')} {'-' if value < 0 else ''}{short(abs(value))}"
    words = {"deadline_s": "ends by", "ended_s": "ended"}
    text = words.get(name, name.removesuffix("_s").replace("_", " "))
    return f"{text} {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(value))}"


def _data_text(data: Mapping[str, Any], at_s: float) -> str:
    """The data of an event in short form, without specs and the like (--json has them)."""
    parts = []
    guessed = data.get("estimate_from") in GUESSES
    for key, value in data.items():
        if value in (None, "", False, []) or key in UNTOLD or (guessed and key in ("estimate_s", "estimate_from")):
            continue
        if key == "ended_s" and abs(value - at_s) < 2:
            continue  # when it was written down
        if key == "spec":
            parts.append(str(value.get("name") or ""))
        elif key in ("message", "text"):
            parts.append(str(value))
        elif key.endswith("_s") and isinstance(value, int | float):
            parts.append(_seconds(key, value))
        elif key.endswith("_mib") and isinstance(value, int | float):
            parts.append(f"{key.removesuffix('_mib').replace('_', ' ')} {value:,.0f} MiB")
        elif key == "reason" and value == "node":
            parts.append(MOVED)
        elif key == "node" and isinstance(value, Mapping):
            parts.append(f"{value.get('name')} {value.get('state')} {value.get('reason') or ''}".rstrip())
        elif key == "allocation":
            parts.append(";".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in value))
        elif key == "exit_code" and data.get("message"):
            continue  # which says it
        else:
            shown = (
                value if isinstance(value, str) else f"{value:.6g}" if isinstance(value, float) else json.dumps(value)
            )
            parts.append(f"{key.replace('_', ' ')} {shown}")
    text = ", ".join(part for part in parts if part)
    return text if len(text) <= 200 else f"{text[:199]}…"


@click.group(cls=Group)
def history() -> None:
    """Export what ran here as a trace for gpuloom simulate and compare."""


@history.command("export")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--since", type=Moment(), metavar="TIME", help="Jobs submitted since then: 7d (ago), or 2026-11-21T14:30."
)
@click.option("--until", type=Moment(), metavar="TIME", help="Jobs submitted before then.")
@overwrite_option("a file")
@live_options
def export(
    file: str, since: float | None, until: float | None, overwrite: bool, as_json: bool, home: Path | None
) -> None:
    """Write past jobs as a trace: what if another policy had decided?

    \b
    Examples:
      gpuloom history export week.csv --since 7d
      gpuloom compare week.csv --policies tiresias,muri-l
      gpuloom history export - | head
    """
    if file == "-" and as_json:
        raise click.UsageError("--json says what was written where; with - the trace itself is on stdout")
    check_outputs([file], None)
    if file != "-" and not overwrite and Path(file).exists():
        raise InputError(f"{file} exists already; --overwrite replaces it")
    with connect(home) as client:
        text = client.history(since_s=since, until_s=until)
    if file == "-":
        click.echo(text, nl=False)
        return
    Path(file).write_text(text, encoding="utf-8")
    rows = sum(1 for line in text.splitlines() if line and not line.startswith("#")) - 1
    if as_json:
        say_json({"file": file, "jobs": max(rows, 0)})
    else:
        click.echo(f"{file}: {plural(max(rows, 0), 'job')}")


@click.command()
@click.option(
    "--by",
    type=Choice(["user", "name", "day", "node"]),
    default="user",
    show_default=True,
    help="What a row stands for.",
)
@click.option("--since", type=Moment(), metavar="TIME", help="Use since then: 7d (ago), or 2026-11-21.")
@click.option("--until", type=Moment(), metavar="TIME", help="Use until then [now].")
@live_options
def usage(by: str, since: float | None, until: float | None, as_json: bool, home: Path | None) -> None:
    """Show how much GPU time was used, and by whom.

    \b
    Examples:
      gpuloom usage --since 7d
      gpuloom usage --by day --since 2026-11-01 --json
    """
    with connect(home) as client:
        found = client.usage(by=by, since_s=since, until_s=until)
    if as_json:
        say_json(found)
        return
    if not found:
        click.echo("nothing was used in that time")
        return
    whole = sum(row["gpu_s"] for row in found) or 1.0
    rows = found if by == "day" else sorted(found, key=lambda row: -row["gpu_s"])
    priced = any(row["cost_usd"] is not None and row["gpu_s"] > 0 for row in rows)
    lay = any(row["suspensions"] or row["suspended_s"] for row in rows)
    suspended: Sequence[Column[UsageRow]] = (
        Column("suspended", lambda row: f"{plural(row['suspensions'], 'time')}, {short(row['suspended_s'])}"),
        Column("GPU memory moved", lambda row: _moved(row["suspended_mib"]), right=True),
    )
    columns: Sequence[Column[UsageRow]] = (
        Column(by, lambda row: row["key"], gives=True),
        Column("GPU time", lambda row: _gpu_time(row["gpu_s"]), right=True),
        Column("share", lambda row: f"{100 * row['gpu_s'] / whole:.0f}%", right=True),
        *([Column("cost", lambda row: dollars(row["cost_usd"]), right=True)] if priced else []),
        Column("jobs", lambda row: f"{row['jobs']:,}", right=True),
        Column("attempts", lambda row: f"{row['attempts']:,}", right=True),
        Column("failed", lambda row: f"{row['failed']:,}", right=True),
        *(suspended if lay else ()),
    )
    show_table(columns, rows)


def _moved(mib: float) -> str:
    """'-' of jobs that were frozen, and kept it."""
    return f"{mib / 1024:,.1f} GiB" if mib else "-"


def _gpu_time(seconds: float) -> str:
    """In hours; in minutes or seconds where hours would be 0.00."""
    if seconds >= 36:
        return f"{seconds / 3600:,.2f} h"
    return f"{seconds / 60:.2f} min" if seconds >= 0.6 else f"{seconds:.2f} s" if seconds > 0 else "0"
