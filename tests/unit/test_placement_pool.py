"""Pool against a plain re-telling of its rules, and reservations against trying every time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.core.cluster import Cluster, parse_cluster
from gpuloom.core.decision import Placement
from gpuloom.placement.pool import Pool, lowest_bits, pools_of
from gpuloom.placement.reservation import reserve
from tiers import examples

CLUSTERS = ("1x1", "4x4", "2x8", "3x4,1x8", "1x8,3x4", "2x2,2x5,1x3", "6x1")


def pool_of(cluster: str, free: list[int] | None = None, *, scatter: bool = False) -> Pool:
    return pools_of(parse_cluster(cluster), free, scatter=scatter)[0]


def expected(cluster: Cluster, free: list[int], gpus: int, *, scatter: bool) -> dict[int, int] | None:
    """{node: GPUs} of the rules in the module's docstring, by looking at every node."""
    sizes = [node.gpus for node in cluster.nodes]
    counts = [mask.bit_count() for mask in free]
    if sum(counts) < gpus:
        return None
    if scatter:
        chosen: dict[int, int] = {}
        for node, count in enumerate(counts):
            if gpus and count:
                chosen[node] = min(count, gpus)
                gpus -= chosen[node]
        return chosen
    if gpus <= max(sizes):
        able = [(count, node) for node, count in enumerate(counts) if count >= gpus]
        return {min(able)[1]: gpus} if able else None
    chosen = {}
    left = gpus
    for node in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        if counts[node] == sizes[node] <= left:
            chosen[node] = sizes[node]
            left -= sizes[node]
    if left:
        able = [(count, node) for node, count in enumerate(counts) if count >= left and node not in chosen]
        if not able:
            return None
        chosen[min(able)[1]] = left
    return chosen


OPS = st.lists(st.tuples(st.booleans(), st.integers(1, 18)), max_size=40)


@settings(max_examples=examples(150))
@given(name=st.sampled_from(CLUSTERS), ops=OPS, scatter=st.booleans())
def test_every_take_is_what_the_rules_say(name: str, ops: list[tuple[bool, int]], scatter: bool) -> None:
    cluster = parse_cluster(name)
    pool = pool_of(name, scatter=scatter)
    free = [(1 << node.gpus) - 1 for node in cluster.nodes]
    held: list[Placement] = []
    for take, number in ops:
        if take:
            wanted = expected(cluster, free, number, scatter=scatter)
            assert pool.fits(number) == (wanted is not None)
            placement = pool.take(number)
            got = (
                None
                if placement is None
                else dict(zip(placement.nodes, map(int.bit_count, placement.masks), strict=True))
            )
            assert got == wanted
            if placement is not None:
                for node, mask in zip(placement.nodes, placement.masks, strict=True):
                    assert mask & ~free[node] == 0, "only free GPUs are given"
                    assert mask == lowest_bits(free[node], mask.bit_count())
                    free[node] &= ~mask
                held.append(placement)
        elif held:
            placement = held.pop(number % len(held))
            pool.release(placement)
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                free[node] |= mask
        assert list(pool.free.values()) == free
        assert pool.free_gpus == sum(mask.bit_count() for mask in free)
    for placement in held:
        pool.release(placement)
    assert pool.fits(cluster.gpus), "the empty cluster holds a job of its own size"


def test_a_job_goes_where_it_leaves_the_least_over() -> None:
    placement = pool_of("3x4", [0b1111, 0b0011, 0b0111]).take(2)
    assert placement == Placement((1,), (0b0011,))


def test_ties_go_to_the_first_node() -> None:
    assert pool_of("3x4", [0, 0b11, 0b11]).take(1) == Placement((1,), (0b01,))


def test_a_job_that_fits_a_node_is_never_spread() -> None:
    pool = pool_of("2x4", [0b0111, 0b0111])
    assert not pool.fits(4)
    assert pool.take(4) is None
    assert pool.free_gpus == 6


def test_a_large_job_takes_whole_nodes_and_the_fullest_remainder() -> None:
    placement = pool_of("4x4", [0b1111, 0b1111, 0b0011, 0b0111]).take(6)
    assert placement == Placement((0, 2), (0b1111, 0b0011))


def test_a_large_job_needs_wholly_free_nodes() -> None:
    assert pool_of("3x4", [0b0111, 0b1111, 0b0111]).take(8) is None


def test_scatter_takes_any_gpus_first_nodes_first() -> None:
    placement = pool_of("3x4", [0b0100, 0b1111, 0b1000], scatter=True).take(5)
    assert placement == Placement((0, 1), (0b0100, 0b1111))


def test_lost_nodes_hold_nothing_and_come_back_empty() -> None:
    pool = pool_of("2x4")
    pool.node_down(0)
    assert not pool.fits(8)
    assert pool.take(4) == Placement((1,), (0b1111,))
    pool.node_up(0)
    assert pool.take(4) == Placement((0,), (0b1111,))


def test_a_copy_does_not_touch_the_pool() -> None:
    pool = pool_of("2x4")
    pool.copy().take(8)
    assert pool.free_gpus == 8
    assert pool.fits(8)


def test_claim_undoes_release() -> None:
    pool = pool_of("2x4")
    placement = pool.take(6)
    assert placement is not None
    pool.release(placement)
    pool.claim(placement)
    assert pool.free_gpus == 2
    assert not pool.fits(4)


def test_one_pool_per_model_in_the_cluster_s_order() -> None:
    pools = pools_of(parse_cluster("1x4:K80,1x8:V100,2x4:K80"))
    assert [pool.nodes for pool in pools] == [(0, 2, 3), (1,)]
    assert [pool.free_gpus for pool in pools] == [12, 8]


# -- reservations --------------------------------------------------------------------------------------------


@settings(max_examples=examples(150))
@given(
    name=st.sampled_from([*CLUSTERS, "2x4:A,2x4:B", "1x8:A,3x2:B"]),
    running=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), max_size=10),
    gpus=st.integers(1, 18),
)
def test_a_reservation_is_the_earliest_time_at_which_the_job_fits(
    name: str, running: list[tuple[int, int]], gpus: int
) -> None:
    pools = pools_of(parse_cluster(name))
    placed: list[tuple[float, int, Placement]] = []
    for need, end in running:
        for index, pool in enumerate(pools):
            placement = pool.take(need)
            if placement is not None:
                placed.append((float(end), index, placement))
                break
    before = [dict(pool.free) for pool in pools]
    found = reserve(0, gpus, pools, range(len(pools)), [(end, p) for end, _, p in placed], now_s=0.5)
    assert [dict(pool.free) for pool in pools] == before, "the pools are left as they were"

    def fits_at(time: float) -> list[int]:
        tried = [pool.copy() for pool in pools]
        for end, index, placement in placed:
            if end <= time:
                tried[index].release(placement)
        return [index for index, pool in enumerate(tried) if pool.fits(gpus)]

    times = [time for time in sorted({0.5, *(end for end, _, _ in placed)}) if fits_at(time)]
    if not times:
        assert found is None
        return
    assert found is not None
    assert found.start_s == times[0]
    assert found.pool in fits_at(times[0])
    assert found.placement.gpus == gpus


def test_no_reservation_where_the_job_would_not_fit_even_then() -> None:
    pools = pools_of(parse_cluster("2x4"))
    pools[0].node_down(1)
    assert reserve(0, 8, pools, [0], [], 0.0) is None
    assert reserve(0, 1, pools, [], [], 0.0) is None


@pytest.mark.parametrize(("mask", "count", "taken"), [(0b1011, 2, 0b0011), (0b1000, 1, 0b1000), (0b1, 0, 0)])
def test_lowest_bits(mask: int, count: int, taken: int) -> None:
    assert lowest_bits(mask, count) == taken
