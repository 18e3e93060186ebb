"""The order in which jobs get a token: by who has waited longest, or, where that does more, round and round.

Turns by waiting time fall into an order of their own, often a bad one: with four jobs, each slow on another resource,
2.5 times one after another where the best order comes to 3.4. So the first of a group works out from the stage times
that all have measured what each cyclic order would do (`done`), and has the best one kept on all resources, if every
member visits each resource once an iteration. There is no barrier: who is next may go as soon as the token is free. It
compares what all do with what they did before, and gives the order up where that is not more, or where members often
come too late for their turns.
"""

from __future__ import annotations

import heapq
from itertools import permutations
from time import monotonic_ns

from . import page as pages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Sequence

MOST = 4
"""Members of which orders are tried."""
WINDOW = 48
"""Iterations of the first member over which rates are compared."""
SKIPPED = 16
"""After a change so many are left out."""
ASKED_AGAIN, TRIED_AGAIN = 256, 4096
"""After so many iterations an order is looked for again where none promised anything, or was tried in vain."""
PROMISES, KEEPS = 1.04, 1.01
"""An order is tried if it is expected to do so many times as much, and kept if it does so many times."""
MOST_SLIPS = 16
"""More turns that did not come in time in a window: the order is given up."""
HANDOVER_S = 0.0003
"""From one holder of a token to the next."""
CYCLES = 20
"""For so many times what all need one after another is simulated."""


class Rotation:
    """Of one process; that of the first member decides for all. tokens: the process's."""

    def __init__(self, page: pages.Page, seat: int) -> None:
        self.page, self.seat = page, seat
        self.base = pages.AT_SEATS + seat * pages.SEAT_WORDS
        self.visits = [0] * pages.RESOURCES
        self.once = 0
        """Iterations in a row in which no resource was visited twice."""
        self.generation = -1
        self.state = "turns"
        self.left = SKIPPED
        self.begun = None  # type: tuple[int, dict[int, int]] | None
        """When the window began, and the iterations of each seat then."""
        self.before = {}  # type: dict[int, float]
        """Rates of all by waiting time."""

    def held(self, resource: int, lasted_ns: int) -> None:
        """A token was held for so long."""
        self.visits[resource] += 1
        at = self.base + pages.STAGE_NS + resource
        mean = self.page.longs[at]
        self.page.longs[at] = lasted_ns if mean == 0 else mean + (lasted_ns - mean) // 8

    def turn(self, resource: int) -> None:
        """It has a turn, where tokens go round."""
        longs = self.page.longs
        if longs[self.base + pages.COUNTS] != self.page.words[pages.AT_CYCLE_ID]:
            return  # the iteration in which the order began: others may be further in theirs
        if longs[self.base + pages.PASSED + resource]:
            longs[self.base + pages.PASSED + resource] -= 1
        else:
            longs[self.base + pages.ROUNDS + resource] += 1

    def iteration(self) -> None:
        """An iteration has been made."""
        self.once = self.once + 1 if max(self.visits) <= 1 else 0
        self.visits = [0] * pages.RESOURCES
        words, longs = self.page.words, self.page.longs
        longs[self.base + pages.ONCE] = int(self.once >= SKIPPED)
        longs[self.base + pages.COUNTS] = words[pages.AT_CYCLE_ID]
        if words[pages.AT_GENERATION] != self.generation:
            self.generation = words[pages.AT_GENERATION]
            self._enter("turns", SKIPPED)
        self.left -= 1
        if self.left > 0:
            return
        seats = self.members()
        if not seats or seats[0] != self.seat:
            self._enter("turns", SKIPPED)
            return
        self._decide(seats)

    def members(self) -> list[int]:
        """Seats of all members, the lowest first; [] where orders can't be kept: not all of them have seats, or one
        visits a resource twice, or fetches ahead."""
        words, longs = self.page.words, self.page.longs
        jobs = set(words[pages.AT_ORDER : pages.AT_ORDER + min(words[pages.AT_MEMBERS], pages.MOST_MEMBERS)])
        found = {}
        for seat in range(pages.SEATS):
            at = pages.AT_SEATS + seat * pages.SEAT_WORDS
            if longs[at + pages.PID] and longs[at + pages.JOB] in jobs:
                if longs[at + pages.APART] or not longs[at + pages.ONCE]:
                    return []
                found[longs[at + pages.JOB]] = seat
        return sorted(found.values()) if len(found) == len(jobs) and 2 <= len(found) <= MOST else []

    def _enter(self, state: str, left: int) -> None:
        self.state, self.left, self.begun = state, left, None

    def _decide(self, seats: list[int]) -> None:
        words, now_ns = self.page.words, monotonic_ns()
        done = {seat: self._long(seat, pages.ITERATIONS) for seat in seats}
        if self.begun is None:
            self.begun, self.left = (now_ns, done), WINDOW
            words[pages.AT_SLIPS] = 0
            return
        since_ns, was = self.begun
        if was.keys() != done.keys():
            self._enter("turns", SKIPPED)
            return
        rates = {seat: max(done[seat] - was[seat], 0) / (now_ns - since_ns) for seat in seats}
        if self.state == "turns":
            order = self._best(seats) if min(rates.values()) > 0 else None
            if order is None:
                self._enter("turns", ASKED_AGAIN)
                return
            self.before = rates
            self._keep(order)
            self._enter("rotation", SKIPPED)
        elif self.state == "rotation":
            does = sum(rates[seat] / self.before[seat] for seat in seats if self.before.get(seat)) / len(seats)
            if does < KEEPS or words[pages.AT_SLIPS] > MOST_SLIPS or not words[pages.AT_CYCLE]:
                words[pages.AT_CYCLE] = 0
                self._enter("turns", TRIED_AGAIN)
            else:
                self._enter("rotation", WINDOW)

    def _keep(self, order: Sequence[int]) -> None:
        """From now on tokens go round in this order."""
        words = self.page.words
        cycle_ns = sum(self._long(seat, pages.STAGE_NS + r) for seat in order for r in range(pages.RESOURCES))
        words[pages.AT_CYCLE_US] = min(2 * cycle_ns // 1000, 10_000_000)
        words[pages.AT_CYCLE_ID] += 1
        words[pages.AT_SLIPS] = 0
        for place, seat in enumerate(order):
            words[pages.AT_CYCLE + 1 + place] = seat
            at = pages.AT_SEATS + seat * pages.SEAT_WORDS + pages.ROUNDS
            for resource in range(2 * pages.RESOURCES):  # rounds, and those that were passed by
                self.page.longs[at + resource] = 0
        words[pages.AT_CYCLE] = len(order)

    def _best(self, seats: list[int]) -> list[int] | None:
        """The cyclic order that does most; None: none does more than turns by waiting time."""
        stages = [[self._long(seat, pages.STAGE_NS + r) / 1e9 for r in range(pages.RESOURCES)] for seat in seats]
        if not all(map(sum, stages)):
            return None
        others = range(1, len(seats))
        found = [(done(stages, (0, *rest)), (0, *rest)) for rest in permutations(others)]
        best, order = max(found)
        return [seats[at] for at in order] if best >= PROMISES * done(stages, None) else None

    def _long(self, seat: int, which: int) -> int:
        found = self.page.longs[pages.AT_SEATS + seat * pages.SEAT_WORDS + which]  # type: int
        return found


def owed(page: pages.Page, seat: int, resource: int) -> list[tuple[int, int]]:
    """Where tokens go round, whose turns come before that of a seat: other seats, and how many rounds these must have
    had. []: it is its turn, or it has none to wait for."""
    words, longs = page.words, page.longs
    start = pages.AT_CYCLE + 1
    cycle = words[start : start + words[pages.AT_CYCLE]].tolist()
    own = pages.AT_SEATS + seat * pages.SEAT_WORDS
    counts = longs[own + pages.COUNTS] == words[pages.AT_CYCLE_ID]
    if seat not in cycle or not counts or longs[own + pages.PASSED + resource]:
        return []
    mine, found = longs[own + pages.ROUNDS + resource], []
    for place, other in enumerate(cycle):
        at = pages.AT_SEATS + other * pages.SEAT_WORDS
        rounds = mine + (place < cycle.index(seat))
        if other != seat and longs[at + pages.STAGE_NS + resource] and longs[at + pages.ROUNDS + resource] < rounds:
            found.append((other, rounds))
    return found


def pass_by(page: pages.Page, first: list[tuple[int, int]], resource: int) -> None:
    """These have not come in time: they lose their turns, and the order is given up where that happens often."""
    longs = page.longs
    for seat, rounds in first:
        at = pages.AT_SEATS + seat * pages.SEAT_WORDS
        lost = rounds - longs[at + pages.ROUNDS + resource]
        if lost > 0:
            longs[at + pages.PASSED + resource] += lost
            longs[at + pages.ROUNDS + resource] = rounds
    page.words[pages.AT_SLIPS] += 1
    if page.words[pages.AT_SLIPS] > MOST_SLIPS:
        page.words[pages.AT_CYCLE] = 0


def done(stages: Sequence[Sequence[float]], order: Sequence[int] | None) -> float:
    """What jobs do per second together, each counted against itself alone.

    Args:
        stages: seconds of each job on each resource in an iteration, one after the other. order: in which tokens go
            round; None: by waiting time.
    """
    n, alone = len(stages), [sum(stage) for stage in stages]
    users = [[i for i in range(n) if stages[i][r] > 0.0] for r in range(len(stages[0]))]
    path = [[r for r, seconds in enumerate(stage) if seconds > 0.0] for stage in stages]
    place, made = [0] * n, [0] * n
    queues = [[] for _ in users]  # type: list[list[int]]
    busy, last = [False] * len(users), [-1] * len(users)
    events = []  # type: list[tuple[float, int, int]]
    now, end = 0.0, CYCLES * sum(alone)

    def grant(resource: int) -> None:
        queue = queues[resource]
        if busy[resource] or not queue:
            return
        chosen = queue[0]
        if order is not None:
            round_ = [i for i in order if i in users[resource]]
            at = round_.index(last[resource]) + 1 if last[resource] >= 0 else 0
            chosen = round_[at % len(round_)]
            if chosen not in queue:
                return
        queue.remove(chosen)
        busy[resource], last[resource] = True, chosen
        heapq.heappush(events, (now + stages[chosen][resource] + HANDOVER_S, chosen, resource))

    for i in range(n):
        queues[path[i][0]].append(i)
    for resource in range(len(users)):
        grant(resource)
    while events and now < end:
        now, i, resource = heapq.heappop(events)
        busy[resource] = False
        place[i] += 1
        if place[i] == len(path[i]):
            place[i], made[i] = 0, made[i] + 1
        queues[path[i][place[i]]].append(i)
        grant(resource)
        grant(path[i][place[i]])
    return sum(count * seconds for count, seconds in zip(made, alone)) / now if now > 0.0 else 0.0
