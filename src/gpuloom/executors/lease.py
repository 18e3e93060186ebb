"""The lease of a node, as it lies in the node's home: until when its runs may go on.

A file of 64 bytes: eight words of 64 bits in the machine's own order. The node process alone writes the deadline; the
runner and the guards (executors/guard) read it; the guards count in it how often they ended the runs. The clock is
CLOCK_BOOTTIME: it goes on while the machine sleeps, and nobody can set it. A file of an earlier boot is no lease.

It is read and written by `pread` and `pwrite`, not mapped: whoever maps a file is killed when somebody cuts it short,
and all who watch over a lease would be killed by it together.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time

from gpuloom.executors.procs import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    _Found = tuple[int, int, int]
    """Deadline (ns), how often runs were ended, when last (ns)."""

LEASE_FILE = "lease"
MAGIC, VERSION = b"gpulease", 1
_WORDS = struct.Struct("=8sQ16sQQQQ")
"""magic, version, boot id, deadline and its complement (ns), how often runs were ended, when last (ns)."""
_DEADLINE, _FENCES = struct.Struct("=QQ"), struct.Struct("=QQ")
_DEADLINE_AT, _FENCES_AT = 32, 48
_ALL = (1 << 64) - 1
NO_LEASE, OVER = 0, 1
"""Deadlines: none was given, and none is needed; one that is always over, as before the first lease."""
LAST_NS = 100_000_000
"""So shortly before its deadline it is not put off any more: whoever sees it pass ends the runs."""
TRIES = 8


def boottime_ns() -> int:
    """Nanoseconds since the machine was started, those in which it slept included."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class LeaseFile:
    """home: of the node. now_ns: CLOCK_BOOTTIME, for tests another.

    What can't be read for a fault of the machine is taken to be as it was last read.
    """

    def __init__(self, home: str, now_ns: Callable[[], int] = boottime_ns) -> None:
        """Raises OSError."""
        self.path = f"{home}/{LEASE_FILE}"
        self.boot = boot_id()
        self._now_ns = now_ns
        self._last: _Found | None = None

    def make(self) -> None:
        """Have a file of this boot: that which is there, with its deadline, or a new one that is over.

        Raises:
            OSError: it can't be written.
        """
        try:
            if self._read() is not None:
                return
        except FileNotFoundError:
            pass  # it is made
        temporary = f"{self.path}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, _WORDS.pack(MAGIC, VERSION, self._boot(), OVER, OVER ^ _ALL, 0, 0))
            os.fsync(fd)  # its block is there from now on: a full disk keeps no lease from being renewed
        finally:
            os.close(fd)
        os.rename(temporary, self.path)

    def there(self) -> bool:
        """Whether this home lives on leases at all. The head's own machine doesn't."""
        return os.path.lexists(self.path)

    def deadline_ns(self) -> int:
        """On CLOCK_BOOTTIME; `NO_LEASE` where there never was a file, `OVER` where it is another boot's, damaged, or
        has been taken away. Raises OSError: it was never read, and can't be."""
        return self._known()[0]

    def left_s(self) -> float | None:
        """Seconds until it is over, at most 0.0 when it is; None: there is none. Raises OSError as above."""
        deadline = self.deadline_ns()
        return None if deadline == NO_LEASE else (deadline - self._now_ns()) / 1e9

    def over(self) -> bool:
        """Whether there is a lease, and it has run out: nothing may run. Raises OSError as above."""
        left = self.left_s()
        return left is not None and left <= 0

    def extend(self, deadline_ns: int) -> bool:
        """Put the deadline off. False: it is as late already, or it has run out, and what ran is not known to have been
        ended: that comes first. Raises OSError."""
        found = self._read()
        if found is None:
            self.make()
        elif deadline_ns <= found[0] or (found[0] - LAST_NS <= self._now_ns() and not _settled(found)):
            return False
        self._write(_DEADLINE_AT, _DEADLINE.pack(deadline_ns, deadline_ns ^ _ALL))
        return True

    def remove(self) -> None:
        """Live without leases from now on: the runner starts nothing more, and the guards end what runs, and then
        themselves. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def settled(self) -> bool:
        """Whether since its deadline everything was ended, or nothing can have run. Raises OSError as above."""
        return _settled(self._known())

    def fences(self) -> int:
        """How often since it was made all runs were ended, because it was over. Raises OSError as above."""
        return self._known()[1]

    def count_fence(self) -> None:
        """Note that nothing of any run is left, after the deadline. Raises OSError."""
        self._write(_FENCES_AT, _FENCES.pack(self.fences() + 1, self._now_ns()))

    def _boot(self) -> bytes:
        return bytes.fromhex(self.boot.replace("-", ""))

    def _known(self) -> _Found:
        try:
            self._last = self._read() or (OVER, 0, 0)
        except FileNotFoundError:
            return (NO_LEASE, 0, 0) if self._last is None else (OVER, *self._last[1:])
        except OSError:
            if self._last is None:
                raise
        return self._last

    def _read(self) -> _Found | None:
        """None: no whole file of this boot. Raises OSError."""
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            for _ in range(TRIES):
                data = os.pread(fd, _WORDS.size, 0)
                if len(data) < _WORDS.size:
                    return None
                magic, version, boot, deadline, check, fences, fenced = _WORDS.unpack(data)
                if magic != MAGIC or version != VERSION or boot != self._boot():
                    return None
                if deadline == check ^ _ALL:
                    return deadline, fences, fenced
            return min(deadline, check ^ _ALL), fences, fenced  # half written: the earlier of two that were both given
        finally:
            os.close(fd)

    def _write(self, at: int, data: bytes) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(fd, data, at)
        finally:
            os.close(fd)


def _settled(found: _Found) -> bool:
    deadline, _, fenced = found
    return deadline <= OVER or fenced >= deadline
