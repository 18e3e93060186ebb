"""The swap rule against enumeration: no plan that places the newcomer on k, or swaps it with one job, is better."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuloom.placement.swaps import Running, best_swaps
from tiers import examples

RATE = st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0, 4.0, 10.0])


@st.composite
def states(draw: st.DrawFn):
    """(M' by job and model, [(model, GPUs) of running jobs], GPUs of the newcomer, free GPUs by model)."""
    models = draw(st.integers(2, 4))
    count = draw(st.integers(0, 7))
    per_gpu = np.array(
        draw(st.lists(st.lists(RATE, min_size=models, max_size=models), min_size=count + 1, max_size=count + 1))
    )
    places = []
    for job in range(count):
        able = [m for m in range(models) if per_gpu[job, m] > 0]
        if not able:
            per_gpu[job, 0] = 1.0
            able = [0]
        places.append((draw(st.sampled_from(able)), draw(st.integers(1, 4))))
    free = draw(st.lists(st.integers(0, 6), min_size=models, max_size=models))
    return per_gpu, places, draw(st.integers(1, 4)), free


def throughput(per_gpu: np.ndarray, plan: list[tuple[int, int]]) -> float:
    """Total of a whole plan, [(model, GPUs)] by job, as a user would add it up."""
    return sum(gpus * per_gpu[job, model] for job, (model, gpus) in enumerate(plan))


@settings(max_examples=examples(300))
@given(states())
def test_the_best_swap_is_the_best_of_all_single_swaps(state) -> None:
    per_gpu, places, gpus, free = state
    newcomer = len(places)
    fits = [m for m in range(len(free)) if free[m] >= gpus and per_gpu[newcomer, m] > 0]
    if not fits:
        return
    onto = max(fits, key=lambda m: per_gpu[newcomer, m])
    running = Running(len(free))
    for job, (model, size) in enumerate(places):
        running.add(job, model, size, per_gpu[job].tolist())
    first = next(best_swaps(running, per_gpu[newcomer], gpus, onto, free), None)

    # All plans: the newcomer on k, or in the place of one running job that moves to k; counted GPU by GPU.
    plain = throughput(per_gpu, [*places, (onto, gpus)])
    best, who = plain, None
    for job, (model, size) in enumerate(places):
        if model == onto or size > gpus or per_gpu[job, onto] == 0 or per_gpu[newcomer, model] == 0:
            continue
        left = list(free)
        left[onto] -= size
        left[model] += size
        left[model] -= gpus
        if min(left) < 0:
            continue
        total = throughput(per_gpu, [*places[:job], (onto, size), *places[job + 1 :], (model, gpus)])
        if total > best + 1e-9:
            best, who = total, job
    if who is None:
        assert first is None or math.isclose(first.gain, 0.0, abs_tol=1e-9)
    else:
        assert first is not None
        assert plain + first.gain == np.float64(best) or math.isclose(plain + first.gain, best, rel_tol=1e-12)


@settings(max_examples=examples(100))
@given(states(), st.data())
def test_rows_are_kept_in_step_as_jobs_come_and_go(state, data: st.DataObject) -> None:
    per_gpu, places, _gpus, free = state
    running = Running(len(free))
    present: dict[int, tuple[int, int]] = {}
    for job, (model, size) in enumerate(places * 3):
        if present and data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(present)))
            running.remove(gone)
            del present[gone]
        running.add(job, model, size, per_gpu[job % len(places)].tolist(), since_s=float(job), pace=2.0)
        present[job] = (model, size)
    assert (
        dict(zip(running.job.tolist(), zip(running.pool.tolist(), running.gpus.tolist(), strict=True), strict=True))
        == present
    )
    assert running.attained(100.0).tolist() == [2.0 * (100.0 - job) for job in running.job.tolist()]
    for row, job in enumerate(running.job.tolist()):
        own, (here, size) = per_gpu[job % len(places)], present[job]
        for model in range(len(free)):
            want = size * (own[model] - own[here]) if own[model] > 0 else -math.inf
            assert running.gain(model)[row] == want
