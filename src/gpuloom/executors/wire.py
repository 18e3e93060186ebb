"""Shared by runner and executor: names of files, atomic writing, and lines of JSON over a Unix socket.

The runner imports this, so it uses the standard library alone, and of that only what is light.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from dataclasses import dataclass, field
from enum import StrEnum

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

VERSION = 1
"""Version of the protocol. A scheduler does not use a runner of another version."""
EXIT_LOCKED = 3
"""The runner's exit code: another one works for this home."""
EXIT_FAULT = 4
"""It can't begin; the last line that it printed says why."""


class Cause(StrEnum):
    """What is to blame for an end that was neither the job's doing nor asked for."""

    NONE = ""
    JOB = "job"
    """The job's own: its program or its folder is not there, or may not be used."""
    PLACE = "place"
    """What this job alone needs can't be had now: a place that it names (a dead disk, a file server that is gone), or
    the port at which its processes meet."""
    EXECUTOR = "executor"
    """Nothing can be started here now: no space, no processes, no file handles, a folder of ours that is read-only."""
    RESTARTED = "restarted"
    """The machine was restarted: the run can't be going on any more."""
    NODE = "node"
    """Its node is gone, or its lease has run out: nothing of the run is left there."""


class RunPhase(StrEnum):
    """Where a run is."""

    STARTING = "starting"
    PREPARED = "prepared"
    """All is ready; it begins when it is told to."""
    RUNNING = "running"
    STOPPING = "stopping"
    FROZEN = "frozen"
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class StartRequest:
    """What the runner is asked to start (executors/port.py says what the fields mean), and what it notes of a run.

    The defaults are those of a run that could not even be begun.
    """

    run: str
    directory: str
    argv: tuple[str, ...] = ()
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    limit_s: float | None = None
    grace_s: float = 0.0
    cpus: float | None = None
    memory_mib: int | None = None
    log_mib: float = 1.0
    log_files: int = 0
    container: tuple[str, str] | None = None
    """The tool and the name of the container in which it runs."""
    gpu_uuids: tuple[str, ...] = ()
    hold: bool = False
    """Prepare all, and wait for `go`."""
    suspends: bool = False
    """Freezing it moves its GPU memory to the machine's memory as well."""
    rehearse_s: float | None = None
    """That is tried once, so long after it has begun."""

    def to_json(self) -> dict[str, Any]:
        """As it is sent."""
        return {
            "run": self.run,
            "argv": list(self.argv),
            "cwd": self.cwd,
            "env": dict(self.env),
            "directory": self.directory,
            "limit_s": self.limit_s,
            "grace_s": self.grace_s,
            "cpus": self.cpus,
            "memory_mib": self.memory_mib,
            "log_mib": self.log_mib,
            "log_files": self.log_files,
            "container": self.container,
            "gpu_uuids": list(self.gpu_uuids),
            "hold": self.hold,
            "suspends": self.suspends,
            "rehearse_s": self.rehearse_s,
        }


def start_request_of(data: Mapping[str, Any]) -> StartRequest:
    """From what was sent.

    Raises:
        KeyError, TypeError: it is none.
    """
    container = data["container"]
    return StartRequest(
        run=data["run"],
        directory=data["directory"],
        argv=tuple(data["argv"]),
        cwd=data["cwd"],
        env=data["env"],
        limit_s=data["limit_s"],
        grace_s=data["grace_s"],
        cpus=data["cpus"],
        memory_mib=data["memory_mib"],
        log_mib=data["log_mib"],
        log_files=data["log_files"],
        container=(container[0], container[1]) if container else None,
        gpu_uuids=tuple(data["gpu_uuids"]),
        hold=data.get("hold", False),
        suspends=data.get("suspends", False),
        rehearse_s=data.get("rehearse_s"),
    )


_E = errno
_JOBS_OWN = frozenset(
    (
        *(_E.ENOENT, _E.ENOTDIR, _E.EACCES, _E.EPERM, _E.ELOOP, _E.ENAMETOOLONG, _E.EISDIR, _E.EINVAL),
        *(_E.ENOEXEC, _E.ELIBBAD, _E.E2BIG),
    )
)
"""Errors of a program or a working directory that are the job's own doing; others pass."""
_MACHINES = frozenset((_E.ENOMEM, _E.EAGAIN, _E.EMFILE, _E.ENFILE))
"""Of those that pass: they would hit any other job as well."""


def blamed(error: OSError) -> Cause:
    """The cause, if a path that a job names can't be used."""
    if error.errno in _JOBS_OWN:
        return Cause.JOB
    return Cause.EXECUTOR if error.errno in _MACHINES else Cause.PLACE


RUN_FILE = "run.json"
"""In a run's directory: it has been started. Says as which process."""
EXIT_FILE = "exit.json"
"""It has ended, and how."""
STATE_FILE = "state.json"
"""Time spent frozen."""
NOTICE_FILE = "notice"
"""Its notice: {reason, deadline_s}; deadline_s in seconds since the epoch."""
FAILED_FILE = "failed.json"
"""Which of its processes failed first, while others ran: {rank, others_code}. Of a run with one for each GPU."""
PROGRESS_FILE = "progress.json"
GPU_FULL_FILE = "gpu-memory-full"
"""A hook says that the run ended as a GPU had no memory left (`_gpuloom_hooks/gpu_memory.py`)."""
"""What the job reports of itself."""
LOG_FILE = "output.log"
LOG_INDEX = "log.json"
"""Which bytes of all that the job wrote are in which log file."""

SOCKET = "runner.sock"
LOCK = "runner.lock"
RUNNER_LOG = "runner.log"
NODE_LOCK = "node.lock"
"""In the home of a node: held by its node process, from before it asks for a lease and a guard until it ends."""
GUARD_LOCK = "guard.lock"
GUARD_LOG = "guard.log"
GUARD_MARK = "GPULOOM_GUARD"
"""In the environment of guards: they are no part of a run, whoever starts them."""
FENCED_FILE = "fenced.json"
"""In the home of a node: its runs were ended, because its lease was over: {at_s, boot_id, runs}."""
LIVE = "live"
"""Directory in the home with one file for each run that is not acknowledged: {directory}."""


MOST_BYTES = 1 << 24
"""Largest size of a file of a run that is read, far above any real one."""


def socket_address(home_fd: int) -> str:
    """The socket's path by way of an open directory: a path of a socket holds 107 bytes, and homes can be longer."""
    return f"/proc/self/fd/{home_fd}/{SOCKET}"


def write_atomic(path: str, data: Mapping[str, Any], *, durable: bool = False) -> None:
    """Write JSON, for its owner alone, so that a reader sees all of it or the file of before. durable: on disk, also
    should the machine lose its power.

    Raises:
        OSError: nothing was changed.
    """
    temporary = f"{path}.new"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            rest = json.dumps(data).encode()
            while rest:
                rest = rest[os.write(fd, rest) :]
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        remove(temporary)
        raise


def remove(path: str) -> None:
    """Remove a file that may not be there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def read_json(path: str) -> dict[str, Any] | None:
    """A JSON object, or None if there is no such file, or not a whole one. Jobs can write where runs have their files:
    what is no plain file, or far too large, is no object either.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            return None
        parts = []
        while part := os.read(fd, 1 << 20):
            parts.append(part)
        data = json.loads(b"".join(parts))
    except (ValueError, RecursionError):
        return None
    finally:
        os.close(fd)
    return data if isinstance(data, dict) else None


def encode(message: Mapping[str, Any]) -> bytes:
    """A message as one line."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class LineBuffer:
    """Messages out of a stream of bytes."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._searched = 0
        """Number of these bytes known to hold no end of a line."""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are complete with these bytes. Who takes some of them only finds the others at the next
        call. Raises ValueError for what is not a message.
        """
        self._rest += data
        while (end := self._rest.find(b"\n", self._searched)) >= 0:
            line = bytes(self._rest[:end])
            del self._rest[: end + 1]
            self._searched = 0
            message = json.loads(line)
            if not isinstance(message, dict):
                raise ValueError(f"not a message: {line[:80]!r}")
            yield message
        self._searched = len(self._rest)
