"""When something may be started after a start failed by a fault of the surroundings."""

from __future__ import annotations

import math

from gpuloom.live.dispatch.starts import ASIDE, FIRST_PAUSE_S, MOST_PAUSE_S, STALE_S, Starts


def failed(starts: Starts, run: str, job: int, now_s: float) -> None:
    starts.failed(run, job, now_s, everywhere=True, why="no space")


def test_one_at_a_time_at_growing_pauses_until_one_begins() -> None:
    starts = Starts()
    assert starts.allowed(0.0) == math.inf
    for job in (1, 2, 3, 4):
        starts.asked(f"{job}.1")
    for job in (1, 2, 3, 4):  # together they count as one
        failed(starts, f"{job}.1", job, 10.0)
    now, pauses = 10.0, []
    for attempt in range(2, 12):
        assert starts.allowed(now) == 0
        pauses.append(starts.next_s(waiting=True) - now)
        now = starts.next_s(waiting=True)
        assert starts.allowed(now) == 1
        starts.asked(f"1.{attempt}")
        assert starts.allowed(now) == 0
        failed(starts, f"1.{attempt}", 1, now)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert max(pauses) == MOST_PAUSE_S
    assert "no space" in starts.problem
    starts.asked("2.2")
    starts.began("2.2", 2)
    assert (starts.problem, starts.allowed(now)) == ("", math.inf)


def test_the_last_of_a_group_is_no_further_failure() -> None:
    starts = Starts()
    group = [f"{job}.1" for job in (1, 2, 3)]
    for run in group:
        starts.asked(run)
    for job, run in enumerate(group, start=1):
        assert starts.pause_s(run, job, everywhere=True) == ASIDE * FIRST_PAUSE_S
        failed(starts, run, job, 5.0)
        assert starts.next_s(waiting=True) == (math.inf if run != group[-1] else 5.0 + FIRST_PAUSE_S)
    starts.asked("1.2")
    assert starts.pause_s("1.2", 1, everywhere=True) == ASIDE * 2 * FIRST_PAUSE_S


def test_one_that_begins_after_the_others_failed_ends_the_trouble_and_what_was_counted() -> None:
    starts = Starts()
    for run in ("1.1", "2.1", "3.1"):
        starts.asked(run)
    failed(starts, "1.1", 1, 0.0)
    starts.began("2.1", 2)
    assert starts.problem == ""
    failed(starts, "3.1", 3, 0.0)  # the trouble is back: a first failure
    assert starts.next_s(waiting=True) == FIRST_PAUSE_S


def test_a_fault_of_one_place_keeps_its_job_alone() -> None:
    starts = Starts()
    starts.asked("1.1")
    assert starts.pause_s("1.1", 1, everywhere=False) == FIRST_PAUSE_S
    starts.failed("1.1", 1, 0.0, everywhere=False, why="its disk is dead")
    assert (starts.problem, starts.allowed(0.0)) == ("", math.inf)
    assert starts.pause_s("1.2", 1, everywhere=False) == 2 * FIRST_PAUSE_S
    assert starts.pause_s("2.1", 2, everywhere=True) == ASIDE * FIRST_PAUSE_S


def test_with_nothing_to_start_it_is_forgotten() -> None:
    starts = Starts()
    starts.asked("1.1")
    failed(starts, "1.1", 1, 0.0)
    assert starts.next_s(waiting=False) == STALE_S
    assert starts.allowed(STALE_S) == math.inf
    assert starts.problem == ""
