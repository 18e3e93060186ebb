"""Tokens go round in an order that does more than going by who has waited longest, as long as that is so."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from _gpuloom_hooks import page as layout
from _gpuloom_hooks import rotation
from _gpuloom_hooks.page import Page
from _gpuloom_hooks.rotation import MOST_SLIPS, SKIPPED, TRIED_AGAIN, WINDOW, Rotation, done, owed, pass_by
from gpuloom.core.job import DeviceKind
from gpuloom.executors.devices import Weaving, made, tell

FOUR = (
    (0.050, 0.010, 0.012, 0.006),
    (0.006, 0.046, 0.012, 0.008),
    (0.006, 0.008, 0.050, 0.010),
    (0.008, 0.010, 0.012, 0.044),
)
"""Four jobs, each slow on another resource."""


def test_what_orders_do() -> None:
    by_waiting = done(FOUR, None)
    found = {rest: done(FOUR, (0, *rest)) for rest in permutations((1, 2, 3))}
    assert max(found, key=lambda rest: found[rest]) == (3, 2, 1), "the next stage's slow job goes before"
    assert found[3, 2, 1] > 1.25 * by_waiting > 2.0
    busiest = max(sum(stage[r] for stage in FOUR) for r in range(4))
    assert found[3, 2, 1] <= sum(map(sum, FOUR)) / busiest, "no more than the busiest resource allows"
    alike = ((0.01, 0.0, 0.02, 0.0),) * 2
    assert done(alike, (0, 1)) == pytest.approx(done(alike, None), rel=0.01)
    assert done(((0.0, 0.0, 0.1, 0.0), (0.1, 0.0, 0.0, 0.0)), None) == pytest.approx(2.0, rel=0.05)


class Group:
    """Jobs with seats 0, 1, … on one page, and a clock."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, stages: tuple[tuple[float, ...], ...]) -> None:
        self.folder, self.now_ns, n = folder, 10**12, len(stages)
        tell(folder, Weaving(DeviceKind.CPU, (0,), tuple(range(1, n + 1)), on=True))
        self.page = Page(str(made(folder, DeviceKind.CPU, [0])))
        self.rotations = [Rotation(self.page, seat) for seat in range(n)]
        for seat, stage in enumerate(stages):
            self.set(seat, layout.PID, 100 + seat)
            self.set(seat, layout.JOB, seat + 1)
            for resource, seconds in enumerate(stage):
                if seconds:
                    self.rotations[seat].held(resource, int(seconds * 1e9))
        monkeypatch.setattr(rotation, "monotonic_ns", lambda: self.now_ns)

    def get(self, seat: int, which: int) -> int:
        found: int = self.page.longs[layout.AT_SEATS + seat * layout.SEAT_WORDS + which]
        return found

    def set(self, seat: int, which: int, value: int) -> None:
        self.page.longs[layout.AT_SEATS + seat * layout.SEAT_WORDS + which] = value

    def iterate(self, count: int, each_s: float) -> None:
        """All make so many iterations, one after another."""
        for _ in range(count):
            self.now_ns += int(each_s * 1e9)
            for seat, one in enumerate(self.rotations):
                self.set(seat, layout.ITERATIONS, self.get(seat, layout.ITERATIONS) + 1)
                one.iteration()

    def cycle(self) -> list[int]:
        words = self.page.words
        return list(words[layout.AT_CYCLE + 1 : layout.AT_CYCLE + 1 + words[layout.AT_CYCLE]])


TAKEN = 2 * SKIPPED + WINDOW + 4


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    return Group(tmp_path, monkeypatch, FOUR)


def test_an_order_that_does_more_is_kept(group: Group) -> None:
    group.iterate(SKIPPED + 1, 0.11)
    assert group.cycle() == []
    group.iterate(TAKEN, 0.11)
    assert group.cycle() == [0, 3, 2, 1]
    group.iterate(3 * (SKIPPED + WINDOW), 0.09)
    assert group.cycle() == [0, 3, 2, 1]
    tell(group.folder, Weaving(DeviceKind.CPU, (0,), (1, 2, 3), on=True))  # one leaves
    assert group.cycle() == []


def test_an_order_that_does_no_more_is_given_up(group: Group) -> None:
    group.iterate(SKIPPED + TAKEN, 0.11)
    assert group.cycle() == [0, 3, 2, 1]
    group.iterate(SKIPPED + WINDOW + 4, 0.115)
    assert group.cycle() == []
    group.iterate(TRIED_AGAIN // 2, 0.11)
    assert group.cycle() == [], "and not tried again soon"


def test_no_order_where_it_promises_nothing_or_a_resource_is_visited_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = Group(tmp_path / "alike", monkeypatch, ((0.01, 0.0, 0.02, 0.0),) * 2)
    alike.iterate(SKIPPED + TAKEN, 0.05)
    assert alike.cycle() == []
    twice = Group(tmp_path / "twice", monkeypatch, FOUR)
    for _ in range(SKIPPED + TAKEN):
        twice.rotations[2].held(3, 10**7)
        twice.rotations[2].held(3, 10**7)
        twice.iterate(1, 0.11)
    assert twice.cycle() == []
    ahead = Group(tmp_path / "ahead", monkeypatch, FOUR)
    ahead.set(1, layout.APART, 1)
    ahead.iterate(SKIPPED + TAKEN, 0.11)
    assert ahead.cycle() == []


def test_turns_of_an_order_and_those_who_come_too_late(group: Group) -> None:
    group.iterate(SKIPPED + TAKEN, 0.11)  # the order is 0, 3, 2, 1
    page, resource = group.page, 2
    assert owed(page, 0, resource) == []
    assert owed(page, 2, resource) == [(0, 1), (3, 1)]
    assert owed(page, 9, resource) == [], "it has no part in it"
    group.rotations[0].turn(resource)
    assert owed(page, 3, resource) == []
    assert owed(page, 0, resource) == [(3, 1), (2, 1), (1, 1)], "another round: after all others"
    pass_by(page, owed(page, 2, resource), resource)
    assert (group.get(3, layout.PASSED + resource), page.words[layout.AT_SLIPS]) == (1, 1)
    assert owed(page, 2, resource) == []
    assert owed(page, 3, resource) == [], "the turn that it missed it may still have"
    group.rotations[3].turn(resource)
    assert (group.get(3, layout.PASSED + resource), group.get(3, layout.ROUNDS + resource)) == (0, 1)
    for _ in range(MOST_SLIPS):
        pass_by(page, [], resource)
    assert group.cycle() == [], "too many came too late"


def test_an_order_counts_from_the_next_iteration_on(group: Group) -> None:
    """Who is further in an iteration than others must not wait for them in the next."""
    group.iterate(SKIPPED + TAKEN, 0.11)
    page, seat = group.page, 2
    page.words[layout.AT_CYCLE_ID] += 1  # another order has just begun
    assert owed(page, seat, 2) == []
    group.rotations[seat].turn(2)
    assert group.get(seat, layout.ROUNDS + 2) == 0
