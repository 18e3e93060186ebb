"""Groups: jobs that hold the same GPUs at the same time, and since when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuloom.core.book import Book
from gpuloom.core.job import Job, Phase
from gpuloom.live.records.fleet import Slot, slots_of

_HOLDS = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share GPUs, all GPUs of these jobs, and since when it is these members."""

    members: tuple[int, ...]
    slots: tuple[Slot, ...]
    since_s: float


class Groups:
    """Used by the scheduler's thread alone. A group changes when a member joins or leaves; who shares with somebody who
    shares with a third is in one group with both."""

    def __init__(self, book: Book, now: Callable[[], float]) -> None:
        self._book, self._now = book, now
        self._slots: dict[int, tuple[Slot, ...]] = {}
        self._on: dict[Slot, set[int]] = {}
        self._since_s: dict[frozenset[int], float] = {}
        book.watch(self._take)
        # Of a scheduler that takes over: since the last of its members came.
        for members in self._since_s:
            self._since_s[members] = max(book.attempts[job].since_s for job in members)

    def all(self) -> list[Group]:
        """In the order of their first members."""
        return [
            Group(tuple(sorted(members)), tuple(sorted({s for job in members for s in self._slots[job]})), since_s)
            for members, since_s in sorted(self._since_s.items(), key=lambda entry: min(entry[0]))
        ]

    def _take(self, jobs: Iterable[Job]) -> None:
        touched: set[Slot] = set()
        for job in jobs:
            attempt = self._book.attempts.get(job.id) if job.phase in _HOLDS else None
            slots = () if attempt is None else tuple(slots_of(attempt.allocation))
            if slots == (before := self._slots.get(job.id, ())):
                continue
            touched.update(before, slots)
            for slot in before:
                self._on[slot].discard(job.id)
            for slot in slots:
                self._on.setdefault(slot, set()).add(job.id)
            if slots:
                self._slots[job.id] = slots
            else:
                del self._slots[job.id]
        if touched:
            self._again(touched)

    def _again(self, touched: set[Slot]) -> None:
        """The groups of these GPUs, as they are now."""
        there = {job for slot in touched for job in self._on[slot]}
        now = {group for job in there if len(group := self._with(job)) > 1}
        involved = there | {job for group in now for job in group}
        gone = [
            members
            for members in self._since_s
            if members not in now and (members & involved or not all(self._shares(job) for job in members))
        ]
        for members in gone:
            del self._since_s[members]
        for members in now:
            self._since_s.setdefault(members, self._now())

    def _shares(self, job: int) -> bool:
        return any(len(self._on[slot]) > 1 for slot in self._slots.get(job, ()))

    def _with(self, job: int) -> frozenset[int]:
        """The job and all that it shares GPUs with, directly or not."""
        found, new = {job}, [job]
        while new:
            others = {other for slot in self._slots[new.pop()] for other in self._on[slot]} - found
            found |= others
            new += others
        return frozenset(found)
