"""antman's books, worked out by hand: who gets which GPUs, what is kept while a job waits, and the load of each GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import cluster_from_mapping, parse_cluster
from gpuloom.core.workload import Labels
from gpuloom.interleave.opportunistic import GUARANTEED_LAYER, OPPORTUNISTIC_LAYER, OpportunisticSharing
from gpuloom.policies import antman
from gpuloom.policies.antman import Antman
from test_policies_hlas import Bench


def bench(sizes: list[int], classes: list[int], cluster: str, **columns: Any) -> Bench:
    priority = np.array(classes, dtype=np.int32)
    workload = jobs([(0, 1000, gpus) for gpus in sizes], priority=priority, **columns)
    return Bench(workload, parse_cluster(cluster), "antman")


def held(it: Bench, job: int) -> tuple[Any, ...]:
    placement = it.state.placements[job]
    return placement.nodes, placement.masks, placement.layer


@pytest.mark.parametrize("forgets", [False, True], ids=["goes on", "built anew each time"])
def test_one_story(forgets: bool) -> None:
    """Two nodes of four GPUs; jobs of 3, 3, 2 and 4 GPUs are guaranteed, of 3 and 6 opportunistic (jobs 3 and 4)."""
    it = bench([3, 3, 2, 3, 6, 4], [0, 0, 0, 1, 1, 0], "2x4")
    memory = it.engine.memory

    def at(now_s: float, load: list[float], reserved: dict[int, dict[int, int]], **events: Any) -> None:
        if forgets:
            it.policy.cache = None
        it.at(now_s, **events)
        assert memory.load.tolist() == pytest.approx(load, abs=1e-9), now_s
        assert memory.reserved == reserved, now_s

    # Jobs 2 and 5 keep the last GPU of a node each, and job 3 takes the least loaded three: those two, and the first.
    at(0.0, [1.0, 0.1, 0.1, 0.99, 0.1, 0.1, 0.1, 0.99], {2: {0: 8}, 5: {1: 8}}, arrived=range(6))
    assert [held(it, job) for job in (0, 1, 3)] == [((0,), (7,), 0), ((1,), (7,), 0), ((0, 1), (9, 8), 1)]
    assert sorted(it.running) == [0, 1, 3]
    # Of what job 0 leaves job 2 gets the GPU that it lacks; five GPUs without an opportunistic job are not six.
    at(10.0, [1.0, 0.0, 0.0, 1.0, 0.1, 0.1, 0.1, 0.99], {5: {1: 8}}, finished=[0])
    assert held(it, 2) == ((0,), (9,), 0)
    assert sorted(it.running) == [1, 2, 3]
    # Job 4 begins with what is least loaded: GPUs 1 and 2 of the first node, then the one that job 5 only keeps.
    it.policy.cache = None if forgets else it.policy.cache
    it.at(20.0, finished=[3])
    nodes, masks, layer = held(it, 4)
    assert (nodes, masks[0] & 6, masks[1] & 8, layer) == ((0, 1), 6, 8, 1)
    assert it.state.placements[4].gpus == 6
    assert sum(memory.load) == pytest.approx(6 * 0.9 + 2 * 0.1 + 3 * 0.1 + 0.09)
    it.at(30.0, finished=[1])
    assert (held(it, 5), memory.reserved) == (((1,), (15,), 0), {})
    # The node of jobs 2 and 4 is lost, and nothing is open on the other.
    at(40.0, [1.6] * 4 + [0.1] * 4, {}, down=[0])
    assert (sorted(it.running), memory.out) == ([5], [0])
    it.at(50.0, up=[0])
    assert (held(it, 2), memory.out) == (((0,), (3,), 0), [])
    assert sorted(it.running) == [2, 4, 5]
    assert sum(memory.load) == pytest.approx(6 * 0.9 + 6 * 0.1)


@pytest.mark.parametrize(
    ("cluster", "first", "gang", "kept", "starts"),
    [
        ("3x4", 1, 10, {}, ((1, 2, 0), (15, 15, 6))),  # two whole nodes, and two GPUs beside job 0
        ("3x4", 3, 10, {1: 15, 2: 15, 0: 8}, ((1, 2, 0), (15, 15, 9))),  # one GPU of two is free beside it
        ("3x4", 1, 12, {1: 15, 2: 15}, ((1, 2, 0), (15, 15, 15))),  # whole nodes only: none beside it
        ("3x4,1x8", 8, 16, {0: 15, 1: 15}, ((0, 1, 3), (15, 15, 255))),
        ("3x4,1x8", 2, 16, {}, ((3, 1, 2), (255, 15, 15))),
        ("3x4,1x8", 2, 14, {}, ((3, 1, 0), (255, 15, 12))),
        ("4x4", 2, 5, {}, ((1, 0), (15, 4))),
        ("2x2,2x4", 1, 9, {2: 15, 3: 15}, None),  # the remainder's node: GPU 1 of the first
    ],
)
def test_a_gang_over_several_nodes(
    cluster: str, first: int, gang: int, kept: dict[int, int], starts: tuple[Any, ...] | None
) -> None:
    """Behind job 0: at once, or once it has ended."""
    it = bench([first, gang], [0, 0], cluster).at(0.0, arrived=[0, 1])
    if starts is None:
        assert held(it, 1)[:2] == ((2, 3, 0), (15, 15, 2))
        return
    assert it.engine.memory.reserved == ({1: kept} if kept else {})
    if kept:
        assert sorted(it.running) == [0]
        it.at(10.0, finished=[0])
    assert held(it, 1) == (*starts, 0)
    assert it.engine.memory.reserved == {}
    assert it.engine.memory.load.max() == pytest.approx(0.1)


def test_gangs_that_would_wait_for_each_other_leave_all_to_the_first() -> None:
    it = bench([6, 16, 12], [0, 0, 0], "2x8").at(0.0, arrived=[0, 1, 2])
    assert it.engine.memory.reserved == {1: {1: 255}, 2: {0: 192}}
    it.at(10.0, finished=[0])  # job 2 has four of twelve by now, and no job runs whose end would help
    assert (sorted(it.running), it.engine.memory.reserved) == ([1], {})
    assert held(it, 1)[:2] == ((1, 0), (255, 255))
    assert it.engine.memory.load.tolist() == pytest.approx([0.1] * 16)
    it.at(20.0, finished=[1])
    assert held(it, 2)[:2] == ((0, 1), (255, 15))


def test_the_gpu_model_with_the_most_open_gpus() -> None:
    """Ties go to the first; a model that has too few in all is not asked."""
    it = bench([2, 2, 2, 3], [0, 0, 0, 0], "1x2:A,1x4:B,1x4:C").at(0.0, arrived=[0, 1, 2])
    assert it.running == {0: 1, 1: 2, 2: 0}
    it.at(1.0, arrived=[3])
    assert it.engine.memory.reserved == {3: {1: 12}}


@pytest.mark.parametrize(("size", "node"), [(2, 1), (3, 2), (4, 2)])
def test_only_a_node_that_is_large_enough_is_waited_for(size: int, node: int) -> None:
    """Of nodes of 1, 2 and 4 GPUs the last has one GPU open; a job of two finds them on the second."""
    it = bench([3, 2, size], [0, 0, 0], "1x1,1x2,1x4").at(0.0, arrived=[0])
    assert it.running == {0: 2}
    if size == 2:
        assert it.at(1.0, arrived=[2]).running == {0: 2, 2: node}
    else:
        assert it.at(1.0, arrived=[1, 2]).running == {0: 2, 1: 1}
        assert it.engine.memory.reserved == {2: {node: 8}}


@pytest.mark.parametrize(
    ("gpus", "held_before", "holds"),
    [
        (1, {2: 1}, False),  # all that it asks for
        (3, {0: 1}, True),
        (3, {0: 3}, True),
        (3, {0: 7}, False),  # all that it asks for
        (3, {0: 1, 1: 1}, False),  # it fits on one node
        (4, {2: 1}, False),  # it asks for the model A
        (6, {0: 1, 2: 1}, False),  # of two models
        (6, {0: 15}, True),
        (6, {0: 15, 1: 1}, True),
        (6, {0: 15, 1: 3}, False),
        (6, {0: 3, 1: 1}, False),  # two parts of nodes
        (2, {2: 1}, True),
        (2, {2: 3}, False),
        (2, {}, False),
    ],
)
def test_what_a_waiting_job_may_go_on_holding(gpus: int, held_before: dict[int, int], holds: bool) -> None:
    it = bench([gpus], [0], "2x4:A,1x2:B", gpu_type=Labels.of(["A" if gpus == 4 else ""]))
    it.state.submit(0, 0.0)
    memory = it.engine.memory
    memory.reserved[0] = dict(held_before)
    books = antman._Books(it.engine.snapshot, memory)
    assert memory.reserved == ({0: held_before} if holds else {})
    assert books._may_wait_on(0, held_before) is holds


@pytest.mark.parametrize("why", ["runs", "is opportunistic", "another runs there", ""])
def test_what_is_held_from_another_time_is_given_up(why: str) -> None:
    it = bench([2, 1], [0, 0], "1x4")
    memory = it.engine.memory
    if why == "runs":
        it.at(0.0, arrived=[0])
    else:
        it.at(0.0, arrived=[1])
        it.state.submit(0, 0.0)
    memory.reserved[0] = {0: 1 if why == "another runs there" else 4}
    memory.opportunistic[0] = why == "is opportunistic"
    books = antman._Books(it.engine.snapshot, memory)
    assert (memory.reserved == {0: {0: 4}}) is (why == "")
    took = 2 if why == "runs" else 1
    assert books._open_gpus == 4 - took - (why == "")


@pytest.mark.parametrize(
    ("labels", "priority", "wanted"),
    [
        (None, None, None),
        (None, [0, 1, 2], [False, True, True]),
        (["high", "", "high"], None, None),
        (["high", "", "high"], [1, 0, 0], [True, False, False]),
        (["high", "best-effort", ""], None, [False, True, False]),
        (["high", "best-effort", ""], [1, 0, 0], [True, True, False]),
    ],
)
def test_who_is_opportunistic(labels: list[str] | None, priority: list[int] | None, wanted: list[bool] | None) -> None:
    workload = jobs(
        [(0, 1, 1)] * 3,
        share_class=None if labels is None else Labels.of(labels),
        priority=None if priority is None else np.array(priority, dtype=np.int32),
    )
    found = antman._given(workload)
    assert (found if found is None else found.tolist()) == wanted
    for share in (0.0, 1.0):
        memory = Antman(opportunistic=share).new_memory(workload, parse_cluster("1x1"))
        assert memory.opportunistic.tolist() == ([share == 1.0] * 3 if wanted is None else wanted)


@pytest.mark.parametrize(
    ("mask", "count", "lowest"), [(0b1011, 2, 0b11), (0b1100, 1, 0b100), (0b101, 5, 0b101), (6, 0, 0)]
)
def test_the_lowest_gpus(mask: int, count: int, lowest: int) -> None:
    assert antman._lowest(mask, count) == lowest


def test_where_an_opportunistic_rate_is_from() -> None:
    """From stage times only where those of all that share are known, and are not all 0."""
    stage_s = np.array([[1.0, 1.0, 1.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    workload = jobs([(0, 10, 1)] * 4, stage_s=stage_s, iteration_s=np.array([3.0, 0.5, 1.0, 0.0]))
    sharing = OpportunisticSharing(workload, 0.5)
    for pair, known in (((0, 1), True), ((0, 2), False), ((2, 0), False), ((1, 3), False), ((3, 1), False)):
        source = sharing.source(pair[0], [(GUARANTEED_LAYER, pair[1])])
        assert source == ("stage times" if known else "antman's parameter share"), pair
        rate = sharing.rate(pair[0], OPPORTUNISTIC_LAYER, [(GUARANTEED_LAYER, pair[1])])
        assert (rate == 0.5) is not known, (pair, rate)
    # Job 1 loads for 0.5 s beside 2 s of the other's compute and network: within one iteration of it, of 3 s.
    assert sharing.rate(1, OPPORTUNISTIC_LAYER, [(GUARANTEED_LAYER, 0)]) == pytest.approx(0.5 / 3)
    assert sharing.rate(1, GUARANTEED_LAYER, [(OPPORTUNISTIC_LAYER, 0)]) == 1.0
    assert sharing.rate(1, OPPORTUNISTIC_LAYER, []) == 1.0
    assert sharing.most(1) == 2
    assert OpportunisticSharing(jobs([(0, 10, 1)] * 2), 0.5).source(0, [(0, 1)]) == "antman's parameter share"


@pytest.mark.parametrize("forgets", [False, True], ids=["goes on", "built anew each time"])
@pytest.mark.parametrize("stays", [True, False])
def test_where_memory_stays_a_gang_keeps_whole_nodes_until_guests_without_room_have_left(
    stays: bool, forgets: bool
) -> None:
    """Jobs 0, 1 and 3 are opportunistic, and leave the gang, job 2, no memory; job 4 does."""
    cluster = cluster_from_mapping({"nodes": [{"gpus": 1, "gpu_memory": "16GiB", "count": 2}]}, source="test")
    memory_mib = np.array([9000.0, np.nan, 8000.0, 9000.0, 7000.0])
    workload = jobs(
        [(0, 1000, 1), (0, 1000, 1), (0, 1000, 2), (0, 1000, 1), (0, 1000, 1)],
        priority=np.array([1, 1, 0, 1, 1], dtype=np.int32),
        gpu_memory_mib=memory_mib,
    )
    it = Bench(workload, cluster, "antman", memory_stays=stays)

    def at(now_s: float, **events: Any) -> list[int]:
        if forgets:
            it.policy.cache = None
        return sorted(it.at(now_s, **events).running)

    assert at(0.0, arrived=[0, 1]) == [0, 1]
    if not stays:
        assert at(10.0, arrived=[2]) == [0, 1, 2], "simulated, what is too much lies in the host's memory"
        return
    assert at(10.0, arrived=[2, 3]) == [0, 1]
    assert it.engine.memory.reserved == {2: {0: 1, 1: 1}}
    assert at(20.0, finished=[0]) == [1], "job 3 would leave the gang nothing"
    assert at(30.0, arrived=[4]) == [1, 4]
    assert at(40.0, finished=[1]) == [2, 4]
    assert at(50.0, finished=[2]) == [3, 4]
