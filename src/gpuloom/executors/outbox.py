"""What is to be told, to nodes and to the scheduler: in order, and while nobody holds a lock."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from gpuloom.executors.port import ExecutorError

log = logging.getLogger("gpuloom.gangs")

AGAIN_S = 1.0
"""After a node could not be told something, when to try again."""


class Outbox:
    """Filled by any thread, at any time; whoever filled it calls `work`, without a lock of its own. Whoever is told may
    fill it in turn. clock: seconds, as `retry` counts them.

    Attributes:
        due_s: when to call `retry`; None: no need to.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._todo: deque[Callable[[], None]] = deque()
        self._busy = False
        self._late: dict[str, deque[Callable[[], None]]] = {}
        """By node, what it could not be told, and what came after that."""
        self.due_s: float | None = None

    def put(self, do: Callable[[], None]) -> None:
        """Do this next."""
        self._todo.append(do)

    def tell(self, node: str, message: Callable[[], None]) -> None:
        """Tell a node this, after all that it was to be told before."""
        self._todo.append(lambda: self._tell(node, message))

    def forget(self, node: str) -> None:
        """Nobody wants to tell it any more what could not be told."""
        with self._lock:
            self._late.pop(node, None)

    def work(self) -> None:
        """Do what is there to do; nothing if another thread is at it."""
        while True:
            with self._lock:
                if self._busy or not self._todo:
                    return
                self._busy = True
            try:
                while self._todo:
                    self._todo.popleft()()
            finally:
                with self._lock:
                    self._busy = False

    def retry(self) -> None:
        """Tell nodes what they could not be told, if it is time."""
        with self._lock:
            if self.due_s is None or self.due_s > self._clock():
                return
            self.due_s = None
            late, self._late = self._late, {}
        for node, messages in late.items():
            for message in messages:
                self.tell(node, message)
        self.work()

    def _tell(self, node: str, message: Callable[[], None]) -> None:
        with self._lock:
            waiting = self._late.get(node)
            if waiting is not None:
                waiting.append(message)
                return
        try:
            message()
        except ExecutorError as error:
            log.warning("node %s can't be told something now: %s", node, error)
            with self._lock:
                self._late.setdefault(node, deque()).append(message)
                self.due_s = self._clock() + AGAIN_S
