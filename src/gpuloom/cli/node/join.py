"""`gpuloom node join`: the node process, in the foreground or the background."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuloom.cli import background
from gpuloom.cli.live import log_level_option
from gpuloom.cli.run_options import Duration
from gpuloom.core.errors import GpuloomError, InputError

if TYPE_CHECKING:
    from gpuloom.node.home import NodeHome, State

TOKEN = "GPULOOM_NODE_TOKEN"  # noqa: S105 - the name of a variable
READY_S = 60.0
"""How long --detach waits until the machine has joined."""
LAST_WORD = "gpuloom: "
"""With this a command says in one line why it ends (cli/main.py)."""
ASKS_S = 10.0
"""How long Slurm is asked until when this allocation lasts."""


class JoinError(GpuloomError):
    """The node process could not begin, or was refused."""


def node_home_option(command: Any) -> Any:
    """--home."""
    return click.option(
        "--home",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Home of the node [$GPULOOM_NODE_HOME, else ~/.local/share/gpuloom-node].",
    )(command)


@click.command()
@click.argument("url", required=False)
@click.option("--token", metavar="TOKEN", help=f"Of `gpuloom node token` [${TOKEN}; better than an option others see].")
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A file that holds the token.",
)
@click.option("--name", default=None, metavar="NAME", help="Name of the node [the machine's].")
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Offer N CPU slots in place of GPUs.")
@click.option(
    "--slot-model", metavar="MODEL", help="GPU model that the slots pretend to be, to try what goes by models [CPU]."
)
@click.option("--address", metavar="ADDRESS", help="Where other nodes reach this one [its address towards the head].")
@click.option(
    "--lease", type=Duration(), metavar="TIME", help="How long jobs go on when the head is not heard of [15s]."
)
@click.option(
    "--give-up", type=Duration(), metavar="TIME", help="Leave when the head was not reached for TIME [never]."
)
@log_level_option
@click.option(
    "--detach",
    "-d",
    is_flag=True,
    help="Return when it has joined. It runs on in the background, with its log in HOME/node.log.",
)
@click.option("--temporary-home", "temporary", is_flag=True, hidden=True)
@node_home_option
def join(
    url: str | None,
    token: str | None,
    token_file: Path | None,
    name: str | None,
    slots: int | None,
    slot_model: str | None,
    address: str | None,
    lease: float | None,
    give_up: float | None,
    log_level: str,
    detach: bool,
    temporary: bool,
    home: Path | None,
) -> None:
    """Make this machine a node of the scheduler at URL: its jobs run here, as the user who starts this.

    Nothing has to be open on this machine: it calls the scheduler, and calls again when the link breaks. Without URL it
    joins as it did the last time. Ctrl-C, SIGTERM or `gpuloom node leave` end it in order: jobs are told to save, and
    go on elsewhere. If it can't reach the scheduler for longer than its lease, it ends the jobs: they go on elsewhere.

    \b
    Examples:
      gpuloom node join https://head:7411 --token-file token --detach
      gpuloom node join --detach
    """
    from gpuloom.node.home import node_home

    if not sys.platform.startswith("linux"):
        raise JoinError("gpuloom node join runs on Linux only: it needs process groups, cgroups and /proc")
    place = node_home(home)
    settings = _settings(place, url, _token(token, token_file), name, slots, slot_model, address, lease)
    if detach:
        _detached(place, settings, log_level, give_up)
        return
    from gpuloom.node.passing import remove, tidy
    from gpuloom.node.process import JoinOptions
    from gpuloom.node.process import join as run
    from gpuloom.server.log import begin, keep

    begin(log_level)
    place.create().joins_with(settings)
    engine_job = os.environ.get("SLURM_JOB_ID", "")
    options = JoinOptions(
        place.path, **settings, give_up_s=give_up, engine_job=engine_job, until_s=_until_s(engine_job)
    )
    if temporary:
        tidy(place.path.parent, time.time())
    code = run(options, keep)
    if temporary:
        remove(place.path)
    click.get_current_context().exit(code)


def _until_s(engine_job: str) -> float | None:
    """When the allocation of this process ends, seconds since the epoch; None: never, or nobody says."""
    from gpuloom.slurm.commands import Slurm, SlurmError

    told = os.environ.get("SLURM_JOB_END_TIME", "")  # from version 23.02 on
    if told.isdecimal() or not engine_job.isdecimal():
        return float(told) if told.isdecimal() else None
    try:
        job = Slurm(limit_s=ASKS_S).job(int(engine_job))
    except SlurmError as error:
        logging.getLogger("gpuloom.node").warning("until when this node is ours is not known here: %s", error)
        return None
    return None if job is None else job.end_s


def _token(token: str | None, file: Path | None) -> str | None:
    """As given: option, file, variable. What is started here does not inherit the variable."""
    told = os.environ.pop(TOKEN, None)
    if token is not None and file is not None:
        raise click.UsageError("give --token or --token-file, not both")
    if file is None:
        return token or told
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: the token can't be read: {getattr(error, 'strerror', None) or error}") from None


def _settings(
    place: NodeHome,
    url: str | None,
    token: str | None,
    name: str | None,
    slots: int | None,
    slot_model: str | None,
    address: str | None,
    lease: float | None,
) -> dict[str, Any]:
    """What is given, and for the rest what it joined with the last time. Raises InputError."""
    from gpuloom.agent.inventory import CPU, checked_model
    from gpuloom.fleet.lease import terms_of
    from gpuloom.fleet.token import token_of
    from gpuloom.node.dial import check_url

    before = place.joined_with()
    url = check_url(url) if url is not None else before.get("url")
    token = token if token is not None else before.get("token")
    if not url:
        raise InputError("give the address of the scheduler, such as https://head:7411 (`gpuloom node token` shows it)")
    if not token:
        raise InputError(f"give the token, of `gpuloom node token` on the head: --token, --token-file or ${TOKEN}")
    fingerprint = token_of(token).fingerprint
    if fingerprint and url.startswith("http:"):
        raise InputError(f"the token is of a scheduler with TLS: give https instead of {url}")
    terms_of(lease)
    return {
        "url": url,
        "token": token,
        "name": name if name is not None else before.get("name", ""),
        "slots": slots if slots is not None else before.get("slots"),
        "slot_model": checked_model(slot_model) if slot_model is not None else before.get("slot_model", CPU),
        "address": address if address is not None else before.get("address", ""),
        "lease_s": lease if lease is not None else before.get("lease_s"),
    }


# -- in the background ------------------------------------------------------------------------------------------------


def _detached(place: NodeHome, settings: dict[str, Any], log_level: str, give_up_s: float | None) -> None:
    """Start a process of its own session, and wait until it has joined. Raises JoinError."""
    holder = place.holder()
    if holder is not None:
        said = place.said()
        text = f"a node process (pid {holder}) works here already, home {place.path}"
        if said is not None and said.url == settings["url"]:
            click.echo(f"{text}: {_line(said)}")
            return
        raise JoinError(f"{text}, for {said.url if said else 'another head'}: `gpuloom node leave` ends it")
    place.create().joins_with(settings)
    more = [] if give_up_s is None else ["--give-up", f"{give_up_s:g}s"]
    words = ["node", "join", "--home", str(place.path), "--log-level", log_level, *more]
    process, before = background.start(words, cwd=place.path, log=place.log)
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        ended = process.poll()
        said = place.said()
        if said is not None and said.pid == process.pid and said.state == "joined":
            process.returncode = 0  # it outlives this process on purpose
            click.echo(_line(said))
            return
        if ended is not None:
            raise JoinError(_why_ended(ended, place.log, before))
        time.sleep(0.05)
    pid, process.returncode = process.pid, 0
    why = said.detail if said is not None and said.pid == pid else ""
    raise JoinError(
        f"the node process (pid {pid}) has not joined after {READY_S:g} s, and goes on trying"
        f"{': ' + why if why else ''}; `gpuloom node status` says how it goes, `gpuloom node leave` ends it"
    )


def _line(said: State) -> str:
    return f"node {said.name} is {said.state} at {said.url} (pid {said.pid})"


def _why_ended(code: int, log: Path, start: int) -> str:
    """What the node process said last of why it ended, which is the reason alone; if it said nothing, the end of what
    it has written to its log. start: of that."""
    lines = background.written(log, start).splitlines()
    said = [line for line in lines if line.startswith(LAST_WORD)]
    if said:
        return f"the node process ended: {said[-1].removeprefix(LAST_WORD)} (its log is {log})"
    last = "\n".join(["; its last lines:", *lines[-10:]]) if lines else ""
    return f"the node process ended with exit code {code} (its log is {log}){last}"
