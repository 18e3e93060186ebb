"""What wakes a guard: a time on CLOCK_BOOTTIME, which goes on while the machine sleeps, so that whoever waits wakes at
once afterwards; and a file that is taken away.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

CLOCK_BOOTTIME, TFD_TIMER_ABSTIME = 7, 1
TFD_CLOEXEC, TFD_NONBLOCK = os.O_CLOEXEC, os.O_NONBLOCK
IN_ATTRIB, IN_DELETE_SELF, IN_ONESHOT = 0x4, 0x400, 0x80000000
WITHOUT_S = 5.0
"""Without such an alarm, the longest sleep: a poll counts no time in which the machine sleeps."""
MOST_S = 3600.0


class Alarm:
    """Where none is to be had (old kernels, some sandboxes) waiting is cut into short pieces."""

    def __init__(self) -> None:
        self.fd = -1
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.open()

    def open(self) -> None:
        """Have one, if there is none."""
        if self.fd < 0:
            try:
                self.fd = self._libc.timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK)
            except AttributeError:  # a libc without it
                self.fd = -1

    def wait(self, until_ns: int, fds: Collection[int]) -> set[int]:
        """Until then (ns on CLOCK_BOOTTIME), or until one of these can be read: which of them can. Raises OSError."""
        self.open()
        left_s = (until_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) / 1e9
        most_s = MOST_S if self._set(until_ns) else WITHOUT_S
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        if self.fd >= 0:
            poll.register(self.fd, select.POLLIN)
        # A millisecond more than is left: poll counts in whole ones.
        ready = {fd for fd, _ in poll.poll(max(0.0, min(left_s, most_s)) * 1000 + 1)}
        return ready - {self.fd}

    def _set(self, at_ns: int) -> bool:
        if self.fd < 0:
            return False
        seconds, nanoseconds = divmod(max(at_ns, 1), 10**9)
        spec = (ctypes.c_long * 4)(0, 0, seconds, nanoseconds)  # struct itimerspec: no repeat, then the time
        if self._libc.timerfd_settime(self.fd, TFD_TIMER_ABSTIME, spec, None):
            if ctypes.get_errno() == errno.EBADF:
                self.fd = -1
            return False
        return True


class Removal:
    """Says when a file is taken away, or its rights change. Where inotify is not to be had it says nothing."""

    def __init__(self, path: str) -> None:
        self._path = os.fsencode(path)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)

    def arm(self) -> None:
        """From now on, until the first time; armed again it is armed once."""
        if self.fd >= 0:
            self._libc.inotify_add_watch(self.fd, self._path, IN_ATTRIB | IN_DELETE_SELF | IN_ONESHOT)

    def hear(self) -> None:
        """Take what it said."""
        with contextlib.suppress(OSError):
            os.read(self.fd, 4096)
