"""`gpuloom.training.torch.Training` by its example: stopped at random and started again, it ends as if nothing was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from test_preempted import port

from gpuloom.training.job import EXIT_PREEMPTED
from until import until

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).parents[2] / "examples" / "training" / "train.py"


def started(python: str, place: Path, ranks: int, *words: str) -> list[subprocess.Popen[str]]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("GPULOOM_")}
    env |= {"OMP_NUM_THREADS": "1", "GPULOOM_HOOKS": "off", "GPULOOM_PROGRESS_FILE": str(place / "progress.json")}
    if ranks > 1:
        env |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port()}
    own = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {} for rank in range(ranks)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [python, str(SCRIPT), "--steps", "150", "--checkpoint", "here/train.pt", *words]
    place.mkdir(exist_ok=True)
    return [subprocess.Popen(command, cwd=place, env={**env, **one}, **pipes) for one in own]  # type: ignore[call-overload]


def said(processes: list[subprocess.Popen[str]], code: int) -> str:
    """What rank 0 says at its end."""
    texts = [one.communicate()[0] for one in processes]
    assert [one.returncode for one in processes] == [code] * len(processes), texts
    return texts[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_example_ends_with_the_same_weights(ranks: int, training_python: str, tmp_path: Path) -> None:
    whole = said(started(training_python, tmp_path / "whole", ranks), 0)
    cut = started(training_python, tmp_path / "cut", ranks, "--pause", "0.02")
    until((tmp_path / "cut" / "progress.json").exists, "the first step", 120.0)
    time.sleep(random.Random().random() * 2.0)
    for one in cut:
        one.send_signal(signal.SIGTERM)
    said(cut, EXIT_PREEMPTED)
    assert said(started(training_python, tmp_path / "cut", ranks), 0) == whole
    assert "weights sum up to" in whole
