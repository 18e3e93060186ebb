"""`gpuloom pilots`, and the options of `gpuloom up` about Slurm."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuloom.cli.live import connect, live_options, plain, say_json, short
from gpuloom.cli.live_tables import Column, show_table
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import InputError
from gpuloom.core.words import noun, plural

if TYPE_CHECKING:
    from gpuloom.live.views.pilots import PilotsView, PilotView
    from gpuloom.slurm.plan import SlurmOptions

F = TypeVar("F", bound=Callable[..., Any])


def slurm_options(command: F) -> F:
    """The options of `up` that are about Slurm."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


OPTIONS = (
    click.option(
        "--slurm", is_flag=True, help="Run jobs in allocations of Slurm (pilots), asked for as jobs need them."
    ),
    click.option("-p", "--partition", metavar="NAME", help="With --slurm: Slurm's partition [its default]."),
    click.option("-G", "--gpus", type=click.IntRange(1), metavar="N", help="With --slurm: ask for at most N GPUs."),
    click.option("-N", "--nodes", type=click.IntRange(1), metavar="N", help="With --slurm: ask for at most N nodes."),
    click.option(
        "--gpus-per-node",
        type=click.IntRange(1),
        metavar="K",
        help="With --slurm: GPUs of each node [as most nodes of the partition have].",
    ),
    click.option(
        "--hours", type=click.FloatRange(0, min_open=True), metavar="H", help="With --slurm: hours that a pilot lasts."
    ),
    click.option(
        "--idle", type=Duration(), metavar="TIME", help="With --slurm: give idle pilots back after TIME [10m]."
    ),
    click.option("--account", metavar="NAME", help="With --slurm: Slurm's account."),
    click.option("--qos", metavar="NAME", help="With --slurm: Slurm's quality of service."),
    click.argument("sbatch_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SBATCH OPTIONS]"),
)
NAMES = {
    "partition": "--partition",
    "gpus": "--gpus",
    "nodes": "--nodes",
    "gpus_per_node": "--gpus-per-node",
    "hours": "--hours",
    "idle": "--idle",
    "account": "--account",
    "qos": "--qos",
}


def chosen(parameters: dict[str, Any]) -> SlurmOptions | None:
    """What was said of Slurm; None: nothing.

    Raises:
        click.UsageError: options without --slurm.
    """
    given = {name: parameters[name] for name in NAMES if parameters[name] is not None}
    more: Sequence[str] = parameters["sbatch_options"]
    if not parameters["slurm"]:
        if given or more:
            what = ", ".join([*(NAMES[name] for name in given), *more])
            raise click.UsageError(f"{what}: goes with --slurm")
        return None
    from gpuloom.slurm.plan import SlurmOptions

    return SlurmOptions(
        given.get("partition"),
        given.get("gpus"),
        given.get("nodes"),
        given.get("gpus_per_node"),
        given.get("hours"),
        given.get("idle"),
        given.get("account"),
        given.get("qos"),
        tuple(more),
    )


def words_of(parameters: dict[str, Any]) -> list[str]:
    """The same options as words of a command line."""
    if not parameters["slurm"]:
        return []
    found = [w for name in NAMES if parameters[name] is not None for w in (NAMES[name], str(parameters[name]))]
    more = parameters["sbatch_options"]
    return ["--slurm", *found, *(["--", *more] if more else [])]


def moment(at_s: float) -> str:
    """A time as people read it: of today without the day."""
    at, now = time.localtime(at_s), time.localtime()
    return time.strftime("%H:%M:%S" if at[:3] == now[:3] else "%Y-%m-%d %H:%M", at)


def own_name() -> str:
    """This machine's name, at which nodes of a cluster reach it.

    Raises:
        InputError: it leads to a loopback address.
    """
    import ipaddress
    import socket

    name = socket.gethostname()
    try:
        addresses = [str(where[0]) for *_, where in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError:
        addresses = []
    if not addresses or ipaddress.ip_address(addresses[0].partition("%")[0]).is_loopback:
        where = addresses[0] if addresses else "nowhere"
        raise InputError(
            f"this machine's name, {name}, leads to {where}: say with --host at which address nodes reach it"
        )
    return name


PILOT_COLUMNS: Sequence[Column[PilotView]] = (
    Column("job", lambda p: "-" if p["job"] is None else str(p["job"]), right=True),
    Column("state", lambda p: p["state"]),
    Column("nodes", lambda p: " ".join(p["nodes"]) or str(p["node_count"]), gives=True),
    Column("GPUs", lambda p: str(p["gpus"]), right=True),
    Column("since", lambda p: moment(p["since_s"])),
    Column("until", lambda p: "-" if p["until_s"] is None else moment(p["until_s"])),
    Column("reason", lambda p: p["reason"], gives=True),
)


@click.command()
@live_options
def pilots(as_json: bool, home: Path | None) -> None:
    """Show the allocations of Slurm on whose nodes jobs run: asked for, waiting and why, running and until when.

    \b
    Examples:
      gpuloom pilots
      gpuloom pilots --json
    """
    with connect(home) as client:
        found = client.pilots()
    if as_json:
        say_json(found)
        return
    if not found["on"]:
        click.echo("this scheduler asks Slurm for nothing: gpuloom up --slurm does")
        return
    if found["pilots"]:
        show_table(PILOT_COLUMNS, found["pilots"])
    else:
        click.echo("no pilots" if troubles(found) else "no pilots: no job needs one")
    for line in troubles(found):
        click.echo(plain(line))


def left_in_slurm(home: Path) -> tuple[list[int], str]:
    """Pilots of a scheduler that has ended, which Slurm goes on with: their jobs there, or why they are not known."""
    from gpuloom.slurm.commands import Slurm, SlurmError
    from gpuloom.slurm.plan import name_of

    try:
        jobs = Slurm().jobs(name_of(home))
    except SlurmError as error:
        return [], str(error)
    return sorted(job.id for job in jobs if job.running or "PENDING" in job.states), ""


def left_words(left: Sequence[int]) -> str:
    """What becomes of these pilots, and how they are ended."""
    from gpuloom.fleet.lease import TERMS
    from gpuloom.slurm.script import GIVE_UP_S

    numbers = [str(job) for job in left]
    which = f"{noun(len(left), 'pilot')} {', '.join(numbers)}"
    return (
        f"left in Slurm with the jobs that run there: {which}; `gpuloom up --slurm` within {short(TERMS.lease_s)} "
        f"takes them up, else these jobs end and go on later from their checkpoints, and the pilots end after "
        f"{short(GIVE_UP_S)}; `scancel {' '.join(numbers)}` ends them now (`gpuloom down --stop-jobs` leaves none)"
    )


def troubles(found: PilotsView) -> list[str]:
    """What is wrong, in lines."""
    lines = []
    if found["refused"]:
        next_s = found["next_ask_s"]
        again = "" if next_s is None or next_s <= time.time() else f"; asked again at {moment(next_s)}"
        lines.append(f"the last request failed: {found['refused']}{again}")
    if found["problem"]:
        lines.append(f"Slurm can't be asked now, and what runs goes on: {found['problem']}")
    return lines


def summary(found: PilotsView) -> str:
    """Pilots in one line."""
    words = []
    for state in ("running", "pending", "asked", "ending"):
        those = [pilot for pilot in found["pilots"] if pilot["state"] == state]
        if those:
            reasons = sorted({pilot["reason"] for pilot in those if pilot["reason"]}) if state == "pending" else []
            until = [pilot["until_s"] for pilot in those if pilot["until_s"] is not None] if state == "running" else []
            more = f" ({', '.join(reasons)})" if reasons else f" (until {moment(min(until))})" if until else ""
            words.append(f"{len(those)} {state}{more}")
    most = plural(found["most_nodes"], "node") if found["most_nodes"] else "the nodes of its own allocation"
    idle = "" if found["idle_s"] is None else f", idle ones given back after {short(found['idle_s'])}"
    return "; ".join([f"{', '.join(words) or 'none'}, at most {most}{idle}", *troubles(found)])
