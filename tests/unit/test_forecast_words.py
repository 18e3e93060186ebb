"""Forecasts in words: which sentence stands for which numbers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fake_views import record
from gpuloom.live.forecasts import words
from gpuloom.live.forecasts.forecast import Outlook, Span
from gpuloom.live.forecasts.left import Left
from gpuloom.live.forecasts.preview import Preview
from gpuloom.live.planning.estimates import Source

GIVEN = Left(Source.GIVEN, 100.0, 0.0)
DAY = 86_400.0


@pytest.fixture(autouse=True)
def _in_greenwich(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("source", "runs", "text"),
    [
        (Source.GIVEN, 0, "its user's estimate"),
        (Source.GIVEN, 1, "its user's estimate, corrected by how 1 earlier one turned out"),
        (Source.ARRAY, 2, "2 members of its array that finished"),
        (Source.ARRAY, 0, "its array"),
        (Source.EARLIER_RUNS, 2, "2 earlier runs of a"),
        (Source.EARLIER_RUNS, 0, "earlier runs of a"),
        (Source.PROGRESS, 0, "its own report of progress"),
        (Source.TIME_LIMIT, 0, "its time limit, an upper bound"),
    ],
)
def test_what_it_rests_on(source: Source, runs: int, text: str) -> None:
    assert words.source(replace(GIVEN, source=source, runs=(5.0,) * runs), record(name="a.3")) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (100.0, 105.0, "about 1m 45s"),  # within a twentieth
        (100.0, 106.0, "1m 40s to 1m 46s"),
        (0.0, 1.0, "about 1s"),
        (0.5, 1.6, "at most 1.6s"),
        (1.0, 3.0, "1s to 3s"),
    ],
)
def test_one_duration_says_what_two_would(low: float, high: float, text: str) -> None:
    assert words.span(low, high) == text
    first, last = words.clock(1000.0 + low, 1000.0), words.clock(1000.0 + high, 1000.0)
    one = text.startswith("about")
    assert words.clocks(1000.0 + low, 1000.0 + high, 1000.0) == (first if one else f"{first} to {last}")


def test_a_time_that_is_far_has_a_date() -> None:
    assert words.clock(DAY / 2, 0.0) == "12:00:00"
    assert words.clock(DAY / 2 + 1, 0.0) == "1970-01-01 12:00"
    assert words.clock(2 * DAY, 2 * DAY - 60) == "00:00:00"


def test_the_place_in_the_queue() -> None:
    def said(waiting: int, **fields: Any) -> str:
        return words.position(Outlook(GIVEN, **fields), waiting)

    assert said(1, position=1) == "It is next to start; 1 job waits of its priority or a higher one."
    assert said(9, position=1, pace=2.0).startswith("It is next to start; 9 jobs wait ")
    assert said(9, position=2).startswith("It is number 2 in the order")
    assert said(9_000, position=1_234, pace=1.5).startswith("It is about number 1,234 in the order")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"cause": "no"}, "The start can't be predicted: no."),
        ({"start": Span(60, 61, 62)}, "It is expected to start in about 1m 02s (00:01:00)."),
        (
            {"start": Span(60, 80, 120)},
            "It is expected to start in 1m 00s to 2m 00s (00:01:00 to 00:02:00), most likely in about 1m 20s.",
        ),
        ({"start": Span(60, None, 120)}, "It is expected to start in 1m 00s to 2m 00s (00:01:00 to 00:02:00)."),
        (
            {"start": Span(None, 80, None)},
            "It is expected to start in about 1m 20s (00:01:20); there was no time to compute a range.",
        ),
        ({"start": Span(60)}, "It will not start before 00:01:00 (in 1m 00s); when it will is unknown."),
        ({"start": Span(1.0)}, "When it will start is unknown."),
        (
            {"unknown": (4, 5)},
            "When it will start is unknown: the running time of job 4 (d), job 5 (?) is unknown (none of its earlier "
            "runs has finished, and it has no --estimate).",
        ),
        (
            {"unknown": tuple(range(4, 9))},
            "When it will start is unknown: the running time of job 4 (d), job 5 (?), job 6 (?) and 2 more is unknown "
            "(none of its earlier runs has finished, and it has no --estimate).",
        ),
    ],
)
def test_when_it_starts(fields: dict[str, Any], text: str) -> None:
    assert words.start(Outlook(GIVEN, **fields), {4: "d"}, 0.0) == text


@pytest.mark.parametrize(
    ("left", "end", "text"),
    [
        (GIVEN, Span(200, 210, 220), " about 1m 40s (its user's estimate) and ends in 3m 20s to 3m 40s"),
        (GIVEN, Span(None, 210, None), " about 1m 40s (its user's estimate) and ends in about 3m 30s (00:03:30)."),
        (GIVEN, Span(200), " about 1m 40s (its user's estimate) and does not end before 00:03:20."),
        (GIVEN, Span(), " about 1m 40s (its user's estimate)."),
        (Left(Source.TIME_LIMIT, 9.0, 0.0, most_s=60.0), Span(1, 2, 3), " 1m 00s at most (its time limit); none of "),
    ],
)
def test_how_long_it_runs_and_when_it_ends(left: Left, end: Span, text: str) -> None:
    assert words.own(Outlook(left, end=end), record(), 0.0).startswith(f"It then runs for{text}")


def test_of_one_that_runs() -> None:
    def said(left: Left, *seconds: float | None) -> str:
        low, median, high = seconds
        return words.end_of_one_that_runs(left, record(), (low, median, high), 0.0)

    assert said(GIVEN, 60.0, 61.0, 62.0) == (
        "It is expected to end in about 1m 02s (00:01:00), by its user's estimate."
    )
    unknown = "When it ends is unknown: none of its earlier runs has finished, and it has no --estimate"
    assert said(Left(Source.UNKNOWN, 9.0, 0.0), None, None, None) == f"{unknown}."
    assert said(Left(Source.TIME_LIMIT, 9.0, 0.0), None, None, 60.0) == (
        f"{unknown}, but in 1m 00s at the latest (its time limit)."
    )
    late = "It runs 30s longer than its user's estimate said, so when it ends can't be said"
    assert said(replace(GIVEN, overrun_s=30.0), None, None, None) == f"{late}."
    assert said(replace(GIVEN, overrun_s=30.0), 1.0, 2.0, 3.0) == f"{late}, but in 3s at the latest (its time limit)."


def test_what_is_taken_for_granted() -> None:
    def said(gated: bool = False, lower: int = 0, **fields: Any) -> list[str]:
        preview = SimpleNamespace(
            planning=SimpleNamespace(seat=SimpleNamespace(written="srtf", interval_s=90.0)),
            gated=gated,
            overhead_s=12.0,
            lower=lower,
        )
        return words.assumptions(Outlook(GIVEN, **fields), cast(Preview, preview))

    always = ["until then no job is submitted, cancelled or changed, and no machine fails"]
    plain = [*always, "policy srtf stays in use", "each start costs 12s"]
    assert said() == plain
    gated = "policy srtf stays in use, preempting jobs at multiples of 1m 30s"
    assert said(gated=True) == [*always, gated, "each start costs 12s"]
    ranges = "a range covers eight of ten cases, if all of this holds"
    rests_on = {Source.PROGRESS: 1_000, Source.GIVEN: 2}
    assert said(start=Span(1, 2, 3), end=Span(5, 5, 5), rests_on=rests_on) == [
        ranges,
        "running times of jobs that run or go before it: 2 by their users' estimates, 1,000 by their own reports of "
        "progress",
        *plain,
    ]
    assert said(start=Span(5, 5, 5), end=Span(4, 5, 5)) == [ranges, *plain]
    assert said(start=Span(5, 5, 5), end=Span(4, None, 5)) == plain
    late = "running longer than expected: {}; each is assumed to run on about as long as it is late"
    assert said(late=(3, 4, 5), lower=1_500, pace=2.6) == [
        *plain,
        late.format("3, 4, 5"),
        "waiting jobs of lower priority (1,500) are left out",
        "one job in 3 of the queue was simulated, and stands for the rest",
    ]
    assert said(late=(3, 4, 5, 6)) == [*plain, late.format("3, 4, 5…")]
