"""A loop of one thread that sleeps until a file is ready or a time has come."""

from __future__ import annotations

import heapq
import select
import time

from gpuloom.core.waiting import one_wait_s
from gpuloom.executors.own_log import OwnLog, is_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Loop:
    """Actions for files and times. Times are on the monotonic clock, seconds."""

    def __init__(self) -> None:
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._epoll = select.epoll()
        self._on: dict[int, Callable[[int], None]] = {}

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Do it once, then."""
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do it once, so many seconds from now."""
        self.at(time.monotonic() + seconds, action)

    def add(self, fd: int, action: Callable[[int], None]) -> None:
        """Do it whenever there is something to read."""
        self._on[fd] = action
        self._epoll.register(fd, select.EPOLLIN)

    def writing(self, fd: int, wanted: bool) -> None:
        """Do it as well when there is room to write, or no longer."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if wanted else 0))

    def drop(self, fd: int) -> None:
        """Watch it no more."""
        if self._on.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def turn(self) -> None:
        """Do what is due, or wait for the next thing to do and do that."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            heapq.heappop(self._timers)[2]()
        wait = None if not self._timers else one_wait_s(self._timers[0][0] - time.monotonic())
        for fd, _ in self._epoll.poll(wait):
            action = self._on.get(fd)
            if action is not None:
                action(fd)


_DIGITS = str.maketrans("", "", "0123456789")
_log = OwnLog(2, None)


def log_to(path: str) -> None:
    """Our standard error is this file, if it is, and ours to rotate."""
    if is_file(2, path):
        _log.path = path


def log(message: str) -> None:
    """A line in runner.log, which is our standard error. Where it can't be written (a full disk) it is left out: the
    runner's jobs are worth more. Lines that differ by their numbers are of one kind."""
    _log.write(message, head=f"{time.strftime('%Y-%m-%dT%H:%M:%S')} ", kind=message.translate(_DIGITS))
