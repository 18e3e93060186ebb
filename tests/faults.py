"""System calls that fail on purpose: each one that some code makes can be made to fail, with each errno it could have.

A call is known by its function and by where gpuloom made it (`os.rename` at `wire.py:73 < life.py:140`), not by a
list written here: `Injector(under)` without a fault counts the calls of a run, and each of them can then be made to
fail in a run of its own. So a call that is added to the code is covered without a word here.

    with Injector(("executors",)) as seen:            # count
        scenario()
    for call in seen.calls:
        for number in errnos(call):
            with Injector(("executors",), Fault(call, number)) as injector:
                scenario()                             # the first such call fails
            assert injector.failed

For a process of its own a plan is written as JSON (`Fault.written`, `Fault.read`); `faulty_runner.py` reads one.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import io
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

SOURCE = str(Path(__file__).resolve().parent.parent / "src" / "gpuloom") + os.sep
DEPTH = 2
"""Frames of gpuloom's own code that name a call: a helper such as `write_atomic` is many calls."""
FAR = 40

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE)
FOLDER = (errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE)
PIPE = (errno.EMFILE, errno.ENFILE)
LINK = (errno.ECONNRESET, errno.ENOMEM)

ERRNOS: dict[str, tuple[int, ...]] = {
    "open": (*DISK, errno.ENFILE),
    "open.read": FOLDER,
    "mkdir": DISK[:-1],
    "rename": DISK[:-1],
    "replace": DISK[:-1],
    "link": DISK[:-1],
    "symlink": DISK[:-1],
    "unlink": (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    "remove": (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM),
    "rmdir": (errno.EIO, errno.EBUSY, errno.EACCES, errno.EPERM),
    "write": (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    "pwrite": (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    "sendfile": (errno.ENOSPC, errno.EDQUOT, errno.EIO),
    "ftruncate": (errno.EIO, errno.EPERM),
    "truncate": (errno.EIO, errno.EPERM),
    "fsync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "fdatasync": (errno.EIO, errno.ENOSPC, errno.EDQUOT),
    "chmod": (errno.EPERM, errno.EIO, errno.EROFS),
    "read": (errno.EIO,),
    "pread": (errno.EIO,),
    "listdir": FOLDER,
    "scandir": FOLDER,
    "stat": (errno.EACCES, errno.EIO, errno.ESTALE),
    "lstat": (errno.EACCES, errno.EIO, errno.ESTALE),
    "readlink": (errno.EACCES, errno.EIO),
    "chdir": (errno.EIO, errno.ESTALE),
    "pipe": PIPE,
    "pipe2": PIPE,
    "dup": PIPE,
    "dup2": (errno.EMFILE, errno.EBUSY),
    "fork": (errno.EAGAIN, errno.ENOMEM),
    "posix_spawn": (errno.EAGAIN, errno.ENOMEM),
    "posix_spawnp": (errno.EAGAIN, errno.ENOMEM),
    "execve": (errno.EIO, errno.ENOMEM, errno.EAGAIN),
    "pidfd_open": (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    "kill": (errno.EPERM,),
    "killpg": (errno.EPERM,),
    "pidfd_send_signal": (errno.EPERM,),
    "flock": (errno.ENOLCK, errno.EIO),
    "lockf": (errno.ENOLCK, errno.EIO),
    "setrlimit": (errno.EPERM,),
    "getrlimit": (errno.EPERM,),
    "setsid": (errno.EPERM,),
    "epoll": (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
    "epoll.register": (errno.ENOMEM, errno.ENOSPC),
    "epoll.modify": (errno.ENOMEM,),
    "epoll.unregister": (errno.ENOMEM,),
    "epoll.poll": (errno.ENOMEM,),
    "poll": (errno.ENOMEM,),
    "socket": PIPE,
    "socketpair": PIPE,
    "accept": (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM),
    "bind": (errno.ENOSPC, errno.EROFS, errno.EACCES),
    "listen": (errno.EADDRINUSE,),
    "connect": (errno.EAGAIN, errno.ECONNREFUSED, errno.EACCES),
    "recv": LINK,
    "send": LINK,
    "sendall": LINK,
    "getsockopt": (errno.ENOMEM,),
}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
ANY = (errno.EIO,)
"""Of a function that is not named above."""

PURE = frozenset(
    """fspath fsencode fsdecode strerror getpid getppid getuid geteuid getgid getegid getpgrp sysconf confstr cpu_count
    waitstatus_to_exitcode WIFEXITED WEXITSTATUS WIFSIGNALED WTERMSIG WIFSTOPPED WSTOPSIG WCOREDUMP major minor
    makedev putenv unsetenv umask times uname get_terminal_size device_encoding isatty getcwd getcwdb getlogin
    get_blocking set_blocking get_inheritable set_inheritable urandom getrandom abort _exit wait4 wait waitpid waitid
    register_at_fork getloadavg sched_yield sched_getaffinity access getenv close closerange execv""".split()  # noqa: SIM905 - a long list
)
"""Of `os`: what is no system call, or can't fail for those who use it rightly. A close that fails has closed."""


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that is made: the function, and where (files and lines of gpuloom, the innermost first)."""

    function: str
    site: str

    def __str__(self) -> str:
        return f"{self.function} at {self.site}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to fail: this call with this errno; from its first time on `times` times, or while `until` is not there.

    site '' stands for all calls of the function.
    """

    call: Call
    errno: int
    times: int = 1
    until: str = ""

    def __str__(self) -> str:
        return f"{self.call}: {errno.errorcode[self.errno]}{' until it is over' if self.until else ''}"

    def written(self) -> str:
        return json.dumps([self.call.function, self.call.site, self.errno, self.times, self.until])

    @classmethod
    def read(cls, text: str) -> Fault:
        function, site, number, times, until = json.loads(text)
        return cls(Call(function, site), number, times, until)


def errnos(call: Call) -> tuple[int, ...]:
    """With what a call may plausibly fail."""
    return ERRNOS.get(call.function, ERRNOS.get(call.function.rpartition(".")[2], ANY))


@dataclass
class Injector:
    """Counts the system calls that files of `under` (folders or files below src/gpuloom) make, and has one fail.

    calls: how often each was made. failed: how often one was made to fail. tell: called for each one that fails.
    """

    under: tuple[str, ...]
    fault: Fault | None = None
    tell: Callable[[Call], None] = lambda call: None
    calls: Counter[Call] = field(default_factory=Counter)
    failed: int = 0
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def __enter__(self) -> Injector:
        for name in dir(os):
            found = getattr(os, name)
            ours = getattr(found, "__module__", "") == "posix" and not isinstance(found, type)
            if ours and callable(found) and name not in PURE:
                self._replace(os, name)
        for module, names in (
            (fcntl, ("flock", "lockf")),
            (resource, ("setrlimit", "getrlimit")),
            (signal, ("pidfd_send_signal",)),
        ):
            for name in names:
                self._replace(module, name)
        for name in ("accept", "bind", "listen", "connect", "recv", "send", "sendall", "getsockopt"):
            self._replace(socket.socket, name)
        self._replace(socket, "socketpair")
        self._replace(subprocess, "_fork_exec", "fork")
        self._set(socket, "socket", self._socket_class(socket.socket))
        self._set(select, "epoll", self._polls(select.epoll, "epoll", ("register", "modify", "unregister", "poll")))
        self._set(select, "poll", self._polls(select.poll, "", ("poll",)))
        opened = self._open(builtins.open)
        self._set(builtins, "open", opened)
        self._set(io, "open", opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        while self._undo:
            self._undo.pop()()

    def come(self, function: str, path: object = None) -> None:
        """A call is about to be made: count it, and raise the OSError that is planned for it. path: what it is about,
        if that is a file's name."""
        frame: FrameType | None = sys._getframe(2)
        names: list[str] = []
        inside = False
        for _ in range(FAR):
            if frame is None or len(names) == DEPTH:
                break
            file = frame.f_code.co_filename
            if file.startswith(SOURCE):
                inner = file[len(SOURCE) :]
                if not names:
                    inside = inner.startswith(self.under)
                names.append(f"{os.path.basename(inner)}:{frame.f_lineno}")
            frame = frame.f_back
        if not inside:
            return
        call = Call(function, " < ".join(names))
        self.calls[call] += 1
        fault = self.fault
        if fault is None or fault.call.function != function or fault.call.site not in ("", call.site):
            return
        if _there(fault.until) if fault.until else self.failed >= fault.times:
            return
        self.failed += 1
        self.tell(call)
        named = (os.fsdecode(path),) if isinstance(path, (str, bytes, os.PathLike)) else ()
        raise OSError(fault.errno, os.strerror(fault.errno), *named)

    def _replace(self, owner: Any, name: str, function: str = "") -> None:
        before, known = getattr(owner, name), function or name

        def call(*args: Any, **more: Any) -> Any:
            reads = known == "open" and not args[1] & WRITES
            self.come("open.read" if reads else known, args[0] if args and owner is os else None)
            return before(*args, **more)

        call.__name__ = name
        self._set(owner, name, call)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        own = name in vars(owner)
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before) if own else delattr(owner, name))

    def _socket_class(self, before: type[socket.socket]) -> type[socket.socket]:
        come = self.come

        class Socket(before):  # type: ignore[misc, valid-type]
            def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:  # noqa: A002
                if fileno is None:
                    come("socket")
                super().__init__(family, type, proto, fileno)

        return Socket

    def _polls(self, before: Callable[..., Any], function: str, methods: Iterable[str]) -> Callable[..., Any]:
        injector = self

        def made(*args: Any) -> _Proxy:
            if function:
                injector.come(function)
            return _Proxy(injector, before(*args), function, methods)

        return made

    def _open(self, before: Callable[..., Any]) -> Callable[..., Any]:
        injector = self

        def opened(*args: Any, **more: Any) -> Any:
            seen = injector.calls.total()
            mode = more.get("mode", args[1] if len(args) > 1 else "r")
            injector.come("open" if set(mode) & set("wax+") else "open.read", args[0])
            file = before(*args, **more)
            return file if injector.calls.total() == seen else _Proxy(injector, file, "", ("read", "write"))

        return opened


class _Proxy:
    """An object of C whose methods can fail."""

    def __init__(self, injector: Injector, inner: Any, prefix: str, methods: Iterable[str]) -> None:
        self._inner = inner
        for name in methods:
            if hasattr(inner, name):
                setattr(
                    self, name, self._method(injector, f"{prefix}.{name}" if prefix else name, getattr(inner, name))
                )

    @staticmethod
    def _method(injector: Injector, function: str, before: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            injector.come(function)
            return before(*args, **more)

        return call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __enter__(self) -> _Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.close()

    def __iter__(self) -> Any:
        return iter(self._inner)


def _there(path: str) -> bool:
    try:
        _stat(path)
    except OSError:
        return False
    return True


_stat, _open, _write, _close = os.stat, os.open, os.write, os.close


def note(path: str, text: str) -> None:
    """Add to a file, also while calls fail."""
    file = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _write(file, text.encode())
    _close(file)


def teller(failed: str, over: str) -> Callable[[Call], None]:
    """An `Injector.tell` that gives the file `failed` a byte, and makes the file `over`, if one is named."""

    def told(call: Call) -> None:
        note(failed, "x")
        if over:
            note(over, "x")

    return told
