"""Gavel: its rounds, its weights and its objectives, on small cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import engine_of, jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.state import State
from gpuloom.core.workload import Speeds, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.sim import simulate

ONE_AND_TWO = "1x1:V100,2x1:K80"


def mixed(rows: list[tuple[float, float, int]], *factors: tuple[float, ...], **columns: Any) -> Workload:
    return jobs(rows, speeds=Speeds(("V100", "K80", "P100")[: len(factors[0])], np.array(factors)), **columns)


def shares(text: str, workload: Workload, cluster: str) -> np.ndarray[Any, Any]:
    """Those of the first allocation, all jobs there from the start."""
    policy, nodes = load_policy(text), parse_cluster(cluster)
    engine = engine_of(policy, workload, nodes, State(workload, nodes, layers=1))
    engine.take_in(0.0, arrived=list(range(len(workload))))
    engine.decide(0.0)
    return engine.memory.share


# -- service -------------------------------------------------------------------------------------------------


def ledger() -> Memory:
    """Two jobs on one model, with shares of 3/4 and 1/4 since time 0; rounds of 100 s."""
    memory = Memory.of(3, ("V100",))
    memory.allocate(np.array([0, 1]), 0.0, 100.0)
    memory.share[:2, 0] = (0.75, 0.25)
    return memory


def test_priority_is_the_share_over_the_part_of_all_job_time_which_begins_at_half_a_round() -> None:
    memory, both = ledger(), np.array([0, 1])
    assert memory.priorities(both, 100.0)[:, 0] == pytest.approx([0.75 / 0.5, 0.25 / 0.5])
    memory.receive(0, 0, 300.0)
    assert memory.priorities(both, 100.0)[:, 0] == pytest.approx([0.75 / (350 / 400), 0.25 / (50 / 400)])
    assert memory.queue(both, 0, memory.priorities(both, 100.0)).tolist() == [1, 0]


def test_time_counts_from_the_last_allocation_on() -> None:
    memory, both = ledger(), np.array([0, 1])
    memory.receive(0, 0, 1000.0)
    memory.allocate(both, 1000.0, 100.0)
    assert memory.priorities(both, 100.0)[:, 0] == pytest.approx([1.5, 0.5])
    # It got 1,000 s where 750 were due, the other none of its 250.
    assert memory.deficit_s[:2, 0].tolist() == [-250.0, 250.0]


def test_of_equal_priorities_the_larger_deficit_goes_first_then_the_larger_share() -> None:
    memory, both = ledger(), np.array([0, 1])
    even = np.ones((2, 1))
    assert memory.queue(both, 0, even).tolist() == [0, 1]
    memory.deficit_s[1] = 10.0
    assert memory.queue(both, 0, even).tolist() == [1, 0]


def test_a_job_that_came_after_the_last_allocation_has_no_priority_yet() -> None:
    memory = ledger()
    memory.share[2] = 0.9  # of another job that had this row
    assert memory.priorities(np.array([0, 2]), 100.0)[:, 0] == pytest.approx([1.5, 0.0])


@pytest.mark.parametrize(("reset", "allocations"), [("0", 3), ("1000", 1), ("600", 2)])
def test_an_allocation_is_made_when_reset_has_passed_since_the_last_one(reset: str, allocations: int) -> None:
    """Jobs come at 0, 400 and 700, and are looked at by the rounds of 100 s."""
    policy, nodes = load_policy(f"gavel:reset={reset};round=100"), parse_cluster("1x1:V100,1x1:K80")
    workload = mixed([(0, 9e3, 1), (400, 9e3, 1), (700, 9e3, 1)], (1.0, 0.5), (1.0, 0.5), (1.0, 0.5))
    engine = engine_of(policy, workload, nodes, State(workload, nodes, layers=1))
    seen = set()
    for now_s in range(0, 900, 100):
        engine.take_in(float(now_s), arrived=[job for job in range(3) if workload.submit_s[job] == now_s])
        engine.decide(float(now_s))
        seen.add(engine.memory.solved_at_s)
    assert len(seen) == allocations


# -- weights -------------------------------------------------------------------------------------------------


def test_the_heavier_of_two_alike_jobs_ends_first_where_much_is_left_over() -> None:
    """A and B are alike but for their weights, 5 and 1; with the left-over valued by 1/weight B ended first."""
    workload = mixed(
        [(0, 400_000, 1), (0, 100_000, 1), (0, 100_000, 1)],
        (1.0, 0.5),
        (1.0, 0.5),
        (1.0, 0.5),
        weight=np.array([5.0, 5.0, 1.0]),
    )
    share = shares("gavel", workload, ONE_AND_TWO)
    assert share[:, 0] == pytest.approx([0.5, 0.5, 0.0], abs=1e-3)
    result = simulate(workload, ONE_AND_TWO, "gavel", restart_overhead_s=0.0)
    assert result.end_s[1] <= result.end_s[2]
    assert result.end_s[1] < 134_000
