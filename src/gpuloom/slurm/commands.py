"""Slurm's own commands, each with a time limit. What Slurm refuses is told in its own words."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from gpuloom.bounded.text import cut
from gpuloom.core.errors import GpuloomError
from gpuloom.slurm.parse import (
    JOB_FORMAT,
    NODE_FORMAT,
    SlurmJob,
    SlurmNode,
    SlurmTextError,
    jobs_of_json,
    jobs_of_table,
    nodes_of_json,
    nodes_of_table,
)

ENDS_ALL = ("proctrack/cgroup", "proctrack/cray_aries")
"""Ways to know the processes of a job that none of them can leave."""
LIMIT_S = 30.0
"""How long a command may take. One that has no answer from slurmctld tries again and again by itself."""
NEEDED = ("sbatch", "squeue", "sinfo", "scancel", "scontrol", "srun")

T = TypeVar("T")


class SlurmError(GpuloomError):
    """A command of Slurm failed; the message names it and holds what it said."""


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str], str, Mapping[str, str], float], Done]
"""Runs (command, input, environment, time limit in s). Raises TimeoutError, or OSError where it can't be started."""


def run_command(command: Sequence[str], text: str, env: Mapping[str, str], limit_s: float) -> Done:
    """The usual way to run a command. A group of its own, so that a Ctrl-C in the terminal is not for it."""
    try:
        done = subprocess.run(  # noqa: S603 - commands of Slurm, no shell
            command,
            input=text,
            capture_output=True,
            text=True,
            errors="replace",
            env=dict(env),
            timeout=limit_s,
            check=False,
            process_group=0,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None
    return Done(done.returncode, done.stdout, done.stderr)


def missing_commands() -> list[str]:
    """Commands of Slurm that are not on PATH."""
    return [name for name in NEEDED if shutil.which(name) is None]


class Slurm:
    """The commands. Every method raises SlurmError for what Slurm refuses or does not answer."""

    def __init__(
        self, *, env: Mapping[str, str] | None = None, run: Run = run_command, limit_s: float = LIMIT_S
    ) -> None:
        """env: what the commands are given [that of this process]."""
        self._env = dict(os.environ if env is None else env)
        self._run, self._limit_s = run, limit_s
        self._tables: set[str] = set()
        """Commands that have no --json here."""

    def within(self, limit_s: float) -> Slurm:
        """The same Slurm, whose commands may take so long."""
        return Slurm(env=self._env, run=self._run, limit_s=limit_s)

    def submit(self, script: str, options: Sequence[str], secrets: Mapping[str, str]) -> int:
        """Hand a batch script over; the number of its job. secrets: environment that it gets beside this process's.

        Variables SLURM_* are left out: they speak of the allocation in which this process itself may run.
        """
        env = {name: value for name, value in self._env.items() if not name.startswith("SLURM_") or name in KEPT}
        said = self._said(["sbatch", "--parsable", "--export=ALL", *options], script, {**env, **secrets})
        number = said.strip().splitlines()[-1].partition(";")[0] if said.strip() else ""
        if not number.isdecimal():
            raise SlurmError(f"sbatch printed {cut(said.strip(), 200)!r}, and not the number of a job")
        return int(number)

    def jobs(self, name: str) -> list[SlurmJob]:
        """This user's jobs of this name; also those that have just ended."""
        which = ["--user", str(os.getuid()), "--name", name, "--states", "all"]
        table = ["squeue", *which, "-h", "-o", JOB_FORMAT]
        found = self._either(["squeue", *which, "--json"], jobs_of_json, table, jobs_of_table)
        return [job for job in found if job.name == name]  # version 22.05 prints all jobs, whatever is asked

    def job(self, number: int) -> SlurmJob | None:
        """The job of this number; None if Slurm no longer knows it."""
        table = ["squeue", "--states", "all", "-h", "-o", JOB_FORMAT, "--jobs", str(number)]
        found = self._said(table)
        return next((job for job in jobs_of_table(found) if job.id == number), None)

    def nodes(self, partition: str | None = None) -> list[SlurmNode]:
        """The nodes of a partition, or of all."""
        table = ["sinfo", "-h", "-N", "-o", NODE_FORMAT]
        found = self._either(["sinfo", "--json"], nodes_of_json, table, nodes_of_table)
        return [node for node in found if partition is None or partition in node.partitions]

    def default_partition(self) -> str | None:
        """The partition of jobs that name none; None if there is none."""
        words = self._said(["sinfo", "-h", "-o", "%P"]).split()
        return next((word.removesuffix("*") for word in words if word.endswith("*")), None)

    def cancel(self, number: int) -> None:
        """End a job, pending or running. No error if it has ended already."""
        self._said(["scancel", "--quiet", str(number)])

    def version(self) -> str:
        """What Slurm calls its version."""
        return self._said(["sinfo", "--version"]).strip()

    def ends_all(self) -> bool:
        """Whether with an allocation all processes end that were in it. Where Slurm only follows parents, or groups of
        processes, it says that a job has ended while some of it go on."""
        lines = (line.partition("=") for line in self._said(["scontrol", "show", "config"]).splitlines())
        return any(name.strip() == "ProctrackType" and value.strip() in ENDS_ALL for name, _, value in lines)

    def _either(
        self, plain: Sequence[str], of_json: Callable[[str], T], table: Sequence[str], of_table: Callable[[str], T]
    ) -> T:
        """By JSON; as a table where this version of the command has none."""
        if plain[0] not in self._tables:
            try:
                return of_json(self._said(plain))
            except (SlurmError, SlurmTextError):
                found = of_table(self._said(table))  # if slurmctld does not answer, neither does this
                self._tables.add(plain[0])
                return found
        return of_table(self._said(table))

    def _said(self, command: Sequence[str], text: str = "", env: Mapping[str, str] | None = None) -> str:
        shown = cut(shlex.join(command), 300)
        try:
            done = self._run(
                command, text, {**self._env, "SLURM_TIME_FORMAT": "%s"} if env is None else env, self._limit_s
            )
        except TimeoutError as error:
            raise SlurmError(f"`{shown}` gave {error}; is slurmctld there? (scontrol ping)") from None
        except OSError as error:
            raise SlurmError(f"`{shown}` can't be run: {error.strerror or error}") from None
        if done.code:
            words = cut(" ".join((done.err.strip() or done.out.strip()).split()), 600)
            raise SlurmError(f"`{shown}` failed: {words or f'exit code {done.code}, and it said nothing'}")
        return done.out


KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"})
"""Variables SLURM_* that say where Slurm is."""
