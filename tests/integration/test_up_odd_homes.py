"""Homes in which a scheduler can't start, or only just: it starts, or says why and what helps."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuloom.cli.main import cli
from gpuloom.client.home import running
from gpuloom.core.errors import GpuloomError
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer

pytestmark = pytest.mark.slow
UP = ("up", "--detach", "--slots", "1", "--port", "0")


@contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        pytest.skip("only root may mount a small file system")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode(errors='replace').strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def up(home: Path) -> str:
    """What is said by a start that fails."""
    result = CliRunner().invoke(cli, [*UP, "--home", str(home)], standalone_mode=False)
    assert isinstance(result.exception, GpuloomError), result.exception
    return str(result.exception)


def test_a_disk_without_inodes(tmp_path: Path) -> None:
    for inodes in (3, 4, 5, 6):  # the root, the home, its log, the lock, the store; its log of writes
        with disk(tmp_path / f"disk{inodes}", f"size=8m,nr_inodes={inodes}") as small:
            assert "no inodes are left" in up(small / "home")


def test_a_disk_without_space(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=64k") as small:
        (small / "home").mkdir(mode=0o700)
        filler = os.open(small / "filler", os.O_WRONLY | os.O_CREAT)
        while os.statvfs(small).f_bavail:
            os.write(filler, b"x" * 4096)
        os.close(filler)
        assert "no space is left on the disk" in up(small / "home")


def test_half_a_server_json_and_a_name_that_is_no_text_are_no_obstacle(tmp_path: Path) -> None:
    home = tmp_path / "odd\udcff"
    try:
        home.mkdir(mode=0o700)
    except OSError as error:
        pytest.skip(f"this file system takes no such names: {error}")
    (home / "server.json").write_text('{"pid": 12')
    program = [sys.executable, "-c", "from gpuloom.cli.main import main; main()"]
    done = subprocess.run([*program, *UP, "--home", str(home)], capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert running(home) is not None
    done = subprocess.run([*program, "down", "--home", str(home)], capture_output=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr


def test_a_store_below_a_name_that_is_no_text(tmp_path: Path) -> None:
    folder = tmp_path / "odd\udcff%20"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"this file system takes no such names: {error}")
    with SqliteStore(folder / "store.db") as store:
        Writer(store).submit()
        store.backup(folder / "copy.db")
    with SqliteStore(folder / "copy.db", read_only=True) as copy:
        assert copy.counts()["queued"] == 1
