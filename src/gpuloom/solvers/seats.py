"""Jobs of one size change places: with each other, with one that waits or with free GPUs, while that is worth more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NOWHERE = -1


class Seats:
    """Where jobs of one size are: plain numbers, as there are few of each size. The last place is waiting.

    Args:
        value: by job and place.
        left: free GPUs of each model, kept up to date.
    """

    def __init__(self, size: float, value: list[list[float]], where: list[int], left: list[float]) -> None:
        self._size, self._value, self.where, self._left = size, value, where, left
        self._here = [of_job[place] for of_job, place in zip(value, where, strict=True)]
        self._places = len(left) + 1
        self._best: list[list[float]] = [[] for _ in range(self._places)]
        self._who: list[list[int]] = [[] for _ in range(self._places)]

    def improve(self) -> None:
        places = range(self._places)
        best, who = self._best, self._who
        for place in places:
            self._look(place)
        for _ in range(2 * len(self.where)):
            most, one, other = -np.inf, 0, 0
            for a in places:
                for b in places:
                    both = best[a][b] + best[b][a]
                    if both > most:
                        most, one, other = both, a, b
            if not most > 1e-9 * (1.0 + max(self._here)):
                break
            for job, old, new in ((who[one][other], one, other), (who[other][one], other, one)):
                if job != NOWHERE:
                    self._move(job, old, new)
            self._look(one)
            self._look(other)

    def _look(self, place: int) -> None:
        """Who of this place gains most by going to each other one, and how much; the first of equals."""
        places = range(self._places)
        best, who = [-np.inf] * self._places, [NOWHERE] * self._places
        for job, there in enumerate(self.where):
            if there == place:
                value, here = self._value[job], self._here[job]
                for other in places:
                    gain = value[other] - here
                    if gain > best[other] or who[other] == NOWHERE:
                        best[other], who[other] = gain, job
        if place == len(self._left) or self._left[place] >= self._size - 1e-9:
            # Free GPUs lose nothing by going elsewhere.
            for other in places:
                if best[other] < 0.0:
                    best[other], who[other] = 0.0, NOWHERE
        self._best[place], self._who[place] = best, who

    def _move(self, job: int, old: int, new: int) -> None:
        self.where[job] = new
        self._here[job] = self._value[job][new]
        for place, change in ((old, self._size), (new, -self._size)):
            if place < len(self._left):
                self._left[place] += change


def alone_and_stuck(size: float, where: Sequence[int], left: Sequence[float]) -> bool:
    """Whether these jobs of one size can't change places: all are in one, and no model has room for one more."""
    return max(left) < size - 1e-9 and where.count(where[0]) == len(where)
