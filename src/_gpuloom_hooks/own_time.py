"""How a piece of work in one thread spent its time: computing, waiting for a core, or waiting for something else.

What is neither computing (`thread_time_ns`) nor waiting for a core (Linux' run-queue wait, the second field of
/proc/thread-self/schedstat) counts as reading: the piece fetches a batch.
"""

from __future__ import annotations

import os
from threading import local
from time import perf_counter_ns, thread_time_ns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

SCHEDSTAT = "/proc/thread-self/schedstat"


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino


class _Own(local):
    """A thread's own file of its run-queue wait."""

    def __init__(self) -> None:
        try:
            self.fd = os.open(SCHEDSTAT, os.O_RDONLY | os.O_CLOEXEC)
            self.same = _identity(self.fd)
        except OSError:
            self.fd = -1  # no Linux, or a kernel that doesn't count: then waits for a core count as reading

    def __del__(self, identity: Callable[[int], tuple[int, int]] = _identity) -> None:
        if self.fd >= 0:
            try:
                ours = identity(self.fd) == self.same
            except OSError:
                return  # the job has closed it
            if ours:  # else it is one of the job's files by now
                os.close(self.fd)


_own = _Own()


def _forked() -> None:
    global _own
    _own = _Own()


os.register_at_fork(after_in_child=_forked)


def known() -> bool:
    """Whether waits for a core are known here."""
    return _own.fd >= 0


def mark() -> tuple[int, int, int]:
    """Now: clock, thread's own time, its waits for a core; nanoseconds."""
    queued = 0
    if _own.fd >= 0:
        try:
            queued = int(os.pread(_own.fd, 96, 0).split()[1])
        except (OSError, ValueError, IndexError):
            _own.fd = -1  # the job has closed it, and it may be another file by now
    return perf_counter_ns(), thread_time_ns(), queued


def since(start: tuple[int, int, int]) -> tuple[int, int, int]:
    """Nanoseconds since then: reading, computing, waiting for a core. They add up to the time that passed."""
    now = mark()
    took, cpu, queued = now[0] - start[0], now[1] - start[1], max(now[2] - start[2], 0)
    cpu = min(cpu, took)
    queued = min(queued, took - cpu)
    return took - cpu - queued, cpu, queued
