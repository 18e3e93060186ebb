"""Each policy on small scenarios worked out by hand. Restart overhead and interval 0 unless said; times in seconds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.workload import Speeds, Workload
from gpuloom.interleave.opportunistic import OpportunisticSharing, iterations_spanned
from gpuloom.policies.gittins import gittins_index
from gpuloom.sim import Failure, SimResult, simulate
from tiers import examples, slow


def run(workload: Workload, cluster: str, policy: str, overhead: float = 0.0, **more: Any) -> SimResult:
    return simulate(workload, cluster, policy, restart_overhead_s=overhead, **{"interval_s": 0.0, **more})


def ends(rows: list[tuple[float, float, int]], cluster: str, policy: str, overhead: float = 0.0, **columns: Any):
    return run(jobs(rows, **columns), cluster, policy, overhead).end_s.tolist()


def starts(rows: list[tuple[float, float, int]], cluster: str, policy: str, **columns: Any) -> list[float]:
    return run(jobs(rows, **columns), cluster, policy).start_s.tolist()


# -- fifo ----------------------------------------------------------------------------------------------------

BLOCKED = [(0, 100, 3), (1, 10, 4), (2, 10, 1)]
"""On 1x4: job 1 waits for all four GPUs till 100; job 2 would fit and would end long before."""


def test_strict_fifo_blocks_behind_the_head() -> None:
    assert starts(BLOCKED, "1x4", "fifo") == [0, 100, 110]


@pytest.mark.parametrize("backfill", ["greedy", "easy"])
def test_backfill_lets_a_short_job_pass(backfill: str) -> None:
    assert starts(BLOCKED, "1x4", f"fifo:backfill={backfill}") == [0, 100, 2]


def test_greedy_backfill_may_delay_the_head_and_easy_must_not() -> None:
    rows = [(0, 100, 3), (1, 10, 4), (2, 200, 1)]
    assert starts(rows, "1x4", "fifo:backfill=greedy") == [0, 202, 2]
    assert starts(rows, "1x4", "fifo:backfill=easy") == [0, 100, 110]


def test_easy_backfills_a_job_that_ends_exactly_at_the_reservation_and_not_a_second_later() -> None:
    assert starts([(0, 100, 3), (1, 10, 4), (2, 98, 1)], "1x4", "fifo:backfill=easy")[2] == 2
    assert starts([(0, 100, 3), (1, 10, 4), (2, 99, 1)], "1x4", "fifo:backfill=easy")[2] == 110


def test_easy_counts_the_restart_overhead_of_the_job_that_would_pass() -> None:
    rows = [(0, 100, 3), (1, 10, 4), (2, 98, 1)]
    late = run(jobs(rows), "1x4", "fifo:backfill=easy", overhead=5.0)
    assert late.start_s[2] == 2, "the reservation is at 105; 2 + 5 + 98 is that very moment"
    later = run(jobs([*rows[:2], (2, 99, 1)]), "1x4", "fifo:backfill=easy", overhead=5.0)
    assert later.start_s[1] == 105
    assert later.start_s[2] > 105


def test_easy_counts_the_restart_overhead_of_who_starts_in_the_same_pass() -> None:
    """Job 0 ends at 105, so the reservation is there: 5 + 100 is that very moment."""
    rows = [(0, 100, 3), (0, 10, 4)]
    assert run(jobs([*rows, (0, 100, 1)]), "1x4", "fifo:backfill=easy", overhead=5.0).start_s.tolist() == [0, 105, 0]
    later = run(jobs([*rows, (0, 101, 1)]), "1x4", "fifo:backfill=easy", overhead=5.0)
    assert later.start_s.tolist() == [0, 105, 120]


def test_easy_lets_a_long_job_pass_on_gpus_that_are_not_reserved() -> None:
    assert starts([(0, 100, 2), (1, 10, 3), (2, 500, 1), (3, 500, 1)], "1x4", "fifo:backfill=easy") == [0, 100, 2, 110]


@pytest.mark.parametrize(("node", "starts_s"), [(2, 50.0), (None, 110.0)])
def test_easy_reserves_anew_when_an_idle_node_fails(node: int | None, starts_s: float) -> None:
    """The head needs all three nodes, the last of which stands idle: once that is down, nobody is kept for it."""
    failures = () if node is None else (Failure(node, 10.0, 1000.0),)
    rows = [(0, 100, 2), (0, 50, 2), (1, 10, 6), (20, 500, 2)]
    found = run(jobs(rows), "3x2", "fifo:backfill=easy", failures=failures)
    assert found.start_s[3] == starts_s


def test_easy_looks_only_so_deep_into_the_queue() -> None:
    rows = [(0, 100, 3), (1, 10, 4), (2, 10, 2), (3, 10, 2), (4, 10, 1)]
    assert starts(rows, "1x4", "fifo:backfill=easy")[4] == 4
    assert starts(rows, "1x4", "fifo:backfill=easy;depth=2")[4] > 100


def test_easy_knows_that_a_slow_gpu_takes_longer() -> None:
    """On this model everything takes twice as long: job 2 would end at 122, after the reservation at 100."""
    speeds = Speeds(("K80",), np.full((3, 1), 0.5))
    assert starts([(0, 50, 1), (1, 10, 2), (2, 60, 1)], "1x2:K80", "fifo:backfill=easy", speeds=speeds)[1] == 100


def test_fifo_keeps_a_job_that_lost_its_node_before_later_ones() -> None:
    result = run(jobs([(0, 100, 1), (1, 10, 1)]), "1x1", "fifo", failures=(Failure(0, 50, 60),))
    assert result.end_s.tolist() == [110, 120]


# -- sjf, srtf, srsf -----------------------------------------------------------------------------------------


def test_sjf_starts_the_shortest_and_stops_nobody() -> None:
    assert ends([(0, 100, 1), (1, 50, 1), (2, 10, 1)], "1x1", "sjf") == [100, 160, 110]


def test_sjf_passes_a_short_job_that_does_not_fit() -> None:
    assert starts([(0, 100, 1), (1, 10, 2), (2, 50, 1)], "1x2", "sjf") == [0, 100, 2]


def test_srtf_stops_a_job_with_more_time_left() -> None:
    result = run(jobs([(0, 100, 1), (30, 50, 1), (40, 10, 1)]), "1x1", "srtf")
    assert result.end_s.tolist() == [160, 90, 50]
    assert result.restarts == 2


def test_srtf_goes_by_time_left_not_by_duration() -> None:
    # At 60 the first job has 40 left: less than 50.
    assert ends([(0, 100, 1), (60, 50, 1)], "1x1", "srtf") == [100, 150]


@pytest.mark.parametrize(("newcomer", "stops"), [(49, True), (50, False), (55, False)])
def test_srtf_does_not_stop_a_job_for_one_that_with_its_restart_would_end_later(newcomer: float, stops: bool) -> None:
    # At 50 the first job ends at 110. The newcomer would end at 50 + 10 + its duration.
    result = run(jobs([(0, 100, 1), (50, newcomer, 1)]), "1x1", "srtf", overhead=10.0)
    assert (result.restarts == 1) is stops
    assert result.end_s[0] == (50 + 10 + newcomer + 10 + 60 if stops else 110)


def test_srtf_goes_by_time_and_srsf_by_time_times_gpus() -> None:
    rows = [(0, 60, 2), (0, 100, 1)]
    assert ends(rows, "1x2", "srtf") == [60, 160]
    assert ends(rows, "1x2", "srsf") == [160, 100]


def test_srsf_stops_a_wide_job_for_a_narrow_one() -> None:
    rows = [(0, 60, 2), (10, 55, 1)]
    assert ends(rows, "1x2", "srtf") == [60, 115]
    assert ends(rows, "1x2", "srsf") == [115, 65]


# -- tiresias ------------------------------------------------------------------------------------------------


def test_tiresias_demotes_at_3250_and_7200_gpu_seconds() -> None:
    result = run(jobs([(0, 10000, 1), (0, 4000, 1)]), "1x1", "tiresias", record_segments=True)
    assert result.segments is not None
    spans = [
        (int(job), float(start), float(end))
        for job, start, end in zip(result.segments.job, result.segments.start_s, result.segments.end_s, strict=True)
    ]
    assert spans == [(0, 0, 3250), (1, 3250, 6500), (0, 6500, 10450), (1, 10450, 11200), (0, 11200, 14000)]


# -- gittins -------------------------------------------------------------------------------------------------


def test_the_index_of_a_known_size_is_one_over_what_is_left() -> None:
    assert gittins_index(np.full(5, 10.0), np.array([0.0, 4.0, 9.0, 10.0, 11.0])) == pytest.approx(
        [0.1, 1 / 6, 1.0, 0.0, 0.0]
    )


def test_the_index_of_two_points() -> None:
    # Short 1, long 10, half each: at 0 the best quantum is 1: 0.5 / 1; later only the long ones are left.
    got = gittins_index(np.array([10.0, 1.0]), np.array([0.0, 0.5, 1.0, 5.5, 10.0]))
    assert got == pytest.approx([0.5, 1.0, 1 / 9, 1 / 4.5, 0.0])
    # Two alike sizes: it is better to go through both at once.
    assert gittins_index(np.array([9.0, 10.0]), np.array([0.0])) == pytest.approx([1 / 9.5])


def test_the_index_of_an_exponential_stands_still() -> None:
    """No memory: whatever was attained, the index is one over the mean. (Looked at on samples, where it is defined.)"""
    samples = -np.log(1 - np.arange(1, 2000) / 2000) * 100
    got = gittins_index(samples, np.array([0.0, samples[500], samples[1000], samples[1500]]))
    assert got == pytest.approx([0.01] * 4, rel=0.02)


@settings(max_examples=examples(100))
@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 30))
def test_the_index_is_the_formula_s_supremum(samples: list[int], attained: int) -> None:
    alive = [s for s in samples if s > attained]
    best = 0.0
    for quantum in np.arange(0.25, 31, 0.25):
        if alive:
            ended = sum(s - attained <= quantum for s in alive)
            best = max(best, ended / sum(min(s - attained, quantum) for s in alive))
    got = float(gittins_index(np.array(samples, dtype=float), np.array([float(attained)]))[0])
    assert got == pytest.approx(best, rel=1e-12)


def test_gittins_lets_newcomers_pass_a_job_that_has_shown_itself_long(tmp_path: Any) -> None:
    """Half the jobs take 10, half 1000: past 10 a job has index 1/990 at most, a new one 1/10."""
    file = tmp_path / "sizes"
    file.write_text("10\n1000\n")
    assert ends([(0, 1000, 1), (500, 10, 1)], "1x1", f"gittins:samples={file};levels=2") == [1010, 510]


def test_gittins_lets_a_job_go_on_whose_chance_to_end_has_risen(tmp_path: Any) -> None:
    """All jobs take 900 to 1000: the more service one has had, the likelier it ends, so nobody is ever stopped."""
    file = tmp_path / "sizes"
    file.write_text("900\n950\n1000\n")
    result = run(jobs([(0, 1000, 1), (500, 900, 1)]), "1x1", f"gittins:samples={file}")
    assert result.end_s.tolist() == [1000, 1900]
    assert result.restarts == 0


def test_gittins_does_not_take_the_restart_overhead_for_work() -> None:
    """Ten alike jobs: none gains by stopping another. Held time passes the size before the work is done."""
    result = run(jobs([(0, 100, 1)] * 10), "1x1", "gittins", overhead=10.0)
    assert result.restarts == 0


# -- themis --------------------------------------------------------------------------------------------------


def test_themis_changes_hands_at_lease_ends_only() -> None:
    # rho is (age + left) / ideal and both have the same ideal: whoever waited has fallen behind by a lease. Ties go to
    # job 0: [0,100] 0, [100,200] 1, [200,300] 0, [300,400] 1, [400,450] 0, then 1 to 500.
    result = run(jobs([(0, 250, 1), (0, 250, 1)]), "1x1", "themis:lease=100", record_segments=True)
    assert result.end_s.tolist() == [450, 500]
    assert result.segments is not None
    inside = (result.segments.end_s % 100 != 0) & (result.segments.end_s < 450)
    assert not inside.any()


def test_themis_gives_gpus_that_fall_free_within_a_lease_to_the_worst_off() -> None:
    # At 30 the GPU is free. Job 1 has waited longer, and is shorter: the larger rho.
    assert starts([(0, 30, 1), (1, 50, 1), (20, 500, 1)], "1x1", "themis:lease=1000")[1:] == [30, 80]


def test_themis_keeps_the_gpus_of_whoever_is_chosen_again() -> None:
    result = run(jobs([(0, 500, 1)]), "1x1", "themis:lease=100", overhead=10.0)
    assert result.restarts == 0
    assert result.end_s.tolist() == [510]


@pytest.mark.parametrize("policy", ["themis:lease=0.3", "themis:lease=0.7", "themis:lease=2.3"])
def test_themis_ends_whatever_the_length_of_a_lease(policy: str) -> None:
    """k times 0.3, divided by 0.3 again, may come out below k: time must go on all the same."""
    result = simulate(
        jobs([(0, 100, 1), (0, 100, 1)]),
        "1x1",
        policy,
        interval_s=0.0,
        restart_overhead_s=0.0,
        on_progress=Patience(20),
    )
    assert result.finished == 2


class Patience:
    """Ends a simulation that has gone on for so many reports (512 events each)."""

    def __init__(self, reports: int) -> None:
        self.left = reports

    def __call__(self, done: int, total: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise AssertionError("the simulation goes on and on")


# -- antman --------------------------------------------------------------------------------------------------


def classes(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_an_opportunistic_job_runs_at_the_default_share_beside_a_guaranteed_one() -> None:
    # Half speed up to 100 (50 done), then alone.
    assert ends([(0, 100, 1), (0, 100, 1)], "1x1", "antman", priority=classes(0, 1)) == [100, 150]


def test_the_share_is_a_parameter() -> None:
    assert ends([(0, 100, 1), (0, 100, 1)], "1x1", "antman:share=0.25", priority=classes(0, 1)) == [100, 175]


def test_a_guaranteed_job_that_comes_later_slows_the_opportunistic_one_down_from_then_on() -> None:
    # 40 done alone, 50 at half speed beside (25), 35 alone again.
    assert ends([(0, 100, 1), (40, 50, 1)], "1x1", "antman", priority=classes(1, 0)) == [125, 90]


def test_a_gpu_takes_one_opportunistic_job_at_a_time() -> None:
    assert starts([(0, 100, 1), (0, 100, 1), (0, 10, 1)], "1x1", "antman", priority=classes(0, 1, 1)) == [0, 0, 150]


def test_opportunistic_jobs_go_to_the_least_loaded_gpus() -> None:
    assert ends([(0, 100, 1), (0, 100, 1)], "1x2", "antman", priority=classes(0, 1)) == [100, 100]


def test_antman_stops_nobody() -> None:
    rows = [(float(i), 50.0 + i, 1 + i % 3) for i in range(20)]
    assert run(jobs(rows), "2x4", "antman").restarts == 0


@pytest.mark.parametrize(
    ("mine", "its", "spans"),
    [
        ([1, 1, 1], [1, 1, 1], 1),  # complementary: each stage beside another one
        ([0, 4, 0], [1, 1, 1], 2),  # 4 s of computing in gaps of 2 s
        ([0, 5, 0], [1, 1, 1], 3),
        ([0, 0, 3], [0, 1, 0], 3),
        ([0, 0, 0], [1, 1, 1], 0),
    ],
)
def test_iterations_spanned(mine: list[float], its: list[float], spans: int) -> None:
    assert iterations_spanned([float(x) for x in mine], [float(x) for x in its]) == spans


def test_known_stage_times_set_the_slow_down() -> None:
    # An iteration of 4 s of computing takes two of the guaranteed job's 3 s: 6 s instead of 4.
    workload = jobs(
        [(0, 1000, 1), (0, 100, 1)],
        priority=classes(0, 1),
        stage_s=np.array([[1.0, 1.0, 1.0], [0.0, 4.0, 0.0]]),
        iteration_s=np.array([3.0, 4.0]),
    )
    sharing = OpportunisticSharing(workload, 0.5)
    assert sharing.rate(1, 1, [(0, 0)]) == pytest.approx(2 / 3)
    assert sharing.rate(1, 1, []) == 1.0
    assert sharing.rate(0, 0, [(1, 1)]) == 1.0
    assert run(workload, "1x1", "antman").end_s.tolist() == [1000, 150]


def test_stage_times_never_speed_a_job_up_and_unknown_ones_fall_back_to_the_share() -> None:
    workload = jobs(
        [(0, 10, 1), (0, 10, 1), (0, 10, 1)],
        stage_s=np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 10.0], [np.nan] * 3]),
        iteration_s=np.array([3.0, 300.0, np.nan]),
    )
    sharing = OpportunisticSharing(workload, 0.25)
    assert sharing.rate(1, 1, [(0, 0)]) <= 1.0
    assert sharing.rate(2, 1, [(0, 0)]) == 0.25
    assert sharing.rate(0, 1, [(0, 2)]) == 0.25


def test_a_guaranteed_gang_larger_than_the_largest_node_runs_on_nodes_of_different_sizes() -> None:
    assert ends([(0, 10, 16)], "3x4,1x8", "antman", priority=classes(0)) == [10]


def test_guaranteed_gangs_that_wait_for_gpus_don_t_block_each_other_for_ever() -> None:
    """Each of two gangs over several nodes has kept what the other needs."""
    rows = [(0, 100, 6), (1, 10, 16), (2, 10, 12)]
    got = run(jobs(rows, priority=classes(0, 0, 0)), "2x8", "antman")
    assert got.finished == 3


WIDE = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60), st.integers(1, 18)), min_size=1, max_size=12)


@pytest.mark.parametrize("policy", ["fifo:backfill=easy", "tiresias", "gittins", "themis", "antman", "gavel"])
@pytest.mark.parametrize("cluster", [*slow("3x6", "9x2"), "3x4,1x6", *slow("1x6,3x4")])
@settings(max_examples=examples(20))
@given(rows=WIDE)
def test_gangs_over_several_nodes_and_a_remainder_all_end(
    policy: str, cluster: str, rows: list[tuple[int, int, int]]
) -> None:
    workload = jobs([(float(s), float(d), g) for s, d, g in rows], priority=classes(*(len(rows) * [0])))
    assert run(workload, cluster, policy).finished == len(rows)


# -- gavel ---------------------------------------------------------------------------------------------------

ONE_EACH = "1x1:V100,1x1:K80"


def hetero(rows: list[tuple[float, float, int]], *factors: tuple[float, float]) -> Workload:
    return jobs(rows, speeds=Speeds(("V100", "K80"), np.array(factors)))


def test_gavel_gives_the_fast_gpu_to_the_job_that_gains() -> None:
    """The first job gains nothing from a V100; a scheduler blind to models would put it there."""
    workload = hetero([(0, 100, 1), (0, 100, 1)], (1.0, 1.0), (4.0, 1.0))
    assert run(workload, ONE_EACH, "gavel").end_s.tolist() == [100, 25]
    assert run(workload, ONE_EACH, "fifo").end_s.tolist() == [100, 100]


@pytest.mark.parametrize("policy", ["gavel", "elastic:base=gavel", "elastic-goodput:base=gavel"])
@pytest.mark.parametrize(("cluster", "overhead"), [("1x1", 1000.0), ("1x1:V100,1x1:K80", 400.0), ("1x1", 360.0)])
def test_gavel_ends_jobs_whose_start_takes_longer_than_a_round(policy: str, cluster: str, overhead: float) -> None:
    workload = jobs([(0.0, 5000.0, 1), (0.0, 5000.0, 1)])
    result = simulate(workload, cluster, policy, restart_overhead_s=overhead)
    # At least half of the time that GPUs are held is work.
    assert result.finished == 2
    assert result.attained_gpu_s.sum() <= 2 * 10_000 + 2 * overhead


def test_gavel_s_makespan_gives_the_fast_gpu_to_the_longer_job() -> None:
    # 200 at speed 2 and 100 at speed 1 end together; the other way round 200 would take 200.
    workload = hetero([(0, 100, 1), (0, 200, 1)], (2.0, 1.0), (2.0, 1.0))
    assert run(workload, ONE_EACH, "gavel:objective=makespan").end_s.tolist() == [100, 100]


def test_gavel_s_rounds_realise_the_shares_of_three_alike_jobs_on_two_gpus() -> None:
    workload = jobs([(0, 1000, 1)] * 3)
    result = run(workload, "1x2", "gavel:round=10")
    assert result.end_s == pytest.approx([1500] * 3, rel=0.03)


def test_gavel_moves_a_job_to_a_better_gpu_that_has_fallen_free() -> None:
    """Both run, nobody waits; when the V100 is free the job on the K80 gains 10 times by moving."""
    workload = hetero([(0, 100, 1), (1, 5000, 1)], (10.0, 1.0), (10.0, 1.0))
    result = run(workload, ONE_EACH, "gavel:round=10")
    assert result.end_s[0] == pytest.approx(10)
    assert result.end_s[1] < 1000


def test_gavel_shares_the_fast_gpu_in_turn_among_jobs_that_all_run() -> None:
    """Two alike jobs, a V100 ten times as fast as the K80: max-min gives each half the V100's time."""
    workload = hetero([(0, 10000, 1), (0, 10000, 1)], (10.0, 1.0), (10.0, 1.0))
    result = run(workload, ONE_EACH, "gavel:round=10")
    assert abs(result.end_s[0] - result.end_s[1]) < 500


@pytest.mark.parametrize("policy", ["gavel:round=0.3", "gavel:round=2.3"])
def test_gavel_ends_whatever_the_length_of_a_round(policy: str) -> None:
    workload = jobs([(0, 100, 1), (0, 100, 1)])
    assert run(workload, "1x1", policy, on_progress=Patience(20)).finished == 2
