"""Builds the run request for the executor from a job and its attempt."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.core.job import Attempt, EndReason, Job, NodeRecord
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.environment import prepared
from gpuloom.executors.port import Cause, RunExit, RunRequest, exit_of
from gpuloom.executors.wire import EXIT_FILE, LOG_FILE, RUN_FILE, read_json
from gpuloom.live.dispatch.slurm_env import slurm_variables
from gpuloom.sharing.start import NO_SHARING, Ability, under_the_shim

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""Of the scheduler's own environment, what a job gets that brought none."""


def job_directory(runs: Path, job: int) -> Path:
    """Where the files of a job's runs are. A thousand jobs a folder, so that none grows without bound."""
    return runs / f"{job // 1000:04d}" / str(job)


def log_of(runs: Path, run: str) -> Path:
    """The log of a run."""
    return run_directory(runs, run) / LOG_FILE


def run_directory(runs: Path, run: str) -> Path:
    """Where the files of a run are. Its name is in it, so that no run finds the files of another.

    Raises:
        ValueError: this is no name of a run.
    """
    name = run_name_of(run)
    if name is None:
        raise ValueError(f"{run!r} is no name of a run")
    return job_directory(runs, name.job) / name.folder


def same_process(attempt: Attempt, pid: int | None, start_ticks: int | None) -> bool:
    """Whether a run of this attempt's name is this attempt, as far as its process tells."""
    return attempt.pid is None or pid is None or (attempt.pid, attempt.start_ticks) == (pid, start_ticks)


def exit_on_disk(directory: Path, attempt: Attempt) -> RunExit | None:
    """How an attempt ended, by its files; None: they don't tell, or are of another run of this name."""
    begun, ended = read_json(str(directory / RUN_FILE)), read_json(str(directory / EXIT_FILE))
    if begun is None or ended is None or not same_process(attempt, begun["pid"], begun["start_ticks"]):
        return None
    return exit_of(ended["exit"])


def end_unseen(attempt: Attempt, boot: str) -> RunExit:
    """The end of an attempt of which the executor and its files know nothing. boot: the machine's present start.

    A machine that loses its power may lose what was last written to files: then its restart is what ended the run.
    """
    cause, message = Cause.NONE, "the executor no longer knows its run; how it ended is unknown"
    if boot and attempt.boot_id is not None and attempt.boot_id != boot:
        cause, message = Cause.RESTARTED, "the machine was restarted while it ran; how it ended is unknown"
    return RunExit(None, None, EndReason.LOST, message, time.time(), cause=cause)


def run_request(
    job: Job,
    attempt: Attempt,
    node: NodeRecord,
    runs: Path,
    sharing: Ability = NO_SHARING,
    *,
    resumes: bool,
    environment: Mapping[str, str] | None = None,
) -> RunRequest:
    """What to run for this attempt, on this node. resumes: it has run before. environment: values of the job's own
    environment variables; None: they are not kept any more.

    Raises:
        InputError: its environment can't be made (no such venv, no container runtime, …).
    """
    spec = job.spec
    by_index = {gpu.index: gpu for gpu in node.gpus}
    gpus = tuple(gpu for name, indices in attempt.allocation if name == node.name for gpu in indices)
    missing = [gpu for gpu in gpus if gpu not in by_index]
    if missing:
        raise InputError(f"node {node.name} no longer has GPU {missing[0]}")
    env: dict[str, str] = {key: os.environ[key] for key in KEPT if key in os.environ}
    if environment is None and spec.env:
        raise InputError("the values of its environment variables are no longer kept: submit it again")
    env |= environment or {}
    env.setdefault("PYTHONUNBUFFERED", "1")  # what a script prints is in the log when it prints it
    env["GPULOOM_JOB_NAME"] = job.name
    if job.array_index is not None:
        env["GPULOOM_ARRAY_ID"] = str(job.array_id)
        env["GPULOOM_ARRAY_INDEX"] = str(job.array_index)
    cwd = spec.workdir or env.get("HOME") or "/"
    if spec.slurm_env:
        env |= slurm_variables(job, attempt, node, gpus, cwd)
    uuids = tuple(by_index[gpu].uuid for gpu in gpus)
    directory = str(run_directory(runs, attempt.run))
    argv, env = prepared(
        spec.command,
        env,
        venv=spec.venv,
        conda=spec.conda,
        container=spec.container,
        cwd=cwd,
        gpus=gpus,
        gpu_uuids=uuids,
        kind=node.kind,
        run=attempt.run,
        directory=directory,
    )
    argv, env = under_the_shim(sharing, job.id, spec.sharing_class, argv, env)
    return RunRequest(
        run=attempt.run,
        argv=argv,
        cwd=cwd,
        env=env,
        gpus=gpus,
        gpu_uuids=uuids,
        directory=directory,
        kind=node.kind,
        limit_s=spec.time_limit,
        grace_s=spec.grace,
        cpus=spec.cpus,
        memory_mib=spec.memory,
        resumes=resumes,
    )
