"""The numbers of a simulation, by hand, and what a result gives away."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from builders import REQUIRED, jobs, workloads
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Decision
from gpuloom.core.errors import ImpossibleJobError, InputError
from gpuloom.core.pairs import PairTable
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.pairs import with_pairs
from gpuloom.policies.fifo import Fifo
from gpuloom.sim import Failure, Settings, SimResult, simulate
from gpuloom.sim.bound import _mean_busy_times, _shortest_remaining_first, lower_bound_avg_jct_s
from gpuloom.sim.failures import Outages, RandomOutages
from gpuloom.sim.overheads import DEFAULT_S, measured, restart_overheads_s
from tiers import examples

THREE = [(0, 10, 1), (0, 20, 2), (5, 10, 1)]
"""Under fifo on 1x2: job 0 runs 0-10, 1 runs 10-30, 2 runs 30-40."""


def three(**more: Any) -> SimResult:
    return simulate(jobs(THREE), "1x2", "fifo", **{"restart_overhead_s": 0.0, **more})


def test_times_by_hand() -> None:
    result = three()
    assert result.start_s.tolist() == [0, 10, 30]
    assert result.end_s.tolist() == [10, 30, 40]
    assert result.jct_s.tolist() == [10, 30, 35]
    assert (result.avg_jct_s, result.median_jct_s, result.p99_jct_s) == (25, 30, 35)
    assert result.makespan_s == 40
    assert result.attained_gpu_s.tolist() == [10, 40, 10]
    assert (result.jobs, result.gpus, result.finished, result.restarts, result.interrupted) == (3, 2, 3, 0, False)


def test_averages_over_time_by_hand() -> None:
    result = three()
    assert result.utilization == pytest.approx((10 * 1 + 20 * 2 + 10 * 1) / (40 * 2))
    # One waits in [0, 5), two in [5, 10), one in [10, 30), none in [30, 40).
    assert result.avg_queue_length == pytest.approx((5 + 2 * 5 + 20) / 40)


def test_the_blocking_index_by_exact_integration() -> None:
    # Job 1 has waited t of its 20 s, job 2 t - 5 of its 10 s; the mean over those that wait, integrated.
    alone = 5**2 / 2 / 20
    both = ((10**2 - 5**2) / 2 / 20 + 5**2 / 2 / 10) / 2
    last = (25**2 - 5**2) / 2 / 10
    assert three().blocking_index == pytest.approx((alone + both + last) / 40)


def test_the_blocking_index_counts_waiting_only_and_at_least_a_second_of_work() -> None:
    # Job 0 runs 0-60 and 70-110: from 60 to 70 it waits, with no wait before, 40 left: 10**2 / 2 / 40.
    srtf = simulate(jobs([(0, 100, 1), (60, 10, 1)]), "1x1", "srtf", interval_s=0.0, restart_overhead_s=0.0)
    assert srtf.blocking_index == pytest.approx(10**2 / 2 / 40 / 110)
    # Work of 0.1 s counts as 1 s: waits from 0 to 10.
    tiny = simulate(jobs([(0, 10, 1), (0, 0.1, 1)]), "1x1", "fifo", restart_overhead_s=0.0)
    assert tiny.blocking_index == pytest.approx(10**2 / 2 / 10.1)


def test_the_timeline_tells_queue_and_busy_gpus() -> None:
    timeline = three().timeline
    assert timeline.time_s.tolist() == [0, 5, 10, 30, 40]
    assert timeline.queue_length.tolist() == [1, 2, 1, 0, 0]
    assert timeline.busy_gpus.tolist() == [1, 1, 2, 1, 0]


def test_the_clock_of_the_trace_does_not_matter() -> None:
    moved = simulate(jobs([(s + 1000, d, g) for s, d, g in THREE]), "1x2", "fifo", restart_overhead_s=0.0)
    for key in REQUIRED - {"wall_s", "settings"}:
        assert getattr(moved, key) == pytest.approx(getattr(three(), key)), key
    assert moved.end_s.tolist() == [1010, 1030, 1040]


@pytest.mark.parametrize(("count", "index"), [(1, 0), (99, 98), (100, 99), (101, 99), (200, 198), (1000, 990)])
def test_p99_is_the_one_at_index_int_of_99_percent(count: int, index: int) -> None:
    workload = jobs([(0, float(d), 1) for d in range(1, count + 1)])
    result = simulate(workload, f"1x{count}", "fifo", restart_overhead_s=0.0)
    assert result.p99_jct_s == index + 1


def test_restart_overheads_count_in_jct_and_utilization() -> None:
    result = simulate(jobs([(0, 90, 1)]), "1x1", "fifo", restart_overhead_s=10.0)
    assert (result.avg_jct_s, result.utilization, result.attained_gpu_s[0]) == (100, 1, 100)


def test_shared_gpus_count_once_in_utilization() -> None:
    workload = jobs([(0, 100, 1), (0, 50, 1)], priority=np.array([0, 1], dtype=np.int32))
    result = simulate(workload, "1x2", "antman:share=1", restart_overhead_s=0.0)
    assert result.utilization <= 1
    one = simulate(workload, "1x1", "antman:share=1", restart_overhead_s=0.0)
    assert one.end_s.tolist() == [100, 50]
    assert one.utilization == pytest.approx(1)


# -- lower bound ---------------------------------------------------------------------------------------------


def bound(rows: list[tuple[float, float, int]], cluster: str = "1x2", **more: Any) -> float:
    return lower_bound_avg_jct_s(jobs(rows, **more.pop("columns", {})), parse_cluster(cluster), **more)


def test_a_bound_by_hand() -> None:
    # w = 5, 20, 5 on one machine of both GPUs. Mean busy times 2.5, 20 (10-30), 7.5; minus submission, plus d / 2:
    # 7.5, 30, 7.5.
    assert bound(THREE) == pytest.approx(15)
    assert three().lower_bound_avg_jct_s == pytest.approx(15)


def test_a_job_alone_is_bound_by_its_duration() -> None:
    assert bound([(0, 100, 1)]) == 100
    assert bound([(0, 100, 1), (1000, 50, 2)]) == 75


def test_one_gpu_is_bound_by_shortest_remaining_first() -> None:
    # 10 (1 preempts), then 100: 10 and 110.
    assert bound([(0, 100, 1), (0, 10, 1)], "1x1") == pytest.approx((10 + 110) / 2)


def test_the_bound_counts_the_best_speed_and_sharing() -> None:
    fast = {"speeds": Speeds(("V100", "K80"), np.array([[4.0, 1.0]]))}
    assert bound([(0, 100, 1)], "1x1:V100,1x1:K80", columns=fast) == 25
    queue = [(0, 100, 1)] * 4
    assert bound(queue, "1x1", jobs_per_gpu=2) < bound(queue, "1x1")
    assert math.isnan(bound([]))
    some = np.array([2, 2, 1, 1])
    assert bound(queue, "1x1", jobs_per_gpu=2) < bound(queue, "1x1", jobs_per_gpu=some) < bound(queue, "1x1")


@pytest.mark.parametrize(("policy", "most"), [("weave", 4), ("muri-xl", 4), ("antman", 2), ("fifo", 1)])
def test_the_bound_divides_by_sharing_only_where_a_job_can_share(policy: str, most: int) -> None:
    rows = [(0.0, 100.0, 1)] * 8
    plain = jobs(rows, model=Labels.of("aabbccdd"))
    stages = replace(plain, stage_s=np.full((8, 3), 1.0))
    pairs = with_pairs(plain, PairTable("test", {("V100", ("a", 1), ("b", 1)): (0.9, 0.9)}))

    def of(workload: Workload) -> float:
        return simulate(workload, "1x2:V100", policy, restart_overhead_s=0).lower_bound_avg_jct_s

    alone = lower_bound_avg_jct_s(plain, parse_cluster("1x2"))
    assert of(plain) == (
        alone if policy != "antman" else lower_bound_avg_jct_s(plain, parse_cluster("1x2"), jobs_per_gpu=2)
    )
    assert of(stages) == lower_bound_avg_jct_s(plain, parse_cluster("1x2"), jobs_per_gpu=most)
    if policy in ("weave", "muri-xl"):
        some = np.array([2, 2, 2, 2, 1, 1, 1, 1])
        assert of(pairs) == lower_bound_avg_jct_s(plain, parse_cluster("1x2"), jobs_per_gpu=some)


@settings(max_examples=examples(50))
@given(workload=workloads(most=10))
def test_the_bound_scales_with_time(workload: Workload) -> None:
    twice = Workload("twice", workload.submit_s * 2, workload.duration_s * 2, workload.gpus)
    cluster = parse_cluster("2x8")
    assert lower_bound_avg_jct_s(twice, cluster) == pytest.approx(2 * lower_bound_avg_jct_s(workload, cluster))


# -- restart overheads ---------------------------------------------------------------------------------------


def test_the_measured_table_rises_in_gpus_and_holds_whole_rows() -> None:
    assert "bert" in measured()
    for rows in measured().values():
        assert [gpus for gpus, _ in rows] == sorted({gpus for gpus, _ in rows})
        assert all(seconds > 0 for _, seconds in rows)


def test_overheads_come_from_the_flag_the_trace_the_model_or_the_default() -> None:
    model, rows = next(iter(measured().items()))
    (small, cheap), (large, dear) = rows[0], rows[-1]
    workload = jobs(
        [(0, 1, small), (0, 1, large), (0, 1, 10 * large), (0, 1, small), (0, 1, small)],
        model=Labels.of([model, model, model, "never heard of", model]),
        restart_overhead_s=np.array([np.nan, np.nan, np.nan, np.nan, 77.0]),
    )
    assert restart_overheads_s(workload).tolist() == [cheap, dear, dear, DEFAULT_S, 77.0]
    assert restart_overheads_s(workload, 3.0).tolist() == [3.0] * 5
    assert restart_overheads_s(jobs([(0, 1, 1)])).tolist() == [DEFAULT_S]


def test_overheads_are_of_the_nearest_smaller_number_of_gpus() -> None:
    model, rows = next((m, r) for m, r in measured().items() if any(b[0] - a[0] > 1 for a, b in pairwise(r)))
    at = next(i for i in range(len(rows) - 1) if rows[i + 1][0] - rows[i][0] > 1)
    workload = jobs([(0, 1, rows[at][0] + 1)], model=Labels.of([model]))
    assert restart_overheads_s(workload).tolist() == [rows[at][1]]


# -- failures ------------------------------------------------------------------------------------------------


def drawn(cluster: str, *, seed: int, start_s: float, until_s: float) -> list[Failure]:
    """The random failures that end by `until_s`."""
    source = RandomOutages(parse_cluster(cluster), mtbf_s=1000, repair_s=100, start_s=start_s, seed=seed)
    since: dict[int, float] = {}
    found = []
    while (now := source.next_s()) <= until_s:
        lost, back = source.pop(now)
        since.update(dict.fromkeys(lost, now))
        found += [Failure(node, since.pop(node), now) for node in back]
    return found


def outages(seed: int) -> list[Failure]:
    return drawn("4x1", seed=seed, start_s=50, until_s=20_000)


def test_random_failures_are_of_the_seed_alone() -> None:
    assert outages(1) == outages(1)
    assert outages(1) != outages(2)


def test_random_failures_have_the_means_asked_for_and_never_overlap() -> None:
    found = drawn("20x1", seed=5, start_s=0, until_s=100_000)
    assert np.mean([f.end_s - f.start_s for f in found]) == pytest.approx(100, rel=0.1)
    assert len(found) == pytest.approx(20 * 100_000 / 1100, rel=0.1)
    Outages(found, parse_cluster("20x1"))  # refuses overlaps
    assert {f.node for f in found} == set(range(20))
    assert all(f.start_s > 50 for f in outages(1))


def test_nodes_go_on_failing_for_as_long_as_the_simulation_lasts() -> None:
    """Failures stretch the run; they must not stop where a run without them would long have ended."""
    workload = jobs([(0, 2000, 1)])
    result = simulate(workload, "1x1", "fifo", mtbf_s=50.0, repair_s=2000.0, seed=1, restart_overhead_s=0.0)
    # 2000 s of work at 50 s between failures is some 40 failures.
    assert result.restarts > 20


@pytest.mark.parametrize("times", [(0, 1), (1, 0), (-1, 1)])
def test_random_failures_need_times_above_zero(times: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="must be above 0"):
        simulate(jobs([(0, 1, 1)]), "1x1", "fifo", mtbf_s=times[0], repair_s=times[1])


@pytest.mark.parametrize(
    ("failures", "message"),
    [
        ([Failure(2, 0, 1)], "failure of node 2: the cluster has nodes 0 to 1"),
        ([Failure(-1, 0, 1)], "failure of node -1"),
        ([Failure(0, 5, 5)], "must end after it starts"),
        ([Failure(0, 5, math.nan)], "must end after it starts"),
        ([Failure(0, 5, 10), Failure(0, 8, 12)], "begin when the one before it has ended"),
    ],
)
def test_failures_that_can_not_be_are_refused(failures: list[Failure], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Outages(failures, parse_cluster("2x1"))


def test_a_failure_may_begin_as_the_one_before_it_ends() -> None:
    failures = (Failure(0, 10.0, 20.0), Failure(0, 20.0, 30.0))
    result = simulate(jobs([(0, 15, 1)]), "1x1", "fifo", failures=failures, restart_overhead_s=0.0)
    assert result.end_s[0] == 35


def test_a_simulation_with_random_failures_is_the_seed_s() -> None:
    def ends(seed: int) -> list[float]:
        workload = jobs([(float(i * 50), 400.0, 1 + i % 2) for i in range(20)])
        return simulate(workload, "2x2", "srtf", mtbf_s=1000.0, repair_s=100.0, seed=seed).end_s.tolist()

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


def test_a_node_that_comes_back_and_is_lost_at_once_is_lost() -> None:
    failures = (Failure(0, 10.0, 20.0), Failure(0, 20.0, 30.0))
    workload = jobs([(0, 15, 1), (0, 15, 1)])
    result = simulate(workload, "1x1", "fifo", failures=failures, restart_overhead_s=0.0)
    assert result.end_s.tolist() == [35, 50]


# -- seeds and settings --------------------------------------------------------------------------------------


def test_the_seed_draws_antman_s_classes_unless_the_policy_says_another() -> None:
    workload = jobs([(0, 100, 1)] * 30)

    def ends(policy: str, seed: int) -> list[float]:
        return simulate(workload, "1x4", policy, seed=seed).end_s.tolist()

    assert ends("antman", 1) != ends("antman", 2)
    assert ends("antman:seed=1", 2) == ends("antman", 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval_s": -1.0}, "the interval is -1.0, must be 0 or more"),
        ({"interval_s": math.nan}, "the interval is nan"),
        ({"schedule": "never"}, "schedule is 'never', must be 'events' or 'rounds'"),
        ({"schedule": "rounds", "interval_s": 0.0}, "rounds needs an interval above 0"),
        ({"restart_overhead_s": -1.0}, "the restart overhead is -1.0"),
        ({"restart_overhead_s": math.inf}, "the restart overhead is inf"),
        ({"checkpoint_s": -1.0}, "the checkpoint interval is -1.0"),
        ({"compat": "other"}, "unknown --compat 'other'; known: muri"),
        ({"compat": "muri", "schedule": "rounds"}, "can't be used with rounds"),
        ({"mtbf_s": 0.0}, "mean time between failures"),
        ({"mtbf_s": 10.0, "repair_s": 0.0}, "mean repair time"),
    ],
)
def test_settings_that_can_not_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        three(**settings)


def test_every_setting_that_can_not_be_is_refused_before_a_trace_is_read() -> None:
    with pytest.raises(InputError):
        Settings(mtbf_s=-1.0)
    with pytest.raises(InputError):
        Settings(mtbf_s=10.0, repair_s=-1.0)


@pytest.mark.parametrize("interval", [0.1, 0.3, 2.3, 66.00000000000001])
def test_rounds_of_any_length_come_to_an_end(interval: float) -> None:
    """k times the interval, divided by it again, may come out below k: time must go on all the same."""
    left = 40

    def patience(done: int, total: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise AssertionError("the simulation goes on and on")

    workload = jobs([(float(i), 13.0 + i, 1) for i in range(30)])
    result = simulate(workload, "1x2", "themis:lease=20", schedule="rounds", interval_s=interval, on_progress=patience)
    assert result.finished == 30


# -- what a result gives away --------------------------------------------------------------------------------


def test_the_summary_has_every_key_that_was_asked_for_and_is_json() -> None:
    summary = three(seed=3).to_dict()
    assert set(summary) >= REQUIRED
    again = json.loads(json.dumps(summary, allow_nan=False))
    assert again == summary
    assert json.loads(three().to_json())["avg_jct_s"] == 25
    assert summary["settings"]["seed"] == 3
    assert set(summary["settings"]) >= {"interval_s", "schedule", "restart_overhead_s", "seed", "compat"}


def test_the_summary_of_no_jobs_is_json() -> None:
    summary = simulate(jobs([]), "1x1", "srtf").to_dict()
    assert json.loads(json.dumps(summary, allow_nan=False))["avg_jct_s"] is None


def test_the_settings_of_a_summary_are_json_with_given_failures() -> None:
    assert json.dumps(three(failures=(Failure(0, 1.0, 2.0),)).to_dict())


def test_the_frame_has_a_row_per_job() -> None:
    frame = simulate(jobs(THREE, job_ids=("a", "b", "c")), "1x2", "fifo", restart_overhead_s=0.0).to_frame()
    assert frame.columns.tolist() == [
        "job_id",
        "gpus",
        "submit_s",
        "start_s",
        "end_s",
        "jct_s",
        "attained_gpu_s",
        "starts",
    ]
    assert frame["job_id"].tolist() == ["a", "b", "c"]
    assert frame["jct_s"].mean() == 25


def test_progress_is_told_and_ends_at_all() -> None:
    told: list[tuple[int, int]] = []
    simulate(
        jobs([(float(i), 1.0, 1) for i in range(2000)]),
        "1x1",
        "fifo",
        on_progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (2000, 2000)
    assert len(told) > 3
    assert [done for done, _ in told] == sorted(done for done, _ in told)


class Interrupting(Fifo):
    """Ctrl-C while it decides, at some time."""

    at_s = 20.0

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if snapshot.now_s >= self.at_s:
            raise KeyboardInterrupt
        return super().decide(snapshot, memory)


def test_an_interrupt_gives_what_there_is() -> None:
    result = simulate(jobs(THREE), "1x2", Interrupting(), restart_overhead_s=0.0, record_segments=True)
    assert result.interrupted
    assert (result.finished, result.jobs) == (2, 3)
    assert (result.avg_jct_s, result.median_jct_s, result.p99_jct_s) == (20, 20, 30)
    assert np.isnan([result.start_s[2], result.end_s[2], result.jct_s[2]]).all()
    assert result.attained_gpu_s.tolist() == [10, 40, 0]
    assert json.dumps(result.to_dict(), allow_nan=False)
    assert result.segments is not None
    assert result.segments.end_s.max() <= 30
    # Up to the interrupt at 30: 10 GPU-seconds, then 20 s of both.
    assert result.utilization == pytest.approx((10 + 40) / 60)


def test_an_interrupt_at_once_gives_an_empty_result() -> None:
    policy = Interrupting()
    policy.at_s = 0.0
    result = simulate(jobs(THREE), "1x2", policy)
    assert (result.interrupted, result.finished) == (True, 0)
    assert result.to_dict()["avg_jct_s"] is None
    assert json.dumps(result.to_dict(), allow_nan=False)


# -- impossible jobs -----------------------------------------------------------------------------------------


def test_impossible_jobs_are_refused_with_their_number_and_the_way_out() -> None:
    rows = [(0, 1, 1), (0, 1, 9), (0, 1, 10)]
    with pytest.raises(
        ImpossibleJobError, match=r"test: job 1 asks for 9 GPUs.*2 of 3 jobs can never be placed.*--skip-impossible"
    ):
        simulate(jobs(rows), "1x8", "fifo")


def test_impossible_jobs_are_left_out_where_asked_for() -> None:
    result = simulate(jobs([(0, 5, 1), (0, 1, 9)]), "1x8", "fifo", skip_impossible=True, restart_overhead_s=0.0)
    assert (result.jobs, result.avg_jct_s) == (1, 5)


def test_one_machine_by_hand() -> None:
    """Job 0 has 0 to 2 and 8 to 16, job 1 2 to 3, job 2 3 to 8; then nobody until 20; job 4 has nothing to do."""
    submit, work = np.array([0.0, 2.0, 3.0, 20.0, 21.0]), np.array([10.0, 1.0, 5.0, 4.0, 0.0])
    assert _shortest_remaining_first(submit, work).tolist() == [16.0, 3.0, 8.0, 24.0, 21.0]
    assert _mean_busy_times(submit, work).tolist() == pytest.approx([9.8, 2.5, 5.5, 22.0, 21.0])
    # By what is left job 0 goes on; by its whole work it yields.
    submit, work = np.array([0.0, 8.0]), np.array([10.0, 5.0])
    assert _shortest_remaining_first(submit, work).tolist() == [10.0, 15.0]
    assert _mean_busy_times(submit, work).tolist() == pytest.approx([(8 * 4 + 2 * 14) / 10, 10.5])


def test_a_lost_node_is_seen_at_the_next_round() -> None:
    """The job has done 100 of its 1000 s when its node fails, and goes on elsewhere from 120 s on."""
    found = simulate(
        jobs([(0, 1000, 1)]), "2x1", "fifo", failures=(Failure(0, 100.0, 5000.0),), schedule="rounds",
        interval_s=60.0, restart_overhead_s=0.0,
    )  # fmt: skip
    assert found.end_s.tolist() == [1020.0]


def test_of_parameters_those_that_it_went_by_are_told() -> None:
    """One that the policy's text has goes before, and one of other policies is left out."""
    given = {"promote": 3.0, "lease": 3.0, "scatter": True}
    found = simulate(jobs([(0.0, 10.0, 1)]), "1x2", "tiresias:promote=2", parameters=given)
    assert found.settings["parameters"] == {"scatter": True}
