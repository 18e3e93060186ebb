"""Against optima and against plain re-tellings of the rules."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs, workloads
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.workload import Workload
from gpuloom.sim import simulate
from gpuloom.sim.bound import lower_bound_avg_jct_s
from tiers import examples


def optimal_total_completion(arrivals: tuple[int, ...], lengths: tuple[int, ...]) -> int:
    """Least sum of completion times on one GPU with preemption at whole seconds, by trying everything."""

    @cache
    def best(now: int, left: tuple[int, ...]) -> int:
        if not any(left):
            return 0
        able = [i for i, rest in enumerate(left) if rest and arrivals[i] <= now]
        if not able:
            return best(min(arrivals[i] for i, rest in enumerate(left) if rest), left)
        costs = []
        for i in able:
            after = (*left[:i], left[i] - 1, *left[i + 1 :])
            costs.append((now + 1 if after[i] == 0 else 0) + best(now + 1, after))
        return min(costs)

    return best(0, lengths)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 6)), min_size=1, max_size=4))
def test_srtf_on_one_gpu_is_optimal(rows: list[tuple[int, int]]) -> None:
    workload = jobs([(float(a), float(d), 1) for a, d in rows])
    result = simulate(workload, "1x1", "srtf", restart_overhead_s=0.0, interval_s=0.0)
    arrivals = tuple(int(a) for a in workload.submit_s)
    lengths = tuple(int(d) for d in workload.duration_s)
    assert result.end_s.sum() == pytest.approx(optimal_total_completion(arrivals, lengths), rel=1e-9)
    # With one GPU the bound is that optimum.
    assert result.lower_bound_avg_jct_s == pytest.approx(result.avg_jct_s, rel=1e-9)


def retold(workload: Workload, gpus: int, *, by_gpus: bool) -> np.ndarray:
    """SRTF or SRSF that only counts GPUs, told plainly: sort everyone at every event, walk, skip what doesn't fit."""
    n = len(workload)
    left = workload.duration_s.copy()
    end = np.full(n, np.nan)
    now = 0.0
    running: list[int] = []
    while np.isnan(end).any():
        arrivals = workload.submit_s[workload.submit_s > now]
        ends = [now + left[job] for job in running]
        then = min([*ends, *arrivals])
        for job in running:
            left[job] = 0.0 if now + left[job] == then else left[job] - (then - now)
        now = then
        end[[job for job in running if left[job] == 0.0]] = now
        present = [job for job in range(n) if workload.submit_s[job] <= now and np.isnan(end[job])]
        present.sort(key=lambda job: (left[job] * (workload.gpus[job] if by_gpus else 1), job))
        free, running = gpus, []
        for job in present:
            if workload.gpus[job] <= free:
                free -= int(workload.gpus[job])
                running.append(job)
    return end


@pytest.mark.parametrize(("policy", "by_gpus"), [("srtf", False), ("srsf", True)])
@settings(max_examples=examples(150))
@given(rows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 16)), min_size=1, max_size=25))
def test_incremental_order_equals_sorting_everyone(
    policy: str, by_gpus: bool, rows: list[tuple[int, int, int]]
) -> None:
    # Durations that make ties impossible: distinct powers of a small number are added.
    workload = jobs([(float(a), d + 0.37 * 1.1**i, g) for i, (a, d, g) in enumerate(rows)])
    result = simulate(workload, "4x4", f"{policy}:placement=scatter", restart_overhead_s=0.0, interval_s=0.0)
    assert result.end_s == pytest.approx(retold(workload, 16, by_gpus=by_gpus), rel=1e-9)


def least_total(workload: Workload, gpus: int) -> float:
    """Least sum of completion times of whole-second jobs, preemptive, gangs, GPUs only counted; by trying all."""
    arrivals = tuple(int(x) for x in workload.submit_s)
    needs = tuple(int(x) for x in workload.gpus)

    @cache
    def best(now: int, left: tuple[int, ...]) -> float:
        if not any(left):
            return 0.0
        able = [i for i, rest in enumerate(left) if rest and arrivals[i] <= now]
        if not able:
            return best(min(arrivals[i] for i, rest in enumerate(left) if rest), left)
        least = float("inf")
        for choice in range(1, 1 << len(able)):
            picked = [job for bit, job in enumerate(able) if choice >> bit & 1]
            if sum(needs[job] for job in picked) > gpus:
                continue
            after = tuple(rest - (i in picked) for i, rest in enumerate(left))
            cost = sum(now + 1.0 for job in picked if after[job] == 0) + best(now + 1, after)
            least = min(least, cost)
        return least

    return best(0, tuple(int(x) for x in workload.duration_s))


@settings(max_examples=examples(40))
@given(
    rows=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 4)), min_size=1, max_size=4),
)
def test_no_schedule_beats_the_lower_bound(rows: list[tuple[int, int, int]]) -> None:
    workload = jobs([(float(a), float(d), g) for a, d, g in rows])
    bound = lower_bound_avg_jct_s(workload, parse_cluster("1x4"))
    optimum = (least_total(workload, 4) - workload.submit_s.sum()) / len(workload)
    assert bound <= optimum * (1 + 1e-9)


@settings(max_examples=examples(50))
@given(workload=workloads(most=20))
def test_the_bound_sees_more_than_durations_under_load(workload: Workload) -> None:
    bound = lower_bound_avg_jct_s(workload, parse_cluster("1x8"))
    assert bound >= workload.duration_s.mean() * (1 - 1e-12)
