"""What a policy remembers may be older than the records of a scheduler that was killed."""

from __future__ import annotations

import pytest

from gpuloom.live.trial.rehearsal import Rehearsal


@pytest.mark.parametrize("policy", ["weave", "elastic-goodput", "elastic"])
def test_a_home_that_others_have_taken_meanwhile_is_dropped(policy: str) -> None:
    """Elastic jobs were remembered where rigid ones run by now: weave found nobody there who could give GPUs back."""
    live = Rehearsal(policy, models=["V100"] * 3 + ["K80"] * 2, interval_s=0.0)
    job = {"model": "resnet50", "gpu_memory": 1000}
    live.submit({**job, "elastic": "2-4", "priority": 1, "estimate": 60.0})
    live.submit({**job, "elastic": "1-4", "estimate": 60.0})
    live.restart(orderly=False)
    live.submit({**job, "estimate": 36_000.0, "gpu_memory": 6000})
    live.submit({**job, "estimate": 36_000.0})
    live.restart(orderly=False)
    assert live.service.status()["policy_problem"] == ""
