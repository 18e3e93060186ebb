"""When the next scheduling pass is due, and how long passes take."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET = 9.0
"""After a pass with a new world so many times its duration go by before the next such one: a stream of single
submissions is worked off in batches, and the API stays quick."""


class Times:
    """Used by the scheduler's thread alone, but for `deciding_s`.

    Attributes:
        again: something has happened of which the policy is to be told at once.
        next_s: when the policy is asked next if nothing happens. overrun_s: when a run will have lasted longer than
            its world knows. pause_s: when a job's pause is over. Infinity, of each: never.
        quiet_until_s: a new world is not built before. last_pass_s: how long the last pass took.
    """

    def __init__(self, timer: Callable[[], float]) -> None:
        self.again = False
        self.next_s = self.overrun_s = self.pause_s = math.inf
        self.quiet_until_s, self.last_pass_s = -math.inf, 0.0
        self._timer = timer
        self._pass_since_s: float | None = None

    def due_s(self, *, anew: bool) -> float:
        """When a pass is due; -infinity: now. anew: with a new world."""
        if self.again:
            return self.quiet_until_s if anew else -math.inf
        return min(self.next_s, self.overrun_s, self.pause_s)

    def rest(self, until_s: float) -> None:
        """Nothing but this moment makes a pass due."""
        self.again = False
        self.next_s, self.overrun_s, self.pause_s = until_s, math.inf, math.inf

    def deciding_s(self) -> float:
        """For how long the pass under way has lasted; 0: there is none. From any thread."""
        since_s = self._pass_since_s
        return 0.0 if since_s is None else self._timer() - since_s

    @contextmanager
    def a_pass(self, now_s: float, *, anew: bool) -> Iterator[None]:
        """Around a pass. anew: it begins with a new world."""
        begun = self._pass_since_s = self._timer()
        collects = gc.isenabled()
        gc.disable()  # a pass makes thousands of objects and hardly any cycles: looking for them takes a third of it
        try:
            yield
        finally:
            self._pass_since_s = None
            if collects:
                gc.enable()
        self.last_pass_s = self._timer() - begun
        if anew:
            self.quiet_until_s = now_s + (1 + QUIET) * self.last_pass_s
