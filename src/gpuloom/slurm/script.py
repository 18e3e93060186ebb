"""The batch script of a pilot, and the options with which it is handed to sbatch.

On each node of the allocation one step runs the node process, which joins the scheduler over the network. What must be
at the same path on the nodes is the Python of the scheduler (its virtual environment); a home directory need not be
shared. The token comes in the environment of the job, which its owner alone can read, and is put into a file of the
node's own folder, with mode 0600.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

TOKEN = "GPULOOM_JOIN_TOKEN"  # noqa: S105 - the name of a variable
"""The variable of the environment in which the script finds the token."""
GIVE_UP_S = 900.0
"""A node that does not reach the scheduler for so long ends."""
WARNED_S = 60
"""How long before the end of its allocation a node process is told by Slurm to leave (SIGTERM)."""


@dataclass(frozen=True, slots=True)
class Request:
    """What all pilots of a scheduler have in common.

    name: of their jobs in Slurm. url: where nodes reach the scheduler. python: its interpreter. gpus: on each node;
    with `slots` CPU slots in their place. life_s: None for the partition's own limit. whole: nodes are asked for with
    all they have, so that a node's name says enough. options: more options of sbatch, as the user gave them. log: where
    Slurm writes what the script prints, on the node; '' for nowhere. runs: the scheduler's folder of runs; a node that
    sees the file `mark` shares it, and keeps its runs there, where their logs outlive the pilot. give_up_s: a node that
    does not reach the scheduler for so long ends.
    """

    name: str
    url: str
    python: str
    gpus: int
    slots: bool = False
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    life_s: float | None = None
    whole: bool = True
    options: Sequence[str] = ()
    log: str = ""
    runs: str = ""
    mark: str = ""
    give_up_s: float = GIVE_UP_S


def options_of(request: Request, nodes: int) -> list[str]:
    """Options of sbatch for a pilot on so many nodes. Those of the user come last, and so go before ours."""
    found = [
        f"--job-name={request.name}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={request.gpus}" if request.slots else f"--gpus-per-node={request.gpus}",
        "--no-requeue",
        "--no-kill",
        f"--signal=TERM@{WARNED_S}",
        f"--output={request.log or '/dev/null'}",
        "--open-mode=append",
    ]
    if request.partition:
        found.append(f"--partition={request.partition}")
    if request.account:
        found.append(f"--account={request.account}")
    if request.qos:
        found.append(f"--qos={request.qos}")
    if request.life_s is not None:
        found.append(f"--time={max(-(-int(request.life_s) // 60), 1)}")
    return [*found, *request.options]


def join_command(request: Request) -> str:
    """The command of one step, in words of the shell."""
    name = "$SLURMD_NODENAME" if request.whole else "$SLURMD_NODENAME-$SLURM_JOB_ID"
    slots = f" --slots {request.gpus}" if request.slots else ""
    return (
        f"{shlex.quote(request.python)} -P -m gpuloom node join {shlex.quote(request.url)}"
        f' --token-file "$folder/token" --name "{name}" --home "$folder" --temporary-home'
        f" --give-up {request.give_up_s:g}s{slots}"
    )


def step_of(request: Request) -> str:
    """What a step runs on its node: a folder of its own, the token in it, and the node process in its place."""
    shared = []
    if request.mark:
        shared = [f'[ ! -f {shlex.quote(request.mark)} ] || ln -s {shlex.quote(request.runs)} "$folder/runs"']
    return "\n".join(
        [
            "set -eu",
            "umask 077",
            'folder=$(mktemp -d "${TMPDIR:-/tmp}/gpuloom-$SLURM_JOB_ID-XXXXXX")',
            f'printf "%s\\n" "${TOKEN}" > "$folder/token"',
            f"unset {TOKEN}",
            *shared,
            f"exec {join_command(request)}",
        ]
    )


def step_options(*, overlap: bool = False) -> list[str]:
    """Options of srun: one node process on each node, which may use all of what the allocation has there. One that ends
    takes the others not along. overlap: in an allocation in which other steps run."""
    found = ["--ntasks-per-node=1", "--cpu-bind=none", "--kill-on-bad-exit=0", "--no-kill", "--wait=0"]
    return [*found, "--overlap"] if overlap else found


def script_of(request: Request) -> str:
    """The batch script."""
    return "\n".join(
        [
            "#!/bin/sh",
            "# A pilot of gpuloom: nodes in which its scheduler runs jobs.",
            f'exec srun --nodes="$SLURM_JOB_NUM_NODES" {shlex.join(step_options())} \\',
            f"  /bin/sh -c {shlex.quote(step_of(request))}",
            "",
        ]
    )
