"""Checks that the GPUs of a run are free. A run has ended only when none of its processes holds a GPU."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpuloom.core.faults import fault_text
from gpuloom.executors import procs
from gpuloom.executors.port import RunPhase, RunStatus
from gpuloom.threads import Worker

GpuProcesses = Callable[[Sequence[str]], Mapping[str, Sequence[int]]]
"""From uuids of GPUs to the pids that use each of them."""

TIMEOUT_S = 10.0
LOOK_S = 0.1
LATER_S = 2.0
"""Between looks at what is not free for long."""


@dataclass
class _Waiting:
    status: RunStatus
    gpus: tuple[str, ...]
    since_s: float
    told: bool = False
    """Whether something is left, and what."""


class GpuCheck:
    """Waits until GPUs are free of runs that ended; then `tell` gets the status. Where that takes more than `timeout_s`
    seconds it gets one that names what is left, and the other one once nothing is.
    """

    def __init__(
        self,
        gpu_processes: GpuProcesses,
        home_id: str,
        tell: Callable[[RunStatus], None],
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._gpu_processes, self._home_id, self._tell, self._timeout_s = gpu_processes, home_id, tell, timeout_s
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: dict[str, _Waiting] = {}
        self._found: dict[str, tuple[RunStatus, RunStatus]] = {}
        self._closed = False
        self._trouble = ""
        self._worker = Worker("gpu-check", self._watch)

    def start(self) -> None:
        """Be ready to look; where no thread is to be had, that is tried again whenever a run ends."""
        self._worker.start()

    @property
    def problem(self) -> str:
        """'', or why GPUs can't be looked at."""
        return self._worker.problem or self._trouble

    def of(self, status: RunStatus, gpus: Sequence[str]) -> RunStatus:
        """What is known of an ended run: the final status, or one that says 'stopping' while its GPUs are looked at."""
        with self._lock:
            found = self._found.get(status.run)
            if found is not None and found[0] == status:
                return found[1]
            waiting = self._waiting.get(status.run)
            if waiting is None or waiting.status != status:
                self._waiting[status.run] = _Waiting(status, tuple(gpus), time.monotonic())
                self._wake.set()
        self.start()
        return replace(status, phase=RunPhase.STOPPING, exit=None)

    def forget(self, run: str) -> None:
        """Its end is written down."""
        with self._lock:
            self._waiting.pop(run, None)
            self._found.pop(run, None)

    def close(self) -> None:
        """Look no more."""
        with self._lock:
            self._closed = True
            self._wake.set()
        self._worker.end(self._timeout_s)

    def _watch(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                waiting = list(self._waiting.values())
                self._wake.clear()
            troubles = [self._look(entry) for entry in waiting]
            self._trouble = next(filter(None, troubles), "")
            with self._lock:
                left = list(self._waiting.values())
            pause_s = None if not left else LATER_S if all(entry.told for entry in left) else LOOK_S
            self._wake.wait(pause_s)

    def _look(self, entry: _Waiting) -> str:
        """Tell of it, if that is to be told now. '', or why it can't be known."""
        status = entry.status
        assert status.exit is not None  # noqa: S101 - only ended runs come here
        trouble = ""
        try:
            held = self._held(entry)
            problem = "" if not held else f"still on its GPUs: {held}"
        except Exception as error:  # of a driver, whatever it raises: it must not end this thread
            problem = f"its GPUs could not be checked: {error}"
            trouble = fault_text(f"can't check whether the GPUs of run {status.run}, which ended, are free", error)
        if problem and (entry.told or time.monotonic() < entry.since_s + self._timeout_s):
            return trouble
        final = status
        if problem:
            message = f"{status.exit.message}; {problem}" if status.exit.message else problem
            final = replace(status, exit=replace(status.exit, released=False, message=message))
        with self._lock:
            if self._waiting.get(status.run) is not entry:
                return ""  # forgotten, or there is news of it
            entry.told = bool(problem)
            if not problem:
                del self._waiting[status.run]
            self._found[status.run] = status, final
        self._tell(final)
        return trouble

    def _held(self, entry: _Waiting) -> str:
        """Processes of the run that hold its GPUs, in words; '' for none.

        Others may use these GPUs as well: the run's are those with its name in their environment, its leading process,
        and those that the driver still lists though they are gone, as its own were a moment ago. In a container of our
        own the last can't be told from processes outside it, so they don't count there.
        """
        marker = f"GPULOOM_RUN={self._home_id}:{entry.status.run}".encode()
        everything = procs.sees_all()
        found = []
        for uuid, pids in self._gpu_processes(entry.gpus).items():
            for pid in pids:
                process = procs.process(pid)
                gone = process is None or process.dead
                if (gone and everything) or pid == entry.status.pid or (not gone and procs.marked(pid, marker)):
                    found.append(f"process {pid} on {uuid}")
        return ", ".join(found)
