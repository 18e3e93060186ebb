"""An executor without processes that notes what it was asked for, and disobeys or breaks when a test says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.paper import PaperExecutor, short
from gpuloom.executors.port import Capabilities, ExecutorError, OnStatus, Rehearsal, RunPhase, RunRequest, RunStatus

__all__ = ["FakeExecutor", "Suspends", "short"]


class FakeExecutor(PaperExecutor):
    """Stops at once (exit code `stop_code`) if it is `obedient`.

    Attributes:
        requests: every run that was started. broken: every call raises.
    """

    name = "fake"

    def __init__(self, *, obedient: bool = True, stop_code: int | None = 85) -> None:
        super().__init__()
        self.obedient, self.stop_code = obedient, stop_code
        self.requests: dict[str, RunRequest] = {}
        self.stops: dict[str, EndReason] = {}
        self.limits_set: dict[str, float | None] = {}
        self.broken = False
        self.on_start: Callable[[RunRequest], None] = lambda request: None

    def open(self, on_status: OnStatus, *, patience_s: float = 1.0) -> None:
        self._check()
        super().open(on_status, patience_s=patience_s)

    def runs(self, *, patience_s: float = 1.0) -> list[RunStatus]:
        self._check()
        return super().runs(patience_s=patience_s)

    def start(self, request: RunRequest) -> None:
        self._check()
        super().start(request)

    def _begins(self, request: RunRequest) -> None:
        self.requests[short(request.run)] = request
        self.on_start(request)

    def go(self, run: str) -> None:
        self._check()
        super().go(run)

    def stop(self, run: str, *, reason: EndReason, grace_s: float) -> None:
        self._check()
        super().stop(run, reason=reason, grace_s=grace_s)

    def _stops(self, status: RunStatus, reason: EndReason) -> None:
        self.stops[short(status.run)] = reason
        if self.obedient:
            self.end(status.run, self.stop_code, reason=reason)
        else:
            self._say(replace(status, phase=RunPhase.STOPPING))

    def limit(self, run: str, limit_s: float | None) -> None:
        self._check()
        self.limits_set[short(run)] = limit_s

    def freeze(self, run: str) -> None:
        self._check()
        super().freeze(run)

    def thaw(self, run: str) -> None:
        self._check()
        super().thaw(run)

    def acknowledge(self, run: str) -> None:
        self._check()
        super().acknowledge(run)

    def healthy(self) -> str:
        return "broken" if self.broken else ""

    def _check(self) -> None:
        if self.broken:
            raise ExecutorError("the executor is broken on purpose")


class Suspends(FakeExecutor):
    """On a node that suspends. refuses: why it does not, for the moment."""

    refuses = ""
    driver = "580.1"

    def capabilities(self) -> Capabilities:
        return Capabilities(suspends=True, driver=self.driver)

    def rehearsed(self, job: int, seen: Rehearsal) -> None:
        """The runner says what it saw of the job's first run."""
        self._say(replace(self.states[f"{job}.1"], rehearsal=seen))

    def freeze(self, run: str) -> None:
        self._check()
        status = self.states[short(run)]
        if self.refuses:
            self._say(replace(status, refused=self.refuses))
        else:
            self._say(replace(status, phase=RunPhase.FROZEN, suspended_mib=512.0, moved_s=1.5))
