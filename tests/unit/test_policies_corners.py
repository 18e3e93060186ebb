"""Corners of policies and of the programs they solve, on the smallest case that shows each."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from builders import engine_of, jobs
from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.decision import Placement
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.workload import Labels, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies import gavel_rounds
from gpuloom.policies.pair_speeds import Expected
from gpuloom.policies.pairs import BesideView, Pairs
from gpuloom.policies.registry import policy_ids
from gpuloom.scaling.base_view import BaseView, Sizes
from gpuloom.sim import simulate
from gpuloom.solvers.matching import _integer_program
from scaling import scaling_of


def decided(text: str, workload: Workload, cluster: str) -> Any:
    """A policy's memory once it has decided about these jobs, all there from the start."""
    policy, nodes = load_policy(text), parse_cluster(cluster)
    engine = engine_of(policy, workload, nodes, State(workload, nodes, layers=policy.max_jobs_per_gpu))
    engine.take_in(0.0, arrived=list(range(len(workload))))
    engine.decide(0.0)
    return engine.memory


# -- gavel ---------------------------------------------------------------------------------------------------


def test_gavel_gives_jobs_of_all_sizes_the_same_gpu_time() -> None:
    """Of 2 GPUs: the job that takes both runs a third of the time, those that take one two thirds."""
    memory = decided("gavel", jobs([(0, 1000, 2), (0, 1000, 1), (0, 1000, 1)]), "1x2")
    assert memory.share[:, 0] == pytest.approx([1 / 3, 2 / 3, 2 / 3])


def test_gavel_gives_a_job_of_twice_the_weight_twice_the_share() -> None:
    memory = decided("gavel", jobs([(0, 1000, 1), (0, 1000, 1)], weight=np.array([2.0, 1.0])), "1x1")
    assert memory.share[:, 0] == pytest.approx([2 / 3, 1 / 3])


def test_gavel_counts_the_time_until_a_node_was_lost_once() -> None:
    """By a cache that was built as the job was lost, which learns of it by no other way."""
    workload, cluster = jobs([(0, 1000, 1), (0, 1000, 1)]), parse_cluster("1x1")
    memory = load_policy("gavel").new_memory(workload, cluster)
    memory.on[0], memory.since_s = 0, 40.0
    terms = gavel_rounds.Terms("max_min_fairness", 10.0, 0.0, one_queue=False, blind=False, prices={})
    rounds = gavel_rounds.Rounds(as_lost(workload, cluster), memory, terms)
    rounds.account(100.0)
    assert memory.received_s[0, 0] == 60.0
    rounds.account(150.0)
    assert memory.received_s[0, 0] == 60.0


def as_lost(workload: Workload, cluster: Cluster) -> Any:
    """A snapshot in which job 0 has just lost its node, and nothing runs."""
    return SimpleNamespace(
        workload=workload,
        cluster=cluster,
        evicted=(0,),
        finished=(),
        placements={},
        nodes_out=(),
        free_masks=lambda: [1],
        waiting=lambda: [0],
    )


# -- antman, themis, elastic-goodput -------------------------------------------------------------------------


def test_antman_puts_more_on_a_gpu_than_its_memory_holds() -> None:
    """It keeps what does not fit in the host's; others may not."""
    cluster = Cluster((replace(parse_cluster("1x1").nodes[0], gpu_memory_mib=16_000),))
    workload = jobs(
        [(0, 100, 1), (0, 100, 1)],
        priority=np.array([0, 1], dtype=np.int32),
        gpu_memory_mib=np.array([12_000.0, 12_000.0]),
    )
    result = simulate(workload, cluster, "antman", restart_overhead_s=0.0, interval_s=0.0)
    assert result.start_s.tolist() == [0.0, 0.0]


def test_themis_of_muri_takes_an_iteration_of_unknown_length_for_a_second() -> None:
    workload = jobs([(0, 100, 1)] * 4, iteration_s=np.array([np.nan, 0.0, np.inf, 5.0]))
    memory = decided("themis:mode=muri", workload, "1x2")
    assert memory.iterations_left.tolist() == [100.0, 100.0, 100.0, 20.0]


def test_who_loses_least_per_gpu_shrinks_first() -> None:
    """Four GPUs make the first job three times as fast; one makes the other 1.8 times as fast."""
    ones = np.ones(2, dtype=np.int32)
    curves = tuple(np.array(speeds)[:, None] for speeds in ([0, 1, 0, 0, 0, 3.0], [0, 1, 1.8]))
    scaling = Scaling(
        ones, ones, np.array([5, 2], dtype=np.int32), np.array([0, 1], dtype=np.int32), np.ones(2), curves
    )
    workload, cluster = jobs([(0, 9000, 1), (0, 9000, 1)], scaling=scaling), parse_cluster("1x7")
    policy, state = load_policy("elastic-goodput:alpha=1"), State(workload, cluster)
    engine = engine_of(policy, workload, cluster, state)
    engine.take_in(0.0, arrived=[0, 1])
    engine.decide(0.0)
    assert [state.placements[job].gpus for job in (0, 1)] == [5, 2]
    keys = [policy.first_to_shrink(engine.snapshot, engine.memory, job) for job in (0, 1)]  # type: ignore[attr-defined]
    assert keys == pytest.approx([0.5, 0.8])


BORROWS = "elastic:literal;proportion=0.5;expand_threshold=0.5;shrink_threshold=0.7"


def growing(priority: list[int], *more: tuple[float, float, int]) -> Workload:
    """Two jobs of a GPU, as much faster as they have GPUs, up to four; and others."""
    rows = [(0.0, 1e5, 1), (0.0, 1e5, 1), *more]
    gpus = np.array([gpus for _, _, gpus in rows], dtype=np.int32)
    curve = np.array([0, 0] + [NO_CURVE] * len(more), dtype=np.int32)
    most = np.array([4, 4, *gpus[2:]], dtype=np.int32)
    sizes = scaling_of(gpus, [np.arange(5.0)[:, None]], curve, gpus, most)
    return jobs(rows, priority=np.array([*priority, *[0] * len(more)], dtype=np.int32), scaling=sizes)


@pytest.mark.parametrize(
    ("order", "priority", "first"), [("priority", [1, 0], 1), ("priority", [0, 1], 0), ("fair", [1, 0], 0)]
)
def test_who_grows_first_where_there_is_a_gpu_for_one(order: str, priority: list[int], first: int) -> None:
    """Of half of the 11 free GPUs 0.6 - 2 / 5.5 may be borrowed: one."""
    found = simulate(growing(priority), "1x13", f"{BORROWS};expand_policy={order}")
    assert (found.end_s.argmin(), found.end_s.min()) == (first, 50_010.0)


@pytest.mark.parametrize(
    ("order", "priority", "first"), [("priority", [1, 0], 0), ("priority", [0, 1], 1), ("fair", [0, 1], 0)]
)
def test_who_shrinks_first(order: str, priority: list[int], first: int) -> None:
    """As four of 17 GPUs go to another job, the two that have grown keep 0.6 of half of the nine free ones: three."""
    workload = growing(priority, (10_000.0, 5_000.0, 4))
    runs = simulate(workload, "1x17", f"{BORROWS};shrink_policy={order}", record_segments=True).segments
    assert runs is not None
    shrunk = [job for job, end_s in zip(runs.job, runs.end_s, strict=True) if 10_000 < end_s < 15_000]
    assert shrunk == [first]


def test_a_job_whose_home_was_lost_waits_in_the_base_s_world() -> None:
    workload, cluster = jobs([(0, 100, 1), (0, 100, 1), (0, 100, 1)]), parse_cluster("1x2")
    state = State(workload, cluster)
    engine = engine_of(load_policy("fifo"), workload, cluster, state)
    engine.take_in(0.0, arrived=[0, 1, 2])
    engine.decide(0.0)
    view = BaseView(Snapshot(state, np.zeros(3)), Sizes(workload, cluster))
    view.homeless.append(1)
    assert [view.is_running(job) for job in range(3)] == [True, False, False]
    assert [view.is_waiting(job) for job in range(3)] == [False, True, True]


def test_a_guest_shown_to_the_base_is_on_its_gpu_as_if_alone() -> None:
    workload, cluster = jobs([(0, 100, 1), (0, 100, 1)]), parse_cluster("1x2")
    view = BesideView(Snapshot(State(workload, cluster, layers=2), np.zeros(2)))
    view.hide(0)
    view.show(0, Placement((0,), (2,), 1))
    view.show(1, host := Placement((0,), (1,), 0))
    assert view.placements == {0: Placement((0,), (2,), 0), 1: host}
    assert view.hidden == set()


@pytest.mark.parametrize(
    ("known", "fixed", "guests", "hidden"),
    [
        ({1}, set(), {1}, {1}),
        ({0}, set(), {0}, {0}),
        (set(), set(), {1}, {1}),  # another policy made the pair: the best-effort job is the guest
        ({0, 1}, set(), {1}, {1}),
        ({1}, {0}, {1}, {0, 1}),
        ({1, 2}, set(), {1}, {1}),  # who is alone is nobody's guest
        ({1}, {2}, {1}, {1, 2}),
    ],
)
def test_who_is_a_guest_as_pairs_are_taken_over(
    known: set[int], fixed: set[int], guests: set[int], hidden: set[int]
) -> None:
    """Jobs 0 and 1 share a GPU, 2 has one to itself; 3 waits and could share, 4 waits and could not."""
    workload = jobs([(0, 100, 1)] * 5, share_class=Labels.of(["high", "best-effort", "high", "best-effort", ""]))
    cluster = parse_cluster("1x2")
    state = State(workload, cluster, layers=2)
    state.submit_all(np.arange(5))
    places = [Placement((0,), (1,), 0), Placement((0,), (1,), 1), Placement((0,), (2,), 0)]
    zeros = np.zeros(3)
    state.adopt(np.arange(3), places, run_from_s=zeros, work_from_s=zeros, rate=np.array([1.0, 0.5, 1.0]))
    snapshot = Snapshot(state, np.zeros(5))
    snapshot.fixed = frozenset(fixed)
    found = Pairs(snapshot, known, expected=Expected(snapshot.workload, 0.5, 1.05), stops=True)
    assert (found.guests, found.view.hidden) == (guests, hidden)
    assert found.view.rate_alone == {0: 1.0, 1: 1.0, 2: 1.0}
    assert list(found._waiting) == [3]


def test_what_a_policy_has_learnt_is_saved_where_it_forms_pairs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    workload, cluster = jobs([(0, 10, 1)]), parse_cluster("1x2")
    pairs: Any = load_policy("fifo", beside=True)
    memory = pairs.new_memory(workload, cluster)
    monkeypatch.setattr(pairs.inner, "saved", lambda base: "learnt" if base is memory.base else "")
    assert pairs.saved(memory) == "learnt"


# -- programs ------------------------------------------------------------------------------------------------


def test_the_integer_program_pairs_types_with_each_other_and_with_themselves() -> None:
    weight = np.array([[3.0, 5.0, 1.0], [5.0, 0.0, 4.0], [1.0, 4.0, 2.0]])
    low, high = (side.astype(np.intp) for side in np.triu_indices(3))
    found = _integer_program(weight, np.array([3.0, 1.0, 2.0]), low, high, 99.0, 10.0)
    assert found is not None
    pairs = {(int(a), int(b)): int(count) for a, b, count in zip(*found[:3], strict=True) if count}
    assert pairs == {(0, 1): 1, (0, 0): 1, (2, 2): 1}
    assert found[3] == pytest.approx(10.0)
    assert _integer_program(weight, np.array([3.0, 1.0, 2.0]), low, high, 99.0, 10.1) is None
    known = _integer_program(weight, np.array([3.0, 1.0, 2.0]), low, high, 9.5, 9.0)
    assert known is not None
    assert known[3] == 9.5, "the bound that was known, where it is lower"


def test_these_policies_choose_by_gpu_model() -> None:
    """As docs/reference/policies.md and `gpuloom policies` have it; the others take any model that is free."""
    found = {policy for policy in policy_ids() if load_policy(policy).traits.heterogeneity}
    assert found == {"gavel", "hlas", "weave", "elastic", "elastic-goodput"}
