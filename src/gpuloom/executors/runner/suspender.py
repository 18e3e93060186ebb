"""Has runs suspended and resumed by a program of its own (executors/suspending.py), without waiting for it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from gpuloom.executors.runner.loop import RETRY_S, Loop, log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpuloom.executors.runner.again import Again
    from gpuloom.executors.runner.life import RunningJob

PROGRAM = os.path.abspath(f"{__file__}/../../suspending.py")
SUSPEND, RESUME = "suspend", "resume"
LONGEST_S = 600.0
"""As long as of that program, which is started without this package."""
MOST_CUT_OFF = 3
"""So often in a row it is begun again for a run after somebody has killed it."""


class Suspender:
    """done: told how it went: the run, what was done, and `suspending.outcome`."""

    def __init__(self, loop: Loop, again: Again, done: Callable[[RunningJob, str, dict[str, Any]], None]) -> None:
        self._loop, self._again, self._done = loop, again, done

    def begin(self, run: RunningJob, what: str) -> None:
        """Suspend or resume it. While it cannot even be begun it is tried again."""
        argv = [sys.executable, "-I", PROGRAM, what, "--folder", run.directory, "--gpus", ",".join(run.gpu_uuids)]
        memory = None if run.group is None or run.memory_mib is None else run.group.places.get("memory")
        if memory is not None and run.group is not None:
            name = "memory.max" if run.group.version == 2 else "memory.limit_in_bytes"
            argv += ["--memory-max", f"{memory}/{name}"]
        argv += [str(entry.pid) for entry in run.alive()]
        read, write = os.pipe2(os.O_CLOEXEC)
        null = -1
        try:
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            actions = [
                (os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, write, 1), (os.POSIX_SPAWN_DUP2, null, 2),
            ]  # fmt: skip
            ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE)
            pid = os.posix_spawn(argv[0], argv, dict(os.environ), file_actions=actions, setsigdef=ignored)
        except BaseException:
            os.close(read)
            raise
        finally:
            os.close(write)
            if null >= 0:
                os.close(null)
        self._again.helpers[pid] = run
        heard = bytearray()
        until_s = time.monotonic() + LONGEST_S
        self._loop.add(read, lambda fd: self._hear(fd, run, what, heard, until_s), f"to {what} run {run.name}")

    def _hear(self, fd: int, run: RunningJob, what: str, heard: bytearray, until_s: float) -> None:
        """until_s: then it has ended by itself, as the driver did not come back."""
        if part := os.read(fd, 1 << 16):
            heard += part
            return
        self._loop.drop(fd)
        os.close(fd)
        try:
            outcome = json.loads(bytes(heard))
        except ValueError:
            if time.monotonic() < until_s and run.cut_off < MOST_CUT_OFF:
                run.cut_off += 1
                log(f"run {run.name}: the program that was to {what} it was killed: it is begun again")
                self.again_soon(run, what)  # the driver has kept the state
                return
            text = f"the program that was to {what} it ended without a word"
            outcome = {"ok": False, "mib": 0.0, "took_s": 0.0, "why": text, "lost": True, "machine": False}
        run.cut_off = 0
        log(f"run {run.name}: {what}: {json.dumps(outcome)}")
        self._done(run, what, outcome)

    def again_soon(self, run: RunningJob, what: str) -> None:
        """As `begin`, a little later."""
        self._loop.after(RETRY_S, lambda: self.begin(run, what) if run.ended is None else None, f"{what} {run.name}")
