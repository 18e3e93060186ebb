"""`gpuloom up` with a real framework: an unmodified script makes way for a job of higher priority and loses no step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from preempted import SCRIPTS

from real_scheduler import Real, real
from until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
STEPS = 18


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path, slots=1) as found:
        yield found


def test_lightning_makes_way_and_goes_on_without_a_lost_step(live: Real, training_python: str) -> None:
    live.up("--policy", "srtf", "--interval", "1s")
    command = [training_python, str(SCRIPTS / "lightning_job.py")]
    env = {"STEP_S": "2", "OMP_NUM_THREADS": "1"}
    job = {"command": command, "workdir": str(live.files), "grace": 120, "env": env, "estimate": "1h"}
    ((training,),) = live.client.submit([job])

    def step() -> float:
        return float(live.client.job(training)["progress"].get("step", 0))

    until(lambda: step() >= 1, "a step of the training", 120.0)
    ((urgent,),) = live.client.submit([live.shell("sleep 0.5", priority=10, estimate=1)])
    live.in_state("finished", [urgent], timeout_s=120.0)
    live.in_state("finished", [training], timeout_s=180.0)
    first, second = live.client.show(training)["attempts"]
    kept = first["kept"]
    assert kept is not None
    assert (first["reason"], first["exit_code"], first["saved_by"]) == ("preempted", 85, "exit_code")
    assert (kept["by"], kept["framework"]) == ("hook", "Lightning")
    assert 1 <= kept["step"] < STEPS
    assert second["reason"] == "finished"
    batches = (live.files / "ids.txt").read_text().splitlines()
    assert len(batches) == 33, "11 batches an epoch, none of them twice"
    for epoch in range(3):
        used = [number for line in batches[11 * epoch : 11 * epoch + 11] for number in line.split()]
        assert sorted(map(int, used)) == list(range(42))
    said = live.run("show", str(training)).stdout
    assert f"saved up to step {kept['step']:g} by the hook for Lightning" in said
    until(lambda: not (live.files / ".gpuloom").exists(), "what was kept is removed", 30.0)
    live.down()
    live.check()
