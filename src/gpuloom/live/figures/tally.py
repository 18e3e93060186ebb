"""Counts who waits, who runs and on how many GPUs, exactly: each count times how long it held, from event to event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuloom.core.book import Book
from gpuloom.core.decision import WaitCode
from gpuloom.core.job import ENDED, Job, Phase
from gpuloom.core.metrics import time_mean
from gpuloom.live.figures.sample import UserFigures
from gpuloom.live.planning.eligible import blocked
from gpuloom.live.records.fleet import Slot, slots_of

_HOLDS = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})
_PAUSES = frozenset({WaitCode.PAUSE_BEFORE_RETRY, WaitCode.START_FAILED})


class _Seat(NamedTuple):
    """A job that has not ended. slots: GPUs that it holds."""

    user: str
    waits: bool
    slots: tuple[Slot, ...]


@dataclass(slots=True)
class _Sums:
    """Counts of now, and their integrals over time up to `at_s`."""

    at_s: float
    queue: int = 0
    running: int = 0
    gpus: int = 0
    queue_s: float = 0.0
    running_s: float = 0.0
    gpu_s: float = 0.0
    ended: int = 0
    jct_s: float = 0.0

    def advance(self, now_s: float) -> None:
        span_s = max(now_s - self.at_s, 0.0)
        self.queue_s += span_s * self.queue
        self.running_s += span_s * self.running
        self.gpu_s += span_s * self.gpus
        self.at_s = max(now_s, self.at_s)

    def taken(self, span_s: float) -> UserFigures:
        """What came together; it begins anew."""
        found = UserFigures(
            time_mean(self.queue_s, span_s),
            time_mean(self.running_s, span_s),
            time_mean(self.gpu_s, span_s),
            0.0,
            self.ended,
            self.jct_s,
        )
        self.queue_s = self.running_s = self.gpu_s = self.jct_s = 0.0
        self.ended = 0
        return found


class Tally:
    """Used by the scheduler's thread alone. A job waits if nothing keeps it from running but that there are no GPUs for
    it: not while it is held, or waits for other jobs. A GPU that two jobs share counts once.

    Attributes:
        waiting: jobs that wait.
    """

    def __init__(
        self, book: Book, now: Callable[[], float], waits_for: Callable[[int], Sequence[int]] = lambda job: ()
    ) -> None:
        """now: the time, seconds. waits_for: the jobs that were submitted to wait for one."""
        self._book, self._now, self._waits_for = book, now, waits_for
        self._seats: dict[int, _Seat] = {}
        self._held: Counter[Slot] = Counter()
        self._since_s = now()
        self._all = _Sums(self._since_s)
        self._users: dict[str, _Sums] = {}
        self.waiting: dict[int, None] = {}
        book.watch(self._take)

    def take(self, now_s: float) -> tuple[float, UserFigures, dict[str, UserFigures]]:
        """The span since the last call, and what held in it: of all, and of each user with anything to tell. Blocking
        indexes are left at 0."""
        span_s = max(now_s - self._since_s, 0.0)
        self._since_s = max(now_s, self._since_s)
        of_users: dict[str, UserFigures] = {}
        for user, sums in list(self._users.items()):
            sums.advance(now_s)
            if (found := sums.taken(span_s)) != UserFigures():
                of_users[user] = found
            elif not (sums.queue or sums.running):
                del self._users[user]
        self._all.advance(now_s)
        return span_s, self._all.taken(span_s), of_users

    def _take(self, jobs: Iterable[Job]) -> None:
        now_s = self._now()
        for job in jobs:
            self._one(job, now_s)
            if job.phase in ENDED:
                for number in self._waits_for(job.id):
                    if (other := self._book.jobs.get(number)) is not None:
                        self._one(other, now_s)

    def _one(self, job: Job, now_s: float) -> None:
        before = self._seats.pop(job.id, None)
        if job.phase in ENDED:
            if before is None:
                return
            after = None
        else:
            after = self._seats[job.id] = self._seat(job, now_s)
        if before is not None and before == after:
            return
        sums = self._users.get(job.user) or self._users.setdefault(job.user, _Sums(now_s))
        for one in (self._all, sums):
            one.advance(now_s)
        for seat, sign in ((before, -1), (after, 1)):
            if seat is not None:
                self._count(seat, sign, sums)
        if after is None and job.attempts and job.ended_s is not None:
            for one in (self._all, sums):
                one.ended += 1
                one.jct_s += job.ended_s - job.submitted_s
        if after is not None and after.waits:
            self.waiting[job.id] = None
        else:
            self.waiting.pop(job.id, None)

    def _seat(self, job: Job, now_s: float) -> _Seat:
        if job.phase in _HOLDS and (attempt := self._book.attempts.get(job.id)) is not None:
            return _Seat(job.user, False, tuple(slots_of(attempt.allocation)))
        waits = job.phase is Phase.FROZEN
        if job.phase is Phase.QUEUED:
            reason = blocked(job, self._book.jobs, now_s) if job.after else None
            waits = reason is None or reason.code in _PAUSES
        return _Seat(job.user, waits, ())

    def _count(self, seat: _Seat, sign: int, sums: _Sums) -> None:
        for one in (self._all, sums):
            one.queue += sign * seat.waits
            one.running += sign * bool(seat.slots)
        sums.gpus += sign * len(seat.slots)
        for slot in seat.slots:
            self._held[slot] += sign
            if not self._held[slot]:
                del self._held[slot]
        self._all.gpus = len(self._held)
