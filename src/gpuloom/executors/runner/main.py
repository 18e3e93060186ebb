"""The runner: the parent of all job processes of one home, which outlives the scheduler.

Started by path with `python -I -S` (see executors/link.py), so that it loads a few light modules and nothing else. It
has one thread, sleeps until something happens, and ends when no scheduler is connected and no run is left.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # started by path: make `gpuloom` findable, behind the standard library
    sys.path.append(os.path.abspath(f"{__file__}/../../../.."))

import contextlib
import ctypes
import fcntl
import signal
import socket

from gpuloom.core.faults import fault_text
from gpuloom.executors.runner import cgroups
from gpuloom.executors.runner.keeper import Keeper
from gpuloom.executors.runner.loop import log, log_to
from gpuloom.executors.runner.restarts import sign
from gpuloom.executors.wire import EXIT_FAULT, EXIT_LOCKED, LOCK, RUNNER_LOG, SOCKET, remove, socket_address

PR_SET_CHILD_SUBREAPER = 36


def main(home: str, home_id: str, mode: str, scheduler: str, files: str) -> int:
    """Lock the home, listen, go to the background, and work. The process that was started returns once it listens."""
    try:
        lock = os.open(f"{home}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        keeper = _begun(home, home_id, int(files), lock)
    except (OSError, MemoryError) as error:
        log(fault_text(f"the runner can't start in {home}", error))
        return EXIT_FAULT
    if keeper is None:
        return EXIT_LOCKED
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        log(f"not the reaper of orphans: {os.strerror(ctypes.get_errno())}")
    keeper.groups = _groups(home_id, mode, (os.getpid(), int(scheduler)))
    argv = [sys.executable, "-I", "-S", os.path.abspath(__file__), home, home_id, mode, scheduler, files]
    sign(lock, {"argv": argv, "groups": [keeper.groups.version, keeper.groups.bases]})
    keeper.work()
    keeper.groups.close()
    with contextlib.suppress(OSError):  # the next one removes it
        remove(f"{home}/{SOCKET}")
    return 0


def _begun(home: str, home_id: str, files: int, lock: int) -> Keeper | None:
    """Acquire everything that a runner needs, before it is announced; None: another runner is there.

    Raises:
        OSError: it can't be done.
    """
    home_fd = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    log_to(f"{home}/{RUNNER_LOG}")
    remove(f"{home}/{SOCKET}")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    keeper = Keeper(home, home_id, listener, files)
    mask = os.umask(0o177)
    listener.bind(socket_address(home_fd))
    os.umask(mask)
    listener.setblocking(False)
    listener.listen(16)
    os.close(home_fd)
    if os.fork():
        os._exit(0)
    listener.listen(16)  # once more: who connects is told the process that did it last
    return keeper


def _groups(home_id: str, mode: str, ours: tuple[int, int]) -> cgroups.Cgroups:
    try:
        return cgroups.find(home_id, mode=mode, ours=ours)
    except (OSError, ValueError) as error:
        log(f"no control groups; processes are watched instead: {error}")
        return cgroups.none(str(error))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
