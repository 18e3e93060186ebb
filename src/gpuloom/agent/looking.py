"""Looks at a machine every few seconds, in a thread: takes a sample, and says what it changes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from gpuloom.agent.health import Changes, Health
from gpuloom.agent.monitor import Monitor
from gpuloom.agent.nvml import Nvml
from gpuloom.agent.sample import RunOnNode, Sample
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.monitor")

EVERY_S = 5.0


class Looker:
    """Samples the machine in a thread of its own; `newest` is the newest sample, `notes` what is worth showing of GPUs.

    Args:
        node: as recorded. disk: the folder whose free space matters.
    """

    def __init__(
        self,
        node: NodeRecord,
        nvml: Nvml,
        *,
        disk: Path,
        flags: Mapping[str, Mapping[str, str]] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self.node, self._every_s = node, every_s
        self._monitor = Monitor(node, nvml, disk_path=str(disk))
        self._health = Health(node, booted_s=psutil.boot_time(), flags=flags)
        self._lock = threading.Lock()
        self.newest: Sample | None = None
        self.notes: Mapping[int, tuple[str, ...]] = {}
        self._end = threading.Event()
        self._problem = ""
        self._worker: Worker | None = None

    def start(
        self,
        runs: Callable[[], Mapping[str, RunOnNode]],
        take: Callable[[Sample, Changes], None],
    ) -> None:
        """Begin to sample. runs: those under way. take: called with each sample and what it changes."""

        def loop() -> None:
            while not self._end.is_set():
                try:
                    self.look(runs, take)
                except Exception as error:  # a monitor that fails must not take the others with it
                    text = f"the machine could not be checked: {type(error).__name__}: {error}; the next check may work"
                    if text != self._problem:
                        log.exception("%s", text)
                    self._problem = text
                else:
                    self._problem = ""
                self._end.wait(self._every_s)

        self._worker = Worker("monitor", loop)
        self._worker.start()

    def look(self, runs: Callable[[], Mapping[str, RunOnNode]], take: Callable[[Sample, Changes], None]) -> None:
        """One look."""
        now_runs = runs()
        sample = self._monitor.sample(now_runs)
        with self._lock:
            changes = self._health.note(sample, now_runs)
            self.notes = dict(changes.notes)
        self.newest = sample
        take(sample, changes)

    @property
    def problem(self) -> str:
        """'', or why the machine is not looked at."""
        return self._problem or ("" if self._worker is None else self._worker.problem)

    def stop(self) -> None:
        self._end.set()
        if self._worker is not None:
            self._worker.end(self._every_s + 5.0)
        self._monitor.close()

    def gpu_processes(self, uuids: Sequence[str]) -> Mapping[str, Sequence[int]]:
        """Processes on these GPUs."""
        return self._monitor.gpu_processes(uuids)

    def clear(self) -> tuple[Gpu, ...]:
        """A person says that all GPUs are well again; those that change by it."""
        with self._lock:
            return self._health.clear()
