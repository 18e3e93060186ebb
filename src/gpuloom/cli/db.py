"""`gpuloom db`: check, back up and restore the scheduler's store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Group
from gpuloom.cli.outputs import overwrite_option
from gpuloom.core.errors import InputError
from gpuloom.core.words import are, noun, plural

if TYPE_CHECKING:
    from gpuloom.store.home import Home
    from gpuloom.store.port import CheckReport

home_option = click.option(
    "--home",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="The scheduler's home directory [$GPULOOM_HOME, else ~/.local/share/gpuloom].",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(cls=Group)
def db() -> None:
    """Check, back up and restore the scheduler's store, one SQLite file in its home (docs/reference/store.md)."""


@db.command(short_help="Check the store: the file, and its records against the events.")
@home_option
@json_option
def check(home: Path | None, as_json: bool) -> int:
    """Check the store: the file itself, and its records against its event log.

    It may run beside a scheduler. Exit codes: 0 the store is sound, 1 something is wrong, 2 there is no store.

    \b
    Examples:
      gpuloom db check
      gpuloom db check --home /srv/gpuloom --json
    """
    from gpuloom.store.sqlite import SqliteStore

    found = existing(home)
    with SqliteStore(found.db, read_only=True) as store:
        report = store.check()
    if as_json:
        _print({"path": str(found.db), **_plain(report)})
    else:
        click.echo(f"{found.db}: {_counts(report)}")
        for finding in report.findings:
            click.echo(f"  {finding.what}: {finding.detail}")
        click.echo("sound" if not report.findings else are(len(report.findings), "thing") + " wrong")
        if report.findings:
            click.echo("`gpuloom db restore FILE` replaces it by a backup, and keeps this file beside it")
    return 1 if report.findings else 0


@db.command(short_help="Write a consistent copy of the store to FILE.")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@overwrite_option("a file")
@home_option
@json_option
def backup(file: Path, overwrite: bool, home: Path | None, as_json: bool) -> int:
    """Write a consistent copy of the store to FILE. The scheduler may keep running.

    \b
    Examples:
      gpuloom db backup /backups/gpuloom.db
      gpuloom db backup /backups/gpuloom.db --overwrite
    """
    from gpuloom.store.sqlite import SqliteStore

    found = existing(home)
    with SqliteStore(found.db, read_only=True) as store:
        store.backup(file, overwrite=overwrite)
    size = file.stat().st_size
    if as_json:
        _print({"path": str(found.db), "backup": str(file.absolute()), "bytes": size})
    else:
        click.echo(f"{file}: a copy of {found.db}, {size / 2**20:,.1f} MiB")
    return 0


@db.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@home_option
@json_option
def restore(file: Path, home: Path | None, as_json: bool) -> int:
    """Replace the store by the backup FILE.

    The backup is checked first. The scheduler must be down (gpuloom down). The old file is kept beside the new one,
    under another name.

    \b
    Example:
      gpuloom db restore /backups/gpuloom.db
    """
    from gpuloom.store.home import home_of
    from gpuloom.store.restore import restore as put_back

    done = put_back(home_of(home), file)
    replaced = None if done.replaced is None else str(done.replaced)
    if as_json:
        _print({"path": str(done.path), "replaced": replaced, "strangers": list(done.strangers), **_plain(done.report)})
    else:
        click.echo(f"{done.path}: restored from {file}, {_counts(done.report)}")
        if replaced is not None:
            click.echo(f"the old store is kept as {replaced}")
        if count := len(done.strangers):
            click.echo(
                f"{plural(count, 'run')} that the backup does not know {noun(count, 'is', 'are')} still "
                f"running: {', '.join(done.strangers[:5])}{', …' * (count > 5)}; the next `gpuloom up` stops them"
            )
    return 0


def existing(path: Path | None) -> Home:
    from gpuloom.store.home import home_of

    home = home_of(path)
    if not home.db.is_file():
        raise InputError(
            f"{home.path}: there is no store here; `gpuloom up` makes one, --home or GPULOOM_HOME name another home"
        )
    return home


def _counts(report: CheckReport) -> str:
    told = (plural(report.events, "event"), plural(report.jobs, "job"), plural(report.attempts, "attempt"))
    return f"schema {report.schema_version}, {', '.join(told)}"


def _plain(report: CheckReport) -> dict[str, Any]:
    return {
        "sound": not report.findings,
        "schema_version": report.schema_version,
        "events": report.events,
        "jobs": report.jobs,
        "attempts": report.attempts,
        "findings": [{"what": finding.what, "detail": finding.detail} for finding in report.findings],
    }


def _print(data: dict[str, Any]) -> None:
    click.echo(json.dumps(data, indent=2))
