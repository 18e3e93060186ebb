"""bench/forecasts.py: a history that is drawn, told as a log, and the forecasts beside it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import forecasts
from gpuloom.core.book import Book
from gpuloom.core.job import Phase
from gpuloom.sim.simulator import simulate


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_the_log_is_one_that_a_scheduler_could_have_written(policy: str) -> None:
    workload, specs = forecasts.drawn(60, seed=3, load=1.5)
    settings = {"interval_s": forecasts.INTERVAL_S, "restart_overhead_s": 1.0, "record_segments": True}
    result = simulate(workload, f"1x{forecasts.GPUS}:V100", policy, **settings)
    book = Book()
    for event in forecasts.log_of(result, specs, policy, forecasts.GPUS):
        book.commit(book.stage([event]))
    assert len(book.jobs) == 60
    assert {job.phase for job in book.jobs.values()} == {Phase.FINISHED}


@pytest.mark.slow
def test_ranges_hold_about_as_often_as_they_say() -> None:
    """Where nobody passes anybody and runs of a kind are known, eight of ten; never far less."""
    workload, specs = forecasts.drawn(400, seed=5, load=0.9)
    found = forecasts.history(workload, specs, "fifo", forecasts.GPUS, sample=80)
    by_runs = [one for one in found.errors() if one.source == "earlier_runs"]
    assert {one.what for one in by_runs} == {"start", "end"}
    for one in by_runs:
        assert one.cases >= 20
        assert one.unknown <= 0.1 * one.cases  # a busy machine has no time for some
        assert one.within is not None
        assert one.within >= 0.6
    assert found.failed == 0
    assert "earlier_runs" in forecasts.table(found)
