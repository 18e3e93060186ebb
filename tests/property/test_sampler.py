"""Every sample once per epoch, however the number of processes changes, and the same samples in every step."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gpuloom.training.sampler import ElasticSampler

MOST = 5


def samplers(samples: int, batch: int, sizes: int, seed: int, state: dict[str, int] | None) -> list[ElasticSampler]:
    found = []
    for rank in range(sizes):
        one = ElasticSampler(samples, batch, seed=seed, replicas=sizes, rank=rank, most=MOST)
        if state is not None:
            one.load_state_dict(json.loads(json.dumps(state)))
        found.append(one)
    return found


def steps(ranks: list[ElasticSampler], most: int) -> list[list[list[int]]]:
    """What each rank got in each of the next steps, at most so many; they are counted as done."""
    found = [list(step) for step in zip(*ranks, strict=True)]
    for one in ranks:
        assert len(one) == len(found)
        one.advance(min(most, len(found)))
    return found[:most]


@given(
    samples=st.integers(MOST, 120),
    batch=st.integers(MOST, 24),
    seed=st.integers(0, 99),
    resizes=st.lists(st.tuples(st.integers(1, MOST), st.integers(0, 6)), max_size=6),
    last=st.integers(1, MOST),
)
def test_every_sample_once_per_epoch_at_any_sequence_of_sizes(
    samples: int, batch: int, seed: int, resizes: list[tuple[int, int]], last: int
) -> None:
    whole = [sorted(step[0]) for step in steps(samplers(samples, batch, 1, seed, None), 10**6)]
    got: list[list[list[int]]] = []
    state = None
    for sizes, count in [*resizes, (last, 10**6)]:
        ranks = samplers(samples, batch, sizes, seed, state)
        got += steps(ranks, count)
        assert all(one.state_dict() == ranks[0].state_dict() for one in ranks)
        state = ranks[0].state_dict()
    assert state is not None
    assert state["cursor"] == samples
    assert sorted(index for step in got for mine in step for index in mine) == list(range(samples))
    assert [sorted(index for mine in step for index in mine) for step in got] == whole
    for step in got:
        counts = [len(mine) for mine in step]
        assert max(counts) - min(counts) <= 1
        assert min(counts) >= 1, "a process without a sample would keep the others waiting"


@given(samples=st.integers(1, 4000), seed=st.integers(), epoch=st.integers(0, 50))
def test_the_order_is_a_permutation_that_depends_on_seed_and_epoch(samples: int, seed: int, epoch: int) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        one = ElasticSampler(samples, samples + MOST, seed=seed, replicas=1, rank=0)
        one.set_epoch(epoch)
        return [index for step in one for index in step]

    found = order(seed, epoch)
    assert sorted(found) == list(range(samples))
    assert order(seed, epoch) == found
    if samples > 20:
        assert found != list(range(samples))
        assert order(seed, epoch + 1) != found
        assert order(seed + 1, epoch) != found
