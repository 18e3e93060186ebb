"""Groups: jobs that hold the same GPUs at the same time, since when, in which order, and how well they fit together.

Each change is an event, `group.changed`: who is together from now on, and who was before. Groups themselves follow from
the attempts that are open, so that none is lost or invented by a crash between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from gpuloom.core.book import Book
from gpuloom.core.events import Event
from gpuloom.core.job import Job, Phase
from gpuloom.live.records.fleet import Slot, slots_of
from gpuloom.live.records.ledger import Draft

_HOLDS = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs that share GPUs, all GPUs of these jobs, and since when it is these members.

    order: the members in the order in which their stages follow each other; efficiency: γ, how busy the resources are
    (0 to 1). Both as the policy's model plans them; None: it knows no stage times of them.
    """

    members: tuple[int, ...]
    slots: tuple[Slot, ...]
    since_s: float
    order: tuple[int, ...] | None = None
    efficiency: float | None = None

    @property
    def gpus(self) -> dict[str, list[int]]:
        """All their GPUs, by node."""
        found: dict[str, list[int]] = {}
        for node, index in self.slots:
            found.setdefault(node, []).append(index)
        return found


Woven = Callable[[Sequence[int]], tuple[Sequence[int] | None, float | None]]
"""Order and efficiency of these members."""


def _unknown(jobs: Sequence[int]) -> tuple[Sequence[int] | None, float | None]:
    return None, None


class Groups:
    """Used by the scheduler's thread alone. A group changes when a member joins or leaves; who shares with somebody who
    shares with a third is in one group with both."""

    def __init__(
        self,
        book: Book,
        now: Callable[[], float],
        *,
        woven: Woven = _unknown,
        rate_of: Callable[[int], float | None] = lambda job: None,
        alone_of: Callable[[int], float | None] = lambda job: None,
        events: Iterable[Event] = (),
    ) -> None:
        """rate_of: the part of its speed alone that a job is expected to have. alone_of: iterations per second that it
        made alone. events: those of groups, in order: what
        was told by the scheduler before this one."""
        self._book, self._now, self._woven = book, now, woven
        self._rate_of, self._alone_of = rate_of, alone_of
        self._facts: dict[frozenset[int], tuple[tuple[int, ...] | None, float | None]] = {}
        self._told: set[frozenset[int]] = set()
        """Groups of which the log says that they are there."""
        for event in events:
            self._told = {one for one in self._told if one.isdisjoint(event.data["was"])}
            if event.data["members"]:
                self._told.add(frozenset(event.data["members"]))
        self.changes = 0
        """How often the groups have changed."""
        self._slots: dict[int, tuple[Slot, ...]] = {}
        self._on: dict[Slot, set[int]] = {}
        self._since_s: dict[frozenset[int], float] = {}
        book.watch(self._take)
        # Of a scheduler that takes over: since the last of its members came.
        for members in self._since_s:
            self._since_s[members] = max(book.attempts[job].since_s for job in members)

    def all(self) -> list[Group]:
        """In the order of their first members."""
        return [self._group(members) for members in sorted(self._since_s, key=min)]

    def _group(self, members: frozenset[int]) -> Group:
        slots = tuple(sorted({slot for job in members for slot in self._slots[job]}))
        order, efficiency = self._facts.get(members, (None, None))
        if efficiency is None:
            found, efficiency = self._woven(sorted(members))
            order = None if found is None else tuple(found)
            self._facts[members] = order, efficiency
        return Group(tuple(sorted(members)), slots, self._since_s[members], order, efficiency)

    def news(self) -> list[Draft]:
        """The events that tell what has changed since the last that were `written`."""
        drafts: list[Draft] = []
        gone = self._told - self._since_s.keys()
        for members in sorted(self._since_s.keys() - self._told, key=min):
            group, was = self._group(members), [one for one in gone if one & members]
            drafts.append(
                (
                    "group.changed",
                    None,
                    {
                        "members": list(group.members),
                        "was": sorted({job for one in was for job in one}),
                        "gpus": group.gpus,
                        "order": None if group.order is None else list(group.order),
                        "rates": {str(job): self._rate_of(job) for job in group.members},
                        "efficiency": group.efficiency,
                        "alone": {str(job): self._alone_of(job) for job in group.members},
                    },
                )
            )
        kept = {job for members in self._since_s for job in members}
        drafts += [
            ("group.changed", None, {"members": [], "was": sorted(members), "gpus": {}})
            for members in sorted(gone, key=min)
            if members.isdisjoint(kept)
        ]
        return drafts

    def written(self) -> None:
        """What `news` said is on disk."""
        self._told = set(self._since_s)

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
        self.changes += bool(gone or now - self._since_s.keys())
        for members in gone:
            del self._since_s[members]
            self._facts.pop(members, None)
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
