"""Reading a run's log while it grows and is rotated, by offsets that count from its very first byte."""

from __future__ import annotations

import json
import os
import stat
import time
from typing import NamedTuple

from gpuloom.core.errors import GpuloomError
from gpuloom.executors.wire import LOG_FILE, LOG_INDEX

CHUNK = 1 << 16
ATTEMPTS = 200
PAUSE_S = 0.005
INDEX_BYTES = 1 << 20


class NoLogError(GpuloomError):
    """The log can't be read: the job, or somebody else, put something else in its place."""


class _Index(NamedTuple):
    """Where in all that was written the present file begins, and where the older parts do, and how long they are."""

    base: int = 0
    parts: tuple[tuple[int, int], ...] = ()
    pending: bool = False


def read_log(
    directory: str | os.PathLike[str],
    offset: int | None = None,
    tail_lines: int | None = None,
    max_bytes: int = 1 << 20,
) -> tuple[bytes, int]:
    """Bytes of a run's log, and the offset to go on from.

    offset: number of the first byte wanted, counted from the start of all that the job ever wrote. Where that part is
    no longer kept, reading begins with the oldest byte that is: then the second figure, less the length, is larger
    than what was asked. None: the oldest byte, or with `tail_lines` the start of the last so many lines (as many of
    their last bytes as `max_bytes` allows). The next offset never falls; without a log it is `offset` or 0.

    Links are not followed, and only plain files are read: the job may have put anything in their place.

    Raises:
        NoLogError: there is something else, or it may not be read.
    """
    if max_bytes < 1:
        raise ValueError(f"max_bytes is {max_bytes}: must be at least 1")
    path = os.path.join(os.fspath(directory), LOG_FILE)
    index_path = os.path.join(os.fspath(directory), LOG_INDEX)
    for attempt in range(ATTEMPTS):
        index = _index(index_path)
        last = attempt == ATTEMPTS - 1
        # A runner that was killed while rotating leaves `pending` until the next one takes over: read what there is.
        if index is not None and index.pending and not last:
            time.sleep(PAUSE_S)
            continue
        found = _read(path, index or _Index(), offset, tail_lines, max_bytes)
        if last or _index(index_path) == index:
            return found
    raise AssertionError("unreachable")


def _read(path: str, index: _Index, offset: int | None, tail_lines: int | None, max_bytes: int) -> tuple[bytes, int]:
    base, parts, _ = index
    files = [(start, length, f"{path}.{number}") for number, (start, length) in enumerate(parts, start=1)]
    files.reverse()
    files.append((base, _size(path), path))
    if offset is None:
        offset = files[0][0] if tail_lines is None else _tail(files, tail_lines, max_bytes)
    found = bytearray()
    at = offset
    for start, length, name in files:
        if start + length <= at:
            continue
        if found and start != at:
            break  # a gap: what comes after it is for the next call, which then begins with its offset
        at = max(at, start)
        data = plain_bytes(name, at - start, min(start + length - at, max_bytes - len(found)))
        found += data
        at += len(data)
        if len(found) >= max_bytes:
            break
    return bytes(found), at


def _tail(files: list[tuple[int, int, str]], lines: int, max_bytes: int) -> int:
    """Offset at which the last `lines` lines begin, at most `max_bytes` before the end."""
    end = files[-1][0] + files[-1][1]
    if lines <= 0:
        return end
    wanted, taken, begin, first = lines, 0, end, True
    for start, length, name in reversed(files):
        at = length
        if start + length < begin:
            return begin  # a gap
        while at > 0:
            size = min(CHUNK, at, max_bytes - taken)
            if size <= 0:
                return begin
            data = plain_bytes(name, at - size, size)
            search = len(data)
            if first and data.endswith(b"\n"):
                search -= 1  # the newline that ends the last line begins none
            first = False
            while (found := data.rfind(b"\n", 0, search)) >= 0:
                wanted -= 1
                if wanted == 0:
                    return start + at - size + found + 1
                search = found
            at -= size
            taken += size
            begin = start + at
    return begin


def _index(path: str) -> _Index | None:
    """None if there is none, or what is there is none: the log is then what its newest file holds."""
    try:
        data = json.loads(plain_bytes(path, 0, INDEX_BYTES))
        parts = tuple((start, length) for start, length in data["parts"])
        numbers = [data["base"], *(number for part in parts for number in part)]
        if any(type(number) is not int or not 0 <= number < 2**62 for number in numbers):
            return None
        return _Index(data["base"], parts, "pending" in data)
    except (NoLogError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _size(path: str) -> int:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise NoLogError(f"{path} can't be read: {error.strerror}") from None
    _check_plain(path, found)
    return found.st_size


def plain_bytes(path: str, at: int, size: int) -> bytes:
    """Some bytes of a plain file, b"" where there is none. Raises NoLogError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise NoLogError(f"{path} can't be read: {error.strerror}") from None
    try:
        _check_plain(path, os.fstat(fd))
        return os.pread(fd, size, at)
    except OSError as error:
        raise NoLogError(f"{path} can't be read: {error.strerror}") from None
    finally:
        os.close(fd)


_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _check_plain(path: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NoLogError(f"{path} is {_KINDS.get(stat.S_IFMT(found.st_mode), 'no plain file')}, no longer the log")
