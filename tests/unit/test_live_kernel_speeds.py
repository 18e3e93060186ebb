"""What is expected of pairs by kernel profiles, live: computed aside."""

from __future__ import annotations

import threading

import pytest

from gpuloom.core.kernel_pairs import Beside
from gpuloom.core.share_class import BEST_EFFORT, HIGH
from gpuloom.live.planning import kernel_speeds
from gpuloom.live.planning.kernel_speeds import KernelSpeeds


def test_requests_are_looked_at_however_often_plans_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_speeds, "LOOK_S", 0.2)
    looked = threading.Event()

    def rates() -> dict[int, float]:
        looked.set()
        return {}

    speeds = KernelSpeeds(lambda: None, rates=rates, compute=lambda service, best_effort, load: Beside(0.5, 1.0))
    try:
        for _ in range(3000):
            speeds.of([1, 2], ["resnet50", "resnet50-train"], [HIGH, BEST_EFFORT])
            if looked.wait(0.01):
                break
    finally:
        speeds.close()
    assert looked.is_set()
