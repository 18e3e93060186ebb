"""Unmodified scripts of frameworks: preempted at a random step and started again, they end as if nothing had been."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
from preempted import KEY, Job

from gpuloom.training.job import EXIT_PREEMPTED

pytestmark = pytest.mark.slow


def port() -> str:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def saved(job: Job) -> list[str]:
    return sorted(one.name for one in (job.place / ".gpuloom" / KEY).iterdir())


@pytest.mark.parametrize(
    ("script", "steps", "ranks", "by"),
    [
        ("lightning_job.py", 18, 1, "Lightning"),
        ("lightning_job.py", 9, 2, "Lightning"),
        ("hf_job.py", 18, 1, "HF Trainer"),
        ("keras_job.py torch", 33, 1, "Keras"),
        ("keras_job.py jax", 33, 1, "Keras"),
        ("keras_job.py tensorflow", 33, 1, "Keras"),
        ("keras_job.py tensorflow plain", 33, 1, "Keras"),
    ],
)
def test_it_ends_with_the_weights_of_a_whole_run(
    script: str, steps: int, ranks: int, by: str, training_python: str, tmp_path: Path
) -> None:
    script, backend, *words = [*script.split(), ""]
    more = {"MASTER_PORT": port(), "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    arguments = tuple(filter(None, words))
    whole = Job(training_python, script, tmp_path / "whole", ranks, more, arguments)
    assert whole.run() == [0] * ranks, whole.errors
    cut = Job(training_python, script, tmp_path / "cut", ranks, {**more, "MASTER_PORT": port()}, arguments)
    at = random.Random().randrange(steps - 3)
    assert cut.run(stop_at=at) == [EXIT_PREEMPTED] * ranks, f"stopped in step {at}: {cut.errors}"
    told = cut.told
    assert at < told["saved_step"] == told["step"] <= at + 3, told
    assert (told["steps"], told["saved_who"], told["saved_what"]) == (steps, "hook", by), told
    assert len(saved(cut)) == 1, saved(cut)
    assert cut.run() == [0] * ranks, f"stopped in step {at}: {cut.errors}"
    assert cut.result == whole.result, f"stopped in step {at}: {cut.errors}"
    assert cut.told["step"] == cut.told["steps"] == steps


def test_of_data_whose_place_can_not_be_told_whole_epochs_are_kept(training_python: str, tmp_path: Path) -> None:
    more = {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2"}
    whole = Job(training_python, "keras_job.py", tmp_path / "whole", 1, more, ("generator",))
    assert whole.run() == [0], whole.errors
    cut = Job(training_python, "keras_job.py", tmp_path / "cut", 1, more, ("generator",))
    assert cut.run(stop_at=14) == [EXIT_PREEMPTED], cut.errors
    assert "saves after the epoch, as where the data stands can't be told" in cut.errors
    assert cut.told["saved_step"] == 22
    assert cut.run() == [0], cut.errors
    assert cut.result == whole.result
