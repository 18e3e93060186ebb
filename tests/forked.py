"""Commands of gpuloom as forks of a process that has imported what they need: two thirds of a start's time are imports,
and tests make hundreds of starts. Whoever needs another environment, or the start itself, starts a process as ever.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NoReturn

PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
ROOM = 4000
"""Bytes that a fork's command line may have, as `ps` and /proc show it."""
LONGEST = 150_000
"""Bytes that words and environment of a fork may have."""
_NEEDED = (
    "gpuloom.server.run",
    "gpuloom.server.pods",
    "gpuloom.live.facade",
    "gpuloom.cli.service",
    "gpuloom.cli.background",
    "gpuloom.cli.control",
    "gpuloom.cli.db",
    "gpuloom.cli.jobs",
    "gpuloom.cli.show",
    "gpuloom.cli.node.group",
    "gpuloom.cli.node.join",
    "gpuloom.client",
    "httpx",
    "numpy",
)
_READS = ("PYTHON", "LD_", "OPENBLAS", "OMP_", "COVERAGE", "GPULOOM_NVML")
"""Variables that count when a process begins, or modules are imported."""


class Fork:
    """A process that was begun so; what tests need of `subprocess.Popen`."""

    def __init__(self, pid: int, stdout: int) -> None:
        self.pid = pid
        self.stdout = os.fdopen(stdout, "rb", 0)
        self._handle: int | None = None
        """None: it has ended."""
        with suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: int) -> None:
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def communicate(self) -> None:
        """Wait for its end, and let go of it."""
        if self._handle is not None:
            select.select([self._handle], [], [])
            os.close(self._handle)
            self._handle = None
        self.stdout.close()


def _may_fork(env: Mapping[str, str]) -> bool:
    """Whether a process with this environment begins as one that has ours. Where lines are measured none does: what a
    process runs counts for the test that is running as it begins."""
    return "GPULOOM_COVERAGE" not in env and all(
        env.get(name) == os.environ.get(name) for name in {*env, *os.environ} if name.startswith(_READS)
    )


class _Parent:
    """The process of which they are forks, seen from the tests; it ends with them."""

    def __init__(self) -> None:
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno()), "." * ROOM]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        atexit.register(self._end)

    def start(self, words: Sequence[str], env: Mapping[str, str], cwd: Path, places: Sequence[int]) -> int:
        """The pid of a fork. places: descriptors for its output, its errors and, if there is a third, its exit code."""
        told = json.dumps({"words": list(words), "env": dict(env), "cwd": str(cwd)}).encode()
        socket.send_fds(self._link, [told], list(places))
        return int(self._link.recv(32))

    def _end(self) -> None:
        self._link.close()
        self._process.kill()
        self._process.wait()


_parents: list[_Parent] = []


def _parent() -> _Parent:
    if not _parents:
        _parents.append(_Parent())
    return _parents[0]


Process = Fork | subprocess.Popen[bytes]


def begin(words: Sequence[str], env: Mapping[str, str], cwd: Path, errors: int, *, child: bool = False) -> Process:
    """`gpuloom WORDS` in a session of its own, whose output is to be read. errors: descriptor. child: it is to be a
    child of this process."""
    if child or not _may_fork(env):
        return subprocess.Popen(
            [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=errors, cwd=cwd, env=env, start_new_session=True
        )
    reads, writes = os.pipe()
    try:
        return Fork(_parent().start(words, env, cwd, (writes, errors)), reads)
    finally:
        os.close(writes)


def run(words: Sequence[str], env: Mapping[str, str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """`gpuloom WORDS`, to its end. Raises TimeoutExpired: it was killed."""
    if not _may_fork(env):
        command = [*PROGRAM, *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    with TemporaryFile() as out, TemporaryFile() as errors, TemporaryFile() as code:
        files = (out, errors, code)
        pid = _parent().start(words, env, Path.cwd(), [one.fileno() for one in files])
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(pid)
            try:
                if not select.select([handle], [], [], timeout_s)[0]:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(list(words), timeout_s)
            finally:
                os.close(handle)
        said = []
        for file in files:
            file.seek(0)
            said.append(file.read().decode())
    # Who was killed has said none.
    return subprocess.CompletedProcess([*PROGRAM, *words], int(said[2] or -signal.SIGKILL), said[0], said[1])


# -- in that process -----------------------------------------------------------------------------------------------


def _main(link: socket.socket) -> None:
    import importlib

    for name in _NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        told, places, _, _ = socket.recv_fds(link, LONGEST, 3)
        if not told:
            return
        if (pid := os.fork()) == 0:
            link.close()
            _begin(json.loads(told), *places)
        for place in places:
            os.close(place)
        link.send(str(pid).encode())


def _begin(told: Mapping[str, Any], out: int, errors: int, code: int | None = None) -> NoReturn:
    """As a process of its own begins, and to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(told["cwd"])
    os.dup2(out, 1)
    os.dup2(errors, 2)
    if code is not None:
        code = fcntl.fcntl(code, fcntl.F_DUPFD_CLOEXEC, 300)
    os.closerange(3, 300)
    os.environ.clear()
    os.environ.update(told["env"])
    sys.argv = ["gpuloom", *told["words"]]
    _show([sys.executable, "-m", "gpuloom", *told["words"]])
    from gpuloom.cli.main import main

    status: object = 1
    try:
        main()
        status = 0
    except SystemExit as end:
        status = end.code or 0
        raise
    finally:
        if code is not None:
            os.write(code, str(status if isinstance(status, int) else 1).encode())
    sys.exit(0)


def _show(words: Sequence[str]) -> None:
    """Have /proc show this command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
