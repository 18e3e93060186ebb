"""Who uses which GPU model: within the GPUs there are, near the optimum of the linear program, never wasteful."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpuloom.core.workload import F8
from gpuloom.solvers import assignment
from gpuloom.solvers.assignment import NOWHERE, assign, bids, prices
from gpuloom.solvers.linear import maximize
from tiers import examples


def optimum(worth: F8, demand: F8, capacity: F8) -> float:
    """Of the linear program: an upper bound of any assignment."""
    jobs, models = worth.shape
    cells = np.arange(jobs * models)
    row, model = cells // models, cells % models
    x = maximize(
        worth.ravel(),
        np.concatenate([row, jobs + model]),
        np.concatenate([cells, cells]),
        np.concatenate([np.ones(jobs * models), demand[row]]),
        np.full(jobs + models, -np.inf),
        np.concatenate([np.ones(jobs), capacity]),
        np.ones(jobs * models),
    )
    return float(worth.ravel() @ x)


@st.composite
def problems(draw: st.DrawFn) -> tuple[F8, F8, F8]:
    jobs, models = draw(st.integers(1, 14)), draw(st.integers(1, 4))
    worth = draw(arrays(np.float64, (jobs, models), elements=st.one_of(st.just(0.0), st.floats(0.01, 10))))
    demand = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=jobs, max_size=jobs)))
    capacity = np.array(draw(st.lists(st.integers(0, 16), min_size=models, max_size=models)), dtype=np.float64)
    return worth, demand, capacity


@settings(max_examples=examples(300), deadline=None)
@given(problems())
def test_what_is_assigned_fits_and_runs_and_nothing_that_fits_is_left_out(problem: tuple[F8, F8, F8]) -> None:
    worth, demand, capacity = problem
    chosen = assign(worth, demand, capacity)
    left = capacity.copy()
    for job, model in enumerate(chosen.tolist()):
        if model != NOWHERE:
            assert worth[job, model] > 0
            left[model] -= demand[job]
    assert (left >= -1e-9).all()
    for job in np.flatnonzero(chosen == NOWHERE).tolist():
        assert not ((worth[job] > 0) & (left >= demand[job] + 1e-9)).any()


@settings(max_examples=examples(300), deadline=None)
@given(problems())
def test_prices_bound_the_optimum_from_above(problem: tuple[F8, F8, F8]) -> None:
    # Weak duality: Σ capacity · price + Σ best net worth is never below the optimum.
    worth, demand, capacity = problem
    price = prices(worth, demand, capacity)
    assert (price >= 0).all()
    net = np.maximum((worth - demand[:, None] * price).max(axis=1), 0.0)
    best = optimum(worth, demand, capacity)
    assert capacity @ price + net.sum() >= best - 1e-6 * max(best, 1.0)


@settings(max_examples=examples(300), deadline=None)
@given(problems())
def test_no_exchange_of_two_places_is_worth_more(problem: tuple[F8, F8, F8]) -> None:
    # No exchange of two places of one size, a wait or free GPUs among them, is worth more.
    worth, demand, capacity = problem
    chosen = assign(worth, demand, capacity)
    value = np.hstack([np.where(worth > 0, worth, -np.inf), np.zeros((len(worth), 1))])
    left = np.append(capacity, np.inf)
    for job, place in enumerate(chosen.tolist()):
        if place != NOWHERE:
            left[place] -= demand[job]
    for job, place in enumerate(chosen.tolist()):
        for model in range(worth.shape[1]):
            if left[model] >= demand[job]:
                assert value[job, model] <= value[job, place] + 1e-6
        for other in range(job):
            if demand[other] == demand[job]:
                there = chosen[other]
                now = value[job, place] + value[other, there]
                assert value[job, there] + value[other, place] <= now + 1e-6


def test_on_larger_clusters_it_is_near_the_linear_program() -> None:
    rng = np.random.default_rng(7)
    ratios = []
    for _ in range(20):
        worth = np.exp(rng.normal(size=(200, 1))) * rng.uniform(0.1, 1.0, (200, 3))
        demand = rng.choice([1.0, 2.0, 4.0, 8.0], size=200)
        capacity = np.full(3, demand.sum() / 3 * rng.choice([0.3, 0.6, 1.0, 1.5]))
        chosen = assign(worth, demand, capacity)
        got = worth[np.flatnonzero(chosen >= 0), chosen[chosen >= 0]].sum()
        ratios.append(got / optimum(worth, demand, capacity))
    assert min(ratios) > 0.95
    assert np.mean(ratios) > 0.985


def test_the_fast_gpus_go_to_the_job_that_gains_most_not_to_the_first() -> None:
    # Models: fast, slow. Both prefer the fast one; the second loses more without it.
    worth = np.array([[2.0, 1.9], [2.0, 0.2]])
    assert assign(worth, np.ones(2), np.ones(2)).tolist() == [1, 0]


def test_nobody_wants_a_model_on_which_nothing_runs() -> None:
    assert assign(np.zeros((2, 1)), np.ones(2), np.array([4.0])).tolist() == [NOWHERE, NOWHERE]
    assert assign(np.zeros((0, 2)), np.zeros(0), np.ones(2)).tolist() == []


def test_prices_by_hand() -> None:
    """One GPU of A, two of B. At 6.5 and 5 job 2 does not mind which it has, nor job 4 whether it has one."""
    worth = np.array([[12.0, 2.0], [10.0, 9.0], [8.5, 7.0], [1.0, 6.0], [1.0, 5.0]])
    one, capacity = np.ones(5), np.array([1.0, 2.0])
    assert prices(worth, one, capacity).tolist() == [6.5, 5.0]
    assert assign(worth, one, capacity).tolist() == [0, 1, 1, NOWHERE, NOWHERE]  # by an exchange: 7 is more than 6
    assert prices(worth * 3, one * 2, capacity * 2).tolist() == [6.5 * 1.5, 5.0 * 1.5]
    assert prices(worth, one, np.array([5.0, 5.0])).tolist() == [0.0, 0.0]
    assert prices(worth[:3, :1], one[:3], np.array([2.0])).tolist() == [8.5]


@settings(max_examples=examples(300), deadline=None)
@given(problems())
def test_a_bid_is_the_highest_price_at_which_a_job_still_takes_the_model(problem: tuple[F8, F8, F8]) -> None:
    worth, demand, capacity = problem
    price = prices(worth, demand, capacity)
    found = bids(worth, demand, price)
    assert (found >= 0).all()
    assert (found <= np.maximum(worth, 0.0)).all()

    def net(job: int, model: int, asked: float) -> float:
        return float(worth[job, model] - asked) if worth[job, model] > 0 else 0.0

    for job, model in np.argwhere(found > 0).tolist():
        others = [net(job, k, float(demand[job] * price[k])) for k in range(len(capacity)) if k != model]
        assert net(job, model, float(found[job, model])) == pytest.approx(max([0.0, *others]), abs=1e-9)


def test_bids_by_hand() -> None:
    """Of two models that cost 1 and 2 per GPU; the third job asks for two GPUs, the last one can't use the second
    model."""
    worth = np.array([[3.0, 2.5], [3.0, 6.0], [6.0, 4.0], [0.5, 0.0]])
    found = bids(worth, np.array([1.0, 1.0, 2.0, 1.0]), np.array([1.0, 2.0]))
    assert found.tolist() == [[2.5, 0.5], [0.0, 4.0], [6.0, 0.0], [0.5, 0.0]]


@settings(max_examples=examples(300), deadline=None)
@given(problems(), st.sampled_from([1.0, 0.7]))
def test_one_by_one_and_as_arrays_the_result_is_the_same_to_the_bit(problem: tuple[F8, F8, F8], thrift: float) -> None:
    worth, demand, capacity = problem
    demand = demand * np.where(np.arange(len(demand)) % 3, thrift, 1.0)

    def found() -> list[list[float]]:
        price = prices(worth, demand, capacity)
        return [a.ravel().tolist() for a in (price, bids(worth, demand, price), assign(worth, demand, capacity, price))]

    one_by_one = found()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assignment, "_FEW", -1)
        assert found() == one_by_one


def test_of_many_jobs_whoever_loses_most_elsewhere_goes_first() -> None:
    """More jobs than the small solver takes; job 0 has a model that is nearly as good, job 1 has not."""
    worth = np.zeros((assignment._FEW + 8, 3))
    worth[0], worth[1] = [10.0, 9.0, 1.0], [10.0, 5.0, 4.0]
    found = assign(worth, np.ones(len(worth)), np.array([1.0, 1.0, 1.0]), np.zeros(3))
    assert found[:2].tolist() == [1, 0]
    assert (found[2:] == NOWHERE).all()
