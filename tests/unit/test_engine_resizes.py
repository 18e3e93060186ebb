"""Jobs of several sizes: what a resize costs, how it is booked, which sizes a plan may give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import InputError, PlanError
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.policies.base import Policy, Traits
from gpuloom.sim import Failure, simulate

# 1 GPU: 1 it/s, 2: 1.5, 3: impossible, 4: 2.5 on one node and 2 on more.
CURVE = np.array([[0.0, 0.0], [1.0, 1.0], [1.5, 1.5], [0.0, 0.0], [2.5, 2.0]])


def scaling(n: int, *, low: int = 1, high: int = 4, reference: float = 1.0) -> Scaling:
    ones = np.ones(n, dtype=np.int32)
    return Scaling(ones, low * ones, high * ones, 0 * ones, np.full(n, reference), (CURVE,))


def elastic(n: int = 1, duration_s: float = 100.0, **sizes: Any) -> Workload:
    return jobs([(0.0, duration_s, 1)] * n, scaling=scaling(n, **sizes))


class Steps(Policy):
    """Gives job 0 these placements, one after another, at these times."""

    id = "steps"
    traits = Traits("what a test says", "nothing", "yes", False, False, "-", "")
    resizes = True

    def __init__(self, *steps: tuple[float, Placement]) -> None:
        super().__init__()
        self.steps = steps
        self.seen: list[tuple[float, list[int], int, float]] = []

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        now = snapshot.now_s
        self.seen.append((now, list(snapshot.resized), snapshot.gpus_of(0), snapshot.attained_gpu_s(0)))
        due = [place for at, place in self.steps if (at == now and not snapshot.is_waiting(0)) or at == now == 0]
        later = [at for at, _ in self.steps if at > now]
        run = {0: due[-1]} if due and 0 not in snapshot.finished else {}
        return Decision(run, (), min(later, default=float("inf"))), memory


def on(*pieces: tuple[int, int]) -> Placement:
    return Placement(tuple(node for node, _ in pieces), tuple(mask for _, mask in pieces))


def run(policy: Policy, workload: Workload, cluster: str = "2x4", **settings: Any) -> Any:
    return simulate(workload, cluster, policy, interval_s=0, restart_overhead_s=10, **settings)


def test_a_resize_changes_the_speed_and_costs_its_overhead() -> None:
    policy = Steps((0.0, on((0, 0b1))), (30.0, on((0, 0b1111))))
    result = run(policy, elastic(), resize_overhead_s=4)
    # 10 s start, 20 s of work at speed 1, 4 s of resize, 80 s of work at speed 2.5.
    assert result.end_s.tolist() == [30 + 4 + 80 / 2.5]
    assert (result.resizes, result.moves, result.restarts, result.starts.tolist()) == (1, 0, 0, [1])
    assert result.attained_gpu_s.tolist() == [30 * 1 + 36 * 4]
    assert policy.seen[1] == (30.0, [], 1, 30.0)
    assert policy.seen[2] == (66.0, [0], 0, 30 + 36 * 4)


def test_without_a_setting_a_resize_costs_as_much_as_a_start() -> None:
    result = run(Steps((0.0, on((0, 0b1))), (30.0, on((0, 0b11)))), elastic())
    assert result.end_s.tolist() == [30 + 10 + 80 / 1.5]


def test_a_resize_while_a_start_is_under_way_does_not_shorten_it() -> None:
    result = run(Steps((0.0, on((0, 0b1))), (2.0, on((0, 0b11)))), elastic(), resize_overhead_s=1)
    assert result.end_s.tolist() == [10 + 100 / 1.5]


def test_a_spread_job_runs_at_the_speed_of_its_nodes() -> None:
    result = run(Steps((0.0, on((0, 0b11), (1, 0b11)))), elastic())
    assert result.end_s.tolist() == [10 + 100 / 2]


def test_the_reference_is_where_the_duration_was_measured() -> None:
    result = run(Steps((0.0, on((0, 0b1)))), elastic(reference=2.5))
    assert result.end_s.tolist() == [10 + 100 * 2.5]


def test_other_gpus_altogether_are_a_move() -> None:
    result = run(Steps((0.0, on((0, 0b1))), (30.0, on((1, 0b11)))), elastic(), resize_overhead_s=0)
    assert (result.resizes, result.moves, result.starts.tolist()) == (0, 1, [2])
    assert result.end_s.tolist() == [30 + 10 + 80 / 1.5]


def test_segments_follow_a_resize() -> None:
    policy = Steps((0.0, on((0, 0b1))), (30.0, on((0, 0b11))))
    segments = run(policy, elastic(), resize_overhead_s=0, record_segments=True).segments
    assert segments.gpu_mask.tolist() == [0b1, 0b11]
    assert segments.start_s.tolist() == [0, 30]


@pytest.mark.parametrize("mask", [0b111, 0b11111])
def test_a_size_that_the_job_does_not_have_is_refused(mask: int) -> None:
    with pytest.raises(PlanError, match=r"it needs 1 to 4 \(in steps of 1\) GPUs at once and was given"):
        run(Steps((0.0, on((0, mask)))), elastic(), cluster="2x8")


def test_a_policy_that_does_not_say_so_may_not_resize() -> None:
    policy = Steps((0.0, on((0, 0b11))))
    policy.resizes = False
    with pytest.raises(PlanError, match="it needs 1 GPUs at once and was given 2"):
        run(policy, elastic())


def test_rigid_policies_give_the_size_asked_for_and_feel_the_nodes() -> None:
    workload = jobs([(0.0, 100.0, 4)], scaling=scaling(1, reference=2.5))
    assert simulate(workload, "4x1", "fifo", restart_overhead_s=0).end_s.tolist() == [pytest.approx(125)]
    assert simulate(workload, "1x4", "fifo", restart_overhead_s=0).end_s.tolist() == [100]


def test_the_bound_knows_the_sizes() -> None:
    one = elastic()
    assert simulate(one, "2x4", "fifo", restart_overhead_s=0).lower_bound_avg_jct_s == 100
    grown = run(Steps((0.0, on((0, 0b1111)))), one)
    assert grown.lower_bound_avg_jct_s == 100 / 2.5
    # Ten jobs on 4 GPUs: the leanest size is 1 GPU, so the cluster does four of them in 100 s.
    many = elastic(10)
    bound = run_bound(many)
    assert bound == pytest.approx(np.mean([25 * (k + 1) for k in range(10)]) - 12.5 + 20)


def run_bound(workload: Workload) -> float:
    from gpuloom.core.cluster import parse_cluster
    from gpuloom.sim.bound import lower_bound_avg_jct_s

    return lower_bound_avg_jct_s(workload, parse_cluster("1x4"), resizes=True)


def test_bad_scalings_are_refused() -> None:
    ones = np.ones(1, dtype=np.int32)
    with pytest.raises(InputError, match="throughput 0 on some nodes only"):
        Scaling(ones, ones, ones, 0 * ones, np.ones(1), (np.array([[0.0, 0.0], [0.0, 1.0]]),))
    with pytest.raises(InputError, match="sizes that differ need a curve"):
        Scaling(ones, ones, 2 * ones, NO_CURVE * ones, np.ones(1), ())
    with pytest.raises(InputError, match="a curve that reaches as far"):
        Scaling(ones, ones, 5 * ones, 0 * ones, np.ones(1), (CURVE,))
    with pytest.raises(InputError, match="asks for 1 GPUs, which is not one of its sizes"):
        jobs([(0.0, 1.0, 1)], scaling=scaling(1, low=2))
    with pytest.raises(InputError, match="asks for 3 GPUs, which is not one of its sizes"):
        jobs([(0.0, 1.0, 3)], scaling=scaling(1))
    with pytest.raises(InputError, match="scaling has 2 rows"):
        Workload("test", np.zeros(1), np.ones(1), ones, scaling=scaling(2))


def test_an_elastic_job_outlives_the_loss_of_a_node_and_grows_when_it_is_back() -> None:
    """1000 s of work on two GPUs of two nodes, at twice the speed of one; the second node is away from 100 to 300 s.

    Of the 100 s before the loss 20 are lost since the checkpoint at 80. Then 200 s at half the speed, and the rest at
    full.
    """
    curve = np.array([[0.0], [1.0], [2.0]])
    scaling = Scaling(*(np.array([n], dtype=np.int32) for n in (1, 1, 2, 0)), np.array([2.0]), (curve,))
    workload = replace(jobs([(0.0, 1000.0, 2)]), scaling=scaling)
    settings: dict[str, Any] = {"failures": (Failure(1, 100.0, 300.0),), "checkpoint_s": 80.0, "interval_s": 0.0}
    found = simulate(workload, "2x1", "elastic-goodput:base=fifo", restart_overhead_s=0.0, **settings)
    assert found.starts.tolist() == [1]
    assert found.end_s[0] == pytest.approx(300.0 + (1000.0 - 80.0 - 200.0 / 2))
    assert found.resizes == 2
    # A policy that does not resize has it wait.
    alone = simulate(workload, "2x1", "fifo", restart_overhead_s=0.0, **settings)
    assert (alone.starts.tolist(), alone.end_s[0]) == ([2], pytest.approx(300.0 + 920.0))


def test_below_its_fewest_replicas_an_elastic_job_waits() -> None:
    curve = np.array([[0.0], [0.0], [1.0], [0.0], [1.8]])
    scaling = Scaling(*(np.array([n], dtype=np.int32) for n in (2, 1, 2, 0)), np.array([1.8]), (curve,))
    workload = replace(jobs([(0.0, 100.0, 4)]), scaling=scaling)
    found = simulate(
        workload, "1x3,1x1", "elastic-goodput:base=fifo", restart_overhead_s=0.0, failures=(Failure(0, 10.0, 50.0),)
    )
    assert found.starts.tolist() == [2]
