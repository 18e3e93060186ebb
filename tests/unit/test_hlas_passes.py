"""The passes of hlas: limits met exactly, when the next pass is worth making, and what is said of each change."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.workload import Labels, Speeds
from gpuloom.policies.hlas_terms import IN_Q1, IN_Q2, ON_GPUS
from test_policies_hlas import BASIC, TWO, Bench

LONG = (0.0, 1e6, 1)


@pytest.mark.parametrize(
    ("ratio", "demoted"),
    [(1.0, {}), (0.99, {0: IN_Q2})],  # at 100 s both have 100, their mean
)
def test_suspended_only_above_the_limit_and_no_more_than_need_be(ratio: float, demoted: dict[int, int]) -> None:
    text = BASIC.replace("priority_threshold_ratio=1.2", f"priority_threshold_ratio={ratio}")
    it = Bench(jobs([LONG, LONG, LONG]), parse_cluster("2x1:V100"), text)
    it.at(0.0, arrived=[0, 1]).at(100.0, arrived=[2])
    assert {job: it.queue(job) for job in range(2) if it.queue(job) != ON_GPUS} == demoted
    assert (2 in it.running) is bool(demoted)


@pytest.mark.parametrize(("literal", "overheads"), [("no", 2.0), ("yes", 1.0)])
def test_a_job_that_has_just_started_is_not_suspended(literal: str, overheads: float) -> None:
    """Not before it has held its GPUs for twice the 30 s that a start takes (by the letter: once)."""
    it = Bench(jobs([LONG, LONG, LONG]), TWO, f"{BASIC};literal={literal}", overhead_s=30.0)
    it.at(0.0, arrived=[0, 1]).at(30.0 * overheads, arrived=[2])
    assert it.queue(0) == ON_GPUS
    assert it.at(30.0 * overheads + 0.5).queue(0) == IN_Q2


def test_twice_the_weight_half_the_service() -> None:
    it = Bench(jobs([LONG, LONG, LONG], weight=np.array([2.0, 1.0, 1.0])), parse_cluster("2x1:V100"), BASIC)
    it.at(0.0, arrived=[0, 1])
    running = it.policy.cache._running
    assert dict(zip(running.job.tolist(), running.attained(100.0).tolist(), strict=True)) == {0: 50.0, 1: 100.0}
    it.at(100.0, arrived=[2])  # 100 is above 1.2 times 75
    assert [it.queue(job) for job in range(3)] == [ON_GPUS, IN_Q2, ON_GPUS]
    it.at(150.0, down=[0])  # job 0 joins Q1 with half of its 150 s
    assert it.policy.cache._queues.first(0) == (75.0, 0)


def test_when_somebody_will_have_had_too_much() -> None:
    """Job 1 has t, job 0 2 (t - 100), the limit is 0.625 of both: job 0 is above it after 600 s."""
    text = BASIC.replace("priority_threshold_ratio=1.2", "priority_threshold_ratio=1.25") + ";tick=1;upgrade=no"
    it = Bench(jobs([LONG, LONG, LONG], gpu_type=Labels.of(["V100", "K80", "V100"])), TWO, text)
    it.at(0.0, arrived=[1])
    assert it.wake_s == math.inf  # nobody waits
    it.at(100.0, arrived=[0])
    assert (it.running, it.wake_s) == ({1: 1, 0: 0}, math.inf)
    it.at(200.0, arrived=[2])  # 200 each
    assert (sorted(it.running), it.wake_s) == ([0, 1], 601.0)
    it.at(600.0)  # 1000, and that is the limit
    assert (sorted(it.running), it.wake_s) == ([0, 1], 601.0)
    it.at(601.0)
    assert (it.running, it.queue(0)) == ({1: 1, 2: 0}, IN_Q2)
    assert it.wake_s == 601.0 + 2 * 501.0 + 1.0  # it ran for 501 s, and rises once it has waited for twice that


def test_who_is_left_alone_is_not_looked_at_at_once_again() -> None:
    """Job 2 needs both V100s; job 0 has had too much, but by its end alone job 2 would not run."""
    workload = jobs([LONG, LONG, (0.0, 1e6, 2)], gpu_type=Labels.of(["V100"] * 3))
    it = Bench(workload, parse_cluster("1x2:V100,1x2:K80"), f"{BASIC};tick=1;upgrade=no")
    it.at(0.0, arrived=[0]).at(100.0, arrived=[1]).at(200.0, arrived=[2])
    assert it.policy.cache._refused == {0}  # 400 of 200 on average
    assert sorted(it.running) == [0, 1]
    assert it.wake_s > 1e9  # job 1 falls behind for ever


@pytest.mark.parametrize("cluster", ["2x1:V100", "1x1:V100,1x1:K80"])
def test_no_pass_is_made_that_can_change_nothing(cluster: str) -> None:
    it = Bench(jobs([LONG]), parse_cluster(cluster), f"{BASIC};upgrade=no").at(0.0, arrived=[0])
    assert it.wake_s == math.inf
    assert Bench(jobs([LONG]), parse_cluster("2x1:V100"), BASIC).at(0.0, arrived=[0]).wake_s == math.inf


@pytest.mark.parametrize("event", ["finished", "evicted", "arrived", "up"])
def test_a_scheduler_built_anew_places_who_can_run_now(event: str) -> None:
    it = Bench(jobs([LONG, LONG, LONG]), parse_cluster("2x1:V100"), BASIC)
    if event == "up":
        it.at(0.0, down=[0]).at(1.0, arrived=[0, 1])
    elif event == "arrived":
        it.at(1.0, arrived=[1])
    else:
        it.at(0.0, arrived=[0, 1, 2])
    it.policy.cache = None
    if event == "finished":
        assert sorted(it.at(9.0, finished=[0]).running) == [1, 2]
    elif event == "evicted":
        assert sorted(it.at(9.0, down=[0]).running) == [1]
        assert [it.queue(job) for job in range(3)] == [IN_Q1, ON_GPUS, IN_Q1]
    elif event == "arrived":
        assert sorted(it.at(9.0, arrived=[2]).running) == [1, 2]
    else:
        assert sorted(it.at(9.0, up=[0]).running) == [0, 1]


@pytest.mark.parametrize(
    ("gpus", "overhead_s", "step_s", "moves"),
    [(1, 200.0, 1.0, True), (1, 300.0, 1.0, False), (2, 200.0, 4.0, True), (2, 300.0, 4.0, False),
     (2, 200.0, 0.25, True), (2, 300.0, 0.25, False)],
)  # fmt: skip
def test_a_swap_pays_by_steps_of_any_length(gpus: int, overhead_s: float, step_s: float, moves: bool) -> None:
    """A tenth of its speed for 2150 or 2200 s is 215 or 220 s of work, whatever GPUs it has, and steps it takes."""
    speeds = Speeds(("V100", "K80"), np.array([[1.0, 1.0], [1.0, 0.9], [1.0, 1.0]]))
    rows = [(0.0, 500.0, gpus), (0.0, 1e5, gpus), (500.0, 1e5, gpus)]
    workload = jobs(rows, speeds=speeds, gpu_type=Labels.of(["V100", "", ""]), iteration_s=np.full(3, step_s))
    cluster = parse_cluster(f"1x{gpus}:V100,1x{gpus}:K80")
    it = Bench(workload, cluster, "hlas:upgrade=no;gain=iterations;min_seconds_between_moves=0", overhead_s=overhead_s)
    it.at(0.0, arrived=[0, 1])
    it.at(500.0 + overhead_s, finished=[0], arrived=[2])
    assert it.running == ({1: 0, 2: 1} if moves else {1: 1, 2: 0})
    assert it.policy.cache.swaps == moves


@pytest.mark.parametrize("gpus", [1, 2])
def test_when_a_running_job_may_move_up(gpus: int) -> None:
    """It gains half its speed: a restart of 100 s is made up for after 200 s."""
    speeds = Speeds(("V100", "K80"), np.array([[1.0, 0.5]] * 2))
    workload = jobs([(0.0, 1e6, gpus), (0.0, 1e6, gpus)], speeds=speeds)
    text = "hlas:min_seconds_between_moves=0;tick=10"
    it = Bench(workload, parse_cluster(f"1x{gpus}:V100,1x{gpus}:K80"), text, overhead_s=100.0)
    it.at(0.0, arrived=[0, 1])
    assert (it.running, it.wake_s) == ({0: 0, 1: 1}, math.inf)
    it.policy.explains = frozenset({1})
    it.at(50.0, finished=[0])
    assert (it.running, it.wake_s) == ({1: 1}, 210.0)
    assert it.policy.cache.upgrades == 0
    it.at(199.0)  # not before: it is expected to go on for as long as it has run
    assert (it.running, it.wake_s) == ({1: 1}, 210.0)
    it.at(210.0)
    assert (it.running, it.wake_s, it.policy.cache.upgrades) == ({1: 0}, math.inf, 1)
    said = it.policy.cache._say.why[1]
    assert (said.code, said.numbers) == ("upgraded", {"gain": 0.5 * gpus})


def test_a_job_moves_up_only_where_all_its_gpus_are_free() -> None:
    speeds = Speeds(("V100", "K80"), np.array([[1.0, 0.5]] * 2))
    workload = jobs([(0.0, 1e6, 1), (0.0, 1e6, 2)], speeds=speeds, gpu_type=Labels.of(["V100", ""]))
    it = Bench(workload, parse_cluster("1x2:V100,1x2:K80"), "hlas:min_seconds_between_moves=0;tick=10")
    it.at(0.0, arrived=[0, 1]).at(5000.0)
    assert (it.running, it.wake_s) == ({0: 0, 1: 1}, math.inf)


def test_what_is_said_of_those_who_are_asked_about() -> None:
    it = Bench(jobs([LONG, LONG, LONG]), TWO, BASIC)
    it.at(0.0, arrived=[0, 1])
    it.policy.explains = frozenset({0, 2})
    it.at(100.0, arrived=[2])
    why = it.policy.cache._say.why
    assert {job: reason.code for job, reason in why.items()} == {0: "demoted", 2: "placed_from_q1"}
    assert "a job of Q1 needs its GPUs" in why[0].text
    assert why[0].numbers == {"attained": 200.0, "mean": 150.0, "limit": 180.0, "priority_threshold_ratio": 1.2}
    it.at(120.0, finished=[2])
    assert {job: reason.code for job, reason in it.policy.cache._say.why.items()} == {0: "placed_from_q2"}
    it.policy.explains = frozenset()
    it.at(130.0)
    assert it.policy.cache._say.why == {}


def test_what_is_said_of_a_job_that_rises() -> None:
    it = Bench(jobs([LONG, LONG, LONG]), TWO, BASIC)
    it.at(0.0, arrived=[0, 1]).at(100.0, arrived=[2])
    it.policy.explains = frozenset({0, 1})
    it.at(301.0)
    why = it.policy.cache._say.why
    assert list(why) == [0]
    assert why[0].code == "promoted"
    assert why[0].numbers["waited_s"] == 201.0
    assert why[0].numbers["ran_s"] == 100.0
    assert it.policy.cache.promotions == 1
