"""The homes of pilots are removed, and never one in which something may still work."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuloom.executors import procs
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.wire import GUARD_LOCK, LOCK, NODE_LOCK
from gpuloom.node import passing
from gpuloom.node.home import NodeHome
from gpuloom.node.passing import QUIET_S, remove, tidy
from until import until


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of a pilot that was killed, with runs of its own and a folder that is linked into it."""
    found = NodeHome(tmp_path / "gpuloom-12-aB3dE6").create()
    os.close(found.take())
    for lock in (GUARD_LOCK, LOCK):
        (found.path / lock).touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "output.log").write_text("its log")
    (found.runs / "1.1").mkdir()
    (found.path / "linked").symlink_to(tmp_path / "shared")
    return found.path


def later() -> float:
    return time.time() + QUIET_S + 5.0


def test_one_that_a_killed_pilot_has_left(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "gpuloom-other"
    other.mkdir()
    assert tidy(tmp_path, later()) == [home]
    assert not home.exists()
    assert other.exists()
    assert (tmp_path / "shared" / "output.log").read_text() == "its log"


def test_not_soon(home: Path, tmp_path: Path) -> None:
    assert tidy(tmp_path, time.time()) == []
    written = later()
    os.utime(home / "runs" / "1.1", (written, written))
    assert tidy(tmp_path, written + QUIET_S - 5.0) == []
    assert tidy(tmp_path, written + QUIET_S + 5.0) == [home]


@pytest.mark.parametrize("lock", [NODE_LOCK, GUARD_LOCK, LOCK])
def test_not_while_something_works_there(home: Path, tmp_path: Path, lock: str) -> None:
    held = os.open(home / lock, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    assert tidy(tmp_path, later()) == []
    os.close(held)
    assert tidy(tmp_path, later()) == [home]


def test_not_while_something_of_a_run_is_left(home: Path, tmp_path: Path) -> None:
    """As where all that watches over it was killed."""
    mark = f"{home_id_of(home)}:1.1"
    job = subprocess.Popen(["sleep", "1000"], env={"GPULOOM_RUN": mark, "PATH": os.environ["PATH"]})
    try:
        until(lambda: procs.marked(job.pid, f"GPULOOM_RUN={mark}".encode()))
        assert tidy(tmp_path, later()) == []
    finally:
        job.kill()
        job.wait()
    assert tidy(tmp_path, later()) == [home]


def test_not_one_that_just_begins_or_that_is_no_home_of_ours(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / NODE_LOCK).unlink()
    (tmp_path / "gpuloom-13-aB3dE6").symlink_to(home)
    assert tidy(tmp_path, later()) == []
    (home / NODE_LOCK).touch()
    monkeypatch.setattr(passing.os, "geteuid", lambda: 12345)
    assert tidy(tmp_path, later()) == []
    assert home.exists()


def test_one_that_can_not_be_removed_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove(tmp_path / "none")
    assert f"{tmp_path / 'none'} can't be removed: No such file or directory" in caplog.text
