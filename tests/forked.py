"""Schedulers as forks of a process that has imported what they need: two thirds of a start's time are imports, and
tests make hundreds of starts. Whoever needs another environment, or the start itself, starts a process as ever.
"""

from __future__ import annotations

import atexit
import ctypes
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
from typing import Any

PROGRAM = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
ROOM = 4000
"""Bytes that a fork's command line may have, as `ps` and /proc show it."""
LONGEST = 150_000
"""Bytes that words and environment of a fork may have."""
_NEEDED = ("gpuloom.server.run", "gpuloom.server.pods", "gpuloom.live.facade", "gpuloom.cli.service", "numpy")
_READS = ("PYTHON", "LD_", "OPENBLAS", "OMP_", "COVERAGE", "GPULOOM_NVML", "GPULOOM_QUICK")
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
    """Whether a process with this environment begins as one that has ours."""
    return all(env.get(name) == os.environ.get(name) for name in {*env, *os.environ} if name.startswith(_READS))


class _Parent:
    """The process of which they are forks, seen from the tests; it ends with them."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, __file__, str(theirs.fileno()), "." * ROOM]
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        self.link = ours

    def start(self, words: Sequence[str], env: Mapping[str, str], cwd: str, out: int, errors: int) -> int:
        told = json.dumps({"words": list(words), "env": dict(env), "cwd": cwd}).encode()
        socket.send_fds(self.link, [told], [out, errors])
        return int(self.link.recv(32))


_parent: _Parent | None = None


Process = Fork | subprocess.Popen[bytes]


def begin(words: Sequence[str], env: Mapping[str, str], cwd: Path, errors: int, *, child: bool = False) -> Process:
    """`gpuloom WORDS` in a session of its own, whose output is to be read. errors: descriptor. child: it is to be a
    child of this process."""
    global _parent
    if child or not _may_fork(env):
        return subprocess.Popen(
            [*PROGRAM, *words], stdout=subprocess.PIPE, stderr=errors, cwd=cwd, env=env, start_new_session=True
        )
    if _parent is None:
        _parent = _Parent()
        atexit.register(_parent.process.kill)
    reads, writes = os.pipe()
    try:
        return Fork(_parent.start(words, env, str(cwd), writes, errors), reads)
    finally:
        os.close(writes)


# -- in that process -----------------------------------------------------------------------------------------------


def _main(link: socket.socket) -> None:
    import importlib

    for name in _NEEDED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        told, places, _, _ = socket.recv_fds(link, LONGEST, 2)
        if not told:
            return
        if (pid := os.fork()) == 0:
            link.close()
            _begin(json.loads(told), *places)
        for place in places:
            os.close(place)
        link.send(str(pid).encode())


def _begin(told: Mapping[str, Any], out: int, errors: int) -> None:
    """As a process of its own begins."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.chdir(told["cwd"])
    os.dup2(out, 1)
    os.dup2(errors, 2)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(told["env"])
    sys.argv = ["gpuloom", *told["words"]]
    _show([sys.executable, "-m", "gpuloom", *told["words"]])
    from gpuloom.cli.main import main

    main()
    os._exit(0)


def _show(words: Sequence[str]) -> None:
    """Have /proc show this command line."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    text = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


if __name__ == "__main__":
    _main(socket.socket(fileno=int(sys.argv[1])))
