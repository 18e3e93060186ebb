"""How many GPUs each job gets: against brute force."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.errors import InputError
from gpuloom.scaling.allocate import Offer, exact, offer


@st.composite
def offers(draw: st.DrawFn) -> list[Offer]:
    found = []
    for _ in range(draw(st.integers(1, 4))):
        sizes = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=5)))
        values = draw(
            st.lists(st.sampled_from([0.0, 1.0, 1.5, 2.0, 3.0, 7.0]), min_size=len(sizes), max_size=len(sizes))
        )
        found.append(offer(tuple(sizes), tuple(values)))
    return found


def worth(offers: list[Offer], chosen: list[int]) -> float:
    return sum(one.values[index] for one, index in zip(offers, chosen, strict=True))


def used(offers: list[Offer], chosen: list[int]) -> int:
    return sum(one.sizes[index] for one, index in zip(offers, chosen, strict=True))


def best(offers: list[Offer], gpus: int) -> float:
    every = product(*(range(len(one.sizes)) for one in offers))
    return max(worth(offers, list(chosen)) for chosen in every if used(offers, list(chosen)) <= gpus)


@given(offers=offers(), extra=st.integers(0, 20))
def test_exact_is_the_optimum(offers: list[Offer], extra: int) -> None:
    gpus = sum(one.sizes[0] for one in offers) + extra
    chosen = exact(offers, gpus)
    assert used(offers, chosen) <= gpus
    assert worth(offers, chosen) == pytest.approx(best(offers, gpus))


def test_a_worked_example() -> None:
    """Marginal values 0.9, 0.8, 0.1 and 0.5, 0.4: five GPUs are 3 and 2."""
    some = [offer((1, 2, 3, 4), (1.0, 1.9, 2.7, 2.8)), offer((1, 2, 3), (1.0, 1.5, 1.9))]
    assert exact(some, 5) == [2, 1]
    # One step of three GPUs that pays only as a whole.
    lumpy = [offer((1, 4), (1.0, 4.0)), offer((1, 2), (1.0, 1.5))]
    assert exact(lumpy, 4) == [0, 1]
    assert exact(lumpy, 5) == [1, 0]


def test_of_equally_good_ways_the_one_with_the_smallest_last_sizes() -> None:
    alike = [offer((1, 2), (0.0, 1.0)), offer((1, 2), (0.0, 1.0))]
    assert exact(alike, 3) == [1, 0]
    assert exact([offer((1, 2, 3), (1.0, 1.0, 1.0))], 3) == [0]
    assert exact([offer((1, 2, 4), (0.0, -1.0, 3.0))], 3) == [0]
    assert exact([offer((1, 2, 4), (0.0, -1.0, 3.0))], 4) == [2]


def test_what_is_wrong_is_refused() -> None:
    with pytest.raises(InputError, match="1 GPUs are too few for the smallest sizes, which need 5"):
        exact([offer((2, 3), (1.0, 2.0)), offer((3,), (1.0,))], 1)
    for sizes, values in (((2, 2), (1.0, 2.0)), ((2, 1), (1.0, 2.0)), ((1, 2), (1.0,)), ((), ())):
        with pytest.raises(InputError, match=rf"must rise, with a value for each \({len(values)} values\)"):
            offer(sizes, values)
    assert exact([], 3) == []
    assert exact([offer((2,), (1.0,)), offer((1,), (1.0,))], 3) == [0, 0]
