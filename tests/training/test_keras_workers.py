"""TensorFlow on several workers, grown and shrunk while it trains: it ends with the weights of one that never was."""

from __future__ import annotations

import os
import pickle
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from real_scheduler import Real, real
from until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).parents[2] / "examples" / "training" / "keras_workers.py"
STEPS = 60
PATIENCE_S = 120.0


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path, slots=2) as found:
        yield found


def test_workers_come_and_go(live: Real, training_python: str, tmp_path: Path) -> None:
    live.up("--policy", "elastic-goodput", "--interval", "0s")
    (filler,) = (number for (number,) in live.client.submit([live.waiting()]))
    live.in_state("running", [filler])
    command = [training_python, str(SCRIPT), "--steps", str(STEPS), "--pause", "0.3", "--checkpoint", "kept.pickle"]
    env = {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "TF_USE_LEGACY_KERAS": "1"}
    job = {"command": command, "workdir": str(live.files), "elastic": "1-2", "launcher": "tensorflow", "per": "gpu"}
    ((number,),) = live.client.submit([{**job, "env": env}])

    def trains_with(replicas: int) -> None:
        def so() -> bool:
            view = live.client.job(number)
            assert view["state"] not in ("failed", "finished"), live.client.log(number).decode()
            now = (view["replicas"] or {}).get("now")
            return view["state"] == "running" and now == replicas and "step" in view["progress"]

        until(so, f"it trains with {replicas} workers", PATIENCE_S)

    trains_with(1)
    live.end(filler)
    trains_with(2)
    (filler,) = (number for (number,) in live.client.submit([live.waiting()]))
    trains_with(1)
    live.in_state("finished", [number], timeout_s=300.0)
    found = live.client.show(number)
    assert [one["replicas"] for one in found["attempts"]] == [1, 2, 1]
    assert [one["saved_by"] for one in found["attempts"][:-1]] == ["exit_code"] * 2
    assert [one["lost_steps"] for one in found["resizes"]] == [0.0] * 2
    live.end(filler)
    live.down("--stop-jobs")

    whole = tmp_path / "whole.pickle"
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("GPULOOM_", "PYTHONPATH"))}
    subprocess.run(
        [training_python, SCRIPT, "--steps", str(STEPS), "--checkpoint", whole],
        env={**plain, **env},
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    steps, weights = pickle.loads((live.files / "kept.pickle").read_bytes())
    others, undisturbed = pickle.loads(whole.read_bytes())
    assert steps == others == STEPS
    for one, other in zip(weights, undisturbed, strict=True):
        assert np.allclose(one, other, rtol=1e-3, atol=1e-4)
