"""Each example of a framework: stopped at random and started again, it ends as if nothing was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from gpuloom.training import inject
from gpuloom.training.job import EXIT_PREEMPTED
from until import until

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples" / "training"
CASES = (
    ("lightning_fit.py", ""),
    ("hf_trainer.py", ""),
    ("keras_fit.py", "torch"),
    ("keras_fit.py", "jax"),
    ("keras_fit.py", "tensorflow"),
    ("keras_2.py", ""),
    ("keras_workers.py", ""),
    ("jax_loop.py", ""),
    ("unchanged.py", ""),
)


def started(python: str, place: Path, script: str, backend: str, *words: str) -> subprocess.Popen[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GPULOOM_", "PYTHONPATH"))}
    env |= {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if script == "unchanged.py":  # with hooks; all others without any, and without gpuloom
        env |= {"GPULOOM_JOB_KEY": "7-1", "GPULOOM_NOTICE_FILE": str(place / "notice")}
        env |= inject.environment(env, place / "hooks") | inject.saves(env, str(place))
    place.mkdir(exist_ok=True)
    command = [python, str(EXAMPLES / script), *words]
    return subprocess.Popen(
        command, cwd=place, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def said(process: subprocess.Popen[str], code: int) -> str:
    text = process.communicate()[0]
    assert process.returncode == code, text
    return text.splitlines()[-1] if code == 0 else text


@pytest.mark.parametrize(("script", "backend"), CASES)
def test_it_ends_with_the_same_weights(script: str, backend: str, training_python: str, tmp_path: Path) -> None:
    whole = said(started(training_python, tmp_path / "whole", script, backend), 0)
    assert whole.startswith("weights sum up to")
    cut = started(training_python, tmp_path / "cut", script, backend, "--pause", "0.02")
    until(lambda: handles_sigterm(cut.pid), "the training has begun", 120.0)
    time.sleep(0.2 + random.Random().random() * 2.0)
    cut.send_signal(signal.SIGTERM)
    text = said(cut, EXIT_PREEMPTED)
    if script in ("lightning_fit.py", "hf_trainer.py", "keras_fit.py"):
        assert "saved at step" in text
    again = started(training_python, tmp_path / "cut", script, backend, "--pause", "0.02")  # the same command
    assert said(again, 0) == whole
    left = [one.name for one in (tmp_path / "cut").glob("runs/saves/*")]
    assert left == [], "what was saved is removed when it has ended well"


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
