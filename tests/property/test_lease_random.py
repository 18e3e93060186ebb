"""However heartbeats are delayed, lost and answered, and heads begin anew: nothing of a node's runs is left when its
jobs are given to others."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.executors.lease import LeaseFile
from gpuloom.fleet.lease import DRIFT, ENDING_S, HeadLease, NodeLease, Terms, least_margin_s

SPAN_S = 400.0
delays = st.one_of(st.floats(0.0, 0.5), st.floats(0.0, 120.0), st.none())
"""Seconds on the way; None: lost."""


@dataclass(order=True)
class Happening:
    at_s: float
    what: str = field(compare=False)
    beat: int = field(compare=False, default=0)


@given(
    lease_s=st.floats(1.0, 60.0),
    more_s=st.floats(0.0, 5.0),
    rates=st.tuples(st.floats(1 - DRIFT, 1 + DRIFT), st.floats(1 - DRIFT, 1 + DRIFT)),
    ways=st.lists(st.tuples(st.floats(0.1, 20.0), delays, delays), max_size=40),
    heads=st.lists(st.floats(0.0, SPAN_S), max_size=3),
    guarded=st.booleans(),
)
def test_deadline_before_giving_away(
    lease_s: float,
    more_s: float,
    rates: tuple[float, float],
    ways: list[tuple[float, float | None, float | None]],
    heads: list[float],
    guarded: bool,
) -> None:
    """rates: of the node's and the head's clocks. ways: per heartbeat, the pause before it and its delays there and
    back. heads: when a head begins anew. All in seconds of true time. guarded: there is a guard that ends runs."""
    terms = Terms(lease_s, least_margin_s(lease_s) + more_s, lease_s / 10)
    node_rate, head_rate = rates
    now = [0.0]
    with tempfile.TemporaryDirectory() as home:
        file = LeaseFile(home, lambda: 10**9 + round(now[0] * node_rate * 1e9))
        file.make()
        node = NodeLease(file, terms, lambda: 10**9 + round(now[0] * node_rate * 1e9))
        head = HeadLease(terms, 0.0)
        todo = [Happening(at, "head") for at in heads]
        at = 0.0
        for number, (pause, _, _) in enumerate(ways):
            at += pause
            todo.append(Happening(at, "send", number))
        names: dict[int, int] = {}
        given_away_s: list[float] = []
        while todo:
            todo.sort()
            next_ = todo.pop(0)
            # When it is given away is looked at whenever time goes on.
            due = now[0] + head.left_s(now[0] * head_rate) / head_rate
            if not head.given_away and due <= next_.at_s:
                head.given_away = True
                given_away_s.append(due)
            now[0] = next_.at_s
            if guarded and not file.settled() and file.over():
                file.count_fence()  # the guard has ended what ran
            if next_.what == "head":
                head = HeadLease(terms, now[0] * head_rate)
                given_away_s.clear()  # this one gives away by its own count
            elif next_.what == "send":
                names[next_.beat] = node.beat()
                if (there := ways[next_.beat][1]) is not None:
                    todo.append(Happening(now[0] + there, "arrive", next_.beat))
            elif next_.what == "arrive":
                if head.answer(now[0] * head_rate) and (back := ways[next_.beat][2]) is not None:
                    todo.append(Happening(now[0] + back, "answer", next_.beat))
            else:
                node.answered(names[next_.beat])
            deadline_s = (file.deadline_ns() - 10**9) / 1e9 / node_rate
            for away in given_away_s:
                assert deadline_s + ENDING_S <= away + 1e-6
            if not head.given_away:
                away = now[0] + head.left_s(now[0] * head_rate) / head_rate
                assert deadline_s + ENDING_S <= away + 1e-6
