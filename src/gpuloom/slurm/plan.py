"""From what `gpuloom up --slurm` is given to what is asked of Slurm."""

from __future__ import annotations

import hashlib
import json
import logging
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuloom.core.errors import InputError
from gpuloom.core.words import plural
from gpuloom.files.whole import text_output
from gpuloom.slurm.commands import NEEDED, Slurm, SlurmError, missing_commands
from gpuloom.slurm.parse import SlurmNode
from gpuloom.slurm.pilots import Limits
from gpuloom.slurm.script import Request

log = logging.getLogger("gpuloom.pilots")


@dataclass(frozen=True, slots=True)
class SlurmOptions:
    """What a user says of pilots. gpus, nodes: most at a time. hours: that each lasts. idle_s: after which an idle one
    is given back. more: further options of sbatch."""

    partition: str | None = None
    gpus: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    hours: float | None = None
    idle_s: float | None = None
    account: str | None = None
    qos: str | None = None
    more: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Allocation:
    """The allocation of Slurm in which the scheduler itself was started (`salloc`)."""

    job: int
    nodes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for. inside: in place of requests, the allocation that there is."""

    limits: Limits
    request: Request
    inside: Allocation | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """What follows from what Slurm says of its nodes. per_node: GPUs (or slots) of each pilot's node. nodes: most at a
    time. whole: no node there has more. ends_all: as `Slurm.ends_all`."""

    per_node: int
    nodes: int
    whole: bool
    ends_all: bool


IDLE_S = 600.0
SOON_S = 2.0
"""How long a command of Slurm may take where its answer of before will do: nodes with jobs wait for their scheduler,
and their leases are of 15 s."""


def name_of(home: Path) -> str:
    """The name of a scheduler's pilots in Slurm: another one for each home of each machine."""
    text = f"{socket.gethostname()}:{home.resolve()}"
    return f"gpuloom-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def plan_of(
    options: SlurmOptions,
    slurm: Slurm,
    *,
    slots: int | None,
    name: str,
    url: str,
    python: str,
    environment: Mapping[str, str],
    log: str = "",
    kept: Path | None = None,
) -> Plan:
    """What is asked of Slurm. slots: CPU slots on each node in place of GPUs. environment: of this process. kept:
    where the sizes that followed from Slurm's answers stand for the next start: jobs that run must not lose their
    scheduler because slurmctld is away.

    Raises:
        InputError: Slurm has no such nodes, or what was given does not go together. SlurmError: it does not answer, and
            has not answered the same options before.
    """
    if len(missing := missing_commands()) == len(NEEDED):
        raise InputError("there is no Slurm here (no sbatch on PATH): --slurm is for a login node of a Slurm cluster")
    if missing:
        raise InputError(f"{', '.join(missing)} of Slurm can't be found on PATH")
    inside = _inside(environment)
    if inside is not None:
        return _plan_inside(options, slurm, inside, slots, name, url, python)
    sizes = _sizes(options, slurm, slots, kept)
    life_s = None if options.hours is None else 3600.0 * options.hours
    idle_s = IDLE_S if options.idle_s is None else options.idle_s
    request = Request(
        name,
        url,
        python,
        sizes.per_node,
        slots=slots is not None,
        partition=options.partition,
        account=options.account,
        qos=options.qos,
        life_s=life_s,
        whole=sizes.whole,
        options=tuple(options.more),
        log=log,
    )
    limits = Limits(sizes.nodes, sizes.per_node, life_s, idle_s, whole=sizes.whole, ends_all=sizes.ends_all)
    return Plan(limits, request)


def _sizes(options: SlurmOptions, slurm: Slurm, slots: int | None, kept: Path | None) -> Sizes:
    """By what Slurm says now; where it does not answer, by what it said before to the same options."""
    asked = {"options": json.loads(json.dumps(asdict(options))), "slots": slots}
    before = None if kept is None else _before(kept, asked)
    if before is not None:
        slurm = slurm.within(SOON_S)
    try:
        nodes = _nodes(options, slurm)
        per_node, most = _per_node_and_most(options, nodes, slots)
        largest = max((node.cpus or 0) if slots else node.gpus for node in nodes)
        sizes = Sizes(per_node, most, per_node >= largest, slurm.ends_all())
    except SlurmError as error:
        if before is None:
            raise
        log.warning("Slurm can't be asked; going on with what it said at an earlier start: %s", error)
        return before
    if kept is not None:
        try:
            with text_output(kept) as file:
                json.dump({**asked, "sizes": asdict(sizes)}, file)
        except OSError as error:
            log.warning("%s: can't be written: %s; the next start needs slurmctld", kept, error.strerror)
    return sizes


def _before(kept: Path, asked: Mapping[str, Any]) -> Sizes | None:
    """The sizes of an earlier start with the same options; None if there was none, or the file can't be read."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        if {name: found[name] for name in asked} != asked:
            return None
        sizes = found["sizes"]
        return Sizes(int(sizes["per_node"]), int(sizes["nodes"]), sizes["whole"] is True, sizes["ends_all"] is True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s: can't be read (%s): left aside", kept, error)
        return None


def _inside(environment: Mapping[str, str]) -> Allocation | None:
    number, nodes = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_NUM_NODES", "1")
    return Allocation(int(number), int(nodes)) if number.isdecimal() and nodes.isdecimal() else None


def _plan_inside(
    options: SlurmOptions,
    slurm: Slurm,
    inside: Allocation,
    slots: int | None,
    name: str,
    url: str,
    python: str,
) -> Plan:
    if options != SlurmOptions(gpus_per_node=options.gpus_per_node):
        raise InputError(
            f"this is inside job {inside.job} of Slurm (SLURM_JOB_ID), whose nodes are used: -p, -G, -N, --hours, "
            "--idle, --account, --qos and options of sbatch are for a scheduler that asks for nodes itself, outside of "
            "one"
        )
    job = slurm.job(inside.job)
    gpus = slots or options.gpus_per_node or (None if job is None else job.gpus) or 1
    request = Request(name, url, python, gpus, slots=slots is not None)
    return Plan(Limits(0, gpus, ends_all=slurm.ends_all()), request, inside)


def _nodes(options: SlurmOptions, slurm: Slurm) -> list[SlurmNode]:
    partition = options.partition or slurm.default_partition()
    if partition is None:
        raise InputError("Slurm has no default partition here: name one with -p (`sinfo` lists them)")
    names = partition.split(",")
    there = slurm.nodes()
    found = [node for node in there if not set(names).isdisjoint(node.partitions)]
    if not found:
        known = ", ".join(sorted({one for node in there for one in node.partitions}))
        raise InputError(f"partition {partition!r} of Slurm has no nodes; partitions with nodes: {known or 'none'}")
    return found


def _per_node_and_most(options: SlurmOptions, nodes: Sequence[SlurmNode], slots: int | None) -> tuple[int, int]:
    """(GPUs or slots of each node, nodes at most)."""
    if options.gpus is None and options.nodes is None:
        raise InputError("say how much may be asked of Slurm: -G GPUS or -N NODES")
    if slots is not None:
        if options.gpus is not None or options.gpus_per_node is not None:
            raise InputError("-G and --gpus-per-node count GPUs; with --slots say -N NODES")
        return slots, options.nodes or 1
    largest = max(node.gpus for node in nodes)
    if largest == 0:
        raise InputError(
            "the nodes of this partition have no GPUs that Slurm knows of (`sinfo -o '%N %G'`): name another one with "
            "-p, or schedule CPU slots with --slots"
        )
    per_node = options.gpus_per_node
    if per_node is None and options.gpus is not None and options.nodes is not None:
        per_node = max(options.gpus // options.nodes, 1)
    if per_node is None:
        ((per_node, _),) = Counter(node.gpus for node in nodes if node.gpus).most_common(1)
        per_node = min(per_node, options.gpus or per_node)
    if per_node > largest:
        has = plural(largest, "GPU")
        raise InputError(f"{plural(per_node, 'GPU')} on each node are too many: the largest node there has {has}")
    most = options.nodes if options.gpus is None else options.gpus // per_node
    if not most:
        raise InputError(f"-G {options.gpus} is less than the {per_node} GPUs of one node (--gpus-per-node)")
    return per_node, min(most, options.nodes or most)
