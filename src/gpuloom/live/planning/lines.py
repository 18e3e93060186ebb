"""Jobs that wait and have never run, in lines of equals, kept as jobs come and go.

Of jobs that are alike to every policy only the first of a line can be next. A pass then costs what the first jobs of
all lines cost, not what all jobs cost that wait.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import islice

from gpuloom.core.job import ENDED, Job, Phase


class Line:
    """Equals, by time of submission and number. throttle: the array's number, of one that may run so many at once.

    shares: whether they may share a GPU with others.
    """

    __slots__ = ("_order", "_there", "key", "shares", "throttle")

    def __init__(self, key: Hashable, throttle: int | None, *, shares: bool) -> None:
        self.key, self.throttle, self.shares = key, throttle, shares
        self._order: list[tuple[float, int]] = []
        self._there: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._there)

    def __contains__(self, job: int) -> bool:
        return job in self._there

    def add(self, job: Job) -> None:
        entry = job.submitted_s, job.id
        if self._there.get(job.id) == job.submitted_s:
            return
        self._there[job.id] = job.submitted_s
        if not self._order or self._order[-1] < entry:
            self._order.append(entry)
        else:
            insort(self._order, entry)

    def drop(self, job: int) -> None:
        del self._there[job]

    def __iter__(self) -> Iterator[int]:
        there, order = self._there, self._order
        gone = 0
        while gone < len(order) and there.get(order[gone][1]) != order[gone][0]:
            gone += 1
        del order[:gone]
        if len(order) > 2 * len(there) + 100:  # those that have left are passed over until they are many
            order[:] = dict.fromkeys([entry for entry in order if there.get(entry[1]) == entry[0]])
        last = None
        for entry in order:
            if entry != last and there.get(entry[1]) == entry[0]:
                yield entry[1]
            last = entry

    def one(self) -> int:
        """The number of one of them."""
        return next(iter(self._there))

    def first(self, most: int) -> list[int]:
        """The numbers of the first so many."""
        return list(islice(self, most))


class Lines:
    """All lines, and `others`: jobs that have not ended and stand in none (they run, have run, or wait for others).

    Jobs that are held are in neither.

    Args:
        kind: what a job is like; the same for equals. throttle: the number of its array, if so many of that may run.
    """

    def __init__(self, kind: Callable[[Job], Hashable], throttle: Callable[[Job], int | None]) -> None:
        self._kind, self._throttle = kind, throttle
        self.others: dict[int, None] = {}
        self._lines: dict[Hashable, Line] = {}
        self._line_of: dict[int, Line] = {}

    def __iter__(self) -> Iterator[Line]:
        return iter(self._lines.values())

    def line_of(self, job: int) -> Line | None:
        """The line in which a job stands."""
        return self._line_of.get(job)

    def take(self, jobs: Iterable[Job]) -> None:
        """These jobs are new, or have changed."""
        last: tuple[Job, tuple[Hashable, int | None]] | None = None
        for job in jobs:
            number = job.id
            line: Line | None = None
            if job.phase is Phase.QUEUED and not job.attempts and not job.after and not job.not_before_s:
                # Jobs of an array come one after the other, with one and the same spec.
                if last is not None and last[0].spec is job.spec and last[0].array_id == job.array_id is not None:
                    key = last[1]
                else:
                    key = self._kind(job), self._throttle(job)
                    last = job, key
                line = self._lines.get(key)
                if line is None:
                    line = self._lines[key] = Line(key, key[1], shares=bool(job.spec.sharing_class))
                line.add(job)
            before = self._line_of.pop(number, None)
            if before is not None and before is not line:
                before.drop(number)
                if not before:
                    del self._lines[before.key]
            if line is not None:
                self._line_of[number] = line
                self.others.pop(number, None)
            elif job.phase in ENDED or job.phase is Phase.HELD:
                self.others.pop(number, None)
            else:
                self.others[number] = None
