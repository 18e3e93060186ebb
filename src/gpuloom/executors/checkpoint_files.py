"""The files that a job declares as its checkpoint: when they were written."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator

MOST_FILES = 10_000
"""Of a checkpoint's folder or pattern, so many are looked at."""


def checkpoint_written_s(written: str, workdir: str) -> float | None:
    """When the newest file was written that a checkpoint stands for: a file, a folder with all below it, or a pattern.

    May take long where it lies on another machine.
    """
    newest: float | None = None
    for count, path in enumerate(_files(os.path.join(workdir or "/", os.path.expanduser(written)))):
        if count >= MOST_FILES:
            break
        try:
            found = os.stat(path)
        except OSError:
            continue  # gone since it was listed
        if found.st_size and (newest is None or found.st_mtime > newest):
            newest = found.st_mtime
    return newest


def _files(pattern: str) -> Iterator[str]:
    places = [pattern] if os.path.exists(pattern) else glob.iglob(pattern, recursive=True)
    for place in places:
        if not os.path.isdir(place):
            yield place
            continue
        for folder, _, names in os.walk(place):
            yield from (os.path.join(folder, name) for name in names)
