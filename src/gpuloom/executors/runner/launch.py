"""From a request to a running program: fork, wait for permission, then exec.

A child that is held gets ready first: it is in its folder, has its log, and has found its program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import stat

from gpuloom.core.faults import fault_text
from gpuloom.executors.wire import LOG_FILE, Cause, StartRequest, blamed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Refusal = Callable[[], tuple[Cause, str] | None]
    """Why nothing may be started now, and what is to blame."""

SAID = 3
"""Where a child says why it can't run its program; closed by the program's start."""
GO = 4
"""Where it is told to go on."""
MAX_FD = 1 << 20
HOLD, RUN = b"h", b"g"
"""What a child is told: to get ready and wait, or to run its program."""
READY = b"+"
"""What a child says that was told to wait, once it is ready."""
SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Child:
    """A process that waits to become a job. It ends without having run anything if its parent goes before `release`."""

    def __init__(self, pid: int, go: int, said: int) -> None:
        self.pid, self._go, self.said = pid, go, said
        self._text = b""
        self._held = False

    def hold(self) -> None:
        """Let it get ready and wait for `release`. Raises OSError: it will not run."""
        os.write(self._go, HOLD)
        self._held = True

    def ready(self) -> bool:
        """Whether one that is held says that it is ready; False: ask `heard` why not. To be asked once `said` can be
        read."""
        part = os.read(self.said, 1 << 16)
        if part == READY:
            return True
        self._text = part
        return False

    def release(self) -> None:
        """Let it run its program. `said` ends when it does, or holds why it can't. Raises OSError: it will not run."""
        os.write(self._go, RUN)
        os.close(self._go)
        self._held = False

    def heard(self) -> dict[str, Any] | None:
        """Why it can't run its program: {cause, message}; None: it runs. To be asked once `said` can be read."""
        text = self._text
        while part := os.read(self.said, 1 << 16):
            text += part
        if self._held:
            os.close(self._go)
        try:
            if text or not self._held:
                return json.loads(text) if text else None
        except ValueError:  # it was ended while it said so
            pass
        return {"cause": Cause.EXECUTOR, "message": "its process was killed before its program could be run"}

    def drop(self) -> None:
        """Let it end."""
        os.close(self._go)
        os.close(self.said)


def fork(request: StartRequest, nofile: tuple[int, int], refusal: Refusal = lambda: None) -> Child:
    """A child in a session of its own. refusal: why it must not run its program, asked at the last moment.

    Raises:
        OSError: none is to be had.
    """
    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        pid = os.fork()
    except BaseException:
        for fd in ends:
            os.close(fd)
        raise
    go_read, go_write, said_read, said_write = ends
    if pid == 0:
        try:
            os.close(go_write)
            os.setsid()
            if order := os.read(go_read, 1):
                # Out of each other's way first: either may have the other's number.
                go, said_write = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, GO + 1) for fd in (go_read, said_write))
                os.dup2(go, GO, inheritable=False)
                os.dup2(said_write, SAID, inheritable=False)
                said_write = SAID
                os.closerange(GO + 1, MAX_FD)
                _get_ready(request, nofile)
                if order == HOLD:
                    _find_program(request)
                    os.write(SAID, READY)
                    order = os.read(GO, 1)
                if order == RUN:
                    if (refused := refusal()) is not None:
                        raise _Failed(*refused)
                    _become(request)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.write(said_write, json.dumps(_reason(error, request)).encode())
        finally:
            os._exit(127)
    os.close(go_read)
    os.close(said_write)
    return Child(pid, go_write, said_read)


def _get_ready(request: StartRequest, nofile: tuple[int, int]) -> None:
    path = f"{request.directory}/{LOG_FILE}"
    try:
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise _Failed(Cause.EXECUTOR, fault_text(f"can't write the log {path}", error)) from None
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with contextlib.suppress(ValueError, OSError):  # then it keeps the runner's, which is higher
        resource.setrlimit(resource.RLIMIT_NOFILE, nofile)
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    try:
        os.chdir(request.cwd)
    except OSError as error:
        what = f"can't use the working directory {request.cwd!r}"
        cause = blamed(error)
        text = f"{what}: {error.strerror}" if cause is Cause.JOB else fault_text(what, error)
        raise _Failed(cause, text) from None


def _find_program(request: StartRequest) -> None:
    """See whether there is a program to run, so that one that is not there is told of while nothing runs yet."""
    program, env = request.argv[0], request.env
    last: OSError | None = None
    for folder in [""] if "/" in program else os.get_exec_path(env):
        path = os.path.join(folder, program)
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)  # as exec says of a folder
            if os.access(path, os.X_OK):
                return
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        except OSError as error:
            if last is None or last.errno in (errno.ENOENT, errno.ENOTDIR):
                last = error
    if last is not None:
        raise _unusable(last, request)


def _become(request: StartRequest) -> None:
    argv = request.argv
    try:
        os.execvpe(argv[0], list(argv), dict(request.env))  # noqa: S606 - a program, no shell
    except OSError as error:
        raise _unusable(error, request) from None


class _Failed(Exception):  # noqa: N818 - never leaves this file
    """Says whose fault it is, and why the program can't be run."""

    def __init__(self, cause: Cause, text: str) -> None:
        self.cause, self.text = cause, text


def _unusable(error: OSError, request: StartRequest) -> _Failed:
    cause = blamed(error)
    what = f"can't run {request.argv[0]!r}"
    return _Failed(cause, _no_program(error, request) if cause is Cause.JOB else fault_text(what, error))


def _reason(error: BaseException, request: StartRequest) -> dict[str, str]:
    what = f"can't run {request.argv[0]!r}"
    if isinstance(error, _Failed):
        cause, text = error.cause, error.text
    elif isinstance(error, OSError | MemoryError):  # of what we do ourselves before
        cause, text = Cause.EXECUTOR, fault_text(what, error)
    else:  # what no program can be called with: a zero byte in a word, say
        cause, text = Cause.JOB, f"{what}: {error!r}"
    return {"cause": cause, "message": text[:2000]}


def _no_program(error: OSError, request: StartRequest) -> str:
    program = request.argv[0]
    if error.errno == errno.ENOENT:
        if "/" in program and os.path.exists(program):
            return f"can't run {program!r}: the interpreter that its first line names does not exist"
        where = "there is no such file" if "/" in program else f"not found in PATH ({request.env.get('PATH', '')})"
        return f"can't run {program!r}: {where}"
    if error.errno == errno.E2BIG:
        size = sum(len(os.fsencode(word)) + 1 for word in request.argv)
        size += sum(len(os.fsencode(key)) + len(os.fsencode(text)) + 2 for key, text in request.env.items())
        return f"can't run {program!r}: arguments and environment are too long together ({size:,} bytes)"
    if error.errno == errno.ENOEXEC:
        return f"can't run {program!r}: it is not a program, nor a script with a first line such as #!/bin/sh"
    if error.errno == errno.EACCES:
        return f"can't run {program!r}: no permission to execute it"
    return f"can't run {program!r}: {error.strerror}"
