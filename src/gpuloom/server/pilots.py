"""`gpuloom up --slurm`: what is asked of Slurm, and the pilots of a scheduler that is ready."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from dataclasses import replace
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.pilot_nodes import SchedulerNodes
from gpuloom.live.pilots import Pilots
from gpuloom.slurm.commands import Slurm
from gpuloom.slurm.plan import Plan, SlurmOptions, name_of, plan_of
from gpuloom.store.home import Home

log = logging.getLogger("gpuloom.pilots")

LOG = "/tmp/gpuloom-%j.log"  # noqa: S108 - on the first node of a pilot: the one place that is there for sure
NOTE = "a pilot of Slurm"


def slurm_plan(options: SlurmOptions, home: Home, slots: int | None) -> Plan:
    """What is asked of Slurm; where nodes reach the scheduler is not known yet.

    Raises:
        InputError: there is no such thing in this Slurm. SlurmError: it does not answer, and never did.
    """
    name, environment, mark = name_of(home.path), dict(os.environ), _mark(home)
    found = plan_of(
        options, Slurm(), slots=slots, name=name, url="", python=sys.executable, environment=environment, log=LOG,
        kept=home.nodes / "slurm.json",
    )  # fmt: skip
    return replace(found, request=replace(found.request, runs=str(home.runs), mark=str(mark)))


def _mark(home: Home) -> Path:
    """A file whose name nobody could guess: who sees it, sees this home.

    Raises:
        InputError: it can't be written.
    """
    folder = home.create().nodes
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        home.runs.mkdir(mode=0o700, exist_ok=True)
        if not (known := sorted(folder.glob("shared-*"))):
            known = [folder / f"shared-{secrets.token_hex(16)}"]
            known[0].touch(0o600)
    except OSError as error:
        raise InputError(f"{folder}: can't be written: {error.strerror}") from None
    return known[0]


def port_before(home: Home) -> int | None:
    """The port at which nodes reached the scheduler before this one: pilots that still run look for it there."""
    try:
        return int((home.nodes / "port").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def keep_port(home: Home, port: int) -> None:
    """For the next scheduler; without it nodes that run now would not find that one."""
    try:
        (home.nodes / "port").write_text(f"{port}\n", encoding="ascii")
    except OSError as error:
        log.warning("%s/port: can't be written: %s", home.nodes, error.strerror)


class PilotTokens:
    """Tokens for pilots. fingerprint: of the scheduler's certificate; '' without TLS."""

    def __init__(self, live: LiveScheduler, fingerprint: str) -> None:
        self._tokens, self._fingerprint = live.tokens, fingerprint

    def mint(self) -> tuple[str, str]:
        """See `Tokens` in live/pilots.py. Raises InputError: it can't be written."""
        token = self._tokens.mint(note=NOTE, fingerprint=self._fingerprint)
        return token.id, str(token)

    def revoke(self, number: str) -> None:
        """See `Tokens`. Raises InputError, NotFoundError."""
        self._tokens.revoke(number)


def pilots_of(plan: Plan, live: LiveScheduler, *, url: str, fingerprint: str) -> Pilots:
    """The pilots of a scheduler that nodes reach at `url`; not started. Jobs may wait for as much as they can get."""
    nodes = plan.limits.nodes if plan.inside is None else plan.inside.nodes
    most = float(nodes * plan.limits.gpus_per_node)
    live.scheduler.may_come = lambda: most
    return Pilots(
        Slurm(),
        plan.limits,
        replace(plan.request, url=url),
        SchedulerNodes(live.scheduler, live.sights, live.nodes.gone),
        PilotTokens(live, fingerprint),
        wait=live.scheduler.ledger.wait,
        now=live.clock.now,
        inside=plan.inside,
    )
