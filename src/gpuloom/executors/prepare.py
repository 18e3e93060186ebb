"""From what is said of a member of an attempt to the run that this node starts: everything that depends on the node."""

from __future__ import annotations

import errno
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.core.run_name import run_name_of
from gpuloom.executors.devices import SETTING, devices_folder
from gpuloom.executors.environment import prepared
from gpuloom.executors.launchers import DIRECT, is_direct, launched, ports_here, started, told
from gpuloom.executors.local_files import run_directory
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import RunRequest
from gpuloom.training import inject

KEPT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
"""Of the environment of this process, what a job gets that brought none."""

Shared = Callable[[int, str, str, Sequence[str], Mapping[str, str]], tuple[tuple[str, ...], dict[str, str]]]
"""From a job's number, its class for sharing a GPU and kernel profile ('' for none each), command and environment to
those with which it shares one."""


def alone(
    job: int, klass: str, profile: str, argv: Sequence[str], env: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Of a node whose GPUs can't be shared: as they are."""
    return tuple(argv), dict(env)


def request_of(spec: RunSpec, runs: Path, *, shared: Shared = alone) -> RunRequest:
    """The run to start here. runs: folder of the files of all runs of this node.

    Raises:
        InputError: its environment can't be made (no such venv, no container runtime, …).
        OSError: something that it names can't be reached now, or the port at which its processes meet is in use.
        ValueError: its name is no name of a run.
    """
    name = run_name_of(spec.run)
    directory = str(run_directory(runs, spec.run))
    env = {key: os.environ[key] for key in KEPT if key in os.environ}
    env["PYTHONUNBUFFERED"] = "1"  # what a script prints is in the log when it prints it
    env |= spec.env
    env |= told(spec)
    for port in ports_here(spec):
        check_port(port)
    cwd = spec.workdir or env.get("HOME") or "/"
    command, hooks = _hooked(spec, launched(spec, env), env, directory)
    env |= hooks | inject.saves(env, cwd)
    devices = (
        str(devices_folder(runs, spec.kind, spec.gpus)) if spec.gpus and hooks[inject.SETTING] != inject.OFF else ""
    )
    env.pop(SETTING, None)  # of a job inside which this one was submitted
    if devices:
        env[SETTING] = devices
    argv, env = prepared(
        command,
        env,
        venv=spec.venv,
        conda=spec.conda,
        container=spec.container,
        cwd=cwd,
        gpus=spec.gpus,
        gpu_uuids=spec.gpu_uuids,
        kind=spec.kind,
        run=spec.run,
        directory=directory,
        mounts=[
            *((DIRECT,) if is_direct(spec) else ()),
            *((str(inject.PACKAGE),) if spec.hooks else ()),
            *((devices,) if devices else ()),
        ],
        host_network=len(spec.peers) > 1,
    )
    if is_direct(spec) and not spec.container:
        _check_program(started(spec, env)[0], env, cwd)
    argv, env = shared(name.job if name else 0, spec.sharing_class, spec.kernel_profile, argv, env)
    return RunRequest(
        run=spec.run,
        argv=argv,
        cwd=cwd,
        env=env,
        gpus=spec.gpus,
        gpu_uuids=spec.gpu_uuids,
        directory=directory,
        kind=spec.kind,
        limit_s=spec.limit_s,
        grace_s=spec.grace_s,
        cpus=spec.cpus,
        memory_mib=spec.memory_mib,
        resumes=spec.resumes,
        hold=spec.hold,
        suspends=spec.suspends,
        rehearse_s=spec.rehearse_s,
    )


def _hooked(
    spec: RunSpec, argv: tuple[str, ...], env: Mapping[str, str], directory: str
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The command and further variables by which hooks enter its Pythons; or that keep those of another job out, inside
    which this one was submitted."""
    off = spec.hooks is False or (spec.hooks is None and bool(spec.container)) or env.get(inject.SETTING) == inject.OFF
    if off:
        return argv, {inject.SETTING: inject.OFF}
    folder = os.path.join(directory, inject.FOLDER)
    if spec.container:
        return inject.within(argv), {inject.SETTING: folder}
    return argv, inject.environment(env, folder)


def _check_program(program: str, env: Mapping[str, str], cwd: str) -> None:
    """Raises InputError: a program that direct.py is to start is not there."""
    path = env.get("PATH", os.defpath)
    if shutil.which(os.path.join(cwd, program) if "/" in program else program, path=path) is None:
        where = f"in {cwd}" if "/" in program else f"in PATH ({path})"
        raise InputError(f"can't run {program!r}: there is no such program {where}")


def check_port(port: int) -> None:
    """Raises OSError: something listens at this port of this machine already."""
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):  # noqa: S104 - tried, not served
        try:
            with socket.socket(family, socket.SOCK_STREAM) as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one closed a moment ago does no harm
                if family == socket.AF_INET6:
                    tried.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                tried.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE), f"port {port}") from None
