"""Checks the checkpoints of preempted runs before their ends are reported to the scheduler. It does so in another
thread: the files may lie on another machine, which may not answer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from gpuloom.core.job import MAKES_WAY
from gpuloom.executors.port import RunPhase, RunStatus
from gpuloom.live.dispatch.saved import checkpoint_written_s

log = logging.getLogger("gpuloom.scheduler")

LOOK_S = 10.0
"""How long the end of a run waits for the check of its checkpoint."""

Take = Callable[[RunStatus, float | None], None]


class Checkpoints:
    """of: (checkpoint, working directory) of a run, where its job names one."""

    def __init__(self, of: Callable[[str], tuple[str, str] | None], *, look_s: float = LOOK_S) -> None:
        self._of, self._look_s = of, look_s
        self._lock = threading.Lock()
        self._latest: dict[str, RunStatus] = {}
        """Of runs that are being looked at: what the executor said last."""

    def wants(self, status: RunStatus) -> bool:
        """Whether a checkpoint is to be looked at before this is handed on."""
        return _made_way(status) and self._of(status.run) is not None

    def first_look(self, status: RunStatus, take: Take) -> None:
        """Hand the status on, with the time at which the checkpoint was last written, where that may matter."""
        with self._lock:
            if status.run in self._latest:
                self._latest[status.run] = status
                return
            where = self._of(status.run) if _made_way(status) else None
            if where is not None:
                self._latest[status.run] = status
        if where is None:
            take(status, None)
            return
        timer = threading.Timer(self._look_s, self._late, [status.run, where[0], take])
        timer.name, timer.daemon = "checkpoint-late", True
        look = threading.Thread(target=self._look, args=(status.run, where, timer, take), name="checkpoint-look")
        look.daemon = True
        try:
            timer.start()
            look.start()
        except RuntimeError as error:  # no thread is to be had: it counts as not looked at
            timer.cancel()
            log.warning("run %s: its checkpoint can't be checked: %s", status.run, error)
            self._done(status.run, None, take)

    def _look(self, run: str, where: tuple[str, str], timer: threading.Timer, take: Take) -> None:
        try:
            found = checkpoint_written_s(*where)
        except (OSError, ValueError, RecursionError) as error:
            log.warning("run %s: its checkpoint %s can't be checked: %s", run, where[0], error)
            found = None
        timer.cancel()
        self._done(run, found, take)

    def _late(self, run: str, written: str, take: Take) -> None:
        log.warning("run %s: the check of its checkpoint %s took longer than %g s", run, written, self._look_s)
        self._done(run, None, take)

    def _done(self, run: str, found: float | None, take: Take) -> None:
        with self._lock:
            status = self._latest.pop(run, None)
        if status is not None:
            take(status, found)


def _made_way(status: RunStatus) -> bool:
    how = status.exit
    return status.phase is RunPhase.EXITED and how is not None and how.reason in MAKES_WAY and how.exit_code is not None
