"""An executor without processes: its driver says when runs end. It outlives schedulers, as a runner does."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from gpuloom.core.end_reason import EndReason
from gpuloom.core.job import DeviceKind
from gpuloom.executors.devices import Weaving
from gpuloom.executors.port import Capabilities, OnStatus, RunExit, RunPhase, RunRequest, RunStatus


def short(run: str) -> str:
    """Job and attempt, without what makes the name of a run unlike all others."""
    return run.partition("-")[0]


class PaperDevices:
    """Implements `Devices`. said: what was said last, by devices."""

    def __init__(self) -> None:
        self.said: dict[tuple[DeviceKind, tuple[int, ...]], Weaving] = {}

    def make(self, kind: DeviceKind, gpus: Sequence[int]) -> None:
        """See `Devices`: there is nothing to make."""

    def tell(self, weaving: Weaving) -> None:
        """See `Devices`."""
        self.said[weaving.kind, weaving.gpus] = weaving


class PaperExecutor:
    """Starts at once, freezes at once, and stops at once with exit code 85. Runs go by job and attempt ('12.1').

    Attributes:
        states: every run that was started. starts: how often each was asked for. boot: what `boot_id` says.
    """

    name = "paper"

    def __init__(self) -> None:
        self.states: dict[str, RunStatus] = {}
        self.starts: dict[str, int] = {}
        self.boot = "boot"
        self.acknowledged: set[str] = set()
        self._on_status: OnStatus | None = None
        self._lock = threading.RLock()

    def open(self, on_status: OnStatus, *, patience_s: float = 1.0) -> None:
        self._on_status = on_status

    def runs(self, *, patience_s: float = 1.0) -> list[RunStatus]:
        with self._lock:
            return [status for run, status in self.states.items() if run not in self.acknowledged]

    def start(self, request: RunRequest) -> None:
        with self._lock:
            run = short(request.run)
            self.starts[run] = self.starts.get(run, 0) + 1
            if run in self.states:
                self._say(self.states[run])
                return
            self._begins(request)
            phase = RunPhase.PREPARED if request.hold else RunPhase.RUNNING
            self._say(RunStatus(request.run, phase, 1000 + len(self.states), 1, self.boot))

    def _begins(self, request: RunRequest) -> None:
        """A run is about to begin."""

    def go(self, run: str) -> None:
        with self._lock:
            status = self.states.get(short(run))
            if status is not None and status.phase is RunPhase.PREPARED:
                self._say(replace(status, phase=RunPhase.RUNNING))

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        with self._lock:
            status = self.states.get(short(run))
            if status is not None and status.phase is RunPhase.PREPARED:
                self.states[short(run)] = replace(status, pid=None, start_ticks=None)
                self.end(run, None, reason=reason)
            elif status is not None and status.phase is not RunPhase.EXITED:
                self._stops(status, reason)

    def _stops(self, status: RunStatus, reason: EndReason) -> None:
        self.end(status.run, 85, reason=reason)

    def limit(self, run: str, limit_s: float | None) -> None:
        """Time limits are for those that have processes."""

    def freeze(self, run: str) -> None:
        status = self.states[short(run)]
        if status.phase is RunPhase.RUNNING:
            self._say(replace(status, phase=RunPhase.FROZEN))

    def thaw(self, run: str) -> None:
        status = self.states[short(run)]
        if status.phase is RunPhase.FROZEN:
            self._say(replace(status, phase=RunPhase.RUNNING))

    def acknowledge(self, run: str) -> None:
        self.acknowledged.add(short(run))

    def boot_id(self) -> str:
        return self.boot

    def healthy(self) -> str:
        return ""

    def capabilities(self) -> Capabilities:
        return Capabilities()

    def close(self) -> None:
        self._on_status = None

    # -- whoever drives it ------------------------------------------------------------------------------------

    def end(
        self,
        run: str,
        code: int | None = 0,
        *,
        reason: EndReason | None = None,
        signal: int | None = None,
        released: bool = True,
        again: bool = False,
    ) -> None:
        """End the run; `again`: it has ended already, and its end is reported once more."""
        with self._lock:
            status = self.states[short(run)]
            if status.phase is RunPhase.EXITED and not again:
                return
            how = RunExit(code, signal, reason, "", time.time(), released=released)
            self._say(replace(status, phase=RunPhase.EXITED, exit=how))

    def live(self) -> set[str]:
        """Runs whose processes would exist."""
        with self._lock:
            return {run for run, status in self.states.items() if status.phase is not RunPhase.EXITED}

    def _say(self, status: RunStatus) -> None:
        self.states[short(status.run)] = status
        if self._on_status is not None:
            self._on_status(status)
