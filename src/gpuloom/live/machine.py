"""This machine as the scheduler sees it: inventory, rates, and what the monitor finds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from gpuloom.agent.health import Changes, Health, HealthSettings
from gpuloom.agent.monitor import Monitor, progress_of
from gpuloom.agent.nvml import Nvml
from gpuloom.agent.processes import read_small
from gpuloom.agent.sample import Foreign, RunOnNode, Sample
from gpuloom.core.job import Gpu, NodeRecord
from gpuloom.executors.port import RunUsage
from gpuloom.live.views.models import ForeignView, GpuView, NodeView
from gpuloom.threads import Worker

log = logging.getLogger("gpuloom.monitor")

EVERY_S = 5.0


class Machine:
    """Samples the machine in a thread of its own; the newest sample is what the API shows.

    Args:
        node: as recorded. disk: the folder whose free space matters.
        limits: what limits are enforced how (`LocalExecutor.limits`).
    """

    def __init__(
        self,
        node: NodeRecord,
        nvml: Nvml,
        *,
        disk: Path,
        limits: Callable[[], Mapping[str, str]],
        settings: HealthSettings | None = None,
        flags: Mapping[str, Mapping[str, str]] | None = None,
        every_s: float = EVERY_S,
    ) -> None:
        self.node, self.limits, self._every_s = node, limits, every_s
        self._monitor = Monitor(node, nvml, disk_path=str(disk))
        self._health = Health(node, settings, booted_s=psutil.boot_time(), flags=flags)
        self._lock = threading.Lock()
        self._sample: Sample | None = None
        self._notes: dict[int, tuple[str, ...]] = {}
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
                except Exception as error:  # a monitor that fails must not take the scheduler with it
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
            self._notes = dict(changes.notes)
        self._sample = sample
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

    def usage(self, run: str) -> RunUsage | None:
        """Rates of a run in the newest sample."""
        return None if self._sample is None else self._sample.runs.get(run)

    def node_view(self, node: NodeRecord, jobs: Mapping[tuple[str, int], Sequence[int]]) -> NodeView:
        """A machine with its GPUs, who runs there, and the newest rates."""
        sample = self._sample if node.name == self.node.name else None
        rates = None if sample is None else sample.node
        of_gpu = {} if sample is None else {gpu.index: gpu for gpu in sample.gpus}
        gpus: list[GpuView] = []
        for gpu in node.gpus:
            seen = of_gpu.get(gpu.index)
            gpus.append(
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "model": gpu.model,
                    "memory_mib": gpu.memory_mib,
                    "state": gpu.state,
                    "reason": gpu.reason,
                    "since_s": gpu.since_s,
                    "utilization": None if seen is None else seen.utilization,
                    "memory_used_mib": None if seen is None else seen.memory_used_mib,
                    "temperature_c": None if seen is None else seen.temperature_c,
                    "power_w": None if seen is None else seen.power_w,
                    "jobs": sorted(jobs.get((node.name, gpu.index), ())),
                    "foreign": [] if seen is None else [_foreign(one) for one in seen.foreign],
                    "notes": list(self._notes.get(gpu.index, ())),
                }
            )
        return {
            "name": node.name,
            "state": node.state,
            "reason": node.reason,
            "since_s": node.since_s,
            "kind": node.kind,
            "cpus": node.cpus,
            "memory_mib": node.memory_mib,
            "cpu_percent": None if rates is None else rates.cpu_percent,
            "memory_used_mib": None if rates is None else rates.memory_used_mib,
            "disk_free_mib": None if rates is None else rates.disk_free_mib,
            "load": None if rates is None else rates.load,
            "received_mib_per_s": None if rates is None else rates.received_mib_per_s,
            "sent_mib_per_s": None if rates is None else rates.sent_mib_per_s,
            "sampled_s": None if sample is None else sample.at_s,
            "gpus": gpus,
            "topology": [list(link) for link in node.topology],
            "jobs": sorted({job for (name, _), held in jobs.items() if name == node.name for job in held}),
        }


def _foreign(found: Foreign) -> ForeignView:
    return {"pid": found.pid, "user": found.user, "name": found.name, "memory_mib": found.memory_mib}


def reported(directory: Path) -> Mapping[str, object]:
    """What a run reported last of its progress; {} for nothing."""
    return progress_of(read_small(str(directory / "progress.json")))
