"""A run's log as it is rotated: exact indices, sizes and pauses, and what a runner finds that took over."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuloom.executors.runner import rotation
from gpuloom.executors.runner.rotation import Log


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(rotation, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def index(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "log.json").read_text())
    return found


@pytest.mark.parametrize(
    ("keep", "sizes", "parts", "base"),
    [
        (3, {"": 9, "copy": 5}, [[0, 7]], 7),  # not cut yet: 4 + 5 bytes are still there
        (3, {"": 8, "copy": 5}, [[11, 5], [0, 7]], 16),
        (1, {"": 0, "copy": 5, "1": 7}, [[11, 5]], 16),
        (3, {"": 0, "1": 5}, [[11, 5], [0, 7]], 16),  # moved already
        (1, {"": 0, "1": 5}, [[11, 5]], 16),
        (3, {"": 0}, [[0, 7]], 11),
        (0, {"": 0, "1": 5}, [[0, 7]], 11),
    ],
)
def test_a_rotation_that_was_broken_off(
    keep: int, sizes: dict[str, int], parts: list[list[int]], base: int, tmp_path: Path
) -> None:
    for name, size in sizes.items():
        (tmp_path / f"output.log{'.' if name else ''}{name}").write_bytes(name[:1].encode() * size or b"x" * size)
    before = {"generation": 4, "base": 7, "parts": [[0, 7]], "pending": {"from": 4, "start": 11}}
    (tmp_path / "log.json").write_text(json.dumps(before))
    Log(str(tmp_path), 100, keep).load()
    assert index(tmp_path) == {"generation": 5, "base": base, "parts": parts}
    assert not (tmp_path / "output.log.copy").exists()
    if base == 16:
        assert (tmp_path / "output.log.1").stat().st_size == 5


@pytest.mark.parametrize(
    "found",
    [
        {"generation": 4, "base": 7, "parts": [[0]]},
        {"generation": 4, "base": 7},
        {"generation": 4, "base": 7, "parts": [], "pending": {"from": 1}},
        {"generation": "x", "base": 7, "parts": []},
    ],
)
def test_an_index_that_was_written_over_is_begun_anew(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text(json.dumps(found))
    (tmp_path / "output.log").write_bytes(b"x" * 10)
    log = Log(str(tmp_path), 10, 2)
    log.load()
    assert index(tmp_path) == found
    log.look()
    assert index(tmp_path) == {"generation": 2, "base": 10, "parts": [[0, 10]]}


def test_one_that_is_in_order_is_gone_on_with(tmp_path: Path) -> None:
    (tmp_path / "log.json").write_text('{"generation": 4, "base": 7, "parts": [[0, 7]]}')
    (tmp_path / "output.log.1").write_bytes(b"y" * 7)
    (tmp_path / "output.log").write_bytes(b"x" * 10)
    log = Log(str(tmp_path), 10, 2)
    log.load()
    assert index(tmp_path)["generation"] == 4
    log.look()
    assert index(tmp_path) == {"generation": 6, "base": 17, "parts": [[7, 10], [0, 7]]}
    assert (tmp_path / "output.log.2").read_bytes() == b"y" * 7


def test_how_long_until_the_next_look(tmp_path: Path, clock: SimpleNamespace) -> None:
    """Until it may be half full at the rate at which it grew, within bounds."""
    log, file = Log(str(tmp_path), 100, 1), tmp_path / "output.log"
    clock.s += 1.0
    assert log.look() == (False, 0.2)
    for add_s, size, found in (
        (1.0, 10, (True, 0.2)),  # 10 bytes a second: 4.5 s
        (0.1, 40, (True, 0.1)),  # 300 a second, 60 left
        (0.0, 60, (True, 0.02)),  # taken as a millisecond
        (1.0, 50, (True, 0.2)),  # it was cut by somebody
        (0.5, 50, (False, 0.2)),
        (0.1, 99, (True, 0.02)),
        (0.01, 100, (True, 0.2)),  # full; 100 a second, and none left
    ):
        clock.s += add_s
        file.write_bytes(b"x" * size)
        grown, pause_s = log.look()
        assert (grown, pytest.approx(pause_s)) == found, size
        assert (tmp_path / "output.log.1").exists() == (size == 100)
    clock.s += 0.1
    file.write_bytes(b"x" * 50)
    assert log.look() == (True, pytest.approx(0.05))  # counted from the cut


@pytest.mark.parametrize(("limit", "size", "kept"), [(16, 30, 21), (16, 21, 21), (80, 100, 90), (0, 7, 6)])
def test_how_much_is_kept_of_what_grew_too_far(
    limit: int, size: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rotation, "SLACK", 5)  # or an eighth of the limit
    (tmp_path / "output.log").write_bytes(bytes(range(size)))
    before = len(os.listdir("/proc/self/fd"))
    Log(str(tmp_path), limit, 1).look()
    assert len(os.listdir("/proc/self/fd")) == before
    assert (tmp_path / "output.log.1").read_bytes() == bytes(range(size))[-kept:]
    assert index(tmp_path) == {"generation": 2, "base": size, "parts": [[size - kept, kept]]}


def test_a_step_that_fails_is_done_again_and_the_others_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, file = Log(str(tmp_path), 10, 2), tmp_path / "output.log"
    file.write_bytes(b"a" * 10)
    log.look()
    rename, fails = os.rename, [True]

    def renamed(source: str, target: str) -> None:
        if target.endswith(".log.1") and fails[0]:
            raise OSError(errno.EIO, "no")
        rename(source, target)

    monkeypatch.setattr(os, "rename", renamed)
    file.write_bytes(b"b" * 10)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            log.look()
        file.write_bytes(b"c")
    fails[0] = False
    log.look()
    assert [(tmp_path / f"output.log{end}").read_bytes() for end in ("", ".1", ".2")] == [
        b"c", b"b" * 10, b"a" * 10,
    ]  # fmt: skip
    assert index(tmp_path)["parts"] == [[10, 10], [0, 10]]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_no_half_copy(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(number, "full")

    monkeypatch.setattr(os, "sendfile", full)
    (tmp_path / "output.log").write_bytes(b"a" * 10)
    Log(str(tmp_path), 10, 2).look()
    assert sorted(os.listdir(tmp_path)) == ["log.json", "output.log"]
    assert index(tmp_path) == {"generation": 1, "base": 10, "parts": []}


def test_whole_blocks_and_never_all(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w+b") as file:
        block = os.fstatvfs(file.fileno()).f_bsize
        for size, asked, found in (
            (3 * block, 3 * block, 2),
            (3 * block + 1, 3 * block + 1, 3),
            (9 * block, 2 * block, 2),
            (9 * block, 2 * block - 1, 1),
            (block, block, 0),
        ):
            file.truncate(size)
            assert rotation._whole_blocks(file.fileno(), asked) == found * block, (size, asked)


def test_what_is_written_while_readers_are_told_is_copied_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, file = Log(str(tmp_path), 10, 2), tmp_path / "output.log"
    file.write_bytes(b"a" * 10)
    plain = log._write

    def told(pending: dict[str, int] | None = None) -> None:
        plain(pending)
        if pending is not None:
            assert index(tmp_path) == {
                "generation": 1, "base": 0, "parts": [], "pending": {"start": 0, "from": 0},
            }  # fmt: skip
            with file.open("ab") as more:
                more.write(b"bbb")

    monkeypatch.setattr(log, "_write", told)
    log.rotate()
    assert (tmp_path / "output.log.1").read_bytes() == b"a" * 10 + b"bbb"
    assert index(tmp_path) == {"generation": 2, "base": 13, "parts": [[0, 13]]}


def test_a_file_that_gives_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sendfile", lambda *_: 0)
    (tmp_path / "output.log").write_bytes(b"a" * 10)
    Log(str(tmp_path), 10, 2).look()
    assert index(tmp_path) == {"generation": 2, "base": 10, "parts": []}
