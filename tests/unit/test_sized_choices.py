"""The choice of GPU model and size for all jobs together, against trying out all ways."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.solvers import sized_choices
from gpuloom.solvers.sized_choices import Choice, choose

choices = st.builds(Choice, st.integers(0, 1), st.integers(1, 4), st.integers(-2, 40).map(lambda n: n / 4))
jobs_of = st.lists(st.lists(choices, max_size=4), max_size=4)


def best_of_all(jobs: Sequence[Sequence[Choice]], capacity: Sequence[int]) -> float:
    ways = product(*([None, *row] for row in jobs))
    return max(worth(way) for way in ways if fits(way, capacity))


def worth(way: Sequence[Choice | None]) -> float:
    return sum(one.value for one in way if one is not None)


def fits(way: Sequence[Choice | None], capacity: Sequence[int]) -> bool:
    used = [0] * len(capacity)
    for one in way:
        if one is not None:
            used[one.model] += one.gpus
    return all(a <= b for a, b in zip(used, capacity, strict=True))


def taken(jobs: Sequence[Sequence[Choice]], found: Sequence[int | None]) -> list[Choice | None]:
    return [None if at is None else row[at] for row, at in zip(jobs, found, strict=True)]


@given(jobs_of, st.tuples(st.integers(0, 7), st.integers(0, 5)))
def test_it_finds_the_best_way_there_is(jobs: list[list[Choice]], capacity: tuple[int, int]) -> None:
    way = taken(jobs, choose(jobs, capacity))
    assert fits(way, capacity)
    assert worth(way) == best_of_all(jobs, capacity)


@given(jobs_of, st.tuples(st.integers(1, 7), st.integers(1, 5)))
def test_the_integer_program_is_as_good(jobs: list[list[Choice]], capacity: tuple[int, int]) -> None:
    before = sized_choices.MOST_CELLS
    sized_choices.MOST_CELLS = 0
    try:
        way = taken(jobs, choose(jobs, capacity))
    finally:
        sized_choices.MOST_CELLS = before
    assert fits(way, capacity)
    assert worth(way) == pytest.approx(best_of_all(jobs, capacity), rel=2e-4)


def test_nobody_is_given_what_is_worth_nothing() -> None:
    assert choose([[Choice(0, 1, 0.0), Choice(0, 2, -1.0)], [Choice(0, 9, 5.0)], []], [4]) == [None, None, None]


def test_of_equal_models_the_first_is_taken() -> None:
    assert choose([[Choice(0, 1, 1.0), Choice(1, 1, 1.0)]], [1, 1]) == [0]


def test_jobs_yield_the_fast_model_to_who_gains_more_by_it() -> None:
    """Both run 4 times as fast on the fast model, but one only gains 1.5 times from GPUs of the slow one."""
    one = [Choice(0, 4, 3.0), Choice(1, 4, 4.0)]
    two = [Choice(0, 4, 1.5), Choice(1, 4, 4.0)]
    assert choose([one, two], [4, 4]) == [0, 1]
