"""Ends all runs of a home: by their control groups, by the mark in their environment, and by what the runner noted of
them. First by what only the kernel has to say, as a disk may be dead; then with the help of the files.

A look at all processes takes time, in which the node may get another lease and begin runs under it. These are left
alone: what was seen is ended if the lease is found to be over afterwards, or if it was to be ended before.
"""

from __future__ import annotations

import contextlib
import os
import time

from gpuloom.executors import procs
from gpuloom.executors.lease import LeaseFile
from gpuloom.executors.runner.cgroups import Cgroups
from gpuloom.executors.runner.life import KILL_SIGNAL, ROUNDS, STOP_SIGNAL, RunningJob
from gpuloom.executors.runner.loop import log
from gpuloom.executors.wire import FENCED_FILE, LIVE, read_json, write_atomic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuloom.executors.runner.cgroups import Group

SOON_S, OFTEN_S = 0.02, 1.0
"""Pauses between looks while something is left: the first, which grows, and the longest."""
SELDOM_S = 60.0
"""The longest pause between looks at a home whose lease is over, and where nothing is left."""


class Ending:
    """home_id: as runs are marked with. groups: where the runner has its control groups."""

    def __init__(self, home: str, home_id: str, lease: LeaseFile) -> None:
        self._home, self._lease = home, lease
        self._home_id = home_id
        self.groups = Cgroups(0, {})
        self._names: set[str] = set()
        """Runs that it has begun to end."""
        self._pause_s, self._told = SOON_S, False
        self._asked: set[str] = set()

    def again(self) -> None:
        """There is a lease."""
        self._names.clear()
        self._asked.clear()
        self._pause_s, self._told = SOON_S, False

    def step(self) -> float:
        """End all that runs now. How long to wait until it is to be asked again, seconds."""
        left = self._end_seen()
        for name in self._noted():
            left |= self._end_noted(name)
        if left:
            if self._told:
                self._pause_s, self._told = SOON_S, False
            self._pause_s = min(2 * self._pause_s, OFTEN_S)
            return self._pause_s
        if not self._told:
            self._tell()
            self._told, self._pause_s = True, OFTEN_S
        else:
            self._pause_s = min(2 * self._pause_s, SELDOM_S)
        return self._pause_s

    def unfinished(self) -> bool:
        """Whether it has begun to end runs, and is not done."""
        return bool(self._names) and not self._told

    # By the kernel alone

    def _end_seen(self) -> bool:
        """End what control groups and marks show. Whether there was anything."""
        seen = False
        for group in self._groups():
            with contextlib.suppress(OSError):
                if group.pids() and self._is_to_end(os.path.basename(group.places["freezer"])):
                    seen = True
                    group.kill()
        stopped: set[tuple[int, int]] = set()
        for _ in range(ROUNDS):
            found = [entry for entry, name in list(procs.of_home(self._home_id)) if self._is_to_end(name)]
            new = [entry for entry in found if (entry.pid, entry.start_ticks) not in stopped]
            if not new:
                break
            seen = True
            self._signal(new, STOP_SIGNAL)  # so that none of them forks any more
            stopped.update((entry.pid, entry.start_ticks) for entry in new)
        self._signal(found, KILL_SIGNAL)
        return seen

    def _groups(self) -> list[Group]:
        try:
            return self.groups.stale(())
        except OSError:
            return []

    def _is_to_end(self, name: str) -> bool:
        """Whether a run that was seen to be there is to be ended."""
        if name not in self._names and self._lease.over():
            self._names.add(name)
        return name in self._names

    # By the files of runs

    def _noted(self) -> list[str]:
        try:
            return os.listdir(f"{self._home}/{LIVE}")
        except OSError:
            return []

    def _end_noted(self, name: str) -> bool:
        """End a run that the runner has noted. Whether there was anything to end."""
        try:
            data = read_json(f"{self._home}/{LIVE}/{name}")
            run = None if data is None else RunningJob.read(data["directory"], self._home_id)
            if run is None or run.boot != self._lease.boot or (run.exit is not None and run.exit["released"]):
                return False
            if name not in self._names and not self._lease.over():
                return False
            self._end_container(run)
            if not run.alive():
                return False
            self._names.add(name)
            run.kill()
        except (OSError, MemoryError, KeyError, TypeError) as error:
            log(f"run {name}: can't end it by its files: {error!r}")
            return False
        return True

    def _end_container(self, run: RunningJob) -> None:
        """Let the tool end the run's container, once; its processes don't descend from the run's."""
        if run.container is None or run.name in self._asked:
            return
        self._asked.add(run.name)
        self._names.add(run.name)
        tool, container = run.container
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
            os.posix_spawnp(tool, (tool, "kill", container), dict(os.environ), file_actions=actions)
        finally:
            os.close(null)

    @staticmethod
    def _signal(targets: list[procs.Process], number: int) -> None:
        with contextlib.suppress(OSError):  # it is looked again soon
            procs.send_all(targets, number)

    def _tell(self) -> None:
        """Nothing is left: say so to the node process, and note it in the lease, which may be extended again."""
        names = sorted(self._names)
        if names or not self._lease.settled():
            log(f"the lease is over; ended: {', '.join(names) or 'nothing ran'}")
            told = {"at_s": time.time(), "boot_id": self._lease.boot, "runs": names}
            try:
                write_atomic(f"{self._home}/{FENCED_FILE}", told)
            except OSError as error:
                log(f"can't write {self._home}/{FENCED_FILE}: {error.strerror}")
            if self._lease.over():  # else there is another one, under which nothing was ended
                with contextlib.suppress(FileNotFoundError):  # the node has left: nobody asks for another lease
                    self._lease.count_fence()
