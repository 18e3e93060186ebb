"""What a service and a training job get of one GPU under each rule, from profiles of a few kernels.

As in test_schedules.py, nobody worked these out by hand: `python tests/golden/test_shared_gpu_runs.py` writes them anew
after a change that is meant to change them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpuloom.sharing.profiles import KernelProfile, KernelRecord
from gpuloom.sharing.rule import RULES
from gpuloom.sharing.simulate import Outcome, Pair

KEPT = Path(__file__).with_name("shared_gpu_runs.json")


def profile(name: str, kernels: list[tuple[int, int, float, float, str]], order: list[int]) -> KernelProfile:
    """Kernels of (SMs, microseconds, compute utilisation, bandwidth, class)."""
    records = [
        KernelRecord(f"{name}-{i}", sms, us * 1000, compute, dram, klass)
        for i, (sms, us, compute, dram, klass) in enumerate(kernels)
    ]
    return KernelProfile(name, 80, tuple(records), tuple(order))


def made(rule: str) -> Outcome:
    """300 requests at two speeds in turn, beside training."""
    service = profile(
        "service",
        [(80, 60, 0.7, 0.2, "compute"), (20, 15, 0.1, 0.8, "memory"), (160, 90, 0.4, 0.4, "unknown")],
        [0, 1, 0, 2, 1, 1],
    )
    training = profile(
        "training",
        [
            (40, 120, 0.8, 0.1, "compute"),
            (320, 400, 0.3, 0.9, "memory"),
            (10, 8, 0.2, 0.3, "unknown"),
            (79, 30, 0.5, 0.5, "compute"),
        ],
        [0, 1, 2, 2, 3, 0, 2],
    )
    gaps_s = np.tile([0.0005, 0.0009, 0.0004, 0.004, 0.0012, 0.0002], 50)
    return Pair(service, training, np.cumsum(gaps_s), seed=5).outcome(rule, trace_s=(0.05, 0.06))


def told(outcome: Outcome) -> dict[str, Any]:
    kinds = [span.kind for span in outcome.spans]
    return {
        **outcome.as_dict(),
        "spans": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "span_ns": sum(span.end_ns - span.start_ns for span in outcome.spans),
        "served": [value for times in outcome.served[:3] for value in times],
    }


@pytest.mark.parametrize("rule", RULES)
def test_the_outcome_is_as_before(rule: str) -> None:
    kept, found = json.loads(KEPT.read_text())[rule], told(made(rule))
    assert found.keys() == kept.keys()
    for name, value in found.items():  # the last digits are the compiler's
        assert value == (kept[name] if isinstance(value, str) else pytest.approx(kept[name], rel=1e-3)), name


if __name__ == "__main__":
    KEPT.write_text(json.dumps({rule: told(made(rule)) for rule in RULES}, indent=1) + "\n")
