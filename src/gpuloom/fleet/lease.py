"""The arithmetic of leases: how long a node may go on by itself, and when its jobs may be given to others.

A node may run jobs until its deadline. It puts the deadline off only by a heartbeat that the head has answered, and
counts from when that heartbeat was *sent*. The head gives the node's jobs to others only when lease and margin have
passed since it last *answered* one. Let `s <= a` be the true times at which a heartbeat was sent and answered, `L` the
lease, `M` the margin, `r` the largest error of a clock's rate (`DRIFT`), and `K` the longest time that ending all runs
may take (`ENDING_S`). By true time

    the node's deadline       <=  s + L / (1 - r)
    the head gives away       >=  a + (L + M) / (1 + r)

so nothing of the runs is left when they are given away, if

    M  >=  (1 + r) * (L / (1 - r) + K) - L                         (`least_margin_s`)

No clock is compared with another: both sides measure spans only. The node's is CLOCK_BOOTTIME, which counts the time in
which a machine sleeps. The head may use any clock that is never ahead of true time by more than `r`; one that stands
still while the head sleeps only makes it wait for longer.

Three rules keep it true when processes die: a head that has begun anew counts from its own beginning, as the one before
may have answered until then; a head that has given a node's jobs away answers none of its heartbeats until the node has
told that nothing runs there; a node takes only answers to heartbeats of its own process. And a deadline that has passed
is final: the node gets another one only after everything that ran has been ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.core.errors import InputError
from gpuloom.executors.lease import LeaseFile, boottime_ns

DRIFT = 1e-3
"""Largest error of the rate of a clock. The kernel slews by at most 500 ppm; a crystal is off by less than 100 ppm."""
ENDING_S = 3.0
"""Seconds within which all runs of a node are ended after its deadline: the guard ends them at once, its standby a
second later, and both look again."""
MOST_WAITING = 1000
"""Heartbeats without an answer that are remembered."""


def ended_after_s(left_s: float) -> float:
    """A node says that so many seconds of its lease are left. For how long the head, which has just heard it, has to
    wait until nothing is left of its runs, if the lease is not put off any more."""
    return left_s + least_margin_s(left_s)


def least_margin_s(lease_s: float) -> float:
    """The smallest margin for a lease, seconds: see the module."""
    return (1 + DRIFT) * (lease_s / (1 - DRIFT) + ENDING_S) - lease_s


@dataclass(frozen=True, slots=True)
class Terms:
    """Of a lease, in seconds. every_s: from one heartbeat to the next.

    Raises:
        InputError: they can't keep the promise.
    """

    lease_s: float = 30.0
    margin_s: float = 5.0
    every_s: float = 3.0

    def __post_init__(self) -> None:
        if not 0 < self.every_s <= self.lease_s / 2:
            raise InputError(
                f"a lease of {self.lease_s:g} s needs a heartbeat at least every {self.lease_s / 2:g} s, "
                f"not every {self.every_s:g} s"
            )
        least = least_margin_s(self.lease_s)
        if not self.margin_s >= least:
            raise InputError(
                f"a lease of {self.lease_s:g} s needs a margin of at least {least:.2f} s, not {self.margin_s:g} s"
            )

    @property
    def give_away_s(self) -> float:
        """From the last answer until the node's jobs may be given to others."""
        return self.lease_s + self.margin_s


TERMS = Terms(lease_s=15.0, margin_s=5.0, every_s=3.0)
SHORTEST_LEASE_S, LONGEST_LEASE_S = 6.0, 7 * 86_400.0


def terms_of(lease_s: float | None) -> Terms:
    """The terms of a lease of so many seconds; None: the usual ones.

    Raises:
        InputError: it is too short or too long.
    """
    if lease_s is None:
        return TERMS
    if not SHORTEST_LEASE_S <= lease_s <= LONGEST_LEASE_S:
        raise InputError(f"a lease of {lease_s:g} s: must be {SHORTEST_LEASE_S:g} s to {LONGEST_LEASE_S / 86_400:g} d")
    margin = max(TERMS.margin_s, least_margin_s(lease_s) + 1.0)
    return Terms(lease_s, margin, min(TERMS.every_s, lease_s / 3))


class NodeLease:
    """The node's side: it sends heartbeats, and puts its deadline off when one of them is answered.

    now_ns: CLOCK_BOOTTIME, for tests another.
    """

    def __init__(self, file: LeaseFile, terms: Terms, now_ns: Callable[[], int] = boottime_ns) -> None:
        self.file, self.terms, self._now_ns = file, terms, now_ns
        self._waiting: dict[int, None] = {}

    def beat(self) -> int:
        """Call it right before a heartbeat is sent. Its name, which the answer has to repeat."""
        sent = self._now_ns()
        if self._waiting and sent <= (last := next(reversed(self._waiting))):
            sent = last + 1
        self._waiting[sent] = None
        while len(self._waiting) > MOST_WAITING:
            del self._waiting[next(iter(self._waiting))]
        return sent

    def answered(self, beat: int) -> bool:
        """The head has answered this heartbeat. Whether that put the deadline off: not while the guard has yet to end
        what ran under a lease that is over. Raises OSError: the file can't be written, so it did not."""
        if beat not in self._waiting:
            return False  # twice, or of a process before this one
        for sent in [sent for sent in self._waiting if sent <= beat]:
            del self._waiting[sent]
        return self.file.extend(beat + int(self.terms.lease_s * 1e9))


class HeadLease:
    """The head's side, for one node. All times are of one clock of the head, seconds; it may not be set.

    began_s: when this head, or its knowledge of the node, began: before that, another may have answered.
    """

    def __init__(self, terms: Terms, began_s: float) -> None:
        self.terms = terms
        self.not_before_s = began_s
        """Its jobs are not given away before this, however short its lease: a longer one was given before."""
        self._answered_s = began_s
        self.given_away = False
        """Its jobs are given to others. It gets no answers until `begin_again`."""

    def answer(self, now_s: float) -> bool:
        """Call it right before a heartbeat is answered. False: it must not be."""
        if self.over(now_s):
            return False
        self._answered_s = now_s
        return True

    def left_s(self, now_s: float) -> float:
        """Until its jobs may be given to others, seconds; at most 0.0 when they may."""
        return max(self._answered_s + self.terms.give_away_s, self.not_before_s) - now_s

    def over(self, now_s: float) -> bool:
        """Whether its jobs may be given to others. Once true it stays so."""
        if self.left_s(now_s) <= 0:
            self.given_away = True
        return self.given_away

    def begin_again(self, now_s: float) -> None:
        """The node is back, and nothing runs there that this head doesn't know."""
        self.given_away, self._answered_s = False, now_s
