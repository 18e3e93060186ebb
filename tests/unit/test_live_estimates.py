"""What is known of a job's running time: whence, on how many runs, and what is left of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from gpuloom.core.spec import Spec
from gpuloom.live.forecasts.left import HIGH, LOW, MIDDLE, left_of
from gpuloom.live.planning.estimates import DEFAULT_S, MOST_S, Estimate, Estimates, Like, Source, like_of
from gpuloom.store.port import EndedRun


def like(*command: str, name: str = "train", gpus: int = 1, array: int | None = None, **spec: Any) -> Like:
    return like_of(Spec(command, name=name, **spec), "ann", gpus, array)


def known(one: Like, *runs: tuple[Like, float], given: float | None = None, limit: float | None = None) -> Estimate:
    """What is known of a job after these runs."""
    estimates = Estimates(lambda user, name, limit: ())
    estimates.of(one, given_s=None, time_limit_s=None)  # so that it remembers
    for other, work_s in runs:
        estimates.of(other, given_s=None, time_limit_s=None)
        estimates.finished(other, work_s)
    return estimates.of(one, given_s=given, time_limit_s=limit)


SLEEP = like("sleep", "100", name="sleep")


def test_of_unrelated_jobs_nothing_is_known() -> None:
    found = known(SLEEP, *[(like("sleep", "2", name="sleep"), 2.3)] * 5)
    assert (found.source, found.runs) == (Source.UNKNOWN, ())
    assert found.total_s == 2.3, "scheduling needs a number"
    assert known(SLEEP, (like("true", name="true"), 2.3)).source is Source.UNKNOWN
    assert known(SLEEP) == (DEFAULT_S, Source.UNKNOWN, (), None)


def test_runs_of_this_very_job() -> None:
    assert known(SLEEP, (SLEEP, 100.2), (SLEEP, 100.1))[1:3] == (Source.EARLIER_RUNS, (100.1, 100.2))


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (("python", "t.py", "--lr", "0.1"), ("python", "t.py", "--lr", "0.3"), True),
        (("python", "t.py", "--lr=1e-3"), ("python", "t.py", "--lr=0.3"), True),
        (("python", "t.py", "seed=1"), ("python", "t.py", "seed=2"), True),
        (("python", "t.py", "--epochs", "3"), ("python", "t.py", "--epochs", "300"), False),
        (("python", "t.py", "--data", "a"), ("python", "t.py", "--data", "b"), False),
        (("sh", "-c", "sleep 3"), ("sh", "-c", "sleep 30"), False),
        (("python", "t.py", "--lr=1"), ("python", "t.py", "--wd=1"), False),
        (("python", "t.py", "--lr=1"), ("python", "t.py"), False),
        (("python", "t.py", "3"), ("python", "t.py", "300"), False),
    ],
)
def test_numbers_of_options_may_differ_but_not_amounts(one: Sequence[str], other: Sequence[str], alike: bool) -> None:
    found = known(like(*one), (like(*other), 10.0))
    assert (found.source is Source.EARLIER_RUNS) is alike


def test_other_gpus_users_or_folders_are_other_jobs() -> None:
    one = like("python", "t.py", workdir="/a")
    assert known(one, (like("python", "t.py", workdir="/a", gpus=2), 9.0)).source is Source.UNKNOWN
    assert known(one, (like("python", "t.py", workdir="/b"), 9.0)).source is Source.UNKNOWN
    assert known(one, (like("python", "t.py", workdir="/a")._replace(user="bob"), 9.0)).source is Source.UNKNOWN


def test_the_same_command_to_the_letter_goes_before_one_with_other_numbers() -> None:
    one, other = like("t.py", "--lr", "1"), like("t.py", "--lr", "2")
    assert known(one, (one, 5.0), (other, 9.0), (other, 9.0)).runs == (5.0,)


def test_members_of_the_array_that_have_ended_say_most() -> None:
    mine, before = like("t.py", array=7), like("t.py", array=3)
    assert known(mine, (mine, 4.0))[1:3] == (Source.ARRAY, (4.0,))
    assert known(mine, (before, 9.0), (mine, 4.0))[1:3] == (Source.EARLIER_RUNS, (4.0, 9.0))
    assert known(mine, (before, 9.0), *[(mine, 4.0)] * 3)[1:3] == (Source.ARRAY, (4.0,) * 3)


def test_a_users_estimate_is_taken_as_that_users_estimates_turned_out() -> None:
    estimates = Estimates(lambda user, name, limit: ())
    estimates.of(SLEEP, given_s=None, time_limit_s=None)
    other = like("t.py")
    for work_s in (50.0, 80.0, 100.0):
        before = estimates.of(other, given_s=200.0, time_limit_s=None)
        estimates.finished(other, work_s, given_s=100.0)
    assert before.runs == (), "two are no record"
    found = estimates.of(SLEEP, given_s=10.0, time_limit_s=None)
    assert found == (10.0, Source.GIVEN, (5.0, 8.0, 10.0), None)
    assert known(SLEEP, given=10.0).runs == ()


def test_a_users_estimate_and_a_limit() -> None:
    assert known(SLEEP, (SLEEP, 90.0), given=120.0, limit=300.0) == (120.0, Source.GIVEN, (), 300.0)
    assert known(SLEEP, limit=300.0) == (300.0, Source.TIME_LIMIT, (), 300.0)
    assert known(SLEEP, (SLEEP, 90.0), limit=60.0) == (60.0, Source.EARLIER_RUNS, (90.0,), 60.0)


@pytest.mark.parametrize("poison", [1e17, math.inf, -1.0, 0.0, math.nan])
def test_numbers_that_no_gpuloom_wrote_break_nothing(poison: float) -> None:
    for given, limit in ((poison, None), (None, poison), (poison, poison)):
        found = known(SLEEP, (SLEEP, poison), given=given, limit=limit)
        assert 0 < found.total_s <= MOST_S
        left = left_of(found, 5.0)
        assert all(0 < left.at(quantile) <= MOST_S for quantile in (LOW, MIDDLE, HIGH))


def test_what_the_store_knows_is_asked_for_once_a_name() -> None:
    asked = []

    def earlier(user: str, name: str, limit: int) -> Sequence[EndedRun]:
        asked.append((user, name))
        spec = Spec(("sleep", "100"), name="sleep")
        return [EndedRun(1, work_s, None, spec) for work_s in (100.0, 102.0)]

    estimates = Estimates(earlier)
    for _ in range(3):
        found = estimates.of(SLEEP, given_s=None, time_limit_s=None)
    assert (found.source, found.runs, asked) == (Source.EARLIER_RUNS, (100.0, 102.0), [("ann", "sleep")])
    estimates.copy().finished(SLEEP, 1.0)
    assert estimates.of(SLEEP, given_s=None, time_limit_s=None).runs == (100.0, 102.0), "a copy is another's"


def test_names_that_were_asked_for_long_ago_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.live.planning.estimates.MOST_NAMES", 2)
    asked = []

    def earlier(user: str, name: str, limit: int) -> Sequence[EndedRun]:
        asked.append(name)
        return [EndedRun(1, 100.0, None, Spec(("sleep", "100"), name=name))]

    estimates = Estimates(earlier)
    for name in ("a", "b", "a", "c", "a", "b"):
        assert estimates.of(like("sleep", "100", name=name), given_s=None, time_limit_s=None).runs == (100.0,)
    assert asked == ["a", "b", "c", "b"], "of two the one that was asked for last stays"


def test_while_the_store_is_asked_others_go_on_and_a_run_that_ends_counts_once() -> None:
    spec = Spec(("sleep", "100"), name="sleep")
    stored = [EndedRun(1, 100.0, None, spec)]
    answers: list[Estimates] = []

    def earlier(user: str, name: str, limit: int) -> Sequence[EndedRun]:
        found = list(stored)
        if len(stored) == 1:  # another thread says meanwhile that one has ended: first to the store, then here
            stored.append(EndedRun(1, 300.0, None, spec))
            other = threading.Thread(target=estimates.finished, args=(SLEEP, 300.0))
            other.start()
            other.join(10.0)
            assert not other.is_alive(), "nobody waits for the store's answer"
        answers.append(estimates)
        return found

    estimates = Estimates(earlier)
    assert estimates.of(SLEEP, given_s=None, time_limit_s=None).runs == (100.0, 300.0)
    assert len(answers) == 2
    estimates.finished(SLEEP, 200.0)
    assert estimates.of(SLEEP, given_s=None, time_limit_s=None).runs == (100.0, 200.0, 300.0)


# -- what is left -----------------------------------------------------------------------------------------------------


def spread(estimate: Estimate, done_s: float = 0.0, told_s: float | None = None) -> list[float]:
    left = left_of(estimate, done_s, told_s)
    return [left.at(quantile) for quantile in (LOW, MIDDLE, HIGH)]


def of_runs(*runs: float) -> Estimate:
    return Estimate(10.0, Source.EARLIER_RUNS, tuple(sorted(runs)))


def test_many_runs_say_themselves_how_they_spread() -> None:
    nineteen = of_runs(*map(float, range(1, 20)))
    assert spread(nineteen) == [2.0, 10.0, 18.0]
    assert spread(nineteen, 10.0) == [1.0, 5.0, 9.0], "only those that took longer than it has run count"


def test_few_runs_spread_as_far_as_few_can_tell() -> None:
    one, same, wide = spread(of_runs(10.0)), spread(of_runs(*[10.0] * 9)), spread(of_runs(5.0, 20.0))
    assert one[1] == pytest.approx(10.0)
    assert one[0] < same[0] < 10.0 < same[2] < one[2], "the more runs, the surer"
    assert wide[0] < 5.0
    assert wide[2] > 20.0


def test_a_number_alone_has_no_range() -> None:
    given = Estimate(100.0, Source.GIVEN)
    assert spread(given, 40.0) == [60.0] * 3
    assert spread(given, 40.0, 50.0) == [10.0] * 3
    assert left_of(given, 40.0, 50.0).source is Source.PROGRESS


def test_who_has_outlived_what_was_known_is_late_and_goes_on_about_as_long() -> None:
    left = left_of(Estimate(100.0, Source.GIVEN), 160.0)
    assert (left.overrun_s, left.spreads) == (60.0, True)
    assert spread(Estimate(100.0, Source.GIVEN), 160.0)[1] == pytest.approx(65.0)
    assert left_of(of_runs(*[10.0] * 3), 500.0).overrun_s == 490.0
    assert left_of(of_runs(*map(float, range(1, 20))), 25.0).overrun_s == 6.0


def test_a_limit_bounds_what_is_left() -> None:
    assert spread(Estimate(100.0, Source.GIVEN, (), 120.0), 119.0)[2] == pytest.approx(1.0)
    assert not left_of(Estimate(300.0, Source.TIME_LIMIT, (), 300.0), 10.0).known
    assert left_of(Estimate(300.0, Source.TIME_LIMIT, (), 300.0), 10.0).most_s == 290.0
