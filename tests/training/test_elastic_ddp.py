"""A DDP job on CPU slots is grown and shrunk while it trains: the same samples, the same losses, the same weights."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from real_scheduler import Real, real
from until import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[2] / "examples" / "training" / "train_ddp.py"
EPOCHS, STEPS = 5, 105
"""21 steps an epoch: 1000 samples, 48 a step, and what is left for a last one."""
PATIENCE_S = 120.0
WEIGHTS = """
import sys, torch
one, other = (torch.load(path)["net"] for path in sys.argv[1:])
assert all(torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-4) for name in one), (one, other)
"""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Real]:
    with real(tmp_path, slots=3) as found:
        yield found


def seen(folder: Path) -> dict[int, tuple[float, list[int]]]:
    """By step the loss, and which samples were used by all processes together."""
    found: dict[int, tuple[float, list[int]]] = {}
    for path in folder.iterdir():
        step = int(path.name.partition(".")[0])
        loss, *indices = path.read_text().split()
        before = found.get(step, (float(loss), []))
        assert float(loss) == before[0], f"step {step}: processes saw different losses, or it was done twice"
        found[step] = (before[0], sorted([*before[1], *map(int, indices)]))
    return found


def submitted(live: Real, python: str, epochs: int, most: int, **fields: str) -> int:
    """The script as an elastic job, that writes what it sees to the folder `seen`."""
    (live.files / "seen").mkdir()
    options = ["--epochs", str(epochs), "--pause", "0.5", "--checkpoint", "ddp.pt", "--seen", "seen"]
    command = ["torchrun", "--nproc-per-node=1", str(SCRIPT), *options]
    job = {"command": command, "workdir": str(live.files), "elastic": f"1-{most}", **fields}
    ((number,),) = live.client.submit([{**job, "venv": str(Path(python).parents[1])}])
    return int(number)


def trains_with(live: Real, job: int, replicas: int) -> None:
    """It has so many replicas, and each has done a step since."""

    def so() -> bool:
        view = live.client.job(job)
        assert view["state"] != "failed", live.client.log(job).decode()
        if view["state"] != "running" or view["replicas"]["now"] != replicas:
            return False
        ranks = {name.name.split(".")[2] for name in (live.files / "seen").glob(f"*.{view['attempts']}.*")}
        return len(ranks) == replicas

    until(so, f"it trains with {replicas} processes", PATIENCE_S)


def test_ddp_grown_and_shrunk_while_it_trains_is_as_if_it_never_was(
    live: Real, training_python: str, tmp_path: Path
) -> None:
    live.up("--policy", "elastic-goodput", "--interval", "0s")
    fillers = [number for (number,) in live.client.submit([live.waiting(), live.waiting()])]
    live.in_state("running", fillers)
    number = submitted(live, training_python, EPOCHS, 3)
    assert live.client.show(number)["launcher"] == "direct"
    trains_with(live, number, 1)
    live.end(fillers[0])
    trains_with(live, number, 2)
    live.end(fillers[1])
    trains_with(live, number, 3)
    for replicas in (2, 1):
        fillers += [filler for (filler,) in live.client.submit([live.waiting()])]
        trains_with(live, number, replicas)
    live.in_state("finished", [number], timeout_s=300.0)
    found = live.client.show(number)
    assert [one["replicas"] for one in found["attempts"]] == [1, 2, 3, 2, 1]
    assert [one["saved_by"] for one in found["attempts"][:-1]] == ["exit_code"] * 4
    assert [(one["from_replicas"], one["to_replicas"]) for one in found["resizes"]] == [(1, 2), (2, 3), (3, 2), (2, 1)]
    assert [one["why"] for one in found["resizes"]] == ["free_gpus", "free_gpus", "made_room", "made_room"]
    assert [one["lost_steps"] for one in found["resizes"]] == [0.0] * 4
    assert [one["cost_from"] for one in found["resizes"]] == ["steps"] * 4
    assert all(0.0 < (one["cost_s"] or 0.0) < PATIENCE_S for one in found["resizes"])
    shown = live.run("show", str(number)).stdout
    assert "direct (recognised by the command)" in shown
    assert "2 → 3" in shown
    live.end(*fillers[2:])
    live.down("--stop-jobs")

    whole = tmp_path / "whole"
    whole.mkdir()
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    subprocess.run(
        [training_python, SCRIPT, "--epochs", str(EPOCHS), "--checkpoint", tmp_path / "whole.pt", "--seen", whole],
        env={**alone, "GPULOOM_REPLICAS": "1", "GPULOOM_MAX_REPLICAS": "3"},
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    resized, undisturbed = seen(live.files / "seen"), seen(whole)
    assert sorted(resized) == sorted(undisturbed) == list(range(1, STEPS + 1))
    for step, (loss, samples) in undisturbed.items():
        assert resized[step][1] == samples, f"step {step}"
        assert resized[step][0] == pytest.approx(loss, rel=1e-3), f"step {step}"
    for epoch in range(EPOCHS):
        steps = range(epoch * 21 + 1, epoch * 21 + 22)
        assert sorted(index for step in steps for index in resized[step][1]) == list(range(1000))
    compared = [training_python, "-c", WEIGHTS, tmp_path / "whole.pt", live.files / "ddp.pt"]
    told = subprocess.run(compared, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_under_torchrun_the_agent_is_started_anew_and_reported_saves_are_the_proof(
    live: Real, training_python: str
) -> None:
    live.up("--policy", "elastic-goodput", "--interval", "0s")
    fillers = [number for (number,) in live.client.submit([live.waiting(gpus=2)])]
    live.in_state("running", fillers)
    number = submitted(live, training_python, 2, 2, launcher="torchrun")
    trains_with(live, number, 1)
    live.end(*fillers)
    live.in_state("finished", [number], timeout_s=300.0)
    found = live.client.show(number)
    assert [one["replicas"] for one in found["attempts"]] == [1, 2]
    # The agent ends with 1, whatever the script says.
    assert (found["attempts"][0]["exit_code"], found["attempts"][0]["saved_by"]) == (1, "saved_step")
    assert [(one["lost_steps"], one["cost_from"]) for one in found["resizes"]] == [(0.0, "steps")]
    resized = seen(live.files / "seen")
    assert sorted(resized) == list(range(1, 43))
    for epoch in range(2):
        steps = range(epoch * 21 + 1, epoch * 21 + 22)
        assert sorted(index for step in steps for index in resized[step][1]) == list(range(1000))
    live.down("--stop-jobs")
