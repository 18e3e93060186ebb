"""ECOS beside the exact programs: the same optimum, another point of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.core.errors import GpuloomError
from gpuloom.facts.inputs import load_policy
from gpuloom.solvers import interior
from gpuloom.solvers.fair_shares import least_worst_shares
from gpuloom.solvers.shares import Rows, Shares
from tiers import examples

pytest.importorskip("ecos", reason="ECOS is not installed (gpuloom[gavel])")

F = np.ndarray[Any, np.dtype[np.float64]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[F, F, F]:
    """Values of jobs on two models, their GPUs, GPUs of the models."""
    n = draw(st.integers(1, 8))
    value = np.array(
        [[draw(st.sampled_from([0.5, 1.0, 2.0])), draw(st.sampled_from([0.1, 0.5, 1.0]))] for _ in range(n)]
    )
    return value, np.array([float(draw(st.sampled_from([1, 2, 4]))) for _ in range(n)]), np.array([4.0, 6.0])


def check_feasible(share: F, gpus: F, capacity: F) -> None:
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-6).all()
    assert (gpus @ share <= capacity + 1e-5).all()


@settings(deadline=None, max_examples=examples(60))
@given(case=cases())
def test_the_worst_off_is_as_well_off_as_by_the_exact_program(case: tuple[F, F, F]) -> None:
    value, gpus, capacity = case
    share = interior.interior_shares(value, gpus, capacity)
    check_feasible(share, gpus, capacity)
    _, level = Shares(Rows.single(value, gpus), capacity, np.ones(len(gpus))).fair(np.ones(len(gpus)))
    assert (value * share).sum(axis=1).min() == pytest.approx(level, rel=1e-5)


@settings(deadline=None, max_examples=examples(60))
@given(case=cases())
def test_the_sum_is_as_large_as_by_the_exact_program(case: tuple[F, F, F]) -> None:
    value, gpus, capacity = case
    share = interior.interior_shares_of_sum(value, gpus, capacity)
    check_feasible(share, gpus, capacity)
    most = Shares(Rows.single(value, gpus), capacity, np.zeros(len(gpus))).most(np.ones(len(gpus)), np.ones(2))
    assert (value * share).sum() == pytest.approx((value * most).sum(), rel=1e-6)


@settings(deadline=None, max_examples=examples(60))
@given(case=cases(), age=st.floats(0, 5000))
def test_the_least_ratio_is_that_of_the_exact_shares(case: tuple[F, F, F], age: float) -> None:
    value, gpus, _ = case
    left, alone, ages = value[:, 0] * 1000, 500 + value[:, 1] * 1000, np.full(len(gpus), age)
    share = interior.interior_shares_in_time(np.ones((len(gpus), 1)), left, ages, alone, gpus, np.array([6.0]))
    check_feasible(share, gpus, np.array([6.0]))
    exact = least_worst_shares(ages, left, alone, gpus, 6.0)
    worst = [float(((ages + left / x) / alone).max()) for x in (share[:, 0], exact)]
    assert worst[0] == pytest.approx(worst[1], rel=1e-5)


@settings(deadline=None, max_examples=examples(40))
@given(case=cases(), work=st.integers(1, 9))
def test_all_end_in_time_just_where_they_can(case: tuple[F, F, F], work: int) -> None:
    speed, gpus, capacity = case
    left = work * (1 + np.arange(len(gpus), dtype=np.float64))
    _, level = Shares(Rows.single(speed, gpus), capacity, left).fair(np.ones(len(gpus)))
    in_time = interior.interior_shares_by(speed, left, gpus, capacity, 1.02 / level)
    assert in_time is not None
    check_feasible(in_time, gpus, capacity)
    assert ((speed * in_time).sum(axis=1) >= left * level / 1.02 - 1e-5).all()
    assert interior.interior_shares_by(speed, left, gpus, capacity, 0.98 / level) is None


def test_themis_solver_is_named_where_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    load_policy("themis:mode=muri;solver=ecos")
    monkeypatch.setattr(interior, "find_spec", lambda name: None)
    with pytest.raises(GpuloomError, match="themis:solver=ecos needs the solver ECOS"):
        load_policy("themis:mode=muri;solver=ecos")
