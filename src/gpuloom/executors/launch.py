"""From a request to a running program: fork, wait for leave, then exec."""

from __future__ import annotations

import errno
import os
import resource
import signal

from gpuloom.executors.wire import LOG_FILE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

SAID = 3
"""Where a child says why it can't run its program; closed by the program's start."""
MAX_FD = 1 << 20
SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Child:
    """A process that waits to become a job. It ends without having run anything if its parent goes before `release`."""

    def __init__(self, pid: int, go: int, said: int) -> None:
        self.pid, self._go, self.said = pid, go, said

    def release(self) -> None:
        """Let it run its program. `said` ends when it does, or holds why it can't."""
        os.write(self._go, b"g")
        os.close(self._go)

    def drop(self) -> None:
        """Let it end."""
        os.close(self._go)
        os.close(self.said)


def fork(request: Mapping[str, Any], nofile: tuple[int, int]) -> Child:
    """A child in a session of its own. Raises OSError (no process to be had)."""
    go_read, go_write = os.pipe()
    said_read, said_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(go_write)
            os.setsid()
            if os.read(go_read, 1) == b"g":
                os.dup2(said_write, SAID, inheritable=False)
                os.closerange(SAID + 1, MAX_FD)
                _become(request, nofile)
        except BaseException as error:
            os.write(SAID, _reason(error, request).encode(errors="replace")[:4000])
        finally:
            os._exit(127)
    os.close(go_read)
    os.close(said_write)
    return Child(pid, go_write, said_read)


def _become(request: Mapping[str, Any], nofile: tuple[int, int]) -> None:
    directory: str = request["directory"]
    try:
        log = os.open(f"{directory}/{LOG_FILE}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise _Failed(f"can't write the log {directory}/{LOG_FILE}: {error.strerror}") from None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, nofile)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.chdir(request["cwd"])
    except OSError as error:
        raise _Failed(f"can't use the working directory {request['cwd']!r}: {error.strerror}") from None
    argv: Sequence[str] = request["argv"]
    os.execvpe(argv[0], list(argv), dict(request["env"]))  # noqa: S606 - a program, no shell


class _Failed(Exception):  # noqa: N818 - never leaves this file
    """Its text says why the program can't be run."""


def _reason(error: BaseException, request: Mapping[str, Any]) -> str:
    if isinstance(error, _Failed):
        return str(error)
    program = request["argv"][0]
    if not isinstance(error, OSError):
        return f"can't run {program!r}: {error!r}"
    if error.errno == errno.ENOENT:
        if "/" in program and os.path.exists(program):
            return f"can't run {program!r}: the interpreter that its first line names does not exist"
        where = "there is no such file" if "/" in program else f"not found in PATH ({request['env'].get('PATH', '')})"
        return f"can't run {program!r}: {where}"
    if error.errno == errno.E2BIG:
        size = sum(len(os.fsencode(word)) + 1 for word in request["argv"])
        size += sum(len(os.fsencode(key)) + len(os.fsencode(text)) + 2 for key, text in request["env"].items())
        return f"can't run {program!r}: arguments and environment are too long together ({size:,} bytes)"
    if error.errno == errno.ENOEXEC:
        return f"can't run {program!r}: not a program, and no script with a first line such as #!/bin/sh"
    if error.errno == errno.EACCES:
        return f"can't run {program!r}: no permission to execute it"
    return f"can't run {program!r}: {error.strerror}"
