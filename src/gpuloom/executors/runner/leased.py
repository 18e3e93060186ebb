"""The runner's part in a lease: while it is over nothing is started and what runs is ended; and there is a guard.

A home without a lease (the head's own machine) has neither.
"""

from __future__ import annotations

import os
import sys
import time

from gpuloom.core.faults import fault_text
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.runner.loop import Loop, log
from gpuloom.executors.runner.restarts import MOST_S, Restarts, free, holder, watched
from gpuloom.executors.wire import GUARD_LOCK, GUARD_LOG, GUARD_MARK, Cause

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

GUARD = os.path.abspath(f"{__file__}/../../guard/main.py")
OVER = "the lease of this node is over: the head has not been reached for too long"
OVER_S = 1.0
"""While it is over: between looks at whether it still is."""
AGAIN_S = 1.0
"""After the guard was started, or died, when to look who it is."""


class Leased:
    """over: called again and again while there is a lease that is over."""

    def __init__(self, home: str, home_id: str, loop: Loop, over: Callable[[], None]) -> None:
        """Raises OSError."""
        self._home, self._home_id, self._loop, self._over = home, home_id, loop, over
        self.file = LeaseFile(home)
        self._watching = False
        self._restarts = Restarts()

    def look(self) -> None:
        """From the first call that finds a lease it is watched over."""
        if not self._watching and self.file.there():
            self._watching = True
            self._loop.soon(self._look, "the lease")
            self._loop.soon(self._look_at_guard, "the guard")

    def refusal(self) -> tuple[Cause, str] | None:
        """Why nothing may be started now."""
        try:
            return (Cause.NODE, OVER) if self.file.over() else None
        except OSError as error:
            return Cause.EXECUTOR, fault_text(f"can't read {self.file.path}", error)

    def fences(self) -> int:
        """How often the runs of this node were ended so far; 0 where that can't be known."""
        try:
            return self.file.fences()
        except OSError:
            return 0

    def ended(self, fences: int) -> bool:
        """Whether what began when there were so many fences was ended by the guard, or is just being."""
        try:
            return self.file.fences() > fences or self.file.over()
        except OSError:
            return False

    def _look(self) -> None:
        left = self.file.left_s()
        if left is None:
            return
        if left <= 0:
            self._over()
        self._loop.after(max(left, OVER_S), self._look, "the lease")

    # The guard

    def _look_at_guard(self) -> None:
        """Watch the guard, or start one."""
        if not self.file.there():  # the node has left
            self._loop.after(MOST_S, self._look_at_guard, "the guard")
            return
        lock = f"{self._home}/{GUARD_LOCK}"
        note = holder(lock)
        fd = None if note is None else watched(note["pid"])
        if fd is not None:
            self._loop.add(fd, self._guard_gone, "the guard")
            return
        now = time.monotonic()
        if free(lock) and self._restarts.due(now):
            log("there is no guard: one is started")
            self._start()
        self._loop.after(max(AGAIN_S, self._restarts.wait_s(now)), self._look_at_guard, "the guard")

    def _guard_gone(self, fd: int) -> None:
        self._loop.drop(fd)
        os.close(fd)
        self._loop.soon(self._look_at_guard, "the guard")

    def _start(self) -> None:
        argv = (sys.executable, "-I", "-S", GUARD, self._home, self._home_id)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            actions = [
                (os.POSIX_SPAWN_DUP2, null, 0),
                (os.POSIX_SPAWN_OPEN, 1, f"{self._home}/{GUARD_LOG}", flags, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ]
            os.posix_spawn(argv[0], argv, {**os.environ, GUARD_MARK: "1"}, file_actions=actions)
        finally:
            os.close(null)
