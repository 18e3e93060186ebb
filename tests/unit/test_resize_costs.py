"""What a resize cost, out of the events of the attempts before and after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fake_views import attempt, record
from gpuloom.core.events import Event
from gpuloom.live.dispatch.resize_costs import begins, cost_draft, last_step
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.views.sizes import RESIZES, resize_views

SPEC = job_spec({"command": ["./a"], "elastic": "1-4"}).named().kept()
LATER_S = 1000.0
"""The clock of the records is ahead of the machine's by so much."""


def from_wall(at_s: float) -> float:
    return at_s + LATER_S


class Told:
    """A store of events."""

    def __init__(self, *events: tuple[str, float, dict[str, Any]]) -> None:
        self.all = [Event(number, at_s, kind, 1, data) for number, (kind, at_s, data) in enumerate(events, 1)]

    def events(
        self, *, job: int, types: Sequence[str], limit: int = 1000, newest: bool = False, after: int = 0
    ) -> Sequence[Event]:
        assert job == 1
        assert newest
        assert after == 0
        return [event for event in self.all if event.type in types][-limit:]


def resized(number: int = 2, why: str = "free_gpus") -> tuple[str, float, dict[str, Any]]:
    data = {"attempt": number, "from_gpus": 1, "to_gpus": 2, "from_replicas": 1, "to_replicas": 2}
    return "job.resized", 1013.0, {**data, "why": why, "jobs": []}


STOPPED = ("attempt.stopping", 1010.0, {"reason": "resized"})
EARLIER = ("attempt.stopping", 10.0, {"reason": "resized"})
ENDED = ("attempt.ended", 1012.0, {"last_step": 40.0, "last_s": 1011.0, "ended_s": 1012.0})
SILENT = ("attempt.ended", 1012.0, {"ended_s": 1012.0})
AGAIN = {"step": 45, "first_step": 38, "first_s": 17.5, "at_s": 20.0}
RUNS = attempt(number=2, running_s=1015.0)


def cost(*events: tuple[str, float, dict[str, Any]], told: dict[str, Any] = AGAIN, of: Any = RUNS) -> Any:
    store: Any = Told(*events)
    found = cost_draft(store, record(spec=SPEC), of, told, from_wall)
    return None if found is None else {"type": found[0], **found[2]}


def test_between_the_last_step_before_and_the_first_one_after() -> None:
    assert cost(STOPPED, ENDED, resized()) == {
        "type": "job.resize_cost",
        "attempt": 2,
        "from_replicas": 1,
        "to_replicas": 2,
        "cost_s": 6.5,
        "lost_steps": 2.0,
        "cost_from": "steps",
    }
    ahead = cost(STOPPED, ENDED, resized(), told={**AGAIN, "first_step": 41})
    assert ahead["lost_steps"] == 0.0  # it reports its first step when that is done


@pytest.mark.parametrize(
    ("events", "told", "cost_s", "lost"),
    [
        ((STOPPED, SILENT, resized()), {}, 5.0, None),  # notice to start of the processes
        ((SILENT, resized(why="node")), {}, 3.0, None),  # no notice: from its end
        ((EARLIER, SILENT, SILENT, resized(why="replica")), {}, 3.0, None),  # the notice was of an attempt before
        ((STOPPED, SILENT, resized()), AGAIN, 7.5, None),
        ((STOPPED, ENDED, resized()), {}, 5.0, None),
    ],
)
def test_of_jobs_that_report_no_steps_the_processes_count(
    events: Any, told: dict[str, Any], cost_s: float, lost: float | None
) -> None:
    found = cost(*events, told=told)
    assert (found["cost_s"], found["lost_steps"], found["cost_from"]) == (cost_s, lost, "processes")


def test_what_is_no_resize_or_is_told_already_costs_nothing() -> None:
    assert cost(STOPPED, ENDED) is None
    assert cost(STOPPED, ENDED, resized(why="restarted")) is None
    assert cost(STOPPED, ENDED, resized(number=3)) is None
    assert cost(STOPPED, ENDED, resized(), ("job.resize_cost", 1020.0, {"attempt": 2})) is None
    assert cost(("job.resize_cost", 1001.0, {"attempt": 1}), STOPPED, ENDED, resized()) is not None
    assert cost(STOPPED, ENDED, resized(), told={}, of=attempt(number=2)) is None  # it never ran
    assert cost(STOPPED, ENDED, resized(), of=attempt(number=1)) is None
    store: Any = Told(STOPPED, ENDED, resized())
    assert cost_draft(store, record(), RUNS, AGAIN, from_wall) is None  # it is not elastic


def test_the_last_step_is_on_the_clock_of_the_records() -> None:
    assert last_step(AGAIN, from_wall) == {"last_step": 45.0, "last_s": 1020.0}
    assert last_step({"step": 4}, from_wall) == {}
    assert last_step({"step": True, "at_s": 3.0}, from_wall) == {}
    assert begins(AGAIN)
    assert not begins({"step": 3})


def test_resizes_with_and_without_their_costs() -> None:
    store = Told(STOPPED, ENDED, resized(), resized(number=3), ("job.resize_cost", 1020.0, cost(ENDED, resized())))
    first, second = resize_views(store.events(job=1, types=RESIZES, newest=True))
    assert (first["attempt"], first["cost_s"], first["lost_steps"], first["cost_from"]) == (2, 6.5, 2.0, "steps")
    assert (second["attempt"], second["cost_s"], second["why"]) == (3, None, "free_gpus")
    assert first["at_s"] == 1013.0
