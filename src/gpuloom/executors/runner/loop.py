"""A loop of one thread that sleeps until a file is ready or a time has come.

An action that fails by a fault of the surroundings (OSError) is told of as trouble and done again a little later, so
each must be one that can be begun anew. Any other error is a bug, and ends the loop.
"""

from __future__ import annotations

import contextlib
import heapq
import select
import time

from gpuloom.core.faults import fault_text
from gpuloom.core.waiting import one_wait_s
from gpuloom.executors.own_log import OwnLog, is_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_S = 1.0
"""After a fault of the surroundings, when to try again."""


class Troubles:
    """What is wrong now, by what it is about. changed: called with all of it in one line, '' once nothing is."""

    def __init__(self) -> None:
        self._by_key: dict[str, str] = {}
        self.changed: Callable[[str], None] = lambda text: None

    def __str__(self) -> str:
        return "; ".join(dict.fromkeys(self._by_key.values()))

    def note(self, key: str, problem: str) -> None:
        """Say what is wrong with it; '': it is right again. Each is written to the log once."""
        if problem == self._by_key.get(key, ""):
            return
        before = str(self)
        if problem:
            self._by_key[key] = problem
            log(problem)
        else:
            del self._by_key[key]
        if (now := str(self)) != before:
            if not now:
                log("in order again")
            self.changed(now)


class Loop:
    """Actions for files and times. Times are on the monotonic clock, seconds."""

    def __init__(self) -> None:
        self._timers: list[tuple[float, int, Callable[[], None], str]] = []
        self._count = 0
        self._epoll = select.epoll()
        self._on: dict[int, tuple[Callable[[int], None], str]] = {}
        self._unwatched: set[int] = set()
        self._writing: set[int] = set()
        self.troubles = Troubles()

    def at(self, when: float, action: Callable[[], None], what: str = "its work") -> None:
        """Do it once, then. what: names it where it fails."""
        self._count += 1
        heapq.heappush(self._timers, (when, self._count, action, what))

    def after(self, seconds: float, action: Callable[[], None], what: str = "its work") -> None:
        """Call it once, after this many seconds."""
        self.at(time.monotonic() + seconds, action, what)

    def soon(self, action: Callable[[], None], what: str = "its work") -> None:
        """Do it next."""
        self.after(0.0, action, what)

    def add(self, fd: int, action: Callable[[int], None], what: str = "its work") -> None:
        """Do it whenever there is something to read."""
        self._on[fd] = action, what
        self._watch(fd)

    def writing(self, fd: int, wanted: bool) -> None:
        """Do it as well when there is room to write, or no longer."""
        if wanted == (fd in self._writing):
            return
        self._writing.add(fd) if wanted else self._writing.discard(fd)
        if fd not in self._unwatched:
            try:
                self._epoll.modify(fd, self._events(fd))
            except (OSError, MemoryError) as error:
                self._rest(fd, "a connection", error)

    def drop(self, fd: int) -> None:
        """Watch it no more. Whoever does so closes it then."""
        if self._on.pop(fd, None) is not None and fd not in self._unwatched:
            with contextlib.suppress(OSError):  # closing it ends the watch as well
                self._epoll.unregister(fd)
        self._unwatched.discard(fd)
        self._writing.discard(fd)

    def turn(self) -> None:
        """Do what is due, or wait for the next thing to do and do that."""
        now = time.monotonic()
        while self._timers and self._timers[0][0] <= now:
            _, _, action, what = heapq.heappop(self._timers)
            try:
                action()
            except (OSError, MemoryError) as error:
                self.failed(what, error)
                self.after(RETRY_S, action, what)
            else:
                self.troubles.note(what, "")
        wait = None if not self._timers else one_wait_s(self._timers[0][0] - time.monotonic())
        try:
            ready = self._epoll.poll(wait)
        except (OSError, MemoryError) as error:
            self.failed("waiting for news", error)
            time.sleep(min(RETRY_S, RETRY_S if wait is None else wait))
            return
        self.troubles.note("waiting for news", "")
        for fd, _ in ready:
            if fd not in self._on:
                continue
            on, what = self._on[fd]
            try:
                on(fd)
            except (OSError, MemoryError) as error:
                self._rest(fd, what, error)
            else:
                self.troubles.note(what, "")

    def _events(self, fd: int) -> int:
        return select.EPOLLIN | (select.EPOLLOUT if fd in self._writing else 0)

    def _watch(self, fd: int) -> None:
        if fd not in self._on:
            return
        what = f"watching for {self._on[fd][1]}"
        try:
            self._epoll.register(fd, self._events(fd))
        except FileExistsError:
            self._epoll.modify(fd, self._events(fd))
        except (OSError, MemoryError) as error:
            self._unwatched.add(fd)
            self.failed(what, error)
            self.after(RETRY_S, lambda: self._watch(fd))
            return
        self._unwatched.discard(fd)
        self.troubles.note(what, "")

    def _rest(self, fd: int, what: str, error: OSError | MemoryError) -> None:
        """What is ready, but can't be handled now, is looked at again a little later."""
        self.failed(what, error)
        if fd not in self._on:
            return
        try:
            self._epoll.unregister(fd)
        except OSError:
            time.sleep(RETRY_S / 10)  # it is ready all the time: no busy waiting
            return
        self._unwatched.add(fd)
        self.after(RETRY_S, lambda: self._watch(fd))

    def failed(self, what: str, error: BaseException) -> None:
        """Tell that this can't be done now, by a fault of the surroundings."""
        where = f" ({error.filename})" if isinstance(error, OSError) and error.filename else ""
        self.troubles.note(what, fault_text(f"can't go on with {what}{where}", error))


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
