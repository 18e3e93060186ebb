"""The folder in which hooks keep a job's state from one attempt to the next: `$GPULOOM_SAVES`.

Each save is a folder of its own, `KIND.ATTEMPT-STEP`, written beside under a name with a dot and renamed when all of it
is on disk: it is there as a whole or not at all. The newest is that of the highest attempt. So an attempt that gpuloom
has given up, and which still runs somewhere, can neither replace nor remove what a later one has saved.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from contextlib import suppress

from . import folder as of_records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SETTING = "GPULOOM_SAVES"
"""Environment variable: the job's folder; "off": hooks save nothing."""
OFF = "off"
ABOUT = "gpuloom.json"
ENDED = ".ended"
"""With the kind before it, an empty file among the records of a run: a training whose saves are of this kind has ended
well in it."""
NOTE = "saves"
"""File among the records of a run: the job's folder here, for gpuloom, which removes it when the job has ended well."""


def folder() -> str | None:
    """Where the job's saves lie, made or not; None: switched off, or not in gpuloom."""
    place = os.environ.get(SETTING, "")
    return None if place in ("", OFF) else place


def attempt() -> int:
    """Which attempt of the job this is, from 1."""
    number = os.environ.get("GPULOOM_ATTEMPT", "")
    return int(number) if number.isdigit() else 1


class Save:
    """A save in the making. Every rank may write to `path`; the first one begins and commits it.

    kind: of what it is, without dots: saves of one kind follow each other. step: how far it is.
    """

    def __init__(self, kind: str, step: int) -> None:
        place = folder()
        if place is None:
            raise ValueError(SETTING + " is not set")
        self.place, self.kind, self.step = place, kind, step
        self.path = os.path.join(place, f".{kind}.{attempt()}-{step}.tmp")

    def begin(self) -> None:
        """Make the folder, and remove what killed saves have left."""
        os.makedirs(self.place, exist_ok=True)
        _note(self.place)
        for name, number, _ in _listed(self.place, "." + self.kind, ".tmp"):
            if number <= attempt():
                shutil.rmtree(os.path.join(self.place, name), ignore_errors=True)
        for name in os.listdir(self.place):
            if name.startswith("." + self.kind) and name.endswith(".old"):
                shutil.rmtree(os.path.join(self.place, name), ignore_errors=True)
        os.mkdir(self.path)

    def commit(self, **about: Any) -> str:
        """It is whole: from now on it is the newest, and older ones are removed. Where it lies."""
        about.update(kind=self.kind, step=self.step, attempt=attempt(), saved_s=time.time())
        with open(os.path.join(self.path, ABOUT), "w", encoding="utf-8") as file:
            json.dump(about, file)
        for parent, _, names in os.walk(self.path):
            for name in names:
                _sync(os.path.join(parent, name))
            _sync(parent)
        target = os.path.join(self.place, f"{self.kind}.{attempt()}-{self.step}")
        if os.path.isdir(target):  # of a process of this attempt that a launcher started anew
            _remove(target)
        os.rename(self.path, target)
        _sync(self.place)
        for name, number, step in _listed(self.place, self.kind):
            if (number, step) < (attempt(), self.step):
                _remove(os.path.join(self.place, name))
        return target

    def drop(self) -> None:
        """Remove what there is of a save that failed."""
        shutil.rmtree(self.path, ignore_errors=True)


def newest(kind: str) -> tuple[str, dict[str, Any]] | None:
    """The newest save of a kind: its folder, and what was said of it."""
    place = folder()
    found = sorted(_listed(place, kind), key=lambda one: one[1:], reverse=True) if place else []
    for name, _, _ in found:
        path = os.path.join(place or "", name)
        try:
            with open(os.path.join(path, ABOUT), encoding="utf-8") as file:
                about = json.load(file)
        except (OSError, ValueError):
            continue  # being removed by a later attempt
        _note(place or "")
        return path, about
    return None


def mark_ended(kind: str) -> None:
    """A training with saves of this kind has ended well: another one in this run is not the same.

    Without gpuloom, which would do it when the job has ended, its saves are removed: the same command begins anew.
    """
    records, place = of_records(), folder()
    if records is None and place is not None:
        for name, _, _ in _listed(place, kind):
            _remove(os.path.join(place, name))
    if records is not None:
        with suppress(
            OSError
        ):  # of a full disk: a second training of this command would go on from the first one's save
            os.close(os.open(os.path.join(records, kind + ENDED), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def has_ended(kind: str) -> bool:
    """Whether one has, in this run of the job."""
    records = of_records()
    return records is not None and os.path.exists(os.path.join(records, kind + ENDED))


def _remove(path: str) -> None:
    """A save, first from sight: half of one must never be taken for a whole."""
    place, name = os.path.split(path)
    hidden = os.path.join(place, f".{name}.{os.getpid()}.old")
    try:
        os.rename(path, hidden)
    except OSError:
        return  # another attempt is removing it
    shutil.rmtree(hidden, ignore_errors=True)


def _note(place: str) -> None:
    records = of_records()
    if records is not None:
        with open(os.path.join(records, NOTE), "w", encoding="utf-8") as file:
            file.write(place)


def _listed(place: str, kind: str, end: str = "") -> list[tuple[str, int, int]]:
    """Saves of a kind: name, attempt, step."""
    found = []
    try:
        names = os.listdir(place)
    except OSError:
        return []  # nothing has been saved yet
    for name in names:
        if name.startswith(kind + ".") and name.endswith(end):
            number, _, step = name[len(kind) + 1 : len(name) - len(end)].partition("-")
            if number.isdigit() and step.isdigit():
                found.append((name, int(number), int(step)))
    return found


def _sync(path: str) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems of networks know none for folders
            raise
    finally:
        os.close(opened)
