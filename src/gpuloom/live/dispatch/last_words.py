"""Reads what a run left behind before its end is taken in: its last progress, when it got notice, its checkpoint.

What lies on this machine is read at once. A checkpoint, and files on another node, are looked at in a thread: they may
lie on a machine that does not answer.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpuloom.core.job import MAKES_WAY
from gpuloom.executors.node import RunFiles
from gpuloom.executors.port import ExecutorError, RunPhase, RunStatus

log = logging.getLogger("gpuloom.scheduler")

LOOK_S = 10.0
"""How long the end of a run waits for that."""


@dataclass(frozen=True, slots=True)
class Words:
    """progress: what the run reported last. noticed_s: when it got notice, by its node's clock. checkpoint_s: when its
    checkpoint was last written, where its job names one and it made way."""

    progress: Mapping[str, object] = field(default_factory=dict)
    noticed_s: float | None = None
    checkpoint_s: float | None = None


@dataclass(frozen=True, slots=True)
class Where:
    """Where to look. here: on this machine. checkpoint, workdir: as the job's spec names them. elastic: if one of its
    replicas failed the others saved."""

    files: RunFiles
    here: bool
    checkpoint: str | None
    workdir: str
    elastic: bool = False


Take = Callable[[RunStatus, Words | None], None]


def words_of(files: RunFiles, run: str) -> Words:
    """What a run left behind, but for its checkpoint. A node that does not answer leaves nothing."""
    try:
        return Words(files.progress(run), files.noticed_s(run))
    except ExecutorError as error:
        log.warning("run %s: what it reported last can't be read: %s", run, error)
        return Words()


class LastWords:
    """of: where to look for what a run left; None: it is no attempt's that is open."""

    def __init__(self, of: Callable[[str], Where | None], *, look_s: float = LOOK_S) -> None:
        self._of, self._look_s = of, look_s
        self._lock = threading.Lock()
        self._latest: dict[str, RunStatus] = {}
        """Of runs that are being looked at: what the executor said last."""

    def wants(self, status: RunStatus) -> bool:
        """Whether something is to be looked at, in a thread, before this is handed on."""
        return self._far(status) is not None

    def _far(self, status: RunStatus) -> Where | None:
        if status.phase is not RunPhase.EXITED or (where := self._of(status.run)) is None:
            return None
        return where if not where.here or (_saved(status, where) and where.checkpoint) else None

    def first_look(self, status: RunStatus, take: Take) -> None:
        """Hand the status on, with what the run left behind where that may matter and was looked at."""
        with self._lock:
            if status.run in self._latest:
                self._latest[status.run] = status
                return
            where = self._far(status)
            if where is not None:
                self._latest[status.run] = status
        if where is None:
            take(status, None)
            return
        timer = threading.Timer(self._look_s, self._late, [status.run, take])
        timer.name, timer.daemon = "last-words-late", True
        looks = _saved(status, where) and bool(where.checkpoint)
        look = threading.Thread(target=self._look, args=(status.run, where, looks, timer, take), name="last-words")
        look.daemon = True
        try:
            timer.start()
            look.start()
        except RuntimeError as error:  # no thread is to be had: it counts as not looked at
            timer.cancel()
            log.warning("run %s: what it left can't be looked at: %s", status.run, error)
            self._done(status.run, None, take)

    def _look(self, run: str, where: Where, looks: bool, timer: threading.Timer, take: Take) -> None:
        words = words_of(where.files, run)
        if looks and where.checkpoint:
            try:
                found = where.files.checkpoint_s(run, where.checkpoint, where.workdir)
                words = Words(words.progress, words.noticed_s, found)
            except ExecutorError as error:
                log.warning("run %s: its checkpoint %s can't be checked: %s", run, where.checkpoint, error)
        timer.cancel()
        self._done(run, words, take)

    def _late(self, run: str, take: Take) -> None:
        log.warning("run %s: looking at what it left took longer than %g s", run, self._look_s)
        self._done(run, None, take)

    def _done(self, run: str, found: Words | None, take: Take) -> None:
        with self._lock:
            status = self._latest.pop(run, None)
        if status is not None:
            take(status, found)


def _saved(status: RunStatus, where: Where) -> bool:
    """Whether it may have saved because it was told to end."""
    how = status.exit
    if status.phase is not RunPhase.EXITED or how is None:
        return False
    if where.elastic and how.reason is None and how.exit_code != 0:
        return bool(status.members) or how.failed_rank is not None
    return how.reason in MAKES_WAY and how.exit_code is not None
