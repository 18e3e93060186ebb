"""The log of a run: kept within bounds while the job goes on writing to it.

The job holds output.log open for appending, so a full log is copied to output.log.1 and then cut. Where the file system
can take out the head of a file (ext4, xfs) nothing is lost; elsewhere it is cut to nothing, and what is written at that
very moment is lost. The index
(log.json) says which of all the bytes ever written each file holds, so that readers count in bytes since the start:
{generation, base, parts: [[start, length], …]}: base is the number of the first byte of output.log, parts are
output.log.1, .2, … While files are changed, `pending` says which byte the copy begins with,
and where that is in output.log.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from functools import partial

from gpuloom.executors.wire import LOG_FILE, LOG_INDEX, read_json, remove, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BULK_ROUNDS, LAST_ROUNDS = 3, 8
"""How often copying goes on with what was written meanwhile, before readers are told, and after."""
TRIES = 8
"""How often copying starts again because the log has outgrown the copy: a slow disk, a job that writes fast."""
SLACK = 1 << 20
"""Bytes, or an eighth of the limit if that is more, by which a rotated file may be larger than the limit."""
LONGEST_PAUSE_S = 0.2
SHORTEST_PAUSE_S = 0.02
COLLAPSE_RANGE = 0x8
"""fallocate(2): ext4 and xfs have it."""
IN_MODIFY, IN_ONESHOT = 0x2, 0x80000000
_EVENT = struct.Struct("iIII")


class Log:
    """One run's log. limit: bytes at which it is rotated. keep: rotated files kept."""

    def __init__(self, directory: str, limit: int, keep: int) -> None:
        self.path = f"{directory}/{LOG_FILE}"
        self._index = f"{directory}/{LOG_INDEX}"
        self.limit, self.keep = max(limit, 1), keep
        self._most = self.limit + max(self.limit // 8, SLACK)
        self._generation = 0
        self._base = 0
        self._parts: list[list[int]] = []
        self._size = 0
        self._looked_s = time.monotonic()
        self._steps: list[Callable[[], None]] = []

    def load(self) -> None:
        """Take up the index of an earlier runner; finish or undo a rotation that it was in."""
        data = read_json(self._index)
        if data is None:
            return
        try:
            parts = [[int(start), int(length)] for start, length in data["parts"]]
            generation, base, pending = int(data["generation"]), int(data["base"]), data.get("pending")
            if pending is not None:
                pending = {name: int(pending[name]) for name in ("from", "start")}
        except (KeyError, TypeError, ValueError):
            return  # the job wrote over it: the log begins anew with what is there
        self._generation, self._base, self._parts = generation, base, parts
        if pending is None:
            return
        copy = f"{self.path}.copy"
        try:
            length = os.stat(copy).st_size
        except FileNotFoundError:
            length = 0  # renamed already, or there was none
        if length and self.size() >= pending["from"] + length:
            remove(copy)  # not cut yet: as if nothing had been
        else:
            if length:
                for step in self._moves():
                    step()
                self._moved(pending["start"], length)
            elif self.keep and os.path.exists(f"{self.path}.1"):
                length = os.stat(f"{self.path}.1").st_size
                self._parts = [[pending["start"], length], *self._parts][: self.keep]
            self._base = pending["start"] + length
        self._write()

    def size(self) -> int:
        """Bytes in output.log."""
        try:
            return os.stat(self.path).st_size
        except FileNotFoundError:
            return 0

    def look(self) -> tuple[bool, float]:
        """Rotate if it is full. Whether it has grown, and how long to wait with the next look, seconds."""
        self._finish()
        now, size = time.monotonic(), self.size()
        grown = size - self._size
        rate = grown / max(now - self._looked_s, 1e-3)
        if size >= self.limit:
            self.rotate()
            size = self.size()
        self._size, self._looked_s = size, time.monotonic()
        pause = (self.limit - size) / (2 * rate) if rate > 0 else LONGEST_PAUSE_S
        return grown != 0, min(max(pause, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)

    def rotate(self) -> None:
        """Move what is in output.log to output.log.1, those before it on by one. Raises OSError."""
        copy = f"{self.path}.copy"
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            start = length = 0
            end: int | None = None
            try:
                target = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
                try:
                    for _ in range(TRIES):
                        # Of a log that has outgrown its limit by far only the end is kept: the sum of all files stays
                        # bounded. Where it did so while it was copied, the copy begins anew.
                        start = max(os.fstat(fd).st_size - self._most, 0)
                        if self.keep:
                            os.ftruncate(target, 0)
                            os.lseek(target, 0, os.SEEK_SET)
                            length = self._copy(fd, target, start, 0, BULK_ROUNDS)
                        if os.fstat(fd).st_size <= start + 2 * self._most:
                            break
                    self._write(pending={"start": self._base + start, "from": start})
                    if self.keep:
                        length = self._copy(fd, target, start, length, LAST_ROUNDS)
                        cut = _whole_blocks(fd, start + length)
                        if cut > start:
                            os.ftruncate(target, cut - start)
                            if _cut_head(fd, cut):
                                length, end = cut - start, cut
                            else:
                                os.lseek(target, 0, os.SEEK_END)
                                length = self._copy(fd, target, start, cut - start, LAST_ROUNDS)
                finally:
                    os.close(target)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                length = 0  # the disk is full: better to lose old output than to stop the job
            if end is None:
                # Nothing stands between the last look at the size and the cut: what comes then is lost.
                end = os.fstat(fd).st_size
                os.ftruncate(fd, 0)
        finally:
            os.close(fd)
        first, self._base = self._base + start, self._base + end
        # It has been cut: what remains to be done is done once only, however often it fails.
        if length:
            self._steps = [*self._moves(), partial(self._moved, first, length), self._write]
        else:
            self._steps = [partial(remove, copy), self._write]
        self._finish()

    def _finish(self) -> None:
        """What a rotation has left to do. Raises OSError: the rest of it is still to be done."""
        while self._steps:
            self._steps[0]()
            del self._steps[0]

    def _copy(self, source: int, target: int, start: int, done: int, rounds: int) -> int:
        """Copy what is there, and what was written meanwhile; how many bytes have been copied from `start`."""
        for _ in range(rounds):
            end = min(os.fstat(source).st_size, start + 2 * self._most)
            if start + done >= end:
                break
            while start + done < end:
                # Copied within the kernel; sendfile to a file is there since Linux 2.6.33.
                sent = os.sendfile(target, source, start + done, end - start - done)
                if sent == 0:
                    return done
                done += sent
        return done

    def _moves(self) -> list[Callable[[], None]]:
        """Each part becomes the next one, the copy the first."""
        steps: list[Callable[[], None]] = [partial(remove, f"{self.path}.{self.keep}")]
        for number in range(self.keep - 1, 0, -1):
            if os.path.exists(f"{self.path}.{number}"):
                steps.append(partial(os.rename, f"{self.path}.{number}", f"{self.path}.{number + 1}"))
        return [*steps, partial(os.rename, f"{self.path}.copy", f"{self.path}.1")]

    def _moved(self, start: int, length: int) -> None:
        self._parts = [[start, length], *self._parts][: self.keep]

    def _write(self, pending: dict[str, int] | None = None) -> None:
        self._generation += 1
        data: dict[str, Any] = {"generation": self._generation, "base": self._base, "parts": self._parts}
        if pending is not None:
            data["pending"] = pending
        write_atomic(self._index, data)


def _whole_blocks(fd: int, length: int) -> int:
    """How many of the file's first `length` bytes can be taken out at its head: whole blocks, and never all it has."""
    block = os.fstatvfs(fd).f_bsize
    return min(length, os.fstat(fd).st_size - 1) // block * block


def _cut_head(fd: int, length: int) -> bool:
    """Take out the first bytes of a file while others append to it; nothing is lost. False: its file system can't."""
    libc = ctypes.CDLL(None, use_errno=True)
    done: int = libc.fallocate(fd, COLLAPSE_RANGE, ctypes.c_int64(0), ctypes.c_int64(length))
    return done == 0


class Watch:
    """Says when a file is written to for the first time since it was asked, by inotify. Raises OSError."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")
        self._paths: dict[int, str] = {}

    def once(self, path: str) -> bool:
        """Report the next write to this file. False: it can't be watched (too many watches, or no such file)."""
        number: int = self._libc.inotify_add_watch(self.fd, os.fsencode(path), IN_MODIFY | IN_ONESHOT)
        if number < 0:
            return False
        self._paths[number] = path
        return True

    def forget(self, path: str) -> None:
        """Watch this file no more."""
        for number in [number for number, known in self._paths.items() if known == path]:
            del self._paths[number]
            self._libc.inotify_rm_watch(self.fd, number)

    def written(self) -> list[str]:
        """Files that were written to."""
        found: list[str] = []
        try:
            data = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return found
        for number, mask, _, _ in _EVENT.iter_unpack(data):  # no names: these are watches of files, not directories
            if mask & IN_MODIFY and (path := self._paths.pop(number, None)) is not None:
                found.append(path)
        return found
