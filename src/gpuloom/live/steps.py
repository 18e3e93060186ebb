"""The steps of a scheduler's start, and a watch over them: users are told which step is slow, and what helps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from enum import Enum
from types import TracebackType

WITHIN_S = 3.5
"""A start that takes longer says what it is at: with the interpreter's own start, within 5 s of the command."""
LONG_S = 2.0
"""A later step is named once it takes this long."""
AGAIN_S = 15.0
"""And again at this interval while the step lasts."""


WARNINGS_TO = "GPULOOM_WARNINGS_TO"
"""Names the file descriptor to which each warning is written as a line, for whoever has started the scheduler."""


class Step(Enum):
    """What a start is at: (what it does, what to do if it takes long)."""

    HOME = "making the home directory", "is its disk mounted? Try `ls` on the directory above it"
    LOCK = "taking the home's lock", "is the home on a local disk? Locks on network file systems can hang"
    STORE = (
        "opening the store",
        "a large store of an older gpuloom takes minutes to upgrade; otherwise its disk may be slow (`dmesg`) or "
        "another program may keep it locked (`fuser store.db`)",
    )
    CHECK = "checking the store", "a slow disk, or a busy machine: it continues by itself"
    LOAD = "reading the store", "a slow disk, or a busy machine: it continues by itself"
    MACHINE = "looking at the machine and its GPUs", "does `nvidia-smi` answer? A driver that hangs needs a restart"
    LEASE = (
        "taking the Lease that says which scheduler of this home acts",
        "does another one act? Then it goes on once that one ends. Else, does `kubectl get lease` answer?",
    )
    CLUSTER = "reading the nodes and pods of the cluster", "does `kubectl get nodes` answer?"
    WRITE = "recording the start of the scheduler", "is the home's disk full, read-only or slow? (`df`, `dmesg`)"
    RUNNER = (
        "connecting to the runner, the process that runs the jobs",
        "runner.log in the home says more. A stopped runner continues after `kill -CONT PID`; its jobs keep running",
    )
    ADDRESS = "listening for requests", "does the name given as --host resolve? 127.0.0.1 needs no name server"

    @property
    def doing(self) -> str:
        return self.value[0]

    @property
    def help(self) -> str:
        return self.value[1]


class Start:
    """Watches a start, from its making to the end of the `with` block, or until `done`."""

    def __init__(self, say: Callable[[str], None], *, within_s: float = WITHIN_S, again_s: float = AGAIN_S) -> None:
        self._say, self._within_s, self._again_s = say, within_s, again_s
        self._begun_s = time.monotonic()
        self._step = Step.HOME
        self._done = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._watch, name="start-watch", daemon=True)

    def at(self, step: Step) -> None:
        """The start is at this step now."""
        with self._changed:
            self._step = step
            self._changed.notify_all()

    def done(self) -> None:
        """The start is complete."""
        with self._changed:
            self._done = True
            self._changed.notify_all()

    def __enter__(self) -> Start:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.done()
        self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._done, self._within_s)
            while not self._done:
                step, passed_s = self._step, time.monotonic() - self._begun_s
                self._say(f"not ready after {passed_s:.0f} s: it is {step.doing}; {step.help}")
                self._moves_on(step, self._again_s)
                # One that is over soon is not worth a word.
                while not self._done and self._step is not step:
                    step = self._step
                    self._moves_on(step, min(LONG_S, self._within_s))

    def _moves_on(self, step: Step, within_s: float) -> bool:
        return self._changed.wait_for(lambda: self._done or self._step is not step, within_s)
