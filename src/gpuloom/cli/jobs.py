"""`gpuloom ls` and `wait`: jobs, and their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli.groups import Choice
from gpuloom.cli.job_groups import say_groups
from gpuloom.cli.live import (
    JOBS_HELP,
    connect,
    live_options,
    numbers,
    plain,
    say_json,
    say_json_line,
    short,
)
from gpuloom.cli.live_tables import (
    ended_words,
    job_columns,
    show_table,
    troubles,
)
from gpuloom.cli.run_options import Duration

if TYPE_CHECKING:
    from gpuloom.client import Client
    from gpuloom.live.views.job_answers import (
        JobView,
        StateOfJob,
    )

OPEN: tuple[StateOfJob, ...] = ("running", "starting", "stopping", "frozen", "queued", "held")
ENDED: tuple[StateOfJob, ...] = ("finished", "failed", "cancelled")
RECENT = 5
"""Ended jobs that `ls` shows beside those that have not ended."""


@click.command()
@click.option("--all", "-a", "every", is_flag=True, help="All jobs, including ended ones.")
@click.option("--state", "states", multiple=True, type=Choice([*OPEN, *ENDED]), help="Jobs in this state (repeatable).")
@click.option("--user", "users", multiple=True, metavar="NAME", help="Jobs of this user (repeatable).")
@click.option("--me", is_flag=True, help="Your own jobs.")
@click.option("--name", "names", multiple=True, metavar="PATTERN", help="Jobs of this name, with * and ? (repeatable).")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(1),
    metavar="N",
    help="At most the first N of the list.",
)
@click.option("--groups", is_flag=True, help="Jobs that share GPUs, and since when.")
@click.option("--watch", "-w", is_flag=True, help="Keep the table on the screen until Ctrl-C.")
@click.option(
    "--every",
    "every_s",
    type=Duration(),
    default="2",
    show_default=True,
    metavar="TIME",
    help="With --watch: time between updates.",
)
@live_options
def ls(
    every: bool,
    states: tuple[str, ...],
    users: tuple[str, ...],
    me: bool,
    names: tuple[str, ...],
    limit: int | None,
    groups: bool,
    watch: bool,
    every_s: float,
    as_json: bool,
    home: Path | None,
) -> None:
    """List jobs that have not ended, and the last few that have.

    Running jobs come first, then waiting ones by priority and submission, then ended ones, newest first.

    \b
    Examples:
      gpuloom ls
      gpuloom ls --me --state failed --state cancelled -n 20
      gpuloom ls --all --name 'sweep*' --json
      gpuloom ls --watch
      gpuloom ls --groups
    """
    if groups:
        if every or states or users or me or names or limit is not None or watch:
            raise click.UsageError("--groups lists all groups: give it alone, or with --json")
        say_groups(home, as_json=as_json)
        return
    if me:
        from gpuloom.client.client import current_user

        users = (*users, current_user())
    with connect(home, follows=watch) as client:

        def found() -> tuple[list[JobView], Counter[str]]:
            return listed(client, every=every, states=states, users=users, names=names, limit=limit)

        if not watch:
            jobs, hidden = found()
            if as_json:
                say_json(jobs)
                return
            for text in troubles(client.status()):
                click.echo(plain(text))
            if jobs:
                show_table(job_columns(jobs), jobs)
                if left := ", ".join(f"{count:,} {state}" for state, count in hidden.items()):
                    click.echo(f"not shown, by -n {limit}: {left}")
            else:
                click.echo("no jobs" if every or states or users or names else "no jobs yet (gpuloom submit --help)")
            return
        from gpuloom.cli.screen import Screen

        screen = Screen(every_s=every_s, as_json=as_json)

        def heads(jobs: Sequence[JobView]) -> list[str]:
            return [*troubles(client.status()), _counts(jobs)]

        screen.run(lambda: found()[0], lambda jobs: [(job_columns(jobs), jobs)], heads)


def _counts(jobs: Sequence[JobView]) -> str:
    states = [state for state in (*OPEN, *ENDED) if any(job["state"] == state for job in jobs)]
    return ", ".join(f"{sum(job['state'] == s for job in jobs):,} {s}" for s in states) or "no jobs"


def listed(
    client: Client,
    *,
    every: bool,
    states: Sequence[str],
    users: Sequence[str],
    names: Sequence[str],
    limit: int | None,
) -> tuple[list[JobView], Counter[str]]:
    """The jobs that `ls` shows, in its order, with a limit the first of them; and the states of the others.

    Of those that have ended no more are asked for than are shown, so they are not counted.
    """
    asked: dict[str, Any] = {"users": users, "names": names}
    wanted = states or ((*OPEN, *ENDED) if every else OPEN)
    jobs = list(client.jobs(states=found, **asked)) if (found := [s for s in wanted if s not in ENDED]) else []
    left = None if limit is None else limit - len(jobs)
    ended = [s for s in wanted if s in ENDED]
    if not states and not every:
        ended, left = list(ENDED), RECENT if left is None else min(RECENT, left)
    if ended and (left is None or left > 0):
        jobs += client.jobs(states=ended, limit=left, **asked)
    # A job may have ended between the two questions.
    ordered = sorted({job["id"]: job for job in jobs}.values(), key=_order)
    shown = ordered if limit is None else ordered[:limit]
    return shown, Counter(job["state"] for job in ordered[len(shown) :])


def _order(job: JobView) -> tuple[Any, ...]:
    state = job["state"]
    if state in ENDED:
        return (2, -(job["ended_s"] or 0.0), job["id"])
    if state in ("queued", "held"):
        return (1, state == "held", -job["priority"], job["id"])
    return (0, job["id"])


@click.command(epilog=JOBS_HELP)
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--all", "every", is_flag=True, help="All your jobs that have not ended.")
@click.option("--timeout", "timeout_s", type=Duration(), metavar="TIME", help="Give up after this time, exit code 1.")
@live_options
@click.pass_context
def wait(
    ctx: click.Context, jobs: tuple[str, ...], every: bool, timeout_s: float | None, as_json: bool, home: Path | None
) -> None:
    """Wait for jobs to end, and print a line for each as it does. Exit code 1 if one did not succeed.

    A preempted or retried job has not ended. The scheduler may be restarted meanwhile.

    \b
    Examples:
      gpuloom wait 12 13
      gpuloom wait 12_ --timeout 6h && ./evaluate.sh
      gpuloom wait --all --json
    """
    if bool(jobs) == every:
        raise click.UsageError("name jobs, or give --all" + (", not both" if every else ""))
    with connect(home, follows=True) as client:
        if every:
            from gpuloom.client.client import current_user

            chosen = [job["id"] for job in client.jobs(states=OPEN, users=[current_user()])]
        else:
            chosen = numbers(client, jobs)
        good = True
        for job in client.follow_jobs(chosen, timeout_s=timeout_s, ends_only=True):
            if job["state"] not in ENDED:
                continue
            good &= job["state"] == "finished"
            say_json_line(job) if as_json else click.echo(ended_line(job))
    if not good:
        ctx.exit(1)


def ended_line(job: JobView) -> str:
    """A sentence on a job that has ended, or on the state that it is in."""
    words = ended_words(job)
    how = f"{job['state']} ({words})" if words else job["state"]
    return plain(f"job {job['id']} {job['name']}: {how}, ran {short(job['run_s'])}, waited {short(job['waited_s'])}")
