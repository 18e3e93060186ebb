"""What is forgotten as time goes on: ended jobs in memory, and values of environment variables in the store."""

from __future__ import annotations

import logging
import math

from gpuloom.core.job import ENDED
from gpuloom.live.records.ledger import Ledger
from gpuloom.store.errors import StoreError

log = logging.getLogger("gpuloom.scheduler")

KEEP_ENVIRONMENTS_S = 7 * 86_400.0
"""Values of a job's environment variables are kept for so long after its end, should it be requeued."""
FORGET_EVERY_S = 3600.0
KEEP_ENDED = 2000
"""Ended jobs kept in memory; the store has all."""


class Forgetting:
    """Used by the scheduler's thread alone. forgot_s: when environments were last looked through."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._book = ledger, ledger.book
        self.forgot_s = -math.inf
        self._from = 0
        """Number of the event from which on there may be ended jobs to drop from memory."""

    def environments(self, now: float) -> None:
        """Drop what jobs that ended long ago had in their environment variables."""
        if now < self.forgot_s + FORGET_EVERY_S:
            return
        self.forgot_s = now
        try:
            self._ledger.store.forget_environments(now - KEEP_ENVIRONMENTS_S)
        except StoreError as error:  # it is tried again; what else is written says so too
            log.warning("the environments of jobs that ended long ago could not be deleted: %s", error)

    def jobs(self) -> None:
        """Drop the oldest ended jobs from memory."""
        jobs, newest = self._book.jobs, self._ledger.newest
        if len(jobs) < 2 * KEEP_ENDED or newest < self._from:
            return
        gone = [number for number, job in jobs.items() if job.phase in ENDED]
        # Each end is an event: before so many more of them the jobs, maybe very many, need not be looked through.
        self._from = newest + max(2 * KEEP_ENDED - len(gone), KEEP_ENDED // 4)
        if len(gone) > 2 * KEEP_ENDED:
            needed = {other for job in jobs.values() if job.phase not in ENDED for other, _ in job.after}
            for number in sorted(gone, key=lambda n: jobs[n].ended_s or 0.0)[:-KEEP_ENDED]:
                if number not in needed:
                    self._book.forget(number)
