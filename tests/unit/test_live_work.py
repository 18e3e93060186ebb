"""Work done by runs, as they report it and as it is expected, and what is left of it."""

from __future__ import annotations

import pytest

from gpuloom.live.planning.estimates import NOW_S, left_s, stands_s
from gpuloom.live.records.work import WorkDone


def test_start_up_is_no_work_once_it_was_reported() -> None:
    work = WorkDone()
    work.begin(1, 100.0)
    assert work.of(1, 110.0) == 10.0
    work.started_up(1, 104.0)
    assert work.of(1, 110.0) == 6.0
    work.started_up(1, 108.0)  # said again: the first counts
    assert work.of(1, 110.0) == 6.0
    assert work.of(1, 102.0) == 0.0


def test_a_run_that_has_said_nothing_is_expected_to_start_up_in_the_usual_time() -> None:
    work = WorkDone()
    assert work.usual_s is None
    for job, took in enumerate((3.0, 1.0, 9.0)):
        work.begin(job, 100.0)
        work.started_up(job, 100.0 + took)
    assert work.usual_s == 3.0
    work.begin(7, 200.0)
    assert (work.starting_s(7, 201.0), work.expected(7, 201.0)) == (2.0, 0.0)
    assert (work.starting_s(7, 205.0), work.expected(7, 205.0)) == (0.0, 2.0)
    assert work.of(7, 205.0) == 5.0  # what is written down stays without guesses
    work.started_up(7, 201.0)
    assert (work.starting_s(7, 200.5), work.expected(7, 205.0)) == (0.0, 4.0)
    assert work.starting_s(99, 205.0) == 0.0  # one that does not run


def test_sharing_slows_work_down_from_then_on() -> None:
    work = WorkDone()
    work.at(100.0)
    work.begin(1, 100.0)
    work.at(110.0)
    work.rate(1, 0.5)
    assert work.of(1, 120.0) == 15.0


def test_an_old_report_is_not_taken_for_a_new_one() -> None:
    """Half done after 10 s of work means 20 s in all, also when it is looked at 5 s later."""
    work = WorkDone()
    work.begin(1, 100.0)
    work.report(1, 0.5, 110.0, 0.0)
    assert left_s(3600.0, work.of(1, 115.0), work.told_s[1]) == pytest.approx(5.0)
    assert left_s(3600.0, work.of(1, 130.0), work.told_s[1]) == pytest.approx(10.0)  # as late again
    work.end(1)
    assert work.told_s == {}


def test_a_report_counts_what_earlier_runs_have_done() -> None:
    work = WorkDone()
    work.begin(1, 100.0)
    work.report(1, 0.75, 110.0, 20.0)
    assert work.told_s[1] == pytest.approx(40.0)


def test_a_job_that_was_requeued_is_not_taken_to_have_done_a_third_in_a_moment() -> None:
    """It goes on from its checkpoint at 31 %: only what it gains since then tells how fast it is."""
    work = WorkDone()
    work.begin(1, 100.0)
    work.report(1, 0.31, 100.5, 0.0, again=True)
    assert work.told_s == {}
    work.report(1, 0.41, 106.5, 0.0, again=True)
    assert left_s(3600.0, work.of(1, 106.5), work.told_s[1]) == pytest.approx(35.4)
    work.end(1)
    work.begin(1, 200.0)
    work.report(1, 0.0, 200.5, 0.0, again=True)  # or it begins anew
    work.report(1, 0.1, 206.5, 0.0, again=True)
    assert left_s(3600.0, work.of(1, 206.5), work.told_s[1]) == pytest.approx(54.0)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.5, 0.04])
def test_a_report_that_tells_nothing_or_too_little_is_passed_over(fraction: float) -> None:
    work = WorkDone()
    work.begin(1, 100.0)
    work.report(1, fraction, 110.0, 0.0)
    assert work.told_s == {}


def test_a_small_part_of_long_work_is_enough() -> None:
    work = WorkDone()
    work.begin(1, 100.0)
    work.report(1, 0.01, 160.0, 0.0)
    assert work.told_s == {1: pytest.approx(6000.0)}


def test_without_reports_the_estimate_counts_until_it_is_outlived() -> None:
    assert left_s(100.0, 30.0) == 70.0
    assert left_s(100.0, 100.0) == left_s(100.0, 109.9) == NOW_S


def test_after_its_tolerance_an_overrun_is_expected_to_double() -> None:
    """A tenth of the estimate is small; then a job is expected to end 20, 40, 80, … s after the estimate."""
    assert [left_s(100.0, 100.0 + over) for over in (10.0, 15.0, 20.0, 25.0, 39.0)] == [10.0, 5.0, 20.0, 15.0, 1.0]
    assert left_s(0.5, 5.0) == NOW_S  # of short jobs, ten seconds
    assert left_s(0.5, 11.5) == pytest.approx(9.0)


@pytest.mark.parametrize("told_s", [None, 100.0])
def test_an_expected_end_stands_until_it_has_been_overrun(told_s: float | None) -> None:
    total_s = 100.0 if told_s is None else 7.0
    assert stands_s(total_s, 30.0, told_s) == 10.0
    assert stands_s(total_s, 104.0, told_s) == 6.0
    assert stands_s(total_s, 115.0, told_s) == 0.0


def test_work_at_several_rates_adds_up() -> None:
    work = WorkDone()
    for at_s, rate in ((100.0, 0.5), (110.0, 2.0), (114.0, 0.25)):
        work.at(at_s)
        if at_s == 100.0:
            work.begin(1, at_s)
        work.rate(1, rate)
    assert work.of(1, 118.0) == 10 * 0.5 + 4 * 2.0 + 4 * 0.25
