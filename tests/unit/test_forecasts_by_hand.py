"""Forecasts on a clock that stands still, worked out by hand: every start costs a second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import pytest

from gpuloom.core.job import Phase
from gpuloom.live.forecasts.left import HIGH, LOW, MIDDLE, Left, left_of
from gpuloom.live.planning.estimates import MOST_S, Estimate, Source, like_of
from gpuloom.live.trial import rehearsal
from gpuloom.live.trial.rehearsal import Rehearsal
from gpuloom.live.views.job_answers import WhyView
from gpuloom.sharing.start import Ability
from live_builders import spec

Row = tuple[int | None, tuple[float | None, ...], tuple[float | None, ...], list[int], dict[str, int]]
NO = (None, None, None)


def have_run(live: Rehearsal, name: str, work_s: list[float]) -> None:
    """Jobs of this name have ended."""
    like = like_of(spec(name=name, workdir="/").named().kept(), "ann", 1, None)
    live.scheduler.estimates.of(like, given_s=None, time_limit_s=None)
    for one in work_s:
        live.scheduler.estimates.finished(like, one)


def row(live: Rehearsal, job: int) -> Row:
    """(position, start, end, unknown, what it rests on); times from now on."""
    found: WhyView = live.service.why(job)

    def span(what: str) -> tuple[float | None, ...]:
        at = [found[f"{what}_s_{part}"] for part in ("low", "median", "high")]  # type: ignore[literal-required]
        return tuple(None if one is None else round(one - live.now_s, 3) for one in at)

    return found["position"], span("start"), span("end"), found["unknown"], dict(found["rests_on"])


def queue(*jobs: dict[str, Any], policy: str = "fifo", later_s: float = 10.0, gpus: int = 1) -> Rehearsal:
    """The first of these jobs runs when the others come."""
    live = Rehearsal(policy, models=["V100"] * gpus)
    live.submit(jobs[0])
    for job in jobs[1:]:
        live.submit(job)
    live.later(later_s)
    return live


E100, E50, E20, UNKNOWN = {"estimate": 100.0}, {"estimate": 50.0}, {"estimate": 20.0}, dict[str, Any]()

QUEUES: list[tuple[str, list[dict[str, Any]], dict[str, Any], dict[int, Row]]] = [
    (
        "one after the other; what comes after a job of which nothing is known has a least time alone",
        [E100, E50, UNKNOWN, E20],
        {},
        {
            2: (1, (90, 90, 90), (141, 141, 141), [], {"given": 1}),
            3: (2, (141, 141, 141), NO, [], {"given": 2}),
            4: (3, (142.001, None, None), (163.001, None, None), [3], {"given": 2, "unknown": 1}),
        },
    ),
    (
        "time limits bound both",
        [{"time_limit": 60.0}, E50, {"time_limit": 30.0}, E20],
        {},
        {
            2: (1, (0.001, None, 50), (51.001, None, 101), [1], {"time_limit": 1}),
            3: (2, (51.001, None, 101), NO, [1], {"time_limit": 1, "given": 1}),
            4: (3, (52.002, None, 132), (73.002, None, 153), [1, 3], {"time_limit": 2, "given": 1}),
        },
    ),
    (
        "on two GPUs a known end bounds the start, whatever the unknown job does",
        [E100, UNKNOWN, E50, E20],
        {"gpus": 2},
        {
            3: (1, (0.001, None, 90), (51.001, None, 141), [2], {"given": 1, "unknown": 1}),
            4: (2, (51.001, None, 141), (72.001, None, 162), [2], {"given": 2, "unknown": 1}),
        },
    ),
    (
        "an unknown job behind it does not matter",
        [E100, E50, UNKNOWN],
        {},
        {2: (1, (90, 90, 90), (141, 141, 141), [], {"given": 1})},
    ),
    (
        "one that is late goes on for as long as it is late, in half of all cases longer",
        [{"estimate": 10.0}, E50],
        {"later_s": 20.0},
        {2: (1, (1.167, 10.5, 94.5), (52.167, 61.5, 145.5), [], {"given": 1})},
    ),
    (
        "jobs that may be stopped: the end is the simulator's own",
        [E50, E100, E20],
        {"policy": "srtf", "later_s": 10.0},
        {
            3: (1, (10, 10, 10), (31, 31, 31), [], {"given": 1}),  # at the next full minute
            2: (2, (62, 62, 62), (163, 163, 163), [], {"given": 2}),  # the first one has 30 s left then
        },
    ),
    (
        "what has a higher priority goes first, what has a lower one is left out",
        [E100, E50, {**E20, "priority": 5}, {**E20, "priority": -5}],
        {},
        {
            2: (2, (111, 111, 111), (162, 162, 162), [], {"given": 2}),
            3: (1, (90, 90, 90), (111, 111, 111), [], {"given": 1}),
            4: (3, (162, 162, 162), (183, 183, 183), [], {"given": 3}),
        },
    ),
    (
        "members of an array that is throttled: one for each that ends",
        [{**E100, "array": "0-4%2"}],
        {"gpus": 3},
        {
            3: (1, (90, 90, 90), (191, 191, 191), [], {"given": 2}),
            4: (2, (90, 90, 90), (191, 191, 191), [], {"given": 2}),
            5: (3, (190, 190, 190), (291, 291, 291), [], {"given": 2}),
        },
    ),
    (
        "and where nothing is known of them: those that come at once are bounded by those that run",
        [{"array": "0-2%1", "time_limit": 60.0}],
        {"gpus": 2},
        {2: (1, (0.001, None, 50), NO, [1], {"time_limit": 1}), 3: (2, (0.002, None, 110), NO, [1], {"time_limit": 1})},
    ),
]


@pytest.mark.parametrize(("what", "jobs", "how", "rows"), QUEUES, ids=[what for what, *_ in QUEUES])
def test_queues(
    what: str, jobs: list[dict[str, Any]], how: dict[str, Any], rows: Mapping[int, Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how.get("alone", True):  # else jobs may come beside others, and what is then their speed is simulated
        monkeypatch.setattr(rehearsal, "Ability", lambda *_: Ability(False, False, "not here"))
    live = queue(*jobs, **{name: value for name, value in how.items() if name != "alone"})
    assert {job: row(live, job) for job in rows} == dict(rows)


def test_earlier_runs_make_a_range() -> None:
    """Of 19 runs that took 100 to 118 s the quantiles are two, ten and eighteen twentieths on."""
    live = Rehearsal("fifo", models=["V100"])
    have_run(live, "first", [float(100 + n) for n in range(19)])
    live.submit({"name": "first"}, E50)
    live.later(10.0)
    assert row(live, 2) == (1, (91, 99, 107), (142, 150, 158), [], {"earlier_runs": 1})
    runs = live.service.why(1)
    assert [runs[key] - live.now_s for key in ("end_s_low", "end_s_median", "end_s_high")] == [91, 99, 107]


def cause(live: Rehearsal, job: int) -> str:
    return next(text for text in live.service.why(job)["sentences"] if text.startswith("The start"))


def test_what_a_job_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start is bounded by what it waits for; what can't come is said."""
    monkeypatch.setattr(rehearsal, "Ability", lambda *_: Ability(False, False, "not here"))
    live = queue(E100, {**E50, "after": [1]}, {**E20, "after": [2]}, UNKNOWN, {**E20, "after_any": [4]}, gpus=3)
    assert row(live, 2) == (1, (90, 90, 90), (141, 141, 141), [], {"given": 1, "unknown": 1})
    assert row(live, 3)[1:3] == (NO, NO)  # nor does what it waits for run
    assert row(live, 5)[1] == (0.001, None, None)
    live.tell(lambda: live.service.hold([2]))
    assert cause(live, 2) == "The start can't be predicted: it is held."
    assert cause(live, 3) == "The start can't be predicted: the jobs it waits for don't end in the forecast."
    live.tell(lambda: live.service.cancel([4]))
    live.tell(lambda: live.service.cancel([2]))
    assert live.jobs[3].phase is Phase.CANCELLED


def test_gpus_that_are_out_of_service() -> None:
    live = queue(E100, {**E50, "gpus": 2}, E20, gpus=2)
    live.gpus({1: "unhealthy"})
    assert cause(live, 2) == "The start can't be predicted: the GPUs it needs are not in service."
    assert row(live, 3) == (1, (90, 90, 90), (111, 111, 111), [], {"given": 1})


INF = math.inf
RUNS = tuple(float(100 + n) for n in range(19))
FEW = (90.0, 100.0, 110.0)


@pytest.mark.parametrize(
    ("left", "quantiles"),
    [
        (Left(Source.GIVEN, 100.0, 40.0), (60.0, 60.0, 60.0)),
        (Left(Source.GIVEN, 40.0, 40.0), (0.001, 0.001, 0.001)),
        (Left(Source.GIVEN, 100.0, 40.0, most_s=50.0), (50.0, 50.0, 50.0)),
        (Left(Source.GIVEN, 100.0, 40.0, most_s=0.0), (0.001, 0.001, 0.001)),
        (Left(Source.GIVEN, 1e12, 0.0), (MOST_S,) * 3),
        (Left(Source.GIVEN, 100.0, 140.0, overrun_s=40.0), (5.0, 45.0, 405.0)),
        (Left(Source.ARRAY, 100.0, 0.0, RUNS), (101.0, 109.0, 117.0)),
        (Left(Source.ARRAY, 100.0, 109.0, RUNS), (1.0, 5.0, 9.0)),  # nine took longer: 110 to 118
        (Left(Source.ARRAY, 100.0, 108.5, RUNS), (0.6, 5.0, 9.4)),
        (Left(Source.ARRAY, 100.0, 117.0, RUNS), (1.0, 1.0, 1.0)),
    ],
)
def test_what_is_left(left: Left, quantiles: tuple[float, ...]) -> None:
    assert [left.at(quantile) for quantile in (LOW, MIDDLE, HIGH)] == pytest.approx(list(quantiles))


def test_few_runs_follow_a_law() -> None:
    """One run of 100 s: a log-normal law with a deviation of a quarter, for one more run of two: by the root of 2."""
    one = Left(Source.EARLIER_RUNS, 100.0, 0.0, (100.0,))
    assert one.at(MIDDLE) == pytest.approx(100.0)
    assert one.at(HIGH) == pytest.approx(100.0 * math.exp(1.2815516 * 0.25 * math.sqrt(2.0)))
    three = Left(Source.EARLIER_RUNS, 100.0, 0.0, (math.exp(-1), 1.0, math.exp(1)))
    # squares: 1 + 1 + 2/16; four degrees; one more run: by 4/3
    assert three.at(HIGH) == pytest.approx(math.exp(1.2815516 * math.sqrt(2.125 / 4 * 4 / 3)))
    begun = Left(Source.EARLIER_RUNS, 100.0, 100.0, (100.0,))
    assert begun.at(MIDDLE) == pytest.approx(100.0 * math.exp(0.6744898 * 0.25 * math.sqrt(2.0)) - 100.0)


@pytest.mark.parametrize(
    ("estimate", "done", "told", "found"),
    [
        (Estimate(100.0, Source.GIVEN), 40.0, None, Left(Source.GIVEN, 100.0, 40.0)),
        (Estimate(100.0, Source.GIVEN, (), 150.0), 40.0, None, Left(Source.GIVEN, 100.0, 40.0, (), 110.0)),
        (Estimate(100.0, Source.GIVEN, (), 30.0), 40.0, None, Left(Source.GIVEN, 100.0, 40.0, (), 0.0)),
        (Estimate(100.0, Source.GIVEN), 100.0, None, Left(Source.GIVEN, 100.0, 100.0, (), INF, 0.001)),
        (Estimate(100.0, Source.GIVEN), 130.0, None, Left(Source.GIVEN, 100.0, 130.0, (), INF, 30.0)),
        (Estimate(100.0, Source.GIVEN), 130.0, 120.0, Left(Source.PROGRESS, 120.0, 130.0, (), INF, 10.0)),
        (Estimate(100.0, Source.GIVEN, (), 150.0), 130.0, 200.0, Left(Source.PROGRESS, 200.0, 130.0, (), 20.0, 0.0)),
        (Estimate(109.0, Source.ARRAY, RUNS), 117.9, None, Left(Source.ARRAY, 109.0, 117.9, RUNS)),
        (Estimate(109.0, Source.ARRAY, RUNS), 118.0, None, Left(Source.ARRAY, 118.0, 118.0, (), INF, 0.001)),
        (Estimate(109.0, Source.ARRAY, RUNS), 128.0, None, Left(Source.ARRAY, 118.0, 128.0, (), INF, 10.0)),
        (Estimate(100.0, Source.ARRAY, FEW), 0.0, None, Left(Source.ARRAY, 100.0, 0.0, FEW)),
        # 98 % end within exp(2.054 x 0.22) of their geometric mean, 99.7 s
        (Estimate(100.0, Source.ARRAY, FEW), 156.0, None, Left(Source.ARRAY, 100.0, 156.0, FEW)),
        (Estimate(100.0, Source.ARRAY, FEW), 157.0, None, Left(Source.ARRAY, 110.0, 157.0, (), INF, 47.0)),
    ],
)
def test_what_is_known_of_what_is_left(estimate: Estimate, done: float, told: float | None, found: Left) -> None:
    assert left_of(estimate, done, told) == found


@pytest.mark.parametrize(
    ("left", "known", "late", "spreads"),
    [
        (Left(Source.GIVEN, 1.0, 0.0), True, 0.0, False),
        (Left(Source.GIVEN, 1.0, 3.0, overrun_s=2.0), True, 2.0, True),
        (Left(Source.ARRAY, 1.0, 0.0, (1.0,)), True, 0.0, True),
        (Left(Source.UNKNOWN, 1.0, 3.0, overrun_s=2.0), False, 0.0, False),
        (Left(Source.TIME_LIMIT, 1.0, 3.0, (1.0,)), False, 0.0, False),
    ],
)
def test_what_a_left_says_of_itself(left: Left, known: bool, late: float, spreads: bool) -> None:
    assert (left.known, left.late_s, left.spreads) == (known, late, spreads)
