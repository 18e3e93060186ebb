"""The worked example of hlas: one free V100, job a on a K80, job s in the queue (V100: p = 2, K80: p = 1)."""

from __future__ import annotations

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.workload import Labels, Speeds
from gpuloom.facts.gpus import with_known_memory
from gpuloom.facts.inputs import load_cluster, load_policy
from gpuloom.placement.swaps import Running, best_swaps, swap_gains
from gpuloom.sim import simulate
from gpuloom.sim.explain import explain

V100, K80 = 0, 1
CLUSTER = "1x1:V100,1x1:K80"
GAINS = [((10.0, 1.0), (2.0, 1.0), 8.0), ((2.0, 1.0), (10.0, 1.0), -8.0)]
"""(M' of a, M' of s, gain): 1·(10 - 1) + 1·(1 - 2) = 8, and 1·(2 - 1) + 1·(1 - 10) = -8."""


@pytest.mark.parametrize(("a", "s", "gain"), GAINS)
def test_the_gain(a: tuple[float, float], s: tuple[float, float], gain: float) -> None:
    running = Running(2)
    running.add(0, K80, 1, a)
    assert swap_gains(running, np.array(s), 1, V100).tolist() == [gain]
    found = list(best_swaps(running, np.array(s), 1, V100, [1, 0]))
    assert [(swap.job, swap.pool, swap.gain) for swap in found] == ([(0, K80, gain)] if gain > 0 else [])


def example(a: tuple[float, float], s: tuple[float, float]):
    """Job 0 keeps the V100 busy until 5 s, so that job 1 (a) begins on the K80; job 2 (s) comes as it ends."""
    rates = np.array([(1.0, 1.0), a, s])  # iterations per second on V100, K80
    return jobs(
        [(0, 5, 1), (1, 1000, 1), (5, 1000, 1)],
        gpu_type=Labels.of(["V100", "", ""]),
        iteration_s=1.0 / rates[:, 0],
        speeds=Speeds(("V100", "K80"), rates / rates[:, :1]),
    )


@pytest.mark.parametrize("policy", ["hlas:performance=V100:2/K80:1", "hlas:literal=yes", "hlas:gain=iterations"])
@pytest.mark.parametrize(("a", "s", "gain"), GAINS)
def test_who_gets_the_v100(policy: str, a: tuple[float, float], s: tuple[float, float], gain: float) -> None:
    result = simulate(example(a, s), CLUSTER, policy, restart_overhead_s=0.0, record_segments=True)
    segments = result.segments
    assert segments is not None
    at_5 = {int(j): int(n) for j, n, t in zip(segments.job, segments.node, segments.start_s, strict=True) if t == 5.0}
    held = {
        int(j): int(n)
        for j, n, t, e in zip(segments.job, segments.node, segments.start_s, segments.end_s, strict=True)
        if t < 5.0 < e
    }
    if gain > 0:
        assert at_5 == {1: V100, 2: K80}  # a moves to the V100, and s starts on the K80
    else:
        assert at_5 == {2: V100}
        assert held == {1: K80}


def test_the_reason_gives_the_formula() -> None:
    workload = example(*GAINS[0][:2])
    cluster = with_known_memory(load_cluster(CLUSTER))
    for job_id, code in (("1", "swapped_out"), ("2", "swapped_in")):
        story = explain(workload, cluster, load_policy("hlas:gain=iterations"), job_id, restart_overhead_s=0.0)
        step = next(step for step in story.steps if step.time_s == 5.0 and step.why is not None)
        assert step.why is not None
        assert step.why.code == code
        assert "1·(10 - 1) + 1·(1 - 2) = 8 it/s" in step.why.text
        assert step.why.numbers["gain"] == pytest.approx(8.0)
