"""The rounds of gavel, worked out by hand: who takes turns, what is counted, and who goes first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.workload import Labels, Speeds
from gpuloom.placement.pool import pools_of
from gpuloom.policies.gavel_packed import PackedRounds
from gpuloom.policies.gavel_rounds import Rounds, Terms
from test_gavel_packed import paired
from test_policies_hlas import Bench

LONG = (0.0, 1e6, 1)
ROUND = "gavel:round=100;reset=30d"


@pytest.mark.parametrize("forgets", [False, True], ids=["goes on", "built anew each time"])
def test_three_jobs_take_turns_on_two_gpus(forgets: bool) -> None:
    it = Bench(jobs([LONG] * 3), parse_cluster("1x2"), ROUND)

    def at(now_s: float, runs: list[int], had_s: list[float], **events: Any) -> None:
        if forgets:
            it.policy.cache = None
        it.at(now_s, **events)
        assert (sorted(it.running), it.engine.memory.received_s[:, 0].tolist()) == (runs, had_s), now_s

    at(0.0, [0, 1], [0.0, 0.0, 0.0], arrived=[0, 1, 2])
    at(50.0, [0, 1], [50.0, 50.0, 0.0])
    assert it.wake_s == 100.0
    at(100.0, [0, 2], [100.0, 100.0, 0.0])
    at(200.0, [1, 2], [200.0, 100.0, 100.0])
    assert it.wake_s == 300.0
    # Within a round who waits gets what falls free, and nobody is stopped.
    at(250.0, [0, 2], [200.0, 150.0, 150.0], finished=[1])
    assert it.engine.memory.on.tolist() == [0, -1, 0]
    assert it.engine.memory.stale
    assert it.at(300.0, finished=[0, 2]).wake_s == math.inf


def test_a_lost_node_s_job_goes_to_idle_gpus_at_once() -> None:
    it = Bench(jobs([LONG, LONG]), parse_cluster("1x1,1x2"), ROUND).at(0.0, arrived=[0])
    assert it.running == {0: 0}
    it.at(30.0, down=[0])
    assert it.running == {0: 1}
    assert it.engine.memory.received_s[0, 0] == 30.0
    it.at(40.0, arrived=[1])
    it.at(50.0, down=[1])
    assert it.running == {}
    assert sorted(it.at(60.0, up=[0]).running) == [0]
    assert sorted(it.at(70.0, up=[1]).running) == [0, 1]


def test_who_still_starts_is_not_stopped() -> None:
    """A start takes four rounds, and a job runs for as long again before its turn is over."""
    it = Bench(jobs([LONG, LONG]), parse_cluster("1x1"), ROUND, overhead_s=400.0).at(0.0, arrived=[0, 1])
    for now_s in range(100, 800, 100):
        assert it.at(float(now_s)).running == {0: 0}, now_s
    assert it.at(800.0).running == {1: 0}


def test_what_a_job_had_until_it_ended_counts_in_a_scheduler_built_anew() -> None:
    it = Bench(jobs([LONG] * 3), parse_cluster("1x1:A,1x1:B"), ROUND).at(0.0, arrived=[0, 1, 2])
    first, second = it.running.items()
    it.policy.cache = None
    it.at(60.0, finished=[first[0]])
    memory = it.engine.memory
    assert memory.received_s[first[0], first[1]] == 60.0
    assert memory.received_s[second[0], second[1]] == 60.0
    assert memory.on[first[0]] == -1
    assert memory.since_s == 60.0


def test_what_runs_where_is_seen_anew() -> None:
    it = Bench(jobs([LONG] * 3), parse_cluster("1x1:A,1x1:B"), ROUND).at(0.0, arrived=[0, 1])
    memory = it.engine.memory
    on = memory.on.tolist()
    memory.on[:] = 7
    made = Rounds(it.engine.snapshot, memory, Terms.of(it.policy.values))
    assert memory.on.tolist() == on
    assert made.observe(it.engine.snapshot)  # GPUs may be free
    assert not made.observe(it.engine.snapshot)
    assert made.in_service() == [1, 1]


def rounds(text: str, rows: list[list[float]]) -> tuple[Rounds, Any]:
    """Jobs of one GPU with these speeds on A and B, all waiting."""
    workload = jobs([LONG] * len(rows), speeds=Speeds(("A", "B"), np.array(rows)))
    it = Bench(workload, parse_cluster("1x1:A,1x1:B"), text)
    for job in range(len(rows)):
        it.state.submit(job, 0.0)
    memory = it.engine.memory
    memory.allocate(np.arange(len(rows)), 0.0, 100.0)
    return Rounds(it.engine.snapshot, memory, Terms.of(it.policy.values)), memory


def test_model_by_model_or_in_one_queue() -> None:
    able = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]
    share = np.array([[0.5, 0.1], [0.2, 0.8], [0.3, 0.3]])
    for queue, wanted in (
        ("model", [(1, 1), (2, 1), (0, 1), (0, 0), (2, 0), (1, 0)]),
        ("global", [(1, 1), (0, 0), (2, 1), (2, 0), (1, 0), (0, 1)]),
    ):
        made, memory = rounds(f"gavel:queue={queue};round=100", able)
        memory.share[:] = share
        assert made.pairs(np.arange(3), [1, 0]) == wanted
    memory.deficit_s[2, 0] = 5.0  # of two that are equal the one that is owed more
    assert made.pairs(np.arange(3), [1, 0])[2:4] == [(2, 0), (2, 1)]
    made, memory = rounds("gavel:queue=global;round=100", [[1.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    memory.share[:] = share
    assert made.pairs(np.arange(3), [1, 0]) == [(1, 1), (0, 0), (2, 1), (2, 0), (0, 1)]
    assert made.pairs(np.array([2]), [0, 1]) == [(2, 0), (2, 1)]


def test_who_stops_leaves_the_gpus_that_it_had() -> None:
    made, memory = rounds("gavel:round=100", [[1.0, 1.0], [1.0, 1.0]])
    place = made.take(1, 0)
    assert place is not None
    assert made.take(0, 0) is None
    assert made.release(1) == place
    assert memory.on.tolist() == [-1, -1]
    assert made.take(0, 0) == place


def test_what_the_program_is_told() -> None:
    made, memory = rounds("gavel:prices=A:2/B:0.5;round=100", [[1.0, 0.5], [1.0, 0.0]])
    memory.share[:] = [[0.5, 0.25], [0.75, 0.0]]
    memory.known[1] = False
    snapshot = made_snapshot(made)
    found, present = made.described(snapshot)
    assert found.tolist() == [0, 1]
    assert present.speed.tolist() == [[1.0, 0.5], [1.0, 0.0]]
    assert present.had.tolist() == [[0.5, 0.25], [0.0, 0.0]]
    assert (present.capacity.tolist(), present.gpus.tolist(), present.weight.tolist()) == ([1, 1], [1, 1], [1, 1])
    assert present.price is not None
    assert present.price.tolist() == [2.0, 0.5]
    assert (present.left_s.tolist(), present.age_s.tolist()) == ([1e6, 1e6], [70.0, 70.0])
    assert len(set(present.kind.tolist())) == 2
    blind, _ = rounds("gavel:blind;round=100;prices=A:2", [[1.0, 0.5], [1.0, 0.0]])
    _, present = blind.described(made_snapshot(blind))
    assert present.speed.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    assert present.price is None  # B's is not known


def made_snapshot(made: Rounds) -> Any:
    """All wait since second 0, and it is 70."""
    it = Bench(
        jobs([LONG] * 2, speeds=Speeds(("A", "B"), np.array([[1.0, 0.5], [1.0, 0.0]]))),
        parse_cluster("1x1:A,1x1:B"),
        "gavel",
    )
    for job in range(2):
        it.state.submit(job, 0.0)
    it.engine.snapshot.now_s = 70.0
    return it.engine.snapshot


def test_large_jobs_are_placed_first_and_what_is_left_is_filled() -> None:
    """Two nodes of two GPUs: jobs of one, two and one GPU all fit, if the second is not looked at last."""
    rows = [(0.0, 1e6, 1), (0.0, 1e6, 2), (0.0, 1e6, 1)]
    it = Bench(jobs(rows), parse_cluster("2x2"), ROUND).at(0.0, arrived=[0, 1, 2])
    assert sorted(it.running) == [0, 1, 2]
    assert it.state.placements[1].masks == (3,)


def test_who_finds_no_whole_node_elsewhere_stays_where_it_is() -> None:
    """Of two nodes of three GPUs one is left on each: two GPUs by number, and no room for a job of two."""
    rows = [(0.0, 1e6, 2)] * 3
    workload = jobs(rows, speeds=Speeds(("A", "B"), np.ones((3, 2))))
    it = Bench(workload, parse_cluster("2x3:A,1x2:B"), ROUND)
    for job in range(3):
        it.state.submit(job, 0.0)
    made = Rounds(it.engine.snapshot, it.engine.memory, Terms.of(it.policy.values))
    assert [made.take(job, pool) is not None for job, pool in ((0, 0), (1, 0), (2, 1))] == [True] * 3
    before = dict(made.where)
    decision = made._assign_round(it.engine.snapshot, [(0, 0), (1, 0), (2, 0), (2, 1)])
    assert (dict(decision.run), list(decision.wait), made.where) == ({}, [], before)


# -- packed ----------------------------------------------------------------------------------------------------


def packed(names: str, cluster: str) -> PackedRounds:
    workload = paired(names, {(gpu, "a", "b"): (0.9, 0.6) for gpu in ("V100", "K80")})
    it = Bench(workload, parse_cluster(cluster), "gavel:packed;round=100")
    for job in range(len(names)):
        it.state.submit(job, 0.0)
    return PackedRounds(it.engine.snapshot, it.engine.memory, Terms.of(it.policy.values))


A, B, ALONE = 0, 1, 2


@pytest.mark.parametrize(
    ("free", "placed", "had_s", "found"),
    [
        (2, set(), 0.0, [(0, 2), (1,)]),
        (1, set(), 0.0, [(0, 2)]),
        (0, set(), 0.0, []),
        (2, {2}, 0.0, [(1,), (0,)]),  # nobody of its kind is left to be beside
        (2, {0, 1}, 0.0, []),
        (2, set(), 50.0, [(2, 0), (1,)]),  # job 0 had some time beside b already: 0.6 of 100 s, after 0.6 of 50 s
        (3, set(), 0.0, [(0, 2), (1,)]),
    ],
)
def test_pairs_and_single_jobs_that_are_most_behind(
    free: int, placed: set[int], had_s: float, found: list[tuple[int, ...]]
) -> None:
    made = packed("aab", "1x4:V100")
    memory = made.memory
    memory.beside[0, [B, ALONE]] = 0.6, 0.2
    memory.beside[1, ALONE] = 0.5
    memory.beside[2, A] = 0.6
    memory.beside_s[0, B] = had_s
    assert made._chosen(np.arange(3), 0, free, placed) == found


def test_the_second_model_s_columns_are_its_own() -> None:
    made = packed("ab", "1x1:V100,1x1:K80")
    made.memory.beside[0, 3 + ALONE] = 0.5
    made.memory.beside[1, ALONE] = 0.5
    assert made._chosen(np.arange(2), 0, 1, set()) == [(1,)]
    assert made._chosen(np.arange(2), 1, 1, set()) == [(0,)]
    made.memory.beside[1, 3 + A] = 0.75  # beside a job that is to have no time beside it
    assert made._chosen(np.arange(2), 1, 1, set()) == [(0,)]


def test_who_gets_what_nobody_is_to_have() -> None:
    """By the share in all, then by the time had; on the fastest model with room."""
    made = packed("aaa", "1x1:V100,1x1:K80")
    memory = made.memory
    memory.share[:] = [[0.2, 0.1], [0.5, 0.0], [0.1, 0.2]]
    memory.received_s[0, 1] = 7.0
    assert made._in_order(np.arange(3), set()) == [1, 2, 0]
    assert made._in_order(np.arange(3), {1}) == [2, 0]
    assert made._in_order(np.arange(3), {0, 1, 2}) == []
    rooms = pools_of(parse_cluster("1x1:V100,1x1:K80"))
    nodes = [place.nodes[0] if (place := made._fastest(job, rooms)) else None for job in range(3)]
    assert nodes == [0, 1, None]


def test_time_beside_another_is_counted_by_its_kind() -> None:
    it = Bench(
        paired("ab", {("V100", "a", "b"): (0.9, 0.9)}, [1e6, 1e6]), parse_cluster("1x1:V100"), "gavel:packed;round=100"
    )
    it.at(0.0, arrived=[0, 1])
    assert len({(p.nodes, p.masks) for p in it.state.placements.values()}) == 1
    it.at(60.0, finished=[1])
    memory = it.engine.memory
    assert memory.beside_s.tolist() == [[0.0, 60.0, 0.0], [60.0, 0.0, 0.0]]
    assert (memory.received_s[:, 0].tolist(), memory.on.tolist(), memory.stale) == ([60.0, 60.0], [0, -1], True)
    it.at(90.0)
    assert memory.beside_s.tolist() == [[0.0, 60.0, 30.0], [60.0, 0.0, 0.0]]


@pytest.mark.parametrize(("wish", "node"), [("", 0), ("K80", 1)])
def test_a_lost_node_s_job_goes_to_idle_gpus_at_once_packed_too(wish: str, node: int) -> None:
    workload = jobs(
        [LONG, LONG], speeds=Speeds(("V100", "K80"), np.array([[1.0, 0.5]] * 2)), gpu_type=Labels.of([wish] * 2)
    )
    it = Bench(workload, parse_cluster("1x1:V100,2x1:K80"), "gavel:packed;round=100").at(0.0, arrived=[0])
    assert it.running == {0: node}
    assert it.engine.memory.on.tolist() == [min(node, 1), -1]
    it.at(30.0, down=[node])
    assert it.running == {0: 1 if node == 0 else 2}
    assert it.wake_s == 100.0
    it.at(40.0, arrived=[1])
    assert sorted(it.running) == ([0, 1] if node == 0 else [0])
    it.at(50.0, up=[node])
    assert sorted(it.running) == [0, 1]
