"""Runs in a container: the command lines of apptainer, singularity, podman and docker."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gpuloom.core.errors import InputError

TOOLS = ("apptainer", "singularity", "podman", "docker")
"""Looked for in this order: the first two need no service and keep the user's own identity."""
DAEMON_TOOLS = ("podman", "docker")
TOLD = [
    "CUDA_DEVICE_ORDER",
    *(f"GPULOOM_{name}" for name in ("JOB_ID", "ATTEMPT", "RUN", "GPUS", "SLOTS", "RUN_DIR")),
    *(f"GPULOOM_{name}" for name in ("NOTICE_FILE", "PROGRESS_FILE", "RESUME", "GRACE_S")),
]
"""Variables that the executor adds later and that podman and docker pass on only if they are named."""
OUTSIDE = {
    "PATH",
    "HOME",
    "PWD",
    "OLDPWD",
    "SHELL",
    "HOSTNAME",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "PYTHONHOME",
}
"""Variables that name things outside the container."""


def contained(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    image: str,
    cwd: str,
    gpus: Sequence[int],
    gpu_uuids: Sequence[str],
    kind: str,
    run: str,
    directory: str = "",
    mounts: Sequence[str] = (),
    host_network: bool = False,
) -> tuple[str, ...]:
    """The command line that runs `argv` in the image, with its GPUs, the working directory, the run's directory
    and `mounts`. host_network: its ports are those of this machine (apptainer's always are).

    Raises:
        InputError: none of the tools is there.
    """
    path = env.get("PATH", os.defpath)
    for tool in TOOLS:
        program = shutil.which(tool, path=path)
        if program is not None:
            break
    else:
        raise InputError(f"container {image!r}: none of {', '.join(TOOLS)} is in PATH ({path}): install one")
    wanted = kind == "gpu" and bool(gpus)
    mounts = [cwd, *(place for place in (directory, *mounts) if place and not PurePath(place).is_relative_to(cwd))]
    if tool not in DAEMON_TOOLS:
        flags = ["--nv"] if wanted else []
        for mount in mounts:
            flags += ["--bind", f"{mount}:{mount}"]
        return (program, "exec", *flags, "--pwd", cwd, image, *argv)
    flags = ["--rm", "--init", "--name", f"gpuloom-{run}-{secrets.token_hex(4)}", "--workdir", cwd]
    for mount in mounts:
        flags += ["--mount", f"type=bind,source={_csv(mount)},target={_csv(mount)}"]
    flags += ["--network", "host"] if host_network else []
    if tool == "podman":
        flags += ["--userns=keep-id"] if os.getuid() else []
        for gpu in (gpu_uuids or map(str, gpus)) if wanted else ():
            flags += ["--device", f"nvidia.com/gpu={gpu}"]
    else:
        flags += ["--user", f"{os.getuid()}:{os.getgid()}"]
        if wanted:
            # The value is itself a line of comma-separated fields, so one with commas stands in quotes.
            flags += ["--gpus", f'"device={",".join(gpu_uuids or map(str, gpus))}"']
    # Within, the GPUs have other indices than outside; uuids stay what they are.
    names = [*TOLD, "CUDA_VISIBLE_DEVICES"] if gpu_uuids or not wanted else TOLD
    for name in dict.fromkeys([*(name for name in env if name not in OUTSIDE), *names]):
        if name != "CUDA_VISIBLE_DEVICES" or name in names:
            flags += ["--env", name]
    return (program, "run", *flags, image, *argv)


def named_container(argv: Sequence[str]) -> tuple[str, str] | None:
    """(tool, name) of the container that this command line of ours starts beside its own processes, or None.

    Ending the tool's own process does not end such a container: the runner does it by `tool kill name`.
    """
    if len(argv) > 5 and PurePath(argv[0]).name in DAEMON_TOOLS and argv[1] == "run" and argv[4] == "--name":
        return (argv[0], argv[5]) if argv[5].startswith("gpuloom-") else None
    return None


def limited(argv: Sequence[str], *, cpus: float | None, memory_mib: int | None) -> tuple[str, ...]:
    """The command line with limits where it starts such a container, which those of the tool's process don't reach."""
    if named_container(argv) is None:
        return tuple(argv)
    flags = [] if cpus is None else ["--cpus", f"{cpus:g}"]
    if memory_mib is not None:
        flags += ["--memory", f"{memory_mib}m", "--memory-swap", f"{memory_mib}m"]
    return (*argv[:6], *flags, *argv[6:])


def _csv(text: str) -> str:
    """A field of a line of comma-separated fields."""
    return '"' + text.replace('"', '""') + '"' if "," in text or '"' in text else text
