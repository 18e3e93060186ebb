"""The scheduler's clock: epoch seconds that never go back and never jump."""

from __future__ import annotations

import time
from collections.abc import Callable

JUMP_S = 2.0
"""A difference to the wall clock that changes by more than this is a jump of the wall clock."""


class ServiceClock:
    """Anchored to the wall clock when the scheduler begins, then carried on by the monotonic clock.

    A wall clock that is set forward or back changes nothing: no job times out by it, and times of events keep their
    order. After a restart the clock goes on at the wall's time, or at the last event's if that is later.

    Args:
        not_before_s: time of the last event written down.
        wall, monotonic: sources, for tests.
    """

    def __init__(
        self,
        not_before_s: float = 0.0,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._origin = monotonic()
        self._anchor = max(wall(), not_before_s)
        self._offset = wall() - self._anchor

    def now(self) -> float:
        """Epoch seconds."""
        return self._anchor + (self._monotonic() - self._origin)

    def jumped_s(self) -> float:
        """By how much the wall clock has jumped since the last call; 0: it has not."""
        offset = self._wall() - self.now()
        jump = offset - self._offset
        if abs(jump) < JUMP_S:
            return 0.0
        self._offset = offset
        return jump

    def from_wall(self, wall_s: float) -> float:
        """A time that another process took from the wall clock a moment ago, on this clock; never later than now.

        By how long ago it is, so that a wall clock that has jumped since the last look at it does no harm.
        """
        return self.now() - max(self._wall() - wall_s, 0.0)
