"""Groups on several GPU models: who joins whom, and what stays free."""

from __future__ import annotations

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.workload import Speeds
from gpuloom.sim import simulate

STAGES = np.array([[0.9, 0.1, 0.0], [0.1, 0.9, 0.0]])
"""Two jobs that use different resources: together each is nearly as fast as alone."""


def pair(slow: float, stages: np.ndarray = STAGES) -> tuple[float, float]:
    """When two jobs of 36,000 s end that come at once, one fast GPU and one of this speed."""
    workload = jobs(
        [(0, 36_000, 1), (0, 36_000, 1)], speeds=Speeds(("V100", "K80"), np.array([[1.0, slow]] * 2)), stage_s=stages
    )
    result = simulate(workload, "1x1:V100,1x1:K80", "weave", restart_overhead_s=10.0)
    return tuple(result.end_s.tolist())


def test_beside_another_job_on_a_fast_gpu_rather_than_alone_on_a_slow_one() -> None:
    # Alone on the slow GPU the second job would take 36,000 / 0.1 s, or 72,000 s one after the other.
    assert max(pair(0.1)) < 50_000


def test_alone_where_the_other_gpu_is_nearly_as_fast() -> None:
    assert max(pair(0.95)) < 36_000 / 0.95 + 60
    # Two that want the same resource all the time gain nothing by sharing.
    alike = np.array([[0.01, 1.0, 0.0]] * 2)
    assert sorted(pair(0.6, alike))[0] == pytest.approx(36_000, abs=60)
