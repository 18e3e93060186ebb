"""Logs of runs: rotated while they are written, read by offsets that go on."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuloom.executors import logs
from gpuloom.executors.logs import NoLogError, read_log
from gpuloom.executors.runner import rotation
from gpuloom.executors.runner.rotation import Log, Watch

LINES = [f"line {number}\n".encode() for number in range(40)]


def write(directory: Path, data: bytes) -> None:
    with (directory / "output.log").open("ab") as file:
        file.write(data)


@pytest.fixture
def parts(tmp_path: Path) -> bytes:
    """A log of three files; what all of it says."""
    log = Log(str(tmp_path), limit=50, keep=4)
    for start in range(0, 30, 10):
        write(tmp_path, b"".join(LINES[start : start + 10]))
        log.look()
    write(tmp_path, b"".join(LINES[30:35]))
    return b"".join(LINES[:35])


def test_read_from_anywhere(tmp_path: Path, parts: bytes) -> None:
    assert read_log(tmp_path) == (parts, len(parts))
    for offset in range(len(parts) + 1):
        assert read_log(tmp_path, offset) == (parts[offset:], len(parts))
        assert read_log(tmp_path, offset, max_bytes=20) == (parts[offset : offset + 20], min(offset + 20, len(parts)))
    assert read_log(tmp_path, 10_000) == (b"", 10_000)


def test_last_lines(tmp_path: Path, parts: bytes) -> None:
    lines = parts.splitlines(keepends=True)
    for count in range(1, 40):
        assert read_log(tmp_path, tail_lines=count) == (b"".join(lines[-count:]), len(parts))
    assert read_log(tmp_path, tail_lines=0) == (b"", len(parts))
    assert read_log(tmp_path, tail_lines=30, max_bytes=25) == (parts[-25:], len(parts))
    write(tmp_path, b"no end")
    assert read_log(tmp_path, tail_lines=1) == (b"no end", len(parts) + 6)
    assert read_log(tmp_path, tail_lines=2)[0] == lines[-1] + b"no end"


def test_no_log(tmp_path: Path) -> None:
    assert read_log(tmp_path) == (b"", 0)
    assert read_log(tmp_path, 7) == (b"", 7)
    assert read_log(tmp_path, tail_lines=3) == (b"", 0)
    with pytest.raises(ValueError, match="max_bytes is 0"):
        read_log(tmp_path, max_bytes=0)


def test_old_parts_are_dropped(tmp_path: Path) -> None:
    log = Log(str(tmp_path), limit=10, keep=2)
    for line in LINES:
        write(tmp_path, line * 2)
        log.look()
    everything = b"".join(line * 2 for line in LINES)
    data, end = read_log(tmp_path, 0)
    assert end == len(everything)
    assert data == LINES[-2] * 2 + LINES[-1] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "log.json",
        "output.log",
        "output.log.1",
        "output.log.2",
    ]


def test_none_kept(tmp_path: Path) -> None:
    log = Log(str(tmp_path), limit=10, keep=0)
    write(tmp_path, b"x" * 30)
    log.look()
    write(tmp_path, b"yy")
    assert read_log(tmp_path, 0) == (b"yy", 32)
    assert not (tmp_path / "output.log.1").exists()


def test_of_an_overgrown_log_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rotation, "SLACK", 0)
    log = Log(str(tmp_path), limit=100, keep=1)
    write(tmp_path, b"a" * 1000 + b"b" * 112)
    log.look()
    write(tmp_path, b"c")
    assert read_log(tmp_path, 0) == (b"b" * 112 + b"c", 1113)


def test_a_log_that_outgrows_its_copy_keeps_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk and a job that writes on: what it wrote last is what one wants to see."""
    monkeypatch.setattr(rotation, "SLACK", 0)
    log = Log(str(tmp_path), limit=100, keep=1)
    write(tmp_path, b"a" * 150)
    more = [b"b" * 700, b"c" * 990 + b"the end\n"]
    copied = os.sendfile

    def slow(*arguments: int) -> int:
        done = copied(*arguments)
        if more:
            write(tmp_path, more.pop(0))
        return done

    monkeypatch.setattr(os, "sendfile", slow)
    log.look()
    data, end = read_log(tmp_path, 0)
    assert (data, end) == (b"c" * 104 + b"the end\n", 150 + 700 + 998)
    assert read_log(tmp_path, None, 1)[0].endswith(b"the end\n")


def test_a_full_disk_loses_old_output_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log = Log(str(tmp_path), limit=10, keep=3)
    write(tmp_path, b"x" * 30)
    with monkeypatch.context() as context:
        context.setattr(os, "sendfile", full)
        log.look()
    assert (tmp_path / "output.log").stat().st_size == 0
    write(tmp_path, b"next")
    assert read_log(tmp_path, 0) == (b"next", 34)


def test_other_errors_leave_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    log = Log(str(tmp_path), limit=10, keep=3)
    write(tmp_path, b"x" * 30)
    with monkeypatch.context() as context:
        context.setattr(os, "sendfile", broken)
        with pytest.raises(OSError, match="Input/output"):
            log.look()
    assert read_log(tmp_path, 0) == (b"x" * 30, 30)
    log.look()
    assert read_log(tmp_path, 0) == (b"x" * 30, 30)
    assert (tmp_path / "output.log.1").exists()


@pytest.mark.parametrize("cut", [False, True])
def test_a_runner_killed_while_it_rotates(tmp_path: Path, cut: bool) -> None:
    write(tmp_path, b"0123456789")
    Log(str(tmp_path), limit=10, keep=3).look()
    write(tmp_path, b"" if cut else b"abcdefghij")
    (tmp_path / "output.log.copy").write_bytes(b"abcdefghij")
    index = json.loads((tmp_path / "log.json").read_text())
    (tmp_path / "log.json").write_text(json.dumps({**index, "pending": {"start": 10, "from": 0}}))
    log = Log(str(tmp_path), limit=100, keep=3)
    log.load()
    assert not (tmp_path / "output.log.copy").exists()
    write(tmp_path, b"more")
    log.look()
    assert read_log(tmp_path, 0) == (b"0123456789abcdefghijmore", 24)


def test_a_watch_reports_once(tmp_path: Path) -> None:
    watch = Watch()
    path = str(tmp_path / "output.log")
    assert not watch.once(path)
    write(tmp_path, b"x")
    assert watch.written() == []
    assert watch.once(path)
    write(tmp_path, b"x")
    write(tmp_path, b"x")
    assert watch.written() == [path]
    write(tmp_path, b"x")
    assert watch.written() == []
    assert watch.once(path)
    watch.forget(path)
    write(tmp_path, b"x")
    assert watch.written() == []
    os.close(watch.fd)


def _folder(path: Path) -> None:
    path.mkdir()


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's name is short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def _zero(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _secret(path: Path) -> None:
    (path.parent / "secret").write_text("nobody's business")
    path.symlink_to("secret")


@pytest.mark.parametrize("put", [_folder, _pipe, _socket, _zero, _secret])
@pytest.mark.parametrize("tail", [None, 5])
def test_what_a_job_puts_in_place_of_its_log_is_not_read(
    tmp_path: Path, put: Callable[[Path], None], tail: int | None
) -> None:
    put(tmp_path / "output.log")
    with pytest.raises(NoLogError, match=r"output.log (is a (folder|pipe|socket|link), no longer the log|can't be)"):
        read_log(tmp_path, None, tail)


@pytest.mark.parametrize("put", [_folder, _pipe, _socket, _zero])
def test_nor_in_place_of_an_older_part_or_of_their_list(tmp_path: Path, put: Callable[[Path], None]) -> None:
    (tmp_path / "output.log").write_bytes(b"new\n")
    put(tmp_path / "log.json")
    assert read_log(tmp_path) == (b"new\n", 4)
    put(tmp_path / "output.log.1")
    if (tmp_path / "log.json").is_dir():
        (tmp_path / "log.json").rmdir()
    else:
        (tmp_path / "log.json").unlink()
    (tmp_path / "log.json").write_text('{"base": 4, "parts": [[0, 4]]}')
    with pytest.raises(NoLogError):
        read_log(tmp_path)


@pytest.mark.parametrize(
    "index",
    [
        "[]",
        "{}",
        '{"base": -1, "parts": []}',
        '{"base": 1e9, "parts": []}',
        '{"base": 5, "parts": 3}',
        '{"base": 5, "parts": [[1]]}',
        '{"base": true, "parts": []}',
        '{"base": 99999999999999999999999, "parts": []}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_a_list_of_parts_that_is_none_is_not_believed(tmp_path: Path, index: str) -> None:
    (tmp_path / "output.log").write_bytes(b"one\ntwo\n")
    (tmp_path / "log.json").write_text(index, encoding="latin-1")
    assert read_log(tmp_path) == (b"one\ntwo\n", 8)
    assert read_log(tmp_path, None, 1) == (b"two\n", 8)


def test_parts_that_are_said_to_be_huge_cost_nothing(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_bytes(b"two\n")
    (tmp_path / "output.log.1").write_bytes(b"one\n")
    (tmp_path / "log.json").write_text(f'{{"base": {2**61}, "parts": [[0, {2**61}]]}}')
    data, at = read_log(tmp_path, None, None, 1 << 20)
    assert (data, at) == (b"one\n", 4)
    assert len(read_log(tmp_path, None, 100, 1 << 24)[0]) < 100


def can_cut_heads(folder: Path) -> bool:
    """Whether the file system here can take out the head of a file."""
    probe = folder / "probe"
    probe.write_bytes(b"x" * 20_000)
    with probe.open("r+b") as file:
        return rotation._cut_head(file.fileno(), rotation._whole_blocks(file.fileno(), 16_384))


@pytest.mark.parametrize("able", [True, False])
def test_what_is_written_between_the_copy_and_the_cut(
    able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last words of a job often come right after a flood, when the runner is just about to cut."""
    able = able and can_cut_heads(tmp_path)
    real = rotation._cut_head

    def late(fd: int, length: int) -> bool:
        write(tmp_path, b"the end\n")
        return able and real(fd, length)

    monkeypatch.setattr(rotation, "_cut_head", late)
    flood = b"".join(b"%09d\n" % number for number in range(3000))
    log = Log(str(tmp_path), limit=20_000, keep=3)
    write(tmp_path, flood)
    log.look()
    assert read_log(tmp_path) == (flood + b"the end\n", len(flood) + 8)
    assert (tmp_path / "output.log.1").stat().st_size + (tmp_path / "output.log").stat().st_size == len(flood) + 8
    assert ((tmp_path / "output.log").stat().st_size > 0) is able
    write(tmp_path, flood)  # and it goes on so
    log.look()
    assert read_log(tmp_path, max_bytes=1 << 20)[0] == 2 * (flood + b"the end\n")
    again = Log(str(tmp_path), limit=20_000, keep=3)
    again.load()
    write(tmp_path, b"more\n")
    assert read_log(tmp_path, tail_lines=2)[0] == b"the end\nmore\n"


def test_last_lines_wherever_the_pieces_end_that_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "CHUNK", 3)
    for number in range(2**8):
        text = bytes(b"\n"[0] if number >> bit & 1 else b"a"[0] for bit in range(8))
        (tmp_path / "output.log").write_bytes(text)
        lines = text.splitlines(keepends=True)
        for count in (1, 2, 3, 5):
            assert read_log(tmp_path, tail_lines=count)[0] == b"".join(lines[-count:]), (text, count)
