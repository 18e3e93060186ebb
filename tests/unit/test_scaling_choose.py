"""Who gets how many GPUs of which model: near the optimum, and nothing left over that somebody could use."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.workload import F8
from gpuloom.scaling.allocate import exact, offer
from gpuloom.scaling.choose import Chosen, Options, choose, improve, prices, total

SIZES = [1, 2, 4]


def drawn(seed: int, *, jobs: int, models: int) -> tuple[Options, F8, F8, Chosen]:
    """Random jobs, each with one GPU somewhere; some can't have some sizes or models."""
    rng = np.random.default_rng(seed)
    options = Options.of(models, SIZES)
    speed = rng.uniform(0.3, 2.0, (jobs, models)).repeat(len(SIZES), axis=1)
    value = -1.0 / (speed * np.tile(np.array(SIZES) ** rng.uniform(0.3, 1.2), models)) * rng.uniform(0.5, 2, (jobs, 1))
    value[rng.random(value.shape) < 0.1] = -np.inf
    capacity = rng.integers(1, 7, models).astype(np.float64) + jobs / models
    capacity = np.floor(capacity)
    start: Chosen = np.zeros(jobs, dtype=np.intp)
    left = capacity.copy()
    for job in range(jobs):
        model = int(left.argmax())
        left[model] -= 1
        start[job] = model * len(SIZES)
        value[job, start[job]] = -3.0
    return options, value, capacity, start


def optimum(options: Options, value: F8, capacity: F8) -> float:
    best = -np.inf
    for chosen in product(range(value.shape[1]), repeat=len(value)):
        row = np.array(chosen, dtype=np.intp)
        if (options.used(row) <= capacity).all():
            best = max(best, total(value, row))
    return best


def test_it_is_near_the_optimum() -> None:
    shares = []
    for seed in range(60):
        options, value, capacity, start = drawn(seed, jobs=4, models=2)
        chosen = choose(options, value, capacity, start)
        begun, best = total(value, start), optimum(options, value, capacity)
        if best > begun + 1e-9:
            shares.append((total(value, chosen) - begun) / (best - begun))
    assert np.mean(shares) > 0.985
    assert min(shares) > 0.8


@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 12), models=st.integers(1, 3))
def test_it_fits_and_leaves_nothing_that_a_job_could_use(seed: int, jobs: int, models: int) -> None:
    options, value, capacity, start = drawn(seed, jobs=jobs, models=models)
    chosen = choose(options, value, capacity, start)
    left = capacity - options.used(chosen)
    assert (left >= 0).all()
    assert total(value, chosen) >= total(value, start) - 1e-9
    for job, option in product(range(jobs), range(value.shape[1])):
        model, has = options.model[option], chosen[job]
        own = options.gpus[has] if options.model[has] == model else 0
        if options.gpus[option] - own <= left[model]:
            assert value[job, option] <= value[job, has] + 1e-6


@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 6), extra=st.integers(0, 12))
def test_on_one_model_and_concave_curves_it_is_the_optimum(seed: int, jobs: int, extra: int) -> None:
    rng = np.random.default_rng(seed)
    gains = np.sort(rng.uniform(0.01, 5.0, (jobs, 4)), axis=1)[:, ::-1]
    value = np.concatenate([np.zeros((jobs, 1)), gains.cumsum(axis=1)], axis=1)
    options = Options.of(1, [1, 2, 3, 4, 5])
    capacity = np.array([jobs + extra], dtype=np.float64)
    chosen = choose(options, value, capacity, np.zeros(jobs, dtype=np.intp))
    offers = [offer((1, 2, 3, 4, 5), tuple(row)) for row in value.tolist()]
    best = sum(value[job, index] for job, index in enumerate(exact(offers, jobs + extra)))
    assert total(value, chosen) == pytest.approx(best, rel=1e-3)


def test_a_worked_example() -> None:
    """One GPU of the fast model, three of the slow one: who gains most from it has it, whoever came first."""
    options = Options.of(2, [1])
    value = np.array([[2.0, 1.8], [2.0, 1.0], [1.5, 1.5]])
    chosen = choose(options, value, np.array([1.0, 3.0]), np.array([0, 1, 1]))
    assert chosen.tolist() == [1, 0, 1]
    fast, slow = prices(options, value, np.array([1.0, 3.0])).tolist()
    assert (0.2 <= fast <= 1.0, slow) == (True, 0.0)
    # Alone, nobody is asked to give anything up.
    assert improve(options, value, np.array([1.0, 3.0]), np.array([0, 1, 1])).tolist() == [0, 1, 1]
    assert choose(options, np.zeros((0, 2)), np.array([1.0, 3.0]), np.zeros(0, dtype=np.intp)).tolist() == []
