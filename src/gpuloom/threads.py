"""Threads that can't end unseen: what ends one is logged and told of, and its work is begun again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

log = logging.getLogger("gpuloom")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
TOLD_S = 600.0
"""How long after a failure a restarted part still counts as in trouble."""


class Worker:
    """A thread that works in the background.

    Args:
        name: as the log and `problem` call it. work: returns when it is done; must be one that can be begun anew.
        on_problem: told, in that thread, when an error has ended it.
    """

    def __init__(self, name: str, work: Callable[[], None], on_problem: Callable[[str], None] | None = None) -> None:
        self.name, self._work, self._on_problem = name, work, on_problem
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._problem, self._problem_s = "", 0.0

    def start(self) -> bool:
        """See that it works; False: it can't be started now (`problem` says why), ask again."""
        with self._lock:
            if self._ended.is_set() or (self._thread is not None and self._thread.is_alive()):
                return True
            thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError, OSError) as error:
                text = f"the thread {self.name!r} can't be started: {error}; end programs, or raise `ulimit -u`"
                if not self.problem:
                    log.error("%s", text)
                self._note(text)
                return False
            self._thread = thread
            return True

    @property
    def problem(self) -> str:
        """'', or what is wrong with it."""
        recent = time.monotonic() - self._problem_s < TOLD_S
        return self._problem if recent or not self.alive else ""

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def end(self, timeout_s: float) -> bool:
        """Begin it no more, and wait for its end; whether it has ended. What makes `work` return is the caller's."""
        self._ended.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _note(self, problem: str) -> None:
        self._problem, self._problem_s = problem, time.monotonic()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            begun = time.monotonic()
            try:
                self._work()
                return
            except BaseException as error:
                text = f"the thread {self.name!r} was ended by {type(error).__name__}: {error}; it is begun again"
                log.critical("%s", text, exc_info=True)
                self._note(text)
                if self._on_problem is not None:
                    self._on_problem(text)
            if time.monotonic() - begun > TOLD_S:
                pause_s = FIRST_PAUSE_S
            if self._ended.wait(pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
