"""Scripts that write checkpoints by themselves go on to the next one, if there is time, and what is kept is told."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
from preempted import Job
from test_preempted import port

from gpuloom.training.job import EXIT_PREEMPTED

pytestmark = pytest.mark.slow
STEPS, EVERY = 60, 5
SLOWLY = {"GPULOOM_RESUME": "0", "STEP_S": "0.1"}


@pytest.mark.parametrize("ranks", [1, 2])
def test_it_goes_on_to_its_next_checkpoint_and_ends_as_if_nothing_had_been(
    ranks: int, training_python: str, tmp_path: Path
) -> None:
    more = {"MASTER_PORT": port(), "GPULOOM_GRACE_S": "600", **SLOWLY}
    job = Job(training_python, "own_job.py", tmp_path, ranks, more)
    at = random.Random().randrange(30, STEPS - 12)
    assert job.run(stop_at=at) == [EXIT_PREEMPTED] * ranks, f"stopped in step {at}: {job.errors}"
    told = job.told
    assert at < told["saved_step"] <= at + EVERY, told
    assert told["saved_step"] % EVERY == 0
    assert told["saved_step"] <= told["step"] <= told["saved_step"] + 3, told
    assert (told["saved_who"], told["saved_what"]) == ("script", "PyTorch")
    job.more |= {"GPULOOM_RESUME": "1", "MASTER_PORT": port()}
    assert job.run() == [0] * ranks, job.errors
    weights = job.result[0]
    whole = Job(training_python, "own_job.py", tmp_path / "whole", ranks, {"MASTER_PORT": port()})
    assert whole.run() == [0] * ranks, whole.errors
    assert whole.result[0] == weights


def test_too_late_for_the_next_one_it_ends_and_the_last_one_is_told(training_python: str, tmp_path: Path) -> None:
    job = Job(training_python, "own_job.py", tmp_path, more={"GPULOOM_GRACE_S": "0", **SLOWLY})
    assert job.run(stop_at=21) == [-signal.SIGTERM], job.errors
    assert (job.told["saved_step"], job.told["saved_who"]) == (20, "script")


def test_checkpoints_that_are_not_loaded_do_not_count(training_python: str, tmp_path: Path) -> None:
    (tmp_path / "own.pt").touch()
    job = Job(training_python, "own_job.py", tmp_path, arguments=("forgets",), more={"GPULOOM_RESUME": "1"})
    assert job.run(stop_at=21) == [-signal.SIGTERM], job.errors
    told = job.told
    assert "loaded none when it was started again" in told["not_saved"]
    assert "saved_step" not in told
