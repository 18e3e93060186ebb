"""Shared by all commands that talk to a running scheduler: options, the connection, job arguments, JSON, times."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Choice
from gpuloom.core.errors import InputError
from gpuloom.core.units import format_duration, money, parse_duration_s, parse_memory_mib

if TYPE_CHECKING:
    from gpuloom.client import Client

PATIENCE_S = 300.0
"""How long a command that follows something looks for a scheduler that went away."""

MOST_PARTS = 4
"""Parts of a pod's name that may stand behind the name of its job, plus one."""
JOBS_HELP = "JOB is 12, a range 12-20, 12_3 (index 3 of the array whose first job is 12) or 12_ (all of that array)."


def home_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--home."""
    return click.option(
        "--home",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Home of the scheduler [$GPULOOM_HOME, else ~/.local/share/gpuloom].",
    )(command)


def log_level_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """--log-level."""
    return click.option(
        "--log-level",
        type=Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="What is logged.",
    )(command)


def live_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--json and --home, as `as_json` and `home`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(home_option(command))


@contextmanager
def connect(home: Path | None, *, follows: bool = False) -> Iterator[Client]:
    """The client of the scheduler; closed at the end. follows: it stays connected, and survives restarts."""
    import os
    import sys

    # Without its own command line httpx does not bring rich, which is a third of this program's start.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    from gpuloom.client import Client
    from gpuloom.client.home import URL, alive, home_directory, running

    folder = home_directory(home)
    local = home is not None or not os.environ.get(URL)
    # Left by a start that found the store damaged; a sound one need not be looked at.
    damaged = local and (folder / "store.damaged").is_file()
    if damaged and ((found := running(folder)) is None or not alive(found.pid)):
        from gpuloom.server.reading import readable

        with readable(folder) as place:
            if place is not None:
                url, token, problem = place
                click.echo(f"gpuloom: no scheduler is running; this was read from the store: {problem}", err=True)
                with Client(url=url, token=token, patience_s=0.0) as client:
                    yield client
                return
    with Client(home, patience_s=PATIENCE_S if follows else 10.0) as client:
        if follows:
            client.connection.on_trouble = lambda text: click.echo(f"gpuloom: {text}", err=True)
        yield client


@contextmanager
def connect_or_name_files(home: Path | None, job: str, *, follows: bool = False) -> Iterator[Client]:
    """As `connect`; where no scheduler is running the error says where the files of a job lie, if there are any."""
    import os

    from gpuloom.client import NoSchedulerError, home_directory
    from gpuloom.client.home import URL

    try:
        with connect(home, follows=follows) as client:
            yield client
    except NoSchedulerError as error:
        first = job.partition("_")[0]
        if (home is None and os.environ.get(URL)) or not first.isdecimal():
            raise
        from gpuloom.executors.local_files import job_directory

        # Of a task of an array only the number of the first is known here.
        folder = job_directory(home_directory(home) / "runs", int(first))
        if not folder.is_dir():
            raise
        raise NoSchedulerError(f"{error}. What job {first} wrote lies in {folder}/ATTEMPT/output.log") from None


def numbers(client: Client, written: Sequence[str], *, least: int = 1) -> list[int]:
    """The jobs that arguments stand for."""
    found = client.numbers(written)
    if len(found) < least:
        raise click.UsageError("which job? Give its number, such as 12 (gpuloom ls lists them)")
    return found


def one_number(client: Client, written: str) -> int:
    """The one job that an argument stands for: by its number, or the newest of that name, or that has such a pod."""
    try:
        found = client.numbers([written])
    except InputError as error:
        if (named := _newest_called(client, written)) is None:
            raise InputError(f"{error}; and no job is called {written!r}") from None
        return named
    if len(found) != 1:
        raise InputError(f"{written!r} stands for {len(found)} jobs; this command takes one")
    return found[0]


def _newest_called(client: Client, name: str) -> int | None:
    """The newest job of a name. Pods are called after their job: 'train-worker-0' may be one of job 'train'."""
    for _ in range(MOST_PARTS):
        if not name:
            return None
        for job in client.jobs(names=[name], limit=1):
            return job["id"]
        name = name.rpartition("-")[0]
    return None


def say_json(value: Any) -> None:
    """One object or list on stdout."""
    click.echo(json.dumps(value, indent=2))


def say_json_line(value: Any) -> None:
    """One object on one line, at once."""
    click.echo(json.dumps(value, separators=(",", ":")))


class Memory(click.ParamType[Any]):
    """A memory size, as MiB."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_memory_mib(value)
        except InputError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[Any]):
    """A point in time as epoch seconds: how long ago (7d), a date (2026-11-21), a date and time, or epoch seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from datetime import datetime

        if isinstance(value, float):
            return value
        text = str(value)
        if text.replace(".", "", 1).isdigit() and float(text) >= 1e8:
            return float(text)
        try:
            return datetime.fromisoformat(text).timestamp()  # of the local zone unless it names one
        except (ValueError, OverflowError, OSError):
            pass
        try:
            return time.time() - parse_duration_s(text)
        except InputError:
            self.fail(
                f"{value!r} is not a time: write how long ago (12h, 7d), 2026-11-21 or 2026-11-21T14:30", param, ctx
            )


def short(seconds: float | None) -> str:
    """A duration, or '-'."""
    return "-" if seconds is None else format_duration(round(max(seconds, 0.0), 1))


def dollars(cost: float | None) -> str:
    """US dollars, or '-'."""
    return "-" if cost is None else money(cost)


def ago(at_s: float | None, now_s: float | None = None) -> str:
    """'3m 20s ago', 'in 2h 05m', or '-'."""
    if at_s is None:
        return "-"
    passed = (time.time() if now_s is None else now_s) - at_s
    if passed < -1:
        return f"in {format_duration(-passed)}"
    return f"{format_duration(round(max(passed, 0.0)))} ago"


def plain(text: object) -> str:
    """Text of users as one line that does nothing to a terminal."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(str(text).split("\n")))


def runs_of(jobs: Sequence[int]) -> str:
    """'12', '12-20', '12-14, 17'."""
    parts: list[list[int]] = []
    for job in jobs:
        if parts and job == parts[-1][-1] + 1:
            parts[-1].append(job)
        else:
            parts.append([job])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
