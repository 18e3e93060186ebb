"""Levels of attained service, seen through tiresias; every time worked out by hand."""

from __future__ import annotations

import pytest

from builders import jobs
from gpuloom.sim import simulate
from gpuloom.sim.rebuilt import Rebuilt
from gpuloom.traces.generate import GeneratorConfig, generate


def ends(rows: list[tuple[float, float, int]], cluster: str = "1x1", policy: str = "tiresias", overhead: float = 0.0):
    return simulate(jobs(rows), cluster, policy, interval_s=0.0, restart_overhead_s=overhead).end_s.tolist()


def test_a_job_sinks_when_its_service_reaches_the_first_limit() -> None:
    # 0: Q1 to 3250. 1: Q1 3250-6500. Then both in Q2, 0 first: 1750 left, to 8250; 1: 1750 left, to 10000.
    assert ends([(0, 5000, 1), (0, 5000, 1)]) == [8250, 10000]


def test_a_job_sinks_again_at_the_second_limit() -> None:
    # 0: 0-3250, then (after 1's 3250) 6500-10450, where its service is 7200: Q3. 1 in Q2 has 750 left: 11200.
    assert ends([(0, 10000, 1), (0, 4000, 1)]) == [14000, 11200]


def test_service_counts_gpus() -> None:
    # Two GPUs reach 3250 GPU-seconds after 1625 s.
    assert ends([(0, 2000, 2), (1, 100, 2)], "1x2") == [2100, 1725]


def test_restart_overhead_counts_as_service() -> None:
    # 0 holds its GPU from 0, works from 10; sinks at 3250 with 3240 done. 1: 3250-3360. 0: 10 + 760 more.
    assert ends([(0, 4000, 1), (1, 100, 1)], overhead=10.0) == [4130, 3360]


def test_first_in_first_out_within_a_queue() -> None:
    assert ends([(0, 100, 1), (1, 100, 1), (2, 10, 1)]) == [100, 200, 210]


def test_a_newcomer_stops_a_job_of_a_lower_queue_at_once() -> None:
    assert ends([(0, 5000, 1), (4000, 100, 1)]) == [5100, 4100]


def test_equals_never_stop_each_other() -> None:
    result = simulate(
        jobs([(0, 3000, 1), (1, 3000, 1), (2, 3000, 1)]), "1x1", "tiresias", interval_s=0.0, restart_overhead_s=0.0
    )
    assert result.restarts == 0


def test_a_stopped_job_goes_ahead_of_those_that_came_later_in_its_queue() -> None:
    # 0 sinks at 3250 and goes on, as nobody waits; 1 stops it at 3300 and sinks itself at 6550, behind 0: 0 has 700
    # left (7250), then 1 has 750 left (8000).
    assert ends([(0, 4000, 1), (3300, 4000, 1)]) == [7250, 8000]


def test_own_limits() -> None:
    assert ends([(0, 50, 1), (0, 50, 1)], policy="tiresias:thresholds=10") == [60, 100]


def test_without_promotion_a_sunk_job_waits_for_all_newcomers() -> None:
    rows = [(0, 5000, 1), (0, 3000, 1), (0, 3000, 1), (7000, 3000, 1)]
    assert ends(rows) == [14000, 6250, 9250, 12250]


def test_a_job_that_waited_as_long_as_it_ran_is_promoted() -> None:
    # 0 ran 3250 s and is stopped at 3250: promoted at 6500, so before 3, which comes at 7000.
    rows = [(0, 5000, 1), (0, 3000, 1), (0, 3000, 1), (7000, 3000, 1)]
    assert ends(rows, policy="tiresias:promote=1") == [11000, 6250, 9250, 14000]
    assert ends(rows, policy="tiresias:promote=2") == ends(rows), "at 9750 it is too late to pass 3"


def test_a_promoted_job_has_its_service_counted_anew() -> None:
    # 0: Q1 0-10 (limit 10), 1: 10-20, both sunk, 2 comes at 20 and goes on to 30, sinks. 0 waited 10 at 20: promoted
    # at 20, runs behind 2 (came first) and may hold 10 s more before it sinks again.
    policy = "tiresias:thresholds=10;promote=1"
    result = simulate(jobs([(0, 25, 1), (0, 10, 1)]), "1x1", policy, interval_s=0.0, restart_overhead_s=0.0)
    assert result.end_s.tolist() == [35, 20]


@pytest.mark.parametrize("policy", ["tiresias", "tiresias:scatter=yes"])
def test_scatter_spreads_a_gang_over_nodes(policy: str) -> None:
    result = ends([(0, 100, 1), (0, 100, 1), (0, 50, 1), (0, 50, 1), (1, 10, 2)], "2x2", policy)
    assert result[4] == pytest.approx(60)
    # Jobs 0 and 2 on one node, 1 and 3 on the other would leave one GPU free on each: only scatter could use them.
    split = ends([(0, 100, 1), (0, 50, 1), (0, 100, 1), (0, 50, 1), (1, 10, 2)], "2x2", policy)
    assert split[4] == (60 if policy.endswith("yes") else 110)


def test_crossings_at_whole_seconds_only() -> None:
    # The limit of 10.5 is reached at 10.5; with whole_seconds it is seen at 11.
    rows = [(0, 30, 1), (0, 30, 1)]
    half = simulate(jobs(rows), "1x1", "tiresias:thresholds=10.5", interval_s=0.0, restart_overhead_s=0.0)
    whole = simulate(
        jobs(rows), "1x1", "tiresias:thresholds=10.5;whole_seconds=yes", interval_s=0.0, restart_overhead_s=0.0
    )
    assert (half.start_s[1], whole.start_s[1]) == (10.5, 11.0)


def test_who_runs_and_who_has_crossed_keeps_its_place_when_the_order_is_built_anew() -> None:
    """At every decision from what is remembered, as after a restart: the schedule stays the same."""
    workload = generate(GeneratorConfig(jobs=40, gpus=24, load=1.2, seed=8, opportunistic=0.5))
    plain = simulate(workload, "3x8", "tiresias")
    assert plain.restarts > 0
    assert simulate(workload, "3x8", Rebuilt("tiresias", compact=False)).end_s.tolist() == plain.end_s.tolist()
