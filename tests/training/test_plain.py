"""A PyTorch script that saves by itself: stopped and started again it ends with the very weights of a whole run."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from gpuloom.training.job import EXIT_PREEMPTED

pytestmark = pytest.mark.slow
SCRIPT = Path(__file__).with_name("plain.py")


def run(python: str, *args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, str(SCRIPT), *map(str, args)], capture_output=True, text=True, check=False)


def test_a_script_that_saves_itself_ends_with_the_same_weights(training_python: str, tmp_path: Path) -> None:
    whole = run(training_python, tmp_path / "whole.pt")
    assert whole.returncode == 0, whole.stderr
    at = random.Random().randrange(1, 39)
    first = run(training_python, tmp_path / "cut.pt", at)
    assert first.returncode == EXIT_PREEMPTED, first.stderr
    assert first.stdout == ""
    again = run(training_python, tmp_path / "cut.pt")
    assert (again.returncode, again.stdout) == (0, whole.stdout), f"stopped at step {at}: {again.stderr}"
