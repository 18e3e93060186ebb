"""Where a training thread's time goes: nested intervals on resources, of which each counts only its exclusive time.

Hooks of frameworks call `thread()` and on it `begin`, `end`, `data_begins`, `data_ends` and `iteration`. An iteration
is a step of the (first) optimizer, from the end of one to the end of the next. Who wants to act at these moments, to
wait for its turn on a resource, say, is one of `listeners`; who wants the times is one of `sinks`.

Only the thread that trains is timed: the first that begins an interval, or, if another one does the steps, that one.
"""

from __future__ import annotations

import os
from threading import get_ident
from time import perf_counter_ns

from . import switch_off

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class Listener(Protocol):
        """Called in the thread that trains; intervals are nested. It may wait in `begin`: that counts as `TURN`."""

        def begin(self, resource: int) -> None: ...

        def end(self, resource: int) -> None: ...

        def iteration(self) -> None: ...

    Sink = Callable[[int, list[int], int], None]
    """Gets, after each iteration: its nanoseconds, 0 if its start was not seen; those of them by slot; and how many
    iterations they were (more than one where a framework tells of several at once)."""


STORAGE, CPU, GPU, NETWORK = range(4)
"""Resources, as in gpuloom's profiles. GPU is the computing, on whatever device."""
WAIT, REST, TURN = 4, 5, 6
"""Further slots of time: waits for data, all that belongs to no interval, and waits in listeners."""
SLOTS = 7
DEEPEST = 64
"""More intervals than this in each other: ends of some were not seen, and all are forgotten."""

counted_elsewhere = False
"""A framework on top tells of its iterations itself: steps of an optimizer below are none."""
listeners: list[Listener] = []
sinks: list[Sink] = []


class Timeline:
    """The intervals of one thread. load: what waits for data take most of, STORAGE or CPU."""

    def __init__(self) -> None:
        self.stack: list[tuple[int, int, object]] = []
        """Of each open interval: slot, resource, tag."""
        self.ns = [0] * SLOTS
        self.since = perf_counter_ns()
        self.began = 0
        """When the iteration began; 0: before the end of the first."""
        self.load = STORAGE
        self.iterations = 0

    def _account(self) -> None:
        now = perf_counter_ns()
        self.ns[self.stack[-1][0] if self.stack else REST] += now - self.since
        self.since = now

    def _heard(self) -> None:
        """Time up to now went to listeners."""
        now = perf_counter_ns()
        self.ns[TURN] += now - self.since
        self.since = now

    def begin(self, slot: int, resource: int, tag: object = None) -> None:
        """An interval begins. tag: of one whose end may not be seen; a stale one of the same tag ends here."""
        if tag is not None:
            self.end_of(tag)
        self._account()
        if len(self.stack) >= DEEPEST:
            self._unwind(0)
        self.stack.append((slot, resource, tag))
        if listeners:
            _tell("begin", resource)
            self._heard()

    def end(self) -> None:
        """The innermost interval ends."""
        if self.stack:
            self._account()
            self._unwind(len(self.stack) - 1)

    def end_of(self, tag: object) -> None:
        """The interval of this tag ends, and with it all within it; none if it is not open."""
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at][2] == tag:
                self._account()
                self._unwind(at)
                return

    def _unwind(self, depth: int) -> None:
        while len(self.stack) > depth:
            resource = self.stack.pop()[1]
            if listeners:
                _tell("end", resource)
                self._heard()

    def data_begins(self) -> None:
        """The thread asks for a batch: what it computed with the last one is done."""
        self._end_computing()
        self.begin(WAIT, self.load)

    def data_ends(self, got: bool) -> None:
        """It has one (got), or there are no more. What follows is computing, up to the step or the next batch."""
        self.end()
        if got and not self.stack:
            self.begin(GPU, GPU, COMPUTING)

    def fetched(self, storage_ns: int, cpu_ns: int, queued_ns: int = 0) -> None:
        """So much of the open wait for data was reading, preparing, and waiting for a core, in this thread."""
        self._account()
        self.ns[STORAGE] += storage_ns
        self.ns[CPU] += cpu_ns
        self.ns[REST] += queued_ns
        self.ns[WAIT] -= storage_ns + cpu_ns + queued_ns
        self.load = STORAGE if storage_ns >= cpu_ns else CPU

    def _end_computing(self) -> None:
        if self.stack and self.stack[-1][2] is COMPUTING:
            self.end()

    def iteration(self, count: int = 1) -> None:
        """A step of the optimizer has ended; count: so many at once."""
        self._end_computing()
        self._account()
        took, spent = (self.since - self.began if self.began else 0), self.ns
        self.began, self.ns = self.since, [0] * SLOTS
        self.iterations += count
        for sink in list(sinks):
            try:
                sink(took, spent, count)
            except Exception as error:  # ours; the job runs on
                sinks.remove(sink)
                switch_off(getattr(sink, "__module__", "stages").rpartition(".")[2], error)
        if listeners:
            _tell("iteration")
            self._heard()


COMPUTING = "computing"
"""Tag of the interval that begins with a batch."""

_owner = 0
_timeline = Timeline()


def _tell(what: str, *resource: int) -> None:
    for listener in list(listeners):
        try:
            getattr(listener, what)(*resource)
        except Exception as error:  # ours; the job runs on
            listeners.remove(listener)
            switch_off(type(listener).__module__.rpartition(".")[2], error)


def thread(*, steps: bool = False) -> Timeline | None:
    """The timeline, if this is the thread that trains; None in any other. steps: this thread does the steps."""
    global _owner
    me = get_ident()
    if _owner != me:
        if _owner and not steps:
            return None
        _begin_anew(me)
    return _timeline


def done() -> int:
    """Iterations of the thread that trains."""
    return _timeline.iterations


def _begin_anew(owner: int = 0) -> None:
    global _owner, _timeline
    _owner, _timeline = owner, Timeline()


if os.environ.get("GPULOOM_DEVICES_DIR"):
    from . import tokens

    tokens.join(listeners)

# A forked child is another process: a loader's worker, which never trains, or one that trains by itself.
os.register_at_fork(after_in_child=_begin_anew)
