"""Who watches over another process starts it again when it has died: who has the other's lock, and how often."""

from __future__ import annotations

import fcntl
import json
import os

from gpuloom.executors import procs
from gpuloom.executors.wire import read_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

FIRST_S, MOST_S = 1.0, 60.0
BLOCK = 4096
QUIET_S = 120.0
"""What was started so long ago has not died at its start."""


class Restarts:
    """Pauses before something is started again: none at first, then from a second up to a minute, as long as it dies
    soon. Times are on one clock, seconds."""

    def __init__(self) -> None:
        self._pause_s, self._last_s, self._next_s = 0.0, float("-inf"), float("-inf")

    def due(self, now_s: float) -> bool:
        """Whether it may be started now; whoever asks does so."""
        if now_s < self._next_s:
            return False
        if now_s - self._last_s > QUIET_S:
            self._pause_s = 0.0
        self._pause_s = min(max(2 * self._pause_s, FIRST_S), MOST_S)
        self._last_s, self._next_s = now_s, now_s + self._pause_s
        return True

    def wait_s(self, now_s: float) -> float:
        """Until it may be."""
        return max(self._next_s - now_s, 0.0)


def sign(lock: int, note: Mapping[str, Any]) -> bool:
    """Write into a lock file that is held who we are. False: it can't be done now; the lock itself is what counts.

    All that is written once in this place, a block that is there: no full disk keeps the next one from signing.
    """
    try:
        me = procs.process(os.getpid())
        text = json.dumps({"pid": os.getpid(), "start_ticks": None if me is None else me.start_ticks, **note})
        data = text.encode().ljust(BLOCK)
        os.pwrite(lock, data, 0)
        os.ftruncate(lock, len(data))
    except OSError:
        return False
    return True


def unsign(lock: int) -> None:
    """Write into a lock file that is still held that its holder ends. Raises OSError."""
    os.pwrite(lock, b"{}".ljust(BLOCK), 0)


def holder(path: str) -> dict[str, Any] | None:
    """What the process that signed this lock file last wrote there; None: it is gone, or there was none.

    Raises:
        OSError: not known now.
    """
    note = signed(path)
    entry = None if note is None else procs.process(note["pid"])
    if note is None or entry is None or entry.dead or entry.start_ticks != note.get("start_ticks"):
        return None
    return note


def signed(path: str) -> dict[str, Any] | None:
    """What was last written there, by a process that may be gone. Raises OSError: not known now."""
    note = read_json(path)
    return note if note is not None and isinstance(note.get("pid"), int) else None


def free(path: str) -> bool:
    """Whether nobody has this lock: not to be asked without need, as who wants it meanwhile is refused.

    Raises:
        OSError: not known now.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def watched(pid: int) -> int | None:
    """A file that can be read once this process is gone; None: it is. Raises OSError: none is to be had."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    try:
        entry = procs.process(pid)
    except BaseException:
        os.close(fd)
        raise
    if entry is None or entry.dead:
        os.close(fd)
        return None
    return fd
