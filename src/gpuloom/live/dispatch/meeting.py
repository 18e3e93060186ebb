"""Finds the executor, now or later: until then nothing is started, as nobody knows what runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from gpuloom.core.errors import GpuloomError
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.port import RunStatus
from gpuloom.live.dispatch.dispatch import RETRY_S
from gpuloom.threads import Worker

MEET_LATER_S = 20.0
MOST_PAUSE_S = 10.0


class Meeting:
    """See the module. unmet: why the executor could not be met yet; '' once it was."""

    def __init__(
        self,
        executor: Gangs,
        on_status: Callable[[RunStatus], None],
        met: Callable[[Mapping[str, RunStatus]], None],
        not_met: Callable[[str], None],
    ) -> None:
        """on_status: as of `LiveExecutor.open`. met: told of the runs that the executor knows, if that was later.
        not_met: told why not."""
        self._executor, self._on_status, self._met, self._told = executor, on_status, met, not_met
        self.unmet = ""
        self._ending = threading.Event()
        self._worker = Worker("executor-meeting", self._try)

    def now(self, patience_s: float) -> dict[str, RunStatus]:
        """The runs that the executor knows. Raises ExecutorError."""
        end = time.monotonic() + patience_s
        self._executor.open(self._on_status, patience_s=patience_s)
        left_s = max(end - time.monotonic(), 0.1)
        return {status.run: status for status in self._executor.runs(patience_s=left_s)}

    def later(self, error: GpuloomError, begin: Callable[[], None]) -> None:
        """It could not be met now: have the scheduler begin without it, and go on trying in a thread."""
        self._not_met(error)
        begin()
        self._worker.start()

    def end(self) -> None:
        """Try no more."""
        self._ending.set()

    def _try(self) -> None:
        pause_s = RETRY_S
        while not self._ending.wait(pause_s):
            try:
                self._met(self.now(MEET_LATER_S))
                return
            except GpuloomError as error:
                self._not_met(error)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)

    def _not_met(self, error: GpuloomError) -> None:
        self.unmet = f"{error} (no job is started, running jobs keep running; the scheduler tries again)"
        self._told(self.unmet)
