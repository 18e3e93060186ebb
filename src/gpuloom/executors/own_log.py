"""Logs of gpuloom's own processes: rotated, with repeated lines counted instead of written again.

Standard library only: the runner loads it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

MOST_BYTES = 10 * 2**20
"""Largest size of one file."""
KEPT = 3
"""Files beside the present one: NAME.1 is the newest of them."""

EVERY_S = 60.0
ALIKE = 30
"""Lines of one kind that are written within EVERY_S; kinds are what differs by more than the values in a line."""
MOST_SEEN = 5_000
"""Lines that are remembered."""


@dataclass(slots=True)
class _Seen:
    until_s: float
    left: int
    more: int = 0
    line: str = ""


class Repeats:
    """What of a log's lines is written. A line is written once in EVERY_S, of its kind ALIKE lines."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._look_s = 0.0

    def take(self, line: str, key: str, kind: str | None, now_s: float) -> bool:
        """Whether to write it; else it is counted."""
        for of, most in ((("line", key), 1), *(((("kind", kind), ALIKE),) if kind is not None else ())):
            seen = self._seen.setdefault(of, _Seen(now_s + EVERY_S, most))
            if seen.left <= 0:
                seen.more, seen.line = seen.more + 1, line
                return False
            seen.left -= 1
        return True

    def due(self, now_s: float) -> list[str]:
        """The lines that report repeats whose period is over."""
        if now_s < self._look_s and len(self._seen) <= MOST_SEEN:
            return []
        self._look_s = now_s + 1.0
        full, found = len(self._seen) > MOST_SEEN, []
        for of, seen in list(self._seen.items()):
            if seen.until_s > now_s and not full:
                continue
            if seen.more:
                alike = " like this" if of[0] == "kind" else ""
                found.append(f"{seen.line} ({seen.more:,} more{alike} in the last {EVERY_S:g} s)")
            if seen.more and not full:
                self._seen[of] = _Seen(now_s + EVERY_S, 0)  # while it goes on, its count alone is told
            else:
                del self._seen[of]
        return found

    @property
    def waits(self) -> bool:
        """Whether repeats were counted that are not reported yet."""
        return any(seen.more for seen in self._seen.values())


class OwnLog:
    """Lines to a file descriptor. path: the file that it is, which is rotated then; None: it is not ours to rotate.

    Where it can't be written (a full disk) lines are left out, and counted.
    """

    def __init__(self, descriptor: int, path: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.descriptor, self.path, self.lost = descriptor, path, 0
        self._clock, self._repeats = clock, Repeats()

    def write(
        self, line: str, *, head: str = "", tail: str = "", key: str | None = None, kind: str | None = None
    ) -> None:
        """Add a line, if it is not one too many.

        head, tail: before and after it, not compared. key: what is compared in its place. kind: of which there may be
        ALIKE lines; None: any number.
        """
        now_s = self._clock()
        lines = [f"{head}{told}\n" for told in self._repeats.due(now_s)]
        if self._repeats.take(line, line if key is None else key, kind, now_s):
            lines.append(f"{head}{line}\n{tail}")
        self._put("".join(lines))

    def flush(self, head: str = "", *, all_: bool = False) -> None:
        """Tell what was counted, where it is time, or all of it."""
        now_s = self._clock() + (2 * EVERY_S if all_ else 0.0)
        self._put("".join(f"{head}{told}\n" for told in self._repeats.due(now_s)))

    @property
    def waits(self) -> bool:
        """Whether repeats were counted that are not reported yet."""
        return self._repeats.waits

    def _put(self, text: str) -> None:
        if not text:
            return
        try:
            self._rotate(len(text))
            if self.lost:
                text = f"({self.lost:,} lines could not be written)\n{text}"
            data = memoryview(text.encode("utf-8", "backslashreplace"))
            while data:
                data = data[os.write(self.descriptor, data) :]
            self.lost = 0
        except OSError:
            self.lost += 1

    def _rotate(self, more: int) -> None:
        if self.path is None or os.fstat(self.descriptor).st_size + more <= MOST_BYTES:
            return
        # First what may fail: where no new file is to be had, the old ones stay as they are.
        new = f"{self.path}.new"
        fresh = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            for number in range(KEPT, 0, -1):
                older = f"{self.path}.{number}"
                newer = self.path if number == 1 else f"{self.path}.{number - 1}"
                if os.path.exists(newer):
                    os.replace(newer, older)
            os.replace(new, self.path)
            # Whatever else writes to the same file (a crash of the interpreter, a library) goes along.
            for shared in {self.descriptor, 1, 2}:
                if shared == self.descriptor or is_file(shared, f"{self.path}.1"):
                    os.dup2(fresh, shared, inheritable=shared in (1, 2))
        finally:
            os.close(fresh)


def is_file(descriptor: int, path: str) -> bool:
    """Whether this descriptor writes to this file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except OSError:
        return False
