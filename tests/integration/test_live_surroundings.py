"""What surrounds gpuloom fails under a real scheduler: no job ends by it, and all goes on by itself when it is over."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from real_scheduler import Real, alive, real
from until import until

pytestmark = pytest.mark.slow

JOBS = 40


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    place = folder / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"a file system can't be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill_inodes(place: Path) -> Callable[[], None]:
    """Make files until there are no more; returns what makes room again."""
    folder = place / "filler"
    folder.mkdir()
    number = 0
    while _made(folder / str(number)):
        number += 1

    def room() -> None:
        for file in folder.iterdir():
            file.unlink()

    return room


def fill_blocks(place: Path) -> Callable[[], None]:
    """Write until there is no room; returns what makes room again."""
    filler = place / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            while _written(file, size):
                pass
    return filler.unlink


def _made(file: Path) -> bool:
    try:
        file.touch()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True


def _written(file: io.FileIO, size: int) -> bool:
    try:
        return file.write(b"x" * size) == size
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def executor_of(live: Real) -> str:
    return str(live.client.status()["executor"]["problem"])


def mark(live: Real) -> dict[str, object]:
    """A job that leaves a mark where there is room."""
    return live.shell('echo "$GPULOOM_JOB_ID" >> marks')


def all_have_run_once(live: Real, jobs: list[int]) -> None:
    live.client.wait(jobs, timeout_s=150)
    assert set(live.states(jobs).values()) == {"finished"}
    live.ran(dict.fromkeys(jobs, 1))
    until(lambda: live.client.status()["executor"]["ok"], "that the status says so")
    live.down("--stop-jobs")
    live.check()


@pytest.mark.slow
def test_without_inodes_queued_jobs_wait(tmp_path: Path) -> None:
    with small_disk(tmp_path, "size=64m,nr_inodes=400") as place, real(tmp_path, home=place / "home") as live:
        live.up("--policy", "fifo")
        running = live.client.submit(live.waiting())[0][0]
        live.in_state("running", [running])
        room = fill_inodes(place)
        jobs = [job for group in live.client.submit([mark(live)] * JOBS) for job in group]
        until(lambda: executor_of(live), "that the status says what is wrong")
        problem = executor_of(live)
        assert os.strerror(errno.ENOSPC) in problem
        assert "df -i" in problem
        assert str(place) in problem
        assert json.loads(live.run("status", "--json").stdout)["executor"]["ok"] is False
        live.end(running)  # what runs goes on, and its end is taken
        live.client.wait([running], timeout_s=30)
        until(lambda: sum(view["attempts"] for view in live.client.jobs(ids=jobs)) > live.slots, "another try")
        assert set(live.states(jobs).values()) <= {"queued", "starting"}
        waiting = next(job for job, state in live.states(jobs).items() if state == "queued")
        assert live.client.why(waiting)["code"] in ("executor_in_trouble", "start_failed")
        # One at a time, at growing pauses: not one for each job.
        assert sum(view["attempts"] for view in live.client.jobs(ids=jobs)) < JOBS / 2
        room()
        all_have_run_once(live, [running, *jobs])


@pytest.mark.slow
def test_without_blocks_queued_jobs_wait(tmp_path: Path) -> None:
    with small_disk(tmp_path, "size=8m") as place, real(tmp_path, home=place / "home") as live:
        live.up("--policy", "fifo")
        first = [live.client.submit(live.waiting())[0][0] for _ in range(live.slots)]
        live.in_state("running", first)
        jobs = [job for group in live.client.submit([mark(live)] * JOBS) for job in group]
        room = fill_blocks(place)
        live.end(*first)
        until(lambda: not live.client.status()["store"]["ok"], "that the status says what is wrong")
        room()
        all_have_run_once(live, [*first, *jobs])


@pytest.mark.slow
def test_a_runner_that_is_frozen_keeps_nobody_from_coming_up(tmp_path: Path) -> None:
    with real(tmp_path) as live:
        live.up()
        job = live.client.submit(live.waiting())[0][0]
        live.in_state("running", [job])
        runner = live.runner()
        live.kill()
        os.kill(runner, signal.SIGSTOP)
        try:
            live.up()
            problem = executor_of(live)
            assert f"kill -CONT {runner}" in problem
            assert live.states([job]) == {job: "running"}
            other = live.client.submit(mark(live))[0][0]
            assert live.client.why(other)["code"] == "executor_in_trouble"
        finally:
            os.kill(runner, signal.SIGCONT)
        live.client.wait([other], timeout_s=60)
        assert alive(runner)
        live.end(job)
        live.client.wait([job], timeout_s=60)
        assert live.states([job, other]) == {job: "finished", other: "finished"}
        live.down()


@pytest.mark.slow
def test_a_folder_of_ours_that_turns_read_only(tmp_path: Path) -> None:
    """As an immutable one: what runs goes on, its end is told, and what waits waits."""
    with real(tmp_path) as live:
        live.up()
        running = [live.client.submit(live.waiting())[0][0] for _ in range(2)]
        live.in_state("running", running)
        runner, folder = live.runner(), str(live.home / "live")
        if subprocess.run(["chattr", "+i", folder], capture_output=True, check=False).returncode:
            done = subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False)
            if done.returncode or subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=False).returncode:
                pytest.skip("a folder can be made neither immutable nor read-only here")
            undo = ["umount", "--lazy", folder]
        else:
            undo = ["chattr", "-i", folder]
        try:
            live.end(running[0])
            live.client.wait(running[:1], timeout_s=30)
            waits = live.client.submit(mark(live))[0][0]
            until(lambda: folder in executor_of(live), "that the status says what is wrong")
            assert live.states([*running, waits])[running[1]] == "running"
            assert live.runner() == runner
        finally:
            subprocess.run(undo, check=True)
        live.client.wait([waits], timeout_s=60)
        live.end(running[1])
        live.client.wait(running, timeout_s=30)
        assert set(live.states([*running, waits]).values()) == {"finished"}
        until(lambda: not executor_of(live), "that the status says so")
        assert live.runner() == runner
        live.down()
