"""Two equal long jobs that each want the whole machine: who gets it, as docs/explanation/live.md says."""

from __future__ import annotations

import pytest

from gpuloom.core.job import ACTIVE
from gpuloom.live.trial.rehearsal import Rehearsal

HOUR_S = 3600.0


def held_s(policy: str) -> list[float]:
    """For how long each of the two has had the GPUs within an hour."""
    live = Rehearsal(policy, models=["V100"] * 2, interval_s=360.0)
    jobs = live.submit({"gpus": 2, "estimate": 1e6}, {"gpus": 2, "estimate": 1e6})
    found = dict.fromkeys(jobs, 0.0)
    for _ in range(int(HOUR_S / 10)):
        live.later(10.0)
        for job in jobs:
            found[job] += 10.0 * (live.jobs[job].phase in ACTIVE)
    assert not live.scheduler.problem
    assert sum(found.values()) == HOUR_S
    return list(found.values())


@pytest.mark.parametrize(("policy", "turn_s"), [("themis", 1200.0), ("themis:lease=60s", 60.0), ("gavel", 720.0)])
def test_they_take_turns(policy: str, turn_s: float) -> None:
    first, second = held_s(policy)
    assert abs(first - second) <= turn_s


@pytest.mark.parametrize(
    "policy", ["fifo", "fifo:backfill=easy", "srtf", "muri-l", "muri-xl", "weave", "hlas", "antman"]
)
def test_one_waits_for_the_other(policy: str) -> None:
    assert max(held_s(policy)) >= 0.95 * HOUR_S
