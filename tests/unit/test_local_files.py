"""What reading the files of runs on this machine costs, and what stands in its way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuloom.executors import checkpoint_files
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.port import ExecutorError


def test_of_a_checkpoint_s_files_only_so_many_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (path := tmp_path / f"{number}.pt").write_text("x")
        os.utime(path, (number, number))
    names = [str(tmp_path / f"{number}.pt") for number in range(4)]
    monkeypatch.setattr(checkpoint_files, "_files", lambda pattern: iter(names))
    for most, newest in ((2, 1.0), (3, 2.0), (4, 3.0)):
        monkeypatch.setattr(checkpoint_files, "MOST_FILES", most)
        assert checkpoint_files.checkpoint_written_s("x", "") == newest
    (tmp_path / "3.pt").write_text("")  # an empty one is none
    os.utime(tmp_path / "3.pt", (3, 3))
    assert checkpoint_files.checkpoint_written_s("x", "") == 2.0


def test_a_checkpoint_that_can_not_be_looked_at_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stale(pattern: str) -> None:
        raise OSError(116, "Stale file handle", pattern)

    monkeypatch.setattr(checkpoint_files, "_files", stale)
    with pytest.raises(ExecutorError, match=r"Stale file handle: '/w/a\.pt'"):
        LocalFiles(tmp_path).checkpoint_s("1.1", "a.pt", "/w")


def test_a_log_that_can_not_be_looked_at_has_a_mark(tmp_path: Path) -> None:
    (tmp_path / "0000" / "1").mkdir(parents=True)
    (tmp_path / "0000" / "1" / "1").write_text("a file where the run's folder was")
    assert LocalFiles(tmp_path).log_mark("1.1") == (-20,)
