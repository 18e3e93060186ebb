"""Homes that go with their pilot: removed once the node has left; a later pilot removes those of killed ones."""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

from gpuloom.core.faults import fault_text
from gpuloom.executors.home_id import home_id_of
from gpuloom.executors.procs import of_home
from gpuloom.executors.runner.restarts import free
from gpuloom.executors.wire import GUARD_LOCK, LOCK, NODE_LOCK

log = logging.getLogger("gpuloom.node")

NAME = re.compile(r"gpuloom-\d+-\w{6}")
"""As the script of a pilot names them (slurm/script.py)."""
QUIET_S = 3600.0
"""What was written to more recently is left alone."""


def remove(home: Path) -> None:
    """Remove a home in which nothing works any more; what is linked into it stays."""
    try:
        shutil.rmtree(home)
    except OSError as error:
        log.warning("%s", fault_text(f"{home} can't be removed", error))


def tidy(folder: Path, now_s: float) -> list[Path]:
    """Remove homes of ours in this folder whose pilots have ended without doing so; these. now_s: since the epoch."""
    found = [one for one in sorted(folder.glob("gpuloom-*")) if NAME.fullmatch(one.name) and _over(one, now_s)]
    for home in found:
        log.info("%s is removed: its pilot has ended", home)
        remove(home)
    return found


def _over(home: Path, now_s: float) -> bool:
    """Whether nothing works there, nothing of its runs is left, and nobody wrote there lately."""
    try:
        if home.is_symlink() or home.stat().st_uid != os.geteuid() or not (home / NODE_LOCK).exists():
            return False
        if now_s - _written_s(home) < QUIET_S or not all(
            free(str(home / lock)) for lock in (NODE_LOCK, GUARD_LOCK, LOCK)
        ):
            return False
        return next(of_home(home_id_of(home)), None) is None
    except OSError:  # another process removes it, or it can't be looked at
        return False


def _written_s(home: Path) -> float:
    """When something below it was written last; what is linked into it doesn't count."""
    newest = home.stat().st_mtime
    for at, folders, files in os.walk(home):
        newest = max([newest, *(os.lstat(os.path.join(at, name)).st_mtime for name in (*folders, *files))])
    return newest
