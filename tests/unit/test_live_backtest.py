"""What the forecasts of the past are judged by: figures by source, the sample, and what happened to a job."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fake_views import record
from gpuloom.core.events import Event
from gpuloom.core.job import EndReason, Phase
from gpuloom.live.forecasts import backtest
from gpuloom.live.forecasts.backtest import Case, Checked, Errors
from gpuloom.live.forecasts.forecast import NOTHING, Span
from gpuloom.live.planning.estimates import Source


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([], None),
        ([3.0], (3.0, 3.0, 3.0)),
        ([2.0, 1.0], (1.0, 2.0, 2.0)),
        ([float(n) for n in range(9, -1, -1)], (1.0, 5.0, 9.0)),
        ([float(n) for n in range(20)], (2.0, 10.0, 18.0)),
    ],
)
def test_quantiles(values: list[float], found: tuple[float, float, float] | None) -> None:
    assert backtest._quantiles(values) == found
    assert backtest._middle(values) == (None if found is None else found[1])


def test_errors_of_one_kind() -> None:
    """A range is one from more than a second's width on, and a second beyond it is within it."""
    found = [
        (Span(100.0, 110.0, 120.0), 121.0, 20.0),  # 11 late, of 20; within, by a second
        (Span(100.0, 110.0, 120.0), 99.0, 0.5),  # 11 early, of less than a second
        (Span(100.0, 110.0, 120.0), 121.5, 23.0),
        (Span(100.0, 110.0, 120.0), 98.5, 23.0),
        (Span(50.0, 50.0, 51.0), 50.0, 4.0),
        (Span(50.0, None, 90.0), 60.0, 4.0),
        (Span(50.0), 60.0, 4.0),
        (NOTHING, 60.0, 4.0),
    ]
    assert backtest._errors("start", "given", found) == Errors(
        "start",
        "given",
        8,
        3,
        (-11.5, 0.0, 11.5),
        (0.0, 11.0, 11.5),
        11.5 / 23.0,
        5,
        3 / 5,
        20.0,
    )
    assert backtest._errors("end", "array", [(NOTHING, 1.0, 1.0)]) == Errors(
        "end", "array", 1, 1, None, None, None, 0, None, None
    )


def case(start_by: Source | None, high: float | None, started: float | None, **more: Any) -> Case:
    return Case(1, 100.0, start_by, Source.GIVEN, Span(high, high, high), started_s=started, **more)


def test_starts_of_jobs_that_did_not_wait_are_apart() -> None:
    cases = [
        case(Source.ARRAY, 102.0, 102.0),  # as good as at once, as was said
        case(Source.ARRAY, 102.1, 102.0),
        case(Source.ARRAY, 102.0, 102.1),
        case(Source.ARRAY, None, 101.0),
        case(None, 150.0, 150.0),
        case(Source.UNKNOWN, 150.0, None),
        Case(1, 100.0, None, Source.UNKNOWN, end=Span(1.0, 2.0, 3.0), ended_s=140.0),
        Case(1, 100.0, None, Source.GIVEN, end=Span(1.0, 2.0, 3.0), ended_s=140.0),
        Case(1, 100.0, None, Source.PROGRESS, end=Span(1.0, 110.0, 3.0), ended_s=140.0),
    ]
    found = Checked(9, cases, 2, True)
    assert [(one.what, one.source, one.cases, one.off) for one in found.errors()] == [
        ("start", "did not wait", 1, 0.0),
        ("start", "nothing", 1, 0.0),
        ("start", "array", 3, pytest.approx(0.1 / 2.0)),
        ("end", "given", 1, 138.0 / 40),
        ("end", "progress", 1, 30.0 / 40),
        ("end", "unknown", 1, 138.0 / 40),
    ]
    told = backtest.as_json(found)
    assert {key: told[key] for key in ("submissions", "checked", "failed", "interrupted")} == {
        "submissions": 9, "checked": 9, "failed": 2, "interrupted": True,
    }  # fmt: skip
    assert told["errors"][1] == {
        "what": "start",
        "source": "nothing",
        "cases": 1,
        "unknown": 0,
        "error_s": {"p10": 0.0, "p50": 0.0, "p90": 0.0},
        "abs_error_s": {"p10": 0.0, "p50": 0.0, "p90": 0.0},
        "relative_error": 0.0,
        "ranges": 0,
        "within": None,
        "width_s": None,
    }


def event(number: int, kind: str = "jobs.submitted", at_s: float = 5.0, **data: Any) -> Event:
    return Event(number, at_s, kind, 1, data)


@pytest.mark.parametrize(
    ("sample", "chosen"), [(200, {1, 2, 3, 4, 5}), (5, {1, 2, 3, 4, 5}), (2, {1, 3}), (1, {1}), (0, set())]
)
def test_the_sample_is_taken_evenly(sample: int, chosen: set[int]) -> None:
    events = [event(number) for number in range(1, 6)]
    events += [event(6, at_s=4.9), event(7, held=True), event(8, "job.held")]
    found, checked, _ = backtest._chosen(events, 5.0, sample)
    assert (found, checked.submissions) == (chosen, 5)
    assert backtest._chosen(events, -math.inf, 200)[1].submissions == 6


@pytest.mark.parametrize(
    ("kind", "phase", "reason", "times", "watched"),
    [
        ("attempt.starting", Phase.STARTING, None, (5.0, None), True),
        ("job.updated", Phase.QUEUED, None, (None, None), False),
        ("job.held", Phase.HELD, None, (None, None), False),
        ("job.requeued", Phase.QUEUED, None, (None, None), False),
        ("job.cancelled", Phase.CANCELLED, None, (None, None), False),
        ("attempt.ended", Phase.FINISHED, EndReason.FINISHED, (None, 7.0), False),
        ("attempt.ended", Phase.FAILED, EndReason.TIMED_OUT, (None, None), False),
        ("attempt.ended", Phase.QUEUED, None, (None, None), True),
        ("attempt.running", Phase.RUNNING, None, (None, None), True),
    ],
)
def test_what_happened_to_a_job(
    kind: str, phase: Phase, reason: EndReason | None, times: tuple[float | None, float | None], watched: bool
) -> None:
    one = case(None, None, None)
    open_cases = {1: one}
    backtest._happened(one, event(1, kind), record(id=1, phase=phase, reason=reason, ended_s=7.0), open_cases)
    assert ((one.started_s, one.ended_s), 1 in open_cases) == (times, watched)


def test_the_first_start_counts() -> None:
    one = case(None, None, 3.0)
    backtest._happened(one, event(1, "attempt.starting"), record(), {1: one})
    assert one.started_s == 3.0
