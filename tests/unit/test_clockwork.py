"""When a policy is asked next, case by case. The interval is 60 s unless said; inf: not before something happens."""

from __future__ import annotations

from math import inf, nextafter
from typing import Any

import pytest

from gpuloom.engine.clockwork import Clockwork, overrun_s
from gpuloom.policies.base import Policy
from gpuloom.policies.registry import create_policy


def clockwork(kind: str, interval_s: float = 60.0, **more: Any) -> Clockwork:
    """Of 'free' (fifo: stops nobody), 'gated' (srtf: stops jobs at intervals only), 'periodic', or 'gated periodic'."""
    policy: Policy = create_policy("srtf" if "gated" in kind else "fifo")
    policy.periodic = "periodic" in kind
    return Clockwork.of(policy, interval_s, **more)


GATE = [
    # kind, interval, more, now, due: may it preempt?
    ("free", 60.0, {}, 10.0, inf, True),
    ("free", 60.0, {}, 60.0, inf, True),
    ("periodic", 60.0, {}, 10.0, 60.0, True),
    ("gated", 60.0, {}, 0.0, inf, True),
    ("gated", 60.0, {}, 10.0, inf, False),
    ("gated", 60.0, {}, 10.0, 60.0, False),
    ("gated", 60.0, {}, 60.0, 60.0, True),
    # Something happens just at a multiple that nothing was waiting for: it is one nevertheless.
    ("gated", 60.0, {}, 120.0, inf, True),
    # A loop on a real clock is late.
    ("gated", 60.0, {}, 60.003, 60.0, True),
    ("gated", 60.0, {}, nextafter(60.0, 0.0), 60.0, False),
    ("gated", 0.1, {}, 3 * 0.1, inf, True),
    # Without an interval, and under the artifact's rules, jobs are stopped at every event.
    ("gated", 0.0, {}, 10.0, inf, True),
    ("gated", 60.0, {"every_event": True}, 10.0, inf, True),
    ("free", 60.0, {"rounds": True}, 10.0, inf, None),
    ("free", 60.0, {"rounds": True}, 10.0, 60.0, None),
    ("free", 60.0, {"rounds": True}, 60.0, 60.0, True),
    ("free", 60.0, {"rounds": True}, 120.0, inf, True),
    ("gated", 60.0, {"rounds": True}, 10.0, inf, None),
    ("gated", 60.0, {"rounds": True}, 60.0, inf, True),
]


@pytest.mark.parametrize(("kind", "interval_s", "more", "now_s", "due_s", "expected"), GATE)
def test_whether_it_may_preempt(
    kind: str, interval_s: float, more: dict[str, Any], now_s: float, due_s: float, expected: bool | None
) -> None:
    assert clockwork(kind, interval_s, **more).may_preempt(now_s, due_s) is expected


DUE = [
    # kind, more, now, wake, told (may it preempt), waiting, running: due
    # What the policy wants is all that counts where nothing is tied to the interval.
    ("free", {}, 10.0, inf, True, 3, 2, inf),
    ("free", {}, 10.0, 33.0, True, 3, 2, 33.0),
    ("free", {}, 10.0, 10.0, True, 0, 0, 10.0),
    # Priorities that change as time passes: every multiple, while some wait and some run.
    ("periodic", {}, 10.0, inf, True, 1, 1, 60.0),
    ("periodic", {}, 60.0, inf, True, 1, 1, 120.0),
    ("periodic", {}, 10.0, 33.0, True, 1, 1, 33.0),
    ("periodic", {}, 10.0, 99.0, True, 1, 1, 60.0),
    ("periodic", {}, 10.0, inf, True, 0, 1, inf),
    ("periodic", {}, 10.0, inf, True, 1, 0, inf),
    # It was not to stop anybody: the next multiple looks at those that wait.
    ("gated", {}, 10.0, inf, False, 1, 1, 60.0),
    ("gated", {}, 10.0, inf, False, 0, 1, inf),
    ("gated", {}, 10.0, inf, False, 1, 0, inf),
    # It was: nothing will change until something happens.
    ("gated", {}, 60.0, inf, True, 1, 1, inf),
    ("gated periodic", {}, 60.0, inf, True, 1, 1, 120.0),
    # What it wants to look at itself is put off to a multiple, and to none that is over.
    ("gated", {}, 10.0, 33.0, True, 0, 1, 60.0),
    ("gated", {}, 10.0, 60.0, True, 0, 1, 60.0),
    ("gated", {}, 10.0, 61.0, True, 0, 1, 120.0),
    ("gated", {}, 10.0, 200.0, False, 1, 1, 60.0),
    ("gated", {}, 60.0, 60.0, True, 0, 1, 120.0),
    ("gated", {}, 70.0, 33.0, True, 0, 1, 120.0),
    ("gated", {"every_event": True}, 10.0, 33.0, True, 1, 1, 33.0),
    # In rounds, whatever the policy: `None` is that it was not asked.
    ("free", {"rounds": True}, 60.0, inf, True, 1, 1, inf),
    ("free", {"rounds": True}, 60.0, 130.0, True, 1, 1, 180.0),
    ("free", {"rounds": True}, 70.0, 130.0, None, 1, 1, 180.0),
    ("gated", {"rounds": True}, 60.0, inf, True, 1, 1, inf),
    ("gated", {"rounds": True}, 70.0, inf, None, 1, 1, inf),
    ("periodic", {"rounds": True}, 60.0, inf, True, 1, 1, 120.0),
    # The live loop leaves itself some time between two answers.
    ("free", {"least_pause_s": 0.05}, 10.0, 10.0, True, 1, 1, 10.05),
    ("free", {"least_pause_s": 0.05}, 10.0, 3.0, True, 1, 1, 10.05),
    ("free", {"least_pause_s": 0.05}, 10.0, 10.5, True, 1, 1, 10.5),
    ("free", {"least_pause_s": 0.05}, 10.0, inf, True, 1, 1, inf),
    # A multiple is never left out, however short before it something happened; the pause is that between multiples.
    ("gated", {"least_pause_s": 0.05}, 59.99, 60.0, True, 1, 1, 60.0),
    ("gated", {"least_pause_s": 0.05}, 59.99, 33.0, True, 1, 1, 60.0),
    ("gated", {"least_pause_s": 60.0}, 59.99, 33.0, True, 1, 1, 60.0),
    ("gated", {"least_pause_s": 61.0}, 59.99, 33.0, True, 1, 1, 180.0),
]


@pytest.mark.parametrize(("kind", "more", "now_s", "wake_s", "told", "waiting", "running", "due_s"), DUE)
def test_when_it_is_asked_next(
    kind: str,
    more: dict[str, Any],
    now_s: float,
    wake_s: float,
    told: bool | None,
    waiting: int,
    running: int,
    due_s: float,
) -> None:
    found = clockwork(kind, **more)
    assert found.due_s(now_s, wake_s, told, waiting, running) == due_s
    assert found.plain == ((kind == "free" and not more) or more == {"every_event": True})
    if found.plain:  # the simulator takes the short way
        assert due_s == wake_s


@pytest.mark.parametrize("kind", ["free", "gated", "periodic"])
def test_what_happens_between_two_rounds_is_seen_at_the_next(kind: str) -> None:
    found = clockwork(kind, rounds=True)
    assert found.due_s(70.0, inf, None, 0, 1, True) == 120.0
    assert found.due_s(70.0, 300.0, None, 0, 0, True) == 120.0
    assert found.due_s(120.0, inf, True, 0, 1, False) == inf


@pytest.mark.parametrize("kind", ["gated", "periodic", "gated periodic"])
def test_without_an_interval_nothing_is_tied_to_one(kind: str) -> None:
    found = clockwork(kind, 0.0)
    assert found.plain
    assert found.due_s(10.0, inf, True, 1, 1) == inf
    assert found.due_s(10.0, 33.0, True, 1, 1) == 33.0


def test_an_overrun_is_looked_at_when_it_is_one_and_not_too_often() -> None:
    assert overrun_s(10.0, 50.0, 0.0) == 50.0
    assert overrun_s(10.0, 10.0, 0.0) == 11.0
    assert overrun_s(10.0, 3.0, 0.5) == 20.0
    assert overrun_s(10.0, inf, 0.5) == inf
