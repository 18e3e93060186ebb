"""`gpuloom node leave` and `status`, on a machine that joined."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import asdict
from pathlib import Path

import click

from gpuloom.cli.live import ago, plain, say_json, short
from gpuloom.cli.node.join import node_home_option
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import GpuloomError


class LeaveError(GpuloomError):
    """It has not left."""


@click.command()
@click.option("--now", is_flag=True, help="Don't wait for jobs to save: end them. They go on elsewhere.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Duration(),
    default="15m",
    show_default=True,
    metavar="TIME",
    help="How long to wait until it has left.",
)
@node_home_option
def leave(now: bool, timeout_s: float, home: Path | None) -> None:
    """Leave the scheduler: nothing new starts here, running jobs are told to save, and go on elsewhere.

    \b
    Examples:
      gpuloom node leave
      gpuloom node leave --now
    """
    from gpuloom.node.home import node_home

    place = node_home(home)
    pid = place.holder()
    if pid is None:
        click.echo(f"nothing to leave: no node process works in {place.path}")
        return
    if now:
        place.leave.touch(mode=0o600)
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + timeout_s
    while place.holder() == pid:
        if time.monotonic() > until:
            raise LeaveError(
                f"the node process (pid {pid}) has not left after {short(timeout_s)}, as jobs run here; it leaves once "
                "they have ended. `gpuloom node leave --now` ends them"
            )
        time.sleep(0.05)
    click.echo("left")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@node_home_option
def status(as_json: bool, home: Path | None) -> None:
    """Show the node process of this machine. The exit code is 1 where there is none.

    \b
    Example:
      gpuloom node status
    """
    from gpuloom.node.home import node_home

    place = node_home(home)
    pid, said = place.holder(), place.said()
    works = pid is not None and said is not None and said.pid == pid
    if as_json:
        found = {} if said is None else asdict(said)
        say_json({**found, "pid": pid, "running": pid is not None, "home": str(place.path)})
    elif works and said is not None:
        detail = f": {plain(said.detail)}" if said.detail else ""
        click.echo(f"node {plain(said.name)} is {said.state} since {ago(said.since_s)}{detail}")
        click.echo(f"head {said.url}, pid {pid}, home {place.path}, log {place.log}")
    elif pid is not None:
        click.echo(f"a node process (pid {pid}) is starting, home {place.path}")
    else:
        last = f"; the last one: {said.state}{', ' + plain(said.detail) if said.detail else ''}" if said else ""
        click.echo(f"no node process works here ({place.path}){last}")
    if pid is None:
        click.get_current_context().exit(1)
