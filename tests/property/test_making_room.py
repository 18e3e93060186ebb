"""Who must stop so that a waiting job runs: counting GPUs by node gives what trying it out gives, and no more stop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.cluster import parse_cluster
from gpuloom.core.decision import Placement
from gpuloom.placement.making_room import _Trial, make_room
from gpuloom.placement.pool import Pool, pools_of

running_gpus = st.lists(st.integers(1, 6), max_size=12)


def filled(gpus: list[int]) -> tuple[list[Pool], dict[int, Placement]]:
    """3 nodes of 4 GPUs with as many of these jobs as fit."""
    pools = pools_of(parse_cluster("3x4"))
    taken = {job: pools[0].take(number) for job, number in enumerate(gpus)}
    return pools, {job: placement for job, placement in taken.items() if placement is not None}


@given(running_gpus, st.integers(1, 4))
def test_counting_is_trying(gpus: list[int], need: int) -> None:
    pools, where = filled(gpus)
    if pools[0].fits(need):
        return
    trial = _Trial(pools, where)
    there = [(100.0 - job, job) for job in where]
    assert trial._on_one_node(pools[0], there, need) == trial._on_many(0, there, need)


@given(running_gpus, st.integers(1, 12))
def test_those_who_stop_are_enough_and_all_needed(gpus: list[int], need: int) -> None:
    pools, where = filled(gpus)
    before = dict(pools[0].free)
    left_out: list[int] = []
    newcomer = len(gpus)
    freed = make_room(
        pools,
        [((0.0, newcomer), lambda: left_out.append(newcomer))],
        [(100.0 - job, job) for job in where],
        gpus=[*gpus, need],
        models_of=lambda job: (0,),
        where=where,
        pool_of_node=dict.fromkeys(range(3), 0),
    )
    assert pools[0].free == before
    assert bool(freed) == (not left_out and not pools[0].fits(need))

    def fits_without(jobs: list[int]) -> bool:
        pool = pools[0].copy()
        for job in jobs:
            pool.release(where[job])
        return pool.fits(need)

    jobs = [job for _, job in freed]
    if freed:
        assert fits_without(jobs)
        assert not any(fits_without([other for other in jobs if other != job]) for job in jobs)
    elif left_out:
        assert not fits_without(list(where))
