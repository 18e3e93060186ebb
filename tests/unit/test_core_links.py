"""Which of the free GPUs of a node are taken, by how they are connected."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core import links as module
from gpuloom.core.cluster import Cluster, Node, cluster_from_mapping
from gpuloom.core.decision import Placement
from gpuloom.core.errors import ClusterError
from gpuloom.core.job import Gpu, GpuState, NodeRecord
from gpuloom.core.links import WORST, Links, closest, links_of
from gpuloom.live.records.fleet import fleet_of
from gpuloom.placement.pool import pools_of

PAIRS = [(0, 1, "NVLINK"), (2, 3, "NVLINK"), (0, 2, "NODE"), (1, 2, "NODE"), (0, 3, "PHB"), (1, 3, "NODE")]


def matrix(gpus: int) -> st.SearchStrategy[Links]:
    pairs = list(combinations(range(gpus), 2))
    words = st.lists(st.sampled_from(module.WORDS), min_size=len(pairs), max_size=len(pairs))
    return words.map(lambda found: links_of(gpus, [(a, b, word) for (a, b), word in zip(pairs, found, strict=True)]))


def test_pairs_become_rows() -> None:
    assert links_of(2, [(1, 0, "PIX")]) == ((0, 1), (1, 0))
    assert links_of(3, [(0, 1, "NVLINK")])[2] == (WORST, WORST, 0), "a pair that is not named"
    assert links_of(2, [(0, 1, "QPI")]) == ((0, WORST), (WORST, 0)), "a word of another tool"
    assert links_of(2, []) == links_of(2, [(0, 7, "PIX"), (1, 1, "PIX")]) == ()


@pytest.mark.parametrize(
    ("free", "count", "taken"),
    [
        (0b1111, 2, 0b0011),
        (0b1101, 2, 0b1100),
        (0b1101, 1, 0b0001),  # 2 and 3 stay together
        (0b1011, 1, 0b1000),  # 0 and 1 stay together, though 3 comes last
        (0b1001, 2, 0b1001),
        (0b1111, 3, 0b1011),  # the same worst link, the better sum
        (0b0100, 1, 0b0100),
    ],
)
def test_those_that_are_connected_best(free: int, count: int, taken: int) -> None:
    assert closest(free, count, links_of(4, PAIRS)) == taken


@given(st.data())
def test_no_other_choice_has_a_better_worst_link(data: st.DataObject) -> None:
    links = data.draw(matrix(6))
    free = data.draw(st.integers(1, 63))
    gpus = [gpu for gpu in range(6) if free >> gpu & 1]
    count = data.draw(st.integers(1, len(gpus)))
    taken = closest(free, count, links)
    assert taken & ~free == 0
    assert taken.bit_count() == count

    def worst(chosen: tuple[int, ...]) -> int:
        return max((links[a][b] for a, b in combinations(chosen, 2)), default=0)

    ours = tuple(gpu for gpu in gpus if taken >> gpu & 1)
    assert worst(ours) == min(worst(other) for other in combinations(gpus, count))


def test_on_a_machine_with_too_many_gpus_to_try_all(monkeypatch: pytest.MonkeyPatch) -> None:
    islands = [(a, b, "NVLINK") for a, b in combinations(range(24), 2) if a // 8 == b // 8]
    links = links_of(24, islands)
    free = (1 << 24) - 1 & ~0b11  # of the first island six are free
    assert closest(free, 8, links) == 0xFF00
    assert closest(free, 6, links) == 0b11111100


def test_a_job_takes_them_in_a_cluster_that_says_how_they_are_connected() -> None:
    nodes: object = {"nodes": [{"gpus": 4, "links": [[0, 2, "NVLINK"], [1, 3, "PIX"]]}]}
    cluster = cluster_from_mapping(nodes, source="lab.yaml")
    (pool,) = pools_of(cluster)
    assert pool.take(2) == Placement((0,), (0b0101,))
    assert pool.copy().take(2) == pool.with_free([0b1010]).take(2) == Placement((0,), (0b1010,))
    (plain,) = pools_of(Cluster((Node("n0", 4),)))
    assert plain.take(2) == Placement((0,), (0b0011,))


@pytest.mark.parametrize(
    "links",
    ["NVLINK", [[0, 1]], [[0, 4, "PIX"]], [[-1, 0, "PIX"]], [[1, 1, "PIX"]], [[0, 1, "FAST"]], [[0, "1", "PIX"]]],
)
def test_links_that_can_not_be_are_refused(links: object) -> None:
    with pytest.raises(
        ClusterError, match=r"^lab.yaml: nodes\[1\].links\[1\] is .*, must be two GPUs of the node \(0 to 3\)"
    ):
        cluster_from_mapping({"nodes": [{"gpus": 4, "links": links}]}, source="lab.yaml")


def test_links_of_a_live_node_are_those_of_its_gpus_in_service() -> None:
    states = (GpuState.OK, GpuState.UNHEALTHY, GpuState.OK, GpuState.OK)
    gpus = tuple(Gpu(index, f"g{index}", "V100", 16_000, state=state) for index, state in enumerate(states))
    fleet = fleet_of(
        [NodeRecord("a", gpus, topology=((0, 1, "NVLINK"), (0, 3, "NVLINK"), (0, 2, "SYS"), (2, 3, "PHB")))]
    )
    assert fleet is not None
    assert fleet.slots == ((0, 2, 3),)
    (pool,) = pools_of(fleet.cluster)
    taken = pool.take(2)
    assert taken is not None
    assert fleet.allocation(taken) == (("a", (0, 3)),)
