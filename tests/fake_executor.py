"""An executor without processes: tests say when runs begin, end, freeze. It outlives schedulers, as a runner does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from gpuloom.executors.port import ExecutorError, OnStatus, RunExit, RunPhase, RunRequest, RunStatus


def short(run: str) -> str:
    """Job and attempt, without what makes the name of a run unlike all others."""
    return run.partition("-")[0]


class FakeExecutor:
    """Starts at once and stops at once (exit code `stop_code`), unless told otherwise.

    Attributes:
        requests: every run that was started, by job and attempt ('12.1', as are all others). starts: how often each
            was asked for. broken: every call raises.
    """

    name = "fake"

    def __init__(self, *, obedient: bool = True, stop_code: int | None = 85) -> None:
        self.obedient, self.stop_code = obedient, stop_code
        self.requests: dict[str, RunRequest] = {}
        self.starts: dict[str, int] = {}
        self.states: dict[str, RunStatus] = {}
        self.stops: dict[str, str] = {}
        self.acknowledged: set[str] = set()
        self.limits_set: dict[str, float | None] = {}
        self.broken = False
        self.on_start: Callable[[RunRequest], None] = lambda request: None
        self._on_status: OnStatus | None = None
        self._lock = threading.RLock()

    def open(self, on_status: OnStatus) -> None:
        self._on_status = on_status

    def runs(self) -> list[RunStatus]:
        with self._lock:
            return [status for run, status in self.states.items() if run not in self.acknowledged]

    def start(self, request: RunRequest) -> None:
        self._check()
        with self._lock:
            run = short(request.run)
            self.starts[run] = self.starts.get(run, 0) + 1
            if run in self.states:
                self._say(self.states[run])
                return
            self.requests[run] = request
            self.on_start(request)
            self._say(RunStatus(request.run, RunPhase.RUNNING, 1000 + len(self.states), 1, "boot"))

    def stop(self, run: str, *, reason: str, grace_s: float) -> None:
        self._check()
        run = short(run)
        with self._lock:
            status = self.states.get(run)
            if status is None or status.phase is RunPhase.EXITED:
                return
            self.stops[run] = reason
            if self.obedient:
                self.end(run, self.stop_code, reason=reason)
            else:
                self._say(replace(status, phase=RunPhase.STOPPING))

    def limit(self, run: str, limit_s: float | None) -> None:
        self._check()
        self.limits_set[short(run)] = limit_s

    def freeze(self, run: str) -> None:
        self._check()
        status = self.states[short(run)]
        if status.phase is RunPhase.RUNNING:
            self._say(replace(status, phase=RunPhase.FROZEN))

    def thaw(self, run: str) -> None:
        self._check()
        status = self.states[short(run)]
        if status.phase is RunPhase.FROZEN:
            self._say(replace(status, phase=RunPhase.RUNNING))

    def acknowledge(self, run: str) -> None:
        self._check()
        self.acknowledged.add(short(run))

    def healthy(self) -> str:
        return "broken" if self.broken else ""

    def close(self) -> None:
        self._on_status = None

    # -- what tests do ------------------------------------------------------------------------------------------

    def end(
        self,
        run: str,
        code: int | None = 0,
        *,
        reason: str = "",
        signal: int | None = None,
        released: bool = True,
        again: bool = False,
    ) -> None:
        """The run ends; `again`: it has ended, and is told once more."""
        with self._lock:
            if self.states[run].phase is RunPhase.EXITED and not again:
                return
            how = RunExit(code, signal, reason, "", time.time(), released=released)
            self._say(replace(self.states[run], phase=RunPhase.EXITED, exit=how))

    def live(self) -> set[str]:
        """Runs whose processes would exist."""
        with self._lock:
            return {run for run, status in self.states.items() if status.phase is not RunPhase.EXITED}

    def _say(self, status: RunStatus) -> None:
        self.states[short(status.run)] = status
        if self._on_status is not None:
            self._on_status(status)

    def _check(self) -> None:
        if self.broken:
            raise ExecutorError("the executor is broken on purpose")
