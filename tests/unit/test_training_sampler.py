"""The sampler of elastic jobs: how well it mixes, what it reads of its surroundings, what it refuses."""

from __future__ import annotations

from itertools import pairwise

import pytest

from gpuloom.training.sampler import ElasticSampler
from gpuloom.training.torch import ElasticSampler as OfTorch


def test_it_mixes_well() -> None:
    """Of many epochs: each sample stands at each place about as often, and neighbours don't stay together."""
    samples, epochs = 40, 2000
    first = [0] * samples
    together = 0
    for epoch in range(epochs):
        one = ElasticSampler(samples, samples, replicas=1, rank=0)
        one.set_epoch(epoch)
        (order,) = one
        first[order[0]] += 1
        together += sum(b == a + 1 for a, b in pairwise(order))
    expected = epochs / samples
    # χ² of 39 degrees of freedom is above 90 in one of a million cases.
    assert sum((count - expected) ** 2 / expected for count in first) < 90
    assert together / epochs == pytest.approx(39 / 40, rel=0.1)


def test_without_shuffling_it_goes_by_the_dataset() -> None:
    one = ElasticSampler([7] * 7, 3, shuffle=False, replicas=2, rank=1)
    assert list(one) == [[1], [4, 6]]  # 6 alone would be none for the other process


def test_its_processes_are_those_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OfTorch is ElasticSampler
    for name in ("WORLD_SIZE", "RANK", "GPULOOM_REPLICAS", "GPULOOM_MAX_REPLICAS"):
        monkeypatch.delenv(name, raising=False)
    assert (ElasticSampler(4, 1).replicas, ElasticSampler(4, 1).rank) == (1, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert (ElasticSampler(4, 4).replicas, ElasticSampler(4, 4).rank) == (4, 3)
    monkeypatch.setenv("GPULOOM_REPLICAS", "2")  # of two processes each
    monkeypatch.setenv("GPULOOM_MAX_REPLICAS", "3")
    with pytest.raises(ValueError, match="a batch of 5 samples can't be split among 6 processes"):
        ElasticSampler(40, 5)
    with pytest.raises(ValueError, match="a dataset of 5 samples can't be split among 6 processes"):
        ElasticSampler(5, 12)
    with pytest.raises(ValueError, match="rank 3 is none of 3 processes"):
        ElasticSampler(40, 8, replicas=3)


def test_an_epoch_goes_on_where_it_was_and_another_begins_anew() -> None:
    one = ElasticSampler(10, 4, replicas=1, rank=0)
    one.advance(2)
    one.set_epoch(0)
    assert (one.cursor, len(one), [len(step) for step in one]) == (8, 1, [2])
    one.advance()
    with pytest.raises(ValueError, match="epoch 0 has no more steps: all of its 10 samples were used"):
        one.advance()
    state = one.state_dict()
    one.set_epoch(1)
    assert (one.cursor, len(one)) == (0, 3)
    one.load_state_dict(state)
    assert (one.epoch, list(one)) == (0, [])
    with pytest.raises(ValueError, match="the checkpoint is of 10 samples, and the dataset has 9"):
        ElasticSampler(9, 4, replicas=1, rank=0).load_state_dict(state)
