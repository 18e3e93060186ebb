"""A checkpoint on a shared file system belongs to the latest attempt that saves there: earlier ones replace nothing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuloom.training import job
from gpuloom.training.job import OvertakenError


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GPULOOM_JOB_KEY", "GPULOOM_ATTEMPT"):
        monkeypatch.delenv(name, raising=False)


def save(path: Path, text: str, attempt: int | None, key: str = "12-18c3", monkeypatch: Any = None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if attempt is not None:
            patch.setenv("GPULOOM_JOB_KEY", key)
            patch.setenv("GPULOOM_ATTEMPT", str(attempt))
        job.save_atomically(path, lambda file: file.write(text.encode()))


def hidden(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith("."))


def test_a_later_attempt_keeps_earlier_ones_out(tmp_path: Path) -> None:
    path = tmp_path / "model.v1.bin"
    save(path, "one", 1)
    assert hidden(tmp_path) == [".12-18c3-1.attempt"]
    save(path, "two", 2)
    assert hidden(tmp_path) == [".12-18c3-2.attempt"], "one mark for each folder"
    with pytest.raises(OvertakenError, match=r"model\.v1\.bin was not replaced: attempt 2 of its job saves there now"):
        save(path, "zombie", 1)
    with pytest.raises(OvertakenError):
        save(tmp_path / "other.bin", "zombie", 1)
    assert path.read_text() == "two"
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["model.v1.bin"]
    assert not any(name.endswith(".tmp") for name in os.listdir(tmp_path))
    save(path, "more", 2)
    save(path, "eleven", 11)
    assert path.read_text() == "eleven"


def test_other_jobs_and_programs_outside_are_not_kept_out(tmp_path: Path) -> None:
    """A job submitted again, and one of the same number of another home."""
    path = tmp_path / "model.bin"
    save(path, "one", 7)
    save(path, "two", 1, key="13-18c4")
    save(path, "three", 1, key="12-99ff")
    save(path, "four", None)
    save(path, "five", 7)
    assert path.read_text() == "five"


@pytest.mark.parametrize("number", ["", "x", "²", "-1"])
def test_what_is_no_attempt_saves_as_outside(tmp_path: Path, number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_JOB_KEY", "12-18c3")
    monkeypatch.setenv("GPULOOM_ATTEMPT", number)
    job.save_atomically(tmp_path / "model.bin", lambda file: file.write(b"one"))
    assert os.listdir(tmp_path) == ["model.bin"]


def test_files_of_others_in_the_folder_stay(tmp_path: Path) -> None:
    for name in (".12-18c3-1", ".12-18c3-x.attempt", ".attempt", ".tmp", ".model.bin.node-1.tmp", ".12-18c-1.attempt"):
        (tmp_path / name).write_text("")
    before = hidden(tmp_path)
    save(tmp_path / "model.bin", "one", 2)
    assert set(before) <= set(hidden(tmp_path))


def test_what_an_earlier_attempt_on_another_machine_has_half_written_is_removed(tmp_path: Path) -> None:
    half = tmp_path / ".model.v1.bin.12-18c3-1.gpu.example.org-4711.tmp"
    half.write_text("half")
    later = tmp_path / ".model.v1.bin.12-18c3-3.gpu.example.org-4711.tmp"
    later.write_text("half")
    save(tmp_path / "model.v1.bin", "two", 2)
    assert not half.exists()
    assert later.exists()


ZOMBIE = """
import sys
from gpuloom.training import job

def writer(file):
    file.write(b"zombie")
    print("writing", flush=True)
    sys.stdin.readline()

try:
    job.save_atomically(sys.argv[1], writer)
except job.OvertakenError as error:
    sys.exit(str(error))
"""


def test_two_processes_the_earlier_in_the_middle_of_a_save(tmp_path: Path) -> None:
    """It was frozen as it wrote; meanwhile the later attempt saved."""
    path = tmp_path / "model.bin"
    save(path, "one", 1)
    environment = os.environ | {"GPULOOM_JOB_KEY": "12-18c3", "GPULOOM_ATTEMPT": "1"}
    zombie = subprocess.Popen(
        [sys.executable, "-c", ZOMBIE, str(path)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert zombie.stdout is not None
    assert zombie.stdout.readline() == "writing\n"
    save(path, "two", 2)
    _, said = zombie.communicate("go on\n", timeout=60)
    assert zombie.returncode == 1
    assert "this is attempt 1, which gpuloom has given up" in said
    assert path.read_text() == "two"
    assert not any(name.endswith(".tmp") for name in os.listdir(tmp_path))


class Steps:
    """Two saves, one step of each at a time, in a given order. A step: one call that touches the folder."""

    CALLS = ("open", "listdir", "replace", "unlink")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mine = threading.local()
        for name in self.CALLS:
            real = getattr(os, name)
            monkeypatch.setattr(job.os, name, lambda *given, real=real, **more: self.step(real, *given, **more))

    def step(self, real: Callable[..., Any], *given: Any, **more: Any) -> Any:
        turn: threading.Semaphore | None = getattr(self.mine, "turn", None)
        if turn is not None:
            turn.acquire()
        try:
            return real(*given, **more)
        finally:
            if turn is not None:
                self.mine.done.release()

    def run(self, order: Iterator[int], *actions: Callable[[], None]) -> list[str]:
        """What came of each: '' or the name of its error. order: whose turn it is, again and again."""
        turns = [threading.Semaphore(0) for _ in actions]
        dones = [threading.Semaphore(0) for _ in actions]
        ended = [threading.Event() for _ in actions]
        came = [""] * len(actions)

        def work(number: int) -> None:
            self.mine.turn, self.mine.done = turns[number], dones[number]
            try:
                actions[number]()
            except Exception as error:
                came[number] = type(error).__name__
            ended[number].set()
            dones[number].release()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(actions))]
        for thread in threads:
            thread.start()
        for number in order:
            if all(event.is_set() for event in ended):
                break
            if not ended[number].is_set():
                turns[number].release()
                dones[number].acquire()
        for thread in threads:
            thread.join(60)
        return came


def test_in_whatever_order_their_steps_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the later attempt has saved, its file stays, wherever the earlier one was in the middle of its save."""
    steps = Steps(monkeypatch)

    def saves(attempt: int, path: Path) -> None:
        """As `save_atomically`, of an attempt whose environment is another."""
        steps.mine.who = job._Attempt("12-18c3", attempt)
        job.save_atomically(path, lambda file: file.write(f"{attempt}".encode()))

    monkeypatch.setattr(job._Attempt, "of_environment", classmethod(lambda cls: steps.mine.who))
    monkeypatch.setattr(job.os, "getpid", lambda: 1000 + steps.mine.who.number)
    monkeypatch.setattr(job, "_lives", lambda pid: True)
    outcomes: dict[tuple[str, str], int] = {}
    # The earlier one takes `before` steps, then the later one `between`, then the earlier one goes on, and so forth.
    for case, (before, between, after) in enumerate(itertools.product(range(9), range(1, 9), (0, 1, 3))):
        folder = tmp_path / str(case)
        folder.mkdir()
        path = folder / "model.bin"
        order = itertools.chain(
            [0] * before, [1] * between, [0] * after, itertools.chain.from_iterable(itertools.repeat((1, 0)))
        )
        came = steps.run(order, lambda path=path: saves(1, path), lambda path=path: saves(2, path))  # type: ignore[misc]
        outcomes[came[0], came[1]] = outcomes.get((came[0], came[1]), 0) + 1
        assert came[1] == "", "the later one saves whatever the earlier does"
        assert came[0] in ("", "OvertakenError")
        assert path.read_text() == "2"
        assert not any(name.endswith(".tmp") for name in os.listdir(folder))
    assert outcomes["OvertakenError", ""] > 10
    assert outcomes["", ""] > 10
