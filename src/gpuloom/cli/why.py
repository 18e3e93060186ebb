"""`gpuloom why`: why a job waits and when it will start, and how good such forecasts have been."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.live import JOBS_HELP, Moment, connect, live_options, one_number, plain, say_json, short
from gpuloom.core.words import plural

if TYPE_CHECKING:
    from gpuloom.live.forecasts.backtest import Checked


@click.command(epilog=JOBS_HELP)
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--no-forecast", is_flag=True, help="Only say why it waits, without a forecast.")
@click.option("--check", is_flag=True, help="Compare past forecasts with what happened, by the log of this home.")
@click.option("--since", type=Moment(), metavar="TIME", help="With --check: submissions since then (7d: ago).")
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=200,
    show_default=True,
    metavar="N",
    help="With --check: at most this many submissions.",
)
@live_options
def why(
    job: str | None,
    no_forecast: bool,
    check: bool,
    since: float | None,
    sample: int,
    as_json: bool,
    home: Path | None,
) -> None:
    """Explain why a job waits, its position, and when it will start.

    The forecast simulates ahead from the jobs that run and wait now, and says what it rests on and assumes. A range
    covers eight of ten cases; what is not known is called unknown.

    --check repeats the forecasts of past submissions with what was known then, and compares them with what happened. It
    needs no scheduler; Ctrl-C shows the results so far.

    \b
    Examples:
      gpuloom why 12
      gpuloom why 12 --json
      gpuloom why --check --since 7d
    """
    if check:
        if job is not None or no_forecast:
            raise click.UsageError("--check looks at the past of all jobs: it takes no JOB and no --no-forecast")
        _check(home, since, sample, as_json)
        return
    if job is None:
        raise click.UsageError("which job? Give its number, such as 12 (gpuloom ls lists them), or --check")
    if since is not None:
        raise click.UsageError("--since needs --check")
    with connect(home) as client:
        found = client.why(one_number(client, job), forecast=not no_forecast)
    if as_json:
        say_json(found)
        return
    sentences = found["sentences"]
    for sentence in sentences:
        click.echo(plain(sentence))
    told = " ".join(sentences)
    if assumed := [text for text in found["assumptions"] if text not in told]:
        click.echo("\nThe forecast assumes:")
        for text in assumed:
            click.echo(f"  - {plain(text)}")


def _check(home: Path | None, since_s: float | None, sample: int, as_json: bool) -> None:
    from gpuloom.cli.db import existing
    from gpuloom.cli.progress import task_progress
    from gpuloom.live.forecasts import backtest
    from gpuloom.live.parts import DEFAULT_INTERVAL_S, DEFAULT_POLICY
    from gpuloom.store.sqlite import SqliteStore

    where = existing(home)
    with SqliteStore(where.db, read_only=True) as store, task_progress([("forecasts", sample)], quiet=as_json) as show:
        found = backtest.check(
            lambda: backtest.events_of(store),
            policy=DEFAULT_POLICY,
            interval_s=DEFAULT_INTERVAL_S,
            since_s=float("-inf") if since_s is None else since_s,
            sample=sample,
            on_progress=None if show is None else lambda done, total: show(0, done, total),
        )
    if as_json:
        say_json(backtest.as_json(found))
    else:
        _show(found, str(where.db))
    if found.ended_early:
        click.echo("interrupted: only the forecasts made so far are counted", err=True)
        sys.exit(1)


def _show(found: Checked, where: str) -> None:
    from gpuloom.cli.live_tables import Column, show_table
    from gpuloom.live.forecasts.backtest import as_json

    if not found.cases:
        click.echo(f"{where}: no job was submitted in that time, so there is no forecast to check")
        return
    click.echo(
        f"{plural(len(found.cases), 'forecast')} of {plural(found.submissions, 'submission')}, made with what was "
        "known then, and what happened:\n"
    )

    def quantiles(row: Mapping[str, Any]) -> str:
        off = row["abs_error_s"]
        return "-" if off is None else f"{short(off['p10'])}, {short(off['p50'])}, {short(off['p90'])}"

    def share(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.0f} %"

    columns: Sequence[Column[Mapping[str, Any]]] = (
        Column("forecast of", lambda row: str(row["what"])),
        Column("rests on", lambda row: str(row["source"]).replace("_", " ")),
        Column("jobs", lambda row: f"{row['cases']:,}", right=True),
        Column("unknown", lambda row: f"{row['unknown']:,}", right=True),
        Column("off by: 10 %, half, 90 % of them", quantiles, right=True),
        Column("of the time", lambda row: share(row["relative_error"]), right=True),
        Column("ranges", lambda row: f"{row['ranges']:,}", right=True),
        Column("held", lambda row: share(row["within"]), right=True),
        Column("width", lambda row: short(row["width_s"]), right=True),
    )
    show_table(columns, as_json(found)["errors"])
    if found.failed:
        click.echo(f"\n{plural(found.failed, 'forecast')} failed, as the policy did")
