"""Book and store together: an event counts once it is on disk, and then for all readers at once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from gpuloom.core.book import Book
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, Job
from gpuloom.live.clock import ServiceClock
from gpuloom.store.port import Loaded, Store, Submission

Draft = tuple[str, int | None, Mapping[str, Any]]
"""(type, job, data) of an event that is to be written."""


NO_ENVIRONMENTS: Mapping[int, Mapping[str, str]] = {}


class Ledger:
    """Used by the scheduler's thread alone, but for `newest` and `wait`."""

    def __init__(self, store: Store, loaded: Loaded, clock: ServiceClock) -> None:
        self.store, self.clock = store, clock
        self.book = Book()
        for job in loaded.jobs:
            self.book.jobs[job.id] = job
        for attempt in loaded.attempts:
            self.book.attempts[attempt.job] = attempt
        for node in loaded.nodes:
            self.book.nodes[node.name] = node
        self.book.settings.update(loaded.settings)
        self.book.next_job = loaded.next_job
        self._waiting: dict[int, set[int]] = {}
        """By job, those that were submitted to wait for it."""
        for job in loaded.jobs:
            self._index(job)
        self.writes = 0
        self.newest = loaded.last_event
        self._last_s = loaded.last_event_s
        self._written = threading.Condition()

    def write(
        self,
        drafts: Sequence[Draft],
        submissions: Sequence[Submission] = (),
        environments: Mapping[int, Mapping[str, str]] = NO_ENVIRONMENTS,
        *,
        at_s: Sequence[float] = (),
    ) -> list[Event]:
        """Number and date the drafts, store them, apply them to the book, and wake those who wait for events.

        environments: by place of a draft that brings a spec, the values of its environment variables. at_s: when each
        happened, if that was not now; one is never dated before another that was written before it.

        Raises:
            InvalidTransition: one of them can't come now; StoreError: they can't be written. Nothing has changed then.
        """
        if not drafts:
            return []
        now, last_s = max(self.clock.now(), self._last_s), self._last_s
        events = []
        for place, (kind, about, data) in enumerate(drafts):
            last_s = max(last_s, min(at_s[place], now)) if at_s else now
            events.append(Event(self.newest + 1 + place, last_s, kind, about, data))
        changes = self.book.stage(events)
        changes.environments.update({events[place].id: env for place, env in environments.items() if env})
        self.store.append(events, changes, submissions)
        self.book.commit(changes)
        self._last_s = last_s
        self.writes += 1
        for job in changes.jobs.values():
            self._index(job)
        with self._written:
            self.newest = events[-1].id
            self._written.notify_all()
        return events

    def waits_for(self, job: int) -> list[int]:
        """Jobs that wait for this one to end, or did."""
        return sorted(self._waiting.get(job, ()))

    def _index(self, job: Job) -> None:
        for other, _ in job.after:
            if job.phase in ENDED:
                waiting = self._waiting.get(other)
                if waiting is not None:
                    waiting.discard(job.id)
                    if not waiting:
                        del self._waiting[other]
            else:
                self._waiting.setdefault(other, set()).add(job.id)

    def wait(self, after: int, timeout_s: float) -> int:
        """Returns once there is an event with a higher number than `after`, or at the time-out; the newest number."""
        with self._written:
            self._written.wait_for(lambda: self.newest > after, timeout_s)
            return self.newest
