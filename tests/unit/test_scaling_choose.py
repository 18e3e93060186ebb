"""Who gets how many GPUs of which model: near the optimum, and nothing left over that somebody could use."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuloom.core.workload import F8
from gpuloom.scaling import choose as module
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
    for seed in range(20):
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


# -- the steps, against the same in plain loops ---------------------------------------------------------------


def quarters(seed: int) -> tuple[Options, F8, F8, Chosen]:
    """As `drawn`, in quarters, so that ties happen and sums are exact."""
    rng = np.random.default_rng(seed)
    options, value, capacity, start = drawn(seed, jobs=int(rng.integers(1, 8)), models=int(rng.integers(1, 4)))
    return options, np.round(value * 4) / 4, capacity, start


def improved_slowly(options: Options, value: F8, capacity: F8, start: Chosen) -> list[int]:
    model, gpus, chosen = options.model.tolist(), options.gpus.tolist(), start.tolist()
    while True:
        left = (capacity - options.used(np.array(chosen, dtype=np.intp))).tolist()
        best: tuple[float, int, int] | None = None
        for job, has in enumerate(chosen):
            for option in range(len(gpus)):
                more = gpus[option] - (gpus[has] if model[option] == model[has] else 0.0)
                gain = value[job, option] - value[job, has]
                if gain > 0 and more <= left[model[option]]:
                    rate = gain / max(more, 1.0)
                    if best is None or rate > best[0]:
                        best = rate, job, option
        if best is None:
            return chosen
        chosen[best[1]] = best[2]


def exchanged_slowly(options: Options, value: F8, capacity: F8, start: Chosen) -> list[int]:
    chosen = start.tolist()
    while True:
        best: tuple[float, int, int] | None = None
        for one in range(len(chosen)):
            for other in range(len(chosen)):
                gain = value[one, chosen[other]] + value[other, chosen[one]]
                gain -= value[one, chosen[one]] + value[other, chosen[other]]
                if gain > 0 and (best is None or gain > best[0]):
                    best = gain, one, other
        if best is None:
            return chosen
        _, one, other = best
        chosen[one], chosen[other] = chosen[other], chosen[one]
        chosen = improved_slowly(options, value, capacity, np.array(chosen, dtype=np.intp))


def seated_slowly(options: Options, value: F8, capacity: F8, price: F8) -> list[int] | None:
    model, gpus, rate = options.model.tolist(), options.gpus.tolist(), price.tolist()
    net = [[row[o] - rate[model[o]] * gpus[o] for o in range(len(gpus))] for row in value.tolist()]
    chosen = [row.index(max(row)) for row in net]
    for _ in range(4 * len(chosen)):
        left = (capacity - options.used(np.array(chosen, dtype=np.intp))).tolist()
        over = next((m for m, count in enumerate(left) if count < 0), -1)
        if over < 0:
            return chosen
        best: tuple[float, int, int] | None = None
        for job, has in enumerate(chosen):
            for option in range(len(gpus)):
                if model[has] != over or np.isinf(value[job, option]):
                    continue
                if model[option] == over:
                    freed, able = gpus[has] - gpus[option], gpus[option] < gpus[has]
                else:
                    freed, able = gpus[has], gpus[option] <= left[model[option]]
                if able:
                    loss = (net[job][has] - net[job][option]) / min(freed, -left[over])
                    if best is None or loss < best[0]:
                        best = loss, job, option
        if best is None:
            return None
        chosen[best[1]] = best[2]
    return None


@pytest.mark.parametrize("seeds", [range(60), range(60, 120)])
def test_each_step_is_as_in_plain_loops(seeds: range) -> None:
    seated = 0
    for seed in seeds:
        options, value, capacity, start = quarters(seed)
        assert improve(options, value, capacity, start).tolist() == improved_slowly(options, value, capacity, start)
        exchanged = module._exchange(options, value, capacity, start)
        assert exchanged.tolist() == exchanged_slowly(options, value, capacity, start)
        for price in (0.0, 0.25, 1.0):
            at = np.full(options.models, price) * np.arange(1, options.models + 1)
            found = module._seat(options, value, capacity, at)
            assert (None if found is None else found.tolist()) == seated_slowly(options, value, capacity, at)
            seated += found is not None
    assert 60 < seated <= 180


@pytest.mark.parametrize(("capacity", "price"), [(4.0, 0.0), (3.0, 2.0), (2.0, 4.0), (5.0, 0.0)])
def test_the_price_of_one_model(capacity: float, price: float) -> None:
    """Two jobs of one or two GPUs: one gives up the second at 4 a GPU, the other at 2."""
    found = prices(Options.of(1, [1, 2]), np.array([[1.0, 5.0], [1.0, 3.0]]), np.array([capacity]))
    assert found.tolist() == pytest.approx([price], abs=1e-3)
    assert bool(found[0] > price) == (price > 0)


def test_prices_of_several_models_after_four_looks_at_each() -> None:
    """One GPU of A, two of B, five jobs; anywhere else they are worth 0. A is asked for by jobs 0 to 2, B by 1 to 4.
    Each look at B raises A by what B has risen, a half."""
    value = np.array([[12.0, 2.0, 0.0], [10.0, 9.0, 0.0], [8.5, 7.0, 0.0], [1.0, 6.0, 0.0], [1.0, 5.0, 0.0]])
    found = prices(Options.of(3, [1]), value, np.array([1.0, 2.0, 9.0]))
    assert found.tolist() == pytest.approx([3.0, 2.0, 0.0], abs=0.01)


@pytest.mark.parametrize("jobs", [2, 193])
def test_pairs_are_tried_where_jobs_are_few(jobs: int) -> None:
    """At the start two jobs have what the other wants, and nothing is free; so many others have all they want."""
    options = Options.of(2, [1])
    value = np.zeros((jobs, 2))
    value[:2] = [[0.0, 1.0], [1.0, 0.0]]
    start = np.array([0, 1] + [0] * (jobs - 2))
    best = module._exchange(options, value, np.array([jobs - 1.0, 1.0]), start)
    assert best[:2].tolist() == [1, 0]
    assert total(value, choose(options, value, np.array([jobs - 1.0, 1.0]), start)) == 2.0


def test_values_that_count_once_gpus_are_left_over() -> None:
    """Firmly nobody wants a second GPU; where one is free it is taken all the same."""
    options = Options.of(1, [1, 2])
    firm, wide = np.array([[0.0, -np.inf]] * 2), np.array([[0.0, 1.0], [0.0, 2.0]])
    start = np.zeros(2, dtype=np.intp)
    assert choose(options, firm, np.array([3.0]), start, wide).tolist() == [0, 1]
    assert choose(options, firm, np.array([3.0]), start).tolist() == [0, 0]
    assert options.used(np.array([0, 1])).tolist() == [3.0]
