"""Keeps the logs of runs within bounds, and sleeps while none of them grows."""

from __future__ import annotations

from gpuloom.executors.runner.loop import RETRY_S, Loop, log
from gpuloom.executors.runner.rotation import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuloom.executors.runner.life import RunningJob


class LogKeeper:
    """Looks at a log again and again while it grows; once it does not, waits until it is written to."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._runs: dict[str, RunningJob] = {}
        self._watch: Watch | None = None
        try:
            self._watch = Watch()
            loop.add(self._watch.fd, lambda _: self._written(), "the growth of logs")
        except OSError as error:
            log(f"{error}: logs are polled instead")

    def begin(self, run: RunningJob) -> None:
        """From now on."""
        self._runs[run.log.path] = run
        self._look(run)

    def end(self, run: RunningJob) -> None:
        """No more."""
        self._loop.troubles.note(f"the log {run.log.path}", "")
        if self._runs.pop(run.log.path, None) is not None and self._watch is not None:
            self._watch.forget(run.log.path)

    def _written(self) -> None:
        if self._watch is not None:
            for path in self._watch.written():
                if (run := self._runs.get(path)) is not None:
                    self._look(run)

    def _look(self, run: RunningJob) -> None:
        if self._runs.get(run.log.path) is not run:
            return
        what = f"the log {run.log.path}"
        try:
            grown, pause = run.log.look()
            if not grown and self._watch is not None and self._watch.once(run.log.path):
                if not run.log.look()[0]:
                    self._loop.troubles.note(what, "")
                    return
                self._watch.forget(run.log.path)
        except (OSError, MemoryError) as error:
            self._loop.failed(what, error)
            pause = RETRY_S
        else:
            self._loop.troubles.note(what, "")
        self._loop.after(pause, lambda: self._look(run))
