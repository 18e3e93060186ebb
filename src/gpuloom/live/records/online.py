"""Profiles of jobs that run: what hooks measure of the first job of an unknown script is used for the later ones.

A thread looks at each run until its profile is known, and from time to time after that, as a training may change. A
run counts while it has its GPUs for itself. Profiles are kept in a file of the home, beside the user's own library,
which always goes first, as it is now.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpuloom.core.errors import GpuloomError
from gpuloom.core.measured import Measured
from gpuloom.core.profile import Profile, Profiles
from gpuloom.executors.node import FilesOf
from gpuloom.executors.port import ExecutorError
from gpuloom.facts.measured_profiles import profile_of
from gpuloom.facts.profiles import add_profiles, change_library, read_library
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.scheduler")

FILE = "measured.csv"
LOOK_S = 3.0
AGAIN_S = 600.0
"""A run of which the profile is known is looked at again after so long."""
PATIENCE_S = 120.0
"""A run that gave no profile for so long is looked at as seldom: it has no framework, or never goes evenly."""
MOST_KEPT = 2000
"""Of more profiles those that were measured longest ago are forgotten: a search over arguments has one for each."""
LEAST_TIMED, MOST_NOISE = 16, 0.5
"""Fewer iterations, or more noise, make no profile."""
CHANGED = 0.1
"""A profile is replaced if its iteration, or a stage by this share of it, is another."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A run that may be measured. key: of its profile. node: where its master's files are. alone: it has had its GPUs
    for itself."""

    run: str
    node: str
    key: str
    gpus: int
    gpu_model: str
    alone: bool


class OnlineProfiles:
    """Looks at runs, and hands on what is known.

    Attributes:
        problem: why the file can't be written; ''.
    """

    def __init__(
        self,
        path: Path,
        library: Profiles,
        *,
        watched: Callable[[], Sequence[Watched]],
        files: FilesOf,
        take: Callable[[Profiles], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """path: of the file. library: shipped profiles and the user's own. watched: the runs of now. take: called with
        all profiles when more is known, from a thread of its own."""
        self._path, self._library, self._stamp = path, library, stamp(library)
        self._lock = threading.Lock()
        self._watched, self._files, self._take, self._now = watched, files, take, now
        self._known = {profile.row_key: profile for profile in self._read()}
        self._due_s: dict[str, float] = {}
        self._since_s: dict[str, float] = {}
        self.problem = ""
        self._end = threading.Event()
        self._worker = Worker("online profiles", self._run)

    def start(self) -> None:
        """Begin to look, in a thread of its own."""
        if self._known:
            self._take(self.all())
        self._worker.start()

    def close(self) -> None:
        """Look no more."""
        self._end.set()
        self._worker.end(10.0)

    def all(self) -> Profiles:
        """Every profile; of one model and number of GPUs the user's own alone."""
        own = {(profile.model, profile.gpus) for profile in self._library.own}
        online = [profile for key, profile in self._known.items() if key[:2] not in own]
        return Profiles(self._library.shipped, (*self._library.own, *online), self._library.library)

    def look(self) -> None:
        """Look at the runs that are due."""
        now_s, runs = self._now(), self._watched()
        for gone in self._due_s.keys() - {one.run for one in runs}:
            del self._due_s[gone]
            self._since_s.pop(gone, None)
        found = [
            profile
            for one in runs
            if one.alone and self._due_s.setdefault(one.run, now_s) <= now_s
            for profile in self._of(one, now_s)
        ]
        if news := [profile for profile in found if self._is_news(profile)]:
            known = self._known | {profile.row_key: profile for profile in news}
            if whole := len(known) > MOST_KEPT:
                newest = sorted(known.values(), key=lambda profile: profile.date)[-(MOST_KEPT * 9 // 10) :]
                known = {profile.row_key: profile for profile in newest}
            with self._lock:
                self._known = known
            self._write(news, whole=whole)
            self._take(self.all())

    def refresh(self) -> None:
        """Take the user's library as it is now, if it has changed. From any thread; costs a look at the file."""
        with self._lock:
            now = stamp(self._library)
            if now == self._stamp:
                return
            self._stamp = now
            try:
                own = read_library(Path(self._library.library))
            except (GpuloomError, OSError) as error:
                log.warning("the library of profiles can't be read, and is used as it was: %s", error)
                return
            self._library = Profiles(self._library.shipped, tuple(own), self._library.library)
        self._take(self.all())

    def _of(self, one: Watched, now_s: float) -> Collection[Profile]:
        try:
            measured = self._files(one.node).hooks(one.run).measured
        except (ExecutorError, ValueError):  # its node is not there now, or an older one
            measured = None
        if measured is None or not _good(measured):
            late = now_s - self._since_s.setdefault(one.run, now_s) > PATIENCE_S
            self._due_s[one.run] = now_s + (AGAIN_S if late else LOOK_S)
            return ()
        self._due_s[one.run] = now_s + AGAIN_S
        date = datetime.now(UTC).date().isoformat()
        source = f"{measured.timed} iterations of run {one.run}"
        try:
            made = profile_of(
                measured, one.key, gpus=one.gpus, gpu_model=one.gpu_model or None, date=date, source=source
            )
        except GpuloomError as error:  # what a record says need not make sense
            log.warning("run %s: what hooks recorded makes no profile: %s", one.run, error)
            return ()
        return () if made is None else (made,)

    def _is_news(self, profile: Profile) -> bool:
        before = self._known.get(profile.row_key)
        if before is None or len(before.stage_s) != len(profile.stage_s):
            return True
        pairs = ((before.iteration_s, profile.iteration_s), *zip(before.stage_s, profile.stage_s, strict=True))
        grew = (profile.gpu_memory_mib or 0) > (before.gpu_memory_mib or 0)
        return grew or any(abs(one - other) > CHANGED * before.iteration_s for one, other in pairs)

    def _read(self) -> list[Profile]:
        try:
            return read_library(self._path)
        except (GpuloomError, OSError) as error:
            log.warning("profiles of earlier runs can't be read, and are measured anew: %s", error)
            return []

    def _write(self, news: Sequence[Profile], *, whole: bool) -> None:
        """whole: not only what is new, but without what was forgotten."""
        try:
            if whole:
                change_library(self._path, lambda before: list(self._known.values()))
            else:
                add_profiles(self._path, news, replacing=True)
            self.problem = ""
        except (GpuloomError, OSError) as error:  # they are known until the scheduler ends
            self.problem = f"{self._path} can't be written: {error}"
            log.warning("%s", self.problem)

    def _run(self) -> None:
        while not self._end.wait(LOOK_S):
            self.refresh()
            self.look()


def stamp(library: Profiles) -> tuple[int, ...]:
    """Another one whenever the library's file has changed; () where there is none."""
    try:
        found = os.stat(library.library)
    except (OSError, ValueError):
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _good(measured: Measured) -> bool:
    return measured.timed >= LEAST_TIMED and (measured.noise is None or measured.noise <= MOST_NOISE)
