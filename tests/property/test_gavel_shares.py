"""The shares of Gavel's programs against linear programs written another way, and what weights do to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import highspy
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpuloom.policies.gavel_objectives import OBJECTIVES, Present
from tiers import examples

F = np.ndarray[Any, np.dtype[np.float64]]
SPEEDS = st.sampled_from([0.0, 0.25, 0.5, 1.0, 2.0])
WEIGHTS = st.sampled_from([1.0, 1.0, 2.0, 5.0])


@st.composite
def presents(draw: st.DrawFn, models: int = 2, sizes: tuple[int, ...] = (1, 2, 4)) -> Present:
    """Up to six jobs, each of which runs on some model, and 4 to 8 GPUs of each model."""
    n = draw(st.integers(1, 6))
    row = st.tuples(*[SPEEDS] * (models - 1), st.sampled_from([0.5, 1.0, 3.0]))
    speed = np.array([draw(row)[::-1] for _ in range(n)])
    gpus = np.array([float(draw(st.sampled_from(sizes))) for _ in range(n)])
    weight = np.array([draw(WEIGHTS) for _ in range(n)])
    return present_of(speed, gpus, weight, np.array([float(draw(st.integers(4, 8))) for _ in range(models)]))


def present_of(speed: F, gpus: F, weight: F, capacity: F, left_s: F | None = None) -> Present:
    _, kind = np.unique(np.column_stack([speed, gpus, weight]), axis=0, return_inverse=True)
    n = len(gpus)
    left = np.full(n, 1000.0) if left_s is None else left_s
    return Present(speed, gpus, weight, left, np.zeros(n), np.zeros_like(speed), kind.reshape(-1), capacity, None)


def twins(present: Present, job: int, weights: tuple[float, float]) -> Present:
    """The same with a second job like this one, the two with these weights."""
    again = lambda column: np.concatenate([column, column[job : job + 1]])  # noqa: E731
    weight = np.append(present.weight, weights[1])
    weight[job] = weights[0]
    return present_of(again(present.speed), again(present.gpus), weight, present.capacity)


class Independent:
    """One program with a variable y[m][j] of GPU-time (not of shares), built row by row."""

    def __init__(self, present: Present) -> None:
        self.present = present
        self.h = highspy.Highs()
        self.h.setOptionValue("output_flag", False)
        jobs, models = present.speed.shape
        self.y = [
            [self.h.addVariable(0.0, highspy.kHighsInf if present.speed[m, j] > 0 else 0.0) for j in range(models)]
            for m in range(jobs)
        ]
        for j in range(models):
            self.h.addConstr(sum(self.y[m][j] for m in range(jobs)) <= present.capacity[j])
        for m in range(jobs):
            self.h.addConstr(sum(self.y[m]) <= present.gpus[m])

    def done(self, m: int) -> Any:
        """The throughput of job m."""
        present = self.present
        return sum(self.y[m][j] * (present.speed[m, j] / present.gpus[m]) for j in range(len(present.capacity)))

    def best(self, objective: Any) -> float:
        self.h.maximize(objective)
        return float(self.h.getInfo().objective_function_value)


def normalised(present: Present, share: F) -> F:
    """g / w · throughput over throughput with X_equal, of each job."""
    equal = present.speed @ present.capacity / present.capacity.sum()
    return np.asarray((present.speed * share).sum(axis=1) / equal * present.gpus / present.weight)


def level_of(present: Present) -> float:
    """The best lowest value of `normalised`."""
    equal = present.speed @ present.capacity / present.capacity.sum()
    program = Independent(present)
    level = program.h.addVariable(0.0, highspy.kHighsInf)
    for m in range(len(equal)):
        program.h.addConstr(level <= program.done(m) * (present.gpus[m] / present.weight[m] / equal[m]))
    return program.best(level + 0.0)


def check_feasible(present: Present, share: F) -> None:
    assert (share >= 0).all()
    assert (share.sum(axis=1) <= 1 + 1e-6).all()
    assert (present.gpus @ share <= present.capacity * (1 + 1e-6)).all()
    assert (share[present.speed == 0] == 0).all()


@pytest.mark.slow
@settings(deadline=None, max_examples=examples(150))
@given(present=presents(models=3))
def test_the_worst_off_has_as_much_as_can_be(present: Present) -> None:
    for objective in ("max_min_fairness", "water_filling"):
        share = OBJECTIVES[objective](present)
        check_feasible(present, share)
        assert normalised(present, share).min() == pytest.approx(level_of(present), rel=1e-5, abs=1e-6)


@settings(deadline=None, max_examples=examples(300))
@given(present=presents(), job=st.integers(0, 5))
def test_the_heavier_twin_never_gets_less_of_the_fast_model(present: Present, job: int) -> None:
    job %= len(present.gpus)
    pair = twins(present, job, (5.0, 1.0))
    fast = int(np.argmax(pair.speed[job]))
    assume((np.delete(pair.speed[job], fast) < pair.speed[job, fast]).all())
    for objective in ("max_min_fairness", "water_filling"):
        share = OBJECTIVES[objective](pair)
        assert share[job, fast] >= share[-1, fast] - 1e-5
        done = (pair.speed * share).sum(axis=1)
        assert done[job] >= done[-1] - 1e-5


@settings(deadline=None, max_examples=examples(150))
@given(present=presents(models=3), job=st.integers(0, 5))
def test_the_heavier_twin_is_never_slower(present: Present, job: int) -> None:
    job %= len(present.gpus)
    pair = twins(present, job, (5.0, 1.0))
    for objective in ("max_min_fairness", "water_filling", "max_sum_throughput", "finish_time_fairness"):
        done = (pair.speed * OBJECTIVES[objective](pair)).sum(axis=1)
        assert done[job] >= done[-1] - 1e-4


@settings(deadline=None, max_examples=examples(100))
@given(present=presents(models=3))
def test_nothing_is_left_that_a_job_could_use(present: Present) -> None:
    """Raising one job's throughput, all others kept, is not possible."""
    share = OBJECTIVES["max_min_fairness"](present)
    done = (present.speed * share).sum(axis=1)
    for job in range(len(done)):
        program = Independent(present)
        for m in range(len(done)):
            if m != job:
                program.h.addConstr(program.done(m) >= done[m] - 1e-7)
        assert program.best(program.done(job)) == pytest.approx(done[job], rel=1e-3, abs=1e-4)


@settings(deadline=None, max_examples=examples(60))
@given(present=presents(models=3))
def test_no_level_of_water_could_be_higher(present: Present) -> None:
    """In order of their levels: none rises while the poorer ones keep theirs."""
    share = OBJECTIVES["water_filling"](present)
    value = normalised(present, share)
    equal = present.speed @ present.capacity / present.capacity.sum()
    scale = present.gpus / present.weight / equal
    for job in range(len(value)):
        program = Independent(present)
        for m in range(len(value)):
            if m != job and value[m] <= value[job] * (1 + 1e-4):
                program.h.addConstr(program.done(m) * scale[m] >= value[m] - 1e-6)
        most = program.best(program.done(job) * scale[job])
        assert most == pytest.approx(value[job], rel=1e-3, abs=1e-3)


def test_levels_of_water_do_not_leak_to_light_jobs() -> None:
    """The third job had 1.5e-4 more than the others of its level: what the solver lost of theirs, times its weight."""
    speed = np.array([[3, 0.25, 0], [0.5, 0.25, 0], [0.5, 0.25, 0], [0.5, 0, 0.25], [0.5, 0.25, 0]])
    weight, gpus = np.array([5.0, 5.0, 1.0, 1.0, 5.0]), np.array([4.0, 2.0, 1.0, 1.0, 2.0])
    present = present_of(speed, gpus, weight, np.array([4.0, 4.0, 4.0]))
    level = normalised(present, OBJECTIVES["water_filling"](present))
    assert level[[0, 1, 2, 4]] == pytest.approx(level[0], rel=1e-6)


def test_a_heavy_job_loses_nothing_to_the_solvers_tolerance() -> None:
    """Job 2 had 1.3e-5 less of the time than its light twin lost."""
    speed, gpus = np.array([[0.5, 0], [0.5, 0], [3, 2]]), np.array([4.0, 2.0, 1.0])
    pair = twins(present_of(speed, gpus, np.array([2.0, 1.0, 1.0]), np.array([7.0, 4.0])), 2, (5.0, 1.0))
    assert OBJECTIVES["water_filling"](pair)[2, 0] == pytest.approx(1.0, abs=5e-6)


@pytest.mark.parametrize("objective", sorted(OBJECTIVES))
def test_weights_may_be_worlds_apart(objective: str) -> None:
    """HiGHS refused programs whose entries lay too far apart; what it tolerates was the heaviest job's whole level."""
    speed = np.array([[2.0, 1.0], [1.0, 1.0], [0.5, 0.0], [1.0, 0.25]])
    present = present_of(speed, np.array([4.0, 1.0, 1.0, 2.0]), np.array([1e12, 1.0, 1e-9, 1e6]), np.array([4.0, 4.0]))
    share = OBJECTIVES[objective](replace(present, price=np.array([2.0, 1.0])))
    check_feasible(present, share)
    if objective in ("max_min_fairness", "water_filling"):
        assert share[0, 0] == pytest.approx(1.0, abs=1e-5)


def test_a_program_that_fails_from_where_the_last_one_ended_is_begun_anew() -> None:
    """HiGHS ended with an unknown status here."""
    present = present_of(np.array([[0.5, 0.0, 0.0]] * 6), np.ones(6), np.ones(6), np.array([4.0, 4.0, 4.0]))
    share = OBJECTIVES["finish_time_fairness"](twins(present, 0, (5.0, 1.0)))
    assert (0.5 * share[:, 0]).sum() == pytest.approx(2.0, abs=1e-4)
