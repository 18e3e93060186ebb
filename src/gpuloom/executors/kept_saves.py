"""Removes what hooks have kept of a job (`_gpuloom_hooks/kept.py`) once it has ended well.

A job can write where the files of its run are. So nothing is removed but folders that hooks have made, by their names.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
from pathlib import Path

from gpuloom.executors.wire import EXIT_FILE, NOTICE_FILE, PROGRESS_FILE, read_json
from gpuloom.training import inject

log = logging.getLogger("gpuloom.executor")

_SAVE = re.compile(r"[a-z0-9-]+\.\d+-\d+")
_REST = re.compile(r"\.[a-z0-9-]+\.\d+-\d+\.(tmp|\d+\.old)")
"""Of a save, or of its removal, that was killed."""
_KEY = re.compile(r"\d+-[0-9a-f]+")
ABOUT = "gpuloom.json"
MOST_BYTES = 4096


def saves_of(run: Path) -> Path | None:
    """Where a run's job has its saves; None: hooks have made none. run: the directory of the run."""
    try:
        with open(run / inject.FOLDER / inject.NOTE, encoding="utf-8") as file:
            place = Path(file.read(MOST_BYTES))
    except (OSError, ValueError):
        return None
    return place if place.is_absolute() and _KEY.fullmatch(place.name) and not place.is_symlink() else None


def ended_well(run: Path) -> bool:
    """Whether the run ended with exit code 0, and unasked or with all steps done: then its job is finished."""
    ended, told = read_json(str(run / EXIT_FILE)), read_json(str(run / PROGRESS_FILE)) or {}
    how = None if ended is None else ended.get("exit")
    if not isinstance(how, dict) or how.get("exit_code") != 0:
        return False
    return not (run / NOTICE_FILE).exists() or told.get("step", 0) == told.get("steps")


def remove_saves(run: Path) -> None:
    """Remove a run's saves, if its job is finished. May take long where they lie on another machine."""
    place = saves_of(run)
    if place is None or not ended_well(run):
        return
    try:
        for name in os.listdir(place):
            if _REST.fullmatch(name) or (_SAVE.fullmatch(name) and (place / name / ABOUT).is_file()):
                shutil.rmtree(place / name)
        place.rmdir()
        place.parent.rmdir()
    except FileNotFoundError:
        return  # another member of the job was faster
    except OSError as error:
        if place.exists():  # else others have saves beside it
            log.warning("run %s: saves in %s can't be removed: %s", run.name, place, error)
