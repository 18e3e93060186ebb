"""Actions on a run's files, container and control group, repeated while they fail."""

from __future__ import annotations

import os
import signal

from gpuloom.executors.runner.loop import RETRY_S, Loop, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuloom.executors.runner.cgroups import Group
    from gpuloom.executors.runner.life import RunningJob


class Again:
    """helpers: by process, the run for which a container tool is at work."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self.helpers: dict[int, RunningJob] = {}

    def do(self, run: RunningJob, name: str, action: Callable[[], None]) -> None:
        """Do this to one of its files, or to its processes, now or as soon as it can be done. Of what was asked of one
        the last counts."""
        turn = run.turns[name] = run.turns.get(name, 0) + 1
        what = f"{run.directory}/{name}"

        def again() -> None:
            if run.turns[name] == turn and not run.forgotten:
                action()

        try:
            action()
        except (OSError, MemoryError) as error:
            self._loop.failed(what, error)
            self._loop.after(RETRY_S, again, what)
        else:
            self._loop.troubles.note(what, "")

    def remove_group(self, group: Group, tries: int = 0) -> None:
        """Remove a control group, and before that what is in it."""
        try:
            if tries == 0 and group.pids():
                group.kill()
            if group.remove():
                return
        except OSError as error:
            if tries in (0, 200):
                log(f"can't remove a control group: {error}")
        if tries < 200:
            self._loop.after(0.005 if tries < 20 else 0.25, lambda: self.remove_group(group, tries + 1))

    def help(self, run: RunningJob, verb: str) -> None:
        """Let a container tool do this to the run's container, without waiting for it."""
        if run.container is None:
            return
        argv = (run.container[0], verb, run.container[1])
        ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
        what = " ".join(argv)

        def ask() -> None:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            try:
                actions = [(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)]
                pid = os.posix_spawnp(argv[0], argv, dict(os.environ), file_actions=actions, setsigdef=ignored)
                self.helpers[pid] = run
            except FileNotFoundError as error:  # the tool has been removed: trying again does not help
                log(f"{what}: {error.strerror}")
            finally:
                os.close(null)

        self.do(run, f"({what})", ask)
