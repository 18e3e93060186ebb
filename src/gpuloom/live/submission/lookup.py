"""A job by its number, from memory or from disk."""

from __future__ import annotations

from gpuloom.core.errors import NotFoundError
from gpuloom.core.job import Job
from gpuloom.live.scheduler import Scheduler


class JobRecords:
    """Jobs by number, also those that are no longer in memory."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._store = scheduler, scheduler.store

    def find(self, job: int) -> Job | None:
        return self._scheduler.book.jobs.get(job) or self._store.job(job)

    def get(self, job: int) -> Job:
        found = self.find(job)
        if found is None:
            last = self._scheduler.book.next_job - 1
            raise NotFoundError(f"there is no job {job}" + (f"; the last job is {last}" if last else "; none yet"))
        return found
