"""A private MPS (NVIDIA's Multi-Process Service) per GPU, where `nvidia-cuda-mps-control` is there.

With MPS, kernels of several programs run on the GPU at the same time; without it their contexts take turns, and gating
still keeps best-effort work out of requests. Each GPU gets a control daemon of its own, in a folder of its own, so that
neither a system-wide MPS nor other GPUs are touched. Whoever uses it holds a shared lock on the folder; the last one to
leave ends the daemon.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpuloom.core.errors import GpuloomError

CONTROL = "nvidia-cuda-mps-control"
SERVER = "nvidia-cuda-mps-server"
TIMEOUT_S = 20
SOCKET_LIMIT = 90
"""Longest path of a pipe folder, in bytes: the sockets in it must stay below the system's 108."""


class MpsError(GpuloomError):
    """The MPS daemon could not be started or ended."""


def control() -> str | None:
    """The control daemon's program, if this machine has it and its server."""
    found = shutil.which(CONTROL)
    return found if found and shutil.which(SERVER) else None


def folder_of(base: Path, gpu: str) -> Path:
    """Where the MPS of a GPU (its UUID or index) keeps its pipes and logs."""
    return base / ("mps-" + re.sub(r"[^A-Za-z0-9-]", "_", gpu))


def gpu_of(environment: Mapping[str, str], listed: Path = Path("/proc/driver/nvidia/gpus")) -> str | None:
    """The one GPU that a program can see, by index or UUID; None if it sees several, or it is not known how many."""
    named = environment.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return named if named and "," not in named else None
    try:
        return "0" if len(list(listed.iterdir())) == 1 else None
    except OSError:
        return None


def client_environment(folder: Path, gpu: str, klass: str) -> dict[str, str]:
    """What a program under this MPS needs: its pipes, its GPU, and below-normal priority for best effort.

    A daemon that was given one GPU by index calls it 0; by UUID its name stays.
    """
    return {
        "CUDA_VISIBLE_DEVICES": "0" if gpu.isdigit() else gpu,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        "CUDA_MPS_CLIENT_PRIORITY": "0" if klass == "high" else "1",
    }


@contextmanager
def private(base: Path, gpu: str, environment: Mapping[str, str]) -> Iterator[Path]:
    """Run the GPU's MPS for as long as this or another user of it is inside. Yields its folder.

    Raises:
        MpsError: the daemon does not start.
    """
    program = control()
    if program is None:
        raise MpsError(f"{CONTROL} is not installed; go without MPS (--no-mps)")
    folder = folder_of(base, gpu)
    if len(os.fsencode(folder / "pipe")) > SOCKET_LIMIT:
        raise MpsError(f"{folder}: too long a path for MPS' sockets; set GPULOOM_SHARE_DIR to a shorter one")
    for part in (folder, folder / "pipe", folder / "log"):
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = {
        **environment,
        "CUDA_VISIBLE_DEVICES": gpu,
        "CUDA_MPS_PIPE_DIRECTORY": str(folder / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
    }
    own.pop("CUDA_MPS_CLIENT_PRIORITY", None)
    gate = os.open(folder / "gate", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    users = os.open(folder / "users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(gate, fcntl.LOCK_EX)  # one at a time comes or goes
        try:
            if not _running(program, own):
                _start(program, own, folder)
            fcntl.flock(users, fcntl.LOCK_SH)
        finally:
            fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield folder
        finally:
            fcntl.flock(gate, fcntl.LOCK_EX)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _tell(program, own, "quit")
            except BlockingIOError:
                pass  # others still use it
            finally:
                fcntl.flock(gate, fcntl.LOCK_UN)
    finally:
        os.close(users)
        os.close(gate)


def _tell(program: str, environment: Mapping[str, str], command: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(  # noqa: S603 - found on the user's PATH
            [program], input=command + "\n", env=dict(environment), capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None


def _running(program: str, environment: Mapping[str, str]) -> bool:
    done = _tell(program, environment, "get_server_list")
    return done is not None and done.returncode == 0


def _start(program: str, environment: Mapping[str, str], folder: Path) -> None:
    try:
        done = subprocess.run(  # noqa: S603 - found on the user's PATH
            [program, "-d"], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MpsError(f"{program} -d: {error}; go without MPS (--no-mps)") from error
    if done.returncode != 0 or not _running(program, environment):
        what = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise MpsError(f"{program} -d failed: {what[0]}; its log is in {folder / 'log'}; go without MPS (--no-mps)")
