"""Samples a machine every few seconds (`Sample`). `health.py` draws the conclusions.

Cheap: without runs and GPUs it reads five files of the kernel; with them, /proc once. Linux only.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import psutil

from gpuloom.agent.inventory import MIG_TEXT
from gpuloom.agent.nvml import UNREADABLE, Nvml, Reading
from gpuloom.agent.processes import (
    MIB,
    PAGE,
    TICKS_PER_S,
    Process,
    Trees,
    all_processes,
    io_bytes,
    read_small,
    run_named,
    who,
)
from gpuloom.agent.sample import Finding, FindingKind, Foreign, GpuSample, NodeRates, RunOnNode, Sample
from gpuloom.core.job import DeviceKind, NodeRecord
from gpuloom.core.measured import Measured, with_hooks
from gpuloom.core.progress import PROGRESS_BYTES, progress_of
from gpuloom.core.usage import RunUsage
from gpuloom.core.words import plural
from gpuloom.files.hook_records import hooked, training_in

UNKNOWN_MIB = 500.0
"""A GPU counts as used by others if more memory than this is in use by no visible process."""

REOPEN_S = 60.0
"""Time between attempts to reach a lost GPU."""

STAGES_S = 5.0
"""Time between looks at the stages of a run."""

NEAR_SHUTDOWN_C = 2.0

_MPS = frozenset({"nvidia-cuda-mps", "nvidia-cuda-mps-server"})
"""The helper of NVIDIA's multi-process service, as the kernel shortens its name. It belongs to the machine."""

_RECOVERY = {1: "a reset", 2: "a reboot of the machine", 3: "peer-to-peer traffic drained", 4: "a drain and a reset"}

_VIRTUAL = ("lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali")
"""Interfaces whose traffic is counted by another one, or never leaves the machine."""


@dataclass(slots=True)
class _Before:
    """Counters of a run at the last look. at_s: monotonic."""

    at_s: float
    ticks: int
    io: tuple[int, int] | None


class Monitor:
    """See the module. One thread calls `sample`; `gpu_processes` may be called from any."""

    def __init__(
        self,
        node: NodeRecord,
        nvml: Nvml,
        *,
        disk_path: str = "/",
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """disk_path: of the file system whose free space is watched. clock: epoch seconds, for `Sample.at_s`."""
        self._node, self._nvml = node, nvml
        self._disk_path, self._clock, self._monotonic = disk_path, clock, monotonic
        self._trees = Trees()
        self._before: dict[str, _Before] = {}
        self._cpu: tuple[float, float] | None = None
        self._network: tuple[float, int, int] | None = None
        self._ecc: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._reopened_s = -math.inf
        self._progress: dict[str, tuple[tuple[int, int, int], dict[str, object]]] = {}
        self._stages: dict[str, tuple[float, Measured | None]] = {}
        """Of runs: when their stages were looked at, and what they were."""

    def gpu_processes(self, uuids: Iterable[str]) -> dict[str, list[int]]:
        """Processes that run CUDA on these GPUs; a GPU that can't tell (a CPU slot) is left out."""
        return self._nvml.gpu_processes(uuids)

    def close(self) -> None:
        self._nvml.close()

    def sample(self, runs: Mapping[str, RunOnNode]) -> Sample:
        """One look. runs: our runs whose processes may exist now, by name."""
        gpus = [gpu for gpu in self._node.gpus if self._node.kind == DeviceKind.GPU]
        readings = {gpu.index: self._nvml.read(gpu.uuid) for gpu in gpus}
        # After the readings: whoever was on a GPU then and still lives is found in /proc.
        processes = all_processes() if runs or any(r.processes for r in readings.values()) else {}
        members = self._trees.members(processes, runs)
        ours = {process.pid: run for run, found in members.items() for process in found}
        holders = {index: run for run, known in runs.items() for index in known.gpus}
        findings: list[Finding] = []
        samples = []
        for gpu in gpus:
            reading = readings[gpu.index]
            foreign = self._foreign(gpu.index, reading, ours, holders, runs, findings)
            self._condition(gpu.index, gpu.uuid, reading, findings)
            samples.append(
                GpuSample(
                    gpu.index,
                    gpu.uuid,
                    reading.utilization,
                    reading.memory_used_mib,
                    reading.temperature_c,
                    reading.power_w,
                    foreign,
                    reading.error,
                )
            )
        xids = self._xids()
        self._reach_again(readings.values())  # after the errors are fetched: it forgets them
        usage = {run: self._usage(run, known, members[run], readings, ours) for run, known in runs.items()}
        for gone in set(self._before) - set(runs):
            del self._before[gone]
        for seen in (self._progress, self._stages):
            for gone in set(seen) - set(runs):
                del seen[gone]
        return Sample(self._clock(), self._rates(), tuple(samples), usage, tuple(findings), xids)

    # -- GPUs ------------------------------------------------------------------------------------------------

    def _foreign(
        self,
        gpu: int,
        reading: Reading,
        ours: dict[int, str],
        holders: Mapping[int, str],
        runs: Mapping[str, RunOnNode],
        findings: list[Finding],
    ) -> tuple[Foreign, ...]:
        """Processes of others on a GPU, and what to say of them."""
        found = []
        explained = 0.0
        for process in reading.processes or ():
            explained += process.memory_mib or 0.0
            if process.pid in ours or not (process.compute or (process.memory_mib or 0.0) >= UNKNOWN_MIB):
                continue
            user, name = who(process.pid)
            if name in _MPS or (user == "?" and gpu in holders):
                continue  # in another PID namespace: most likely of the run that holds the GPU
            named, directory = run_named(process.pid)
            # The directory tells our run '12.1' from that of another scheduler on this machine.
            if named in runs and runs[named].directory in ("", directory):
                ours[process.pid] = named
                self._trees.adopt(named, process.pid)
                continue
            found.append(Foreign(process.pid, user, name, process.memory_mib))
            memory = "" if process.memory_mib is None else f", {process.memory_mib:,.0f} MiB"
            text = f"used by process {process.pid} ({name}) of user {user}{memory}"
            if named:
                text += f", left over from run {named}"
            # A run's last processes, and its first ones before the caller knows of it, are no strangers.
            findings.append(Finding(FindingKind.FOREIGN, gpu, f"pid-{process.pid}", text, patience=3 if named else 1))
        unknown = (reading.memory_used_mib or 0.0) - explained
        if not found and gpu not in holders and unknown > UNKNOWN_MIB:
            text = f"{unknown:,.0f} MiB of its memory are used by processes that are not visible here"
            findings.append(Finding(FindingKind.FOREIGN, gpu, "memory", text, patience=3))
        return tuple(found)

    def _condition(self, gpu: int, uuid: str, reading: Reading, findings: list[Finding]) -> None:
        """What is wrong with a GPU by its reading."""

        def say(code: str, text: str, **more: bool) -> None:
            findings.append(Finding(FindingKind.UNHEALTHY, gpu, code, text, **more))

        if reading.error:
            self._failed[uuid] = self._failed.get(uuid, 0) + 1
            if reading.lost:
                say("lost", f"out of reach ({reading.error})")
            elif self._failed[uuid] >= UNREADABLE:
                say("unreachable", f"can't be read ({reading.error})")
            return
        self._failed[uuid] = 0
        if reading.mig:
            say("mig", MIG_TEXT.format(gpu))
        if reading.recovery:
            need = _RECOVERY.get(reading.recovery, f"recovery action {reading.recovery}")
            say("recovery", f"the driver says it needs {need}", needs_reset=True)
        if reading.remap_failed:
            say("remap", "a row of its memory could not be remapped: have the GPU replaced", needs_reset=True)
        if reading.retirement_pending and reading.ecc:
            text = f"{reading.ecc} uncorrectable ECC errors, and pages whose retirement waits for a reset"
            say("retirement", text, needs_reset=True)
        elif reading.retirement_pending or reading.remap_pending:
            text = "faulty memory is disabled at the next reset; the GPU can be used until then"
            findings.append(Finding(FindingKind.NOTE, gpu, "pending", text))
        if reading.ecc is not None:
            new = reading.ecc - self._ecc.get(uuid, reading.ecc)
            if new > 0:
                say("ecc", f"{plural(new, 'new uncorrectable ECC error')}", event=True)
            self._ecc[uuid] = reading.ecc
        hot, limit = reading.temperature_c, reading.shutdown_c
        if hot is not None and limit and hot >= limit - NEAR_SHUTDOWN_C:
            say("thermal", f"near {limit:.0f} °C, at which it turns itself off")
        elif reading.slowed:
            findings.append(Finding(FindingKind.NOTE, gpu, "slowed", "slowed down because it is hot"))

    def _xids(self) -> tuple[tuple[int, int], ...]:
        """XIDs of a GPU that NVML can't name any more are given to those that can't be read."""
        index = {gpu.uuid: gpu.index for gpu in self._node.gpus}
        found = []
        for uuid, xid in self._nvml.xids():
            if uuid in index:
                found.append((index[uuid], xid))
            elif not uuid:
                found.extend((index[lost], xid) for lost, times in self._failed.items() if times and lost in index)
        return tuple(found)

    def _reach_again(self, readings: Iterable[Reading]) -> None:
        if any(reading.lost for reading in readings) and self._monotonic() - self._reopened_s >= REOPEN_S:
            self._reopened_s = self._monotonic()
            self._nvml.reopen()
            self._ecc.clear()

    # -- runs ------------------------------------------------------------------------------------------------

    def _usage(
        self,
        run: str,
        known: RunOnNode,
        members: list[Process],
        readings: Mapping[int, Reading],
        ours: Mapping[int, str],
    ) -> RunUsage:
        now, before = self._monotonic(), self._before.get(run)
        ticks = sum(process.ticks for process in members)
        io = io_bytes(process.pid for process in members)
        cores = read = written = None
        if before is not None and now > before.at_s and members:
            span = now - before.at_s
            # A process that nobody waits for takes its times with it: no negative rates.
            cores = max(0.0, (ticks - before.ticks) / TICKS_PER_S / span)
            if io is not None and before.io is not None:
                read, written = (max(0.0, (b - a) / MIB / span) for a, b in zip(before.io, io, strict=True))
        self._before[run] = _Before(now, ticks, io)
        held = [readings[index] for index in known.gpus if index in readings]
        rates = [reading.utilization for reading in held if reading.utilization is not None]
        return RunUsage(
            run,
            cpu_cores=cores,
            memory_mib=sum(process.pages for process in members) * PAGE / MIB if members else None,
            gpu_utilization=sum(rates) / len(rates) if rates else None,
            gpu_memory_mib=_gpu_memory_mib(run, held, ours),
            read_mib_per_s=read,
            write_mib_per_s=written,
            log_mib=_log_mib(known.directory),
            progress=self._reported(run, known.directory),
        )

    def _reported(self, run: str, directory: str) -> dict[str, object]:
        """What the job reports of itself, else what hooks counted in it."""
        if not directory:
            return {}
        told, folder = self._told(run, directory), os.path.join(directory, "hooks")
        training = training_in(folder)
        if training is None:
            return told
        now, known = self._monotonic(), self._stages.get(run)
        if known is None or now - known[0] >= STAGES_S:
            known = self._stages[run] = now, hooked(folder).measured
        return with_hooks(told, training, known[1])

    def _told(self, run: str, directory: str) -> dict[str, object]:
        """progress.json, read again only when it was written again."""
        path = os.path.join(directory, "progress.json")
        try:
            info = os.stat(path, follow_symlinks=False)
        except OSError:
            return {}
        mark = (info.st_mtime_ns, info.st_size, info.st_ino)
        known = self._progress.get(run)
        if known is None or known[0] != mark:
            known = mark, progress_of(read_small(path, PROGRESS_BYTES + 1))
            self._progress[run] = known
        return known[1]

    # -- the machine -------------------------------------------------------------------------------------------

    def _rates(self) -> NodeRates:
        times = psutil.cpu_times()
        idle = times.idle + getattr(times, "iowait", 0.0)
        total = sum(times[:8])  # what follows (guests) is part of what comes before
        percent = None
        if self._cpu is not None and total > self._cpu[0]:
            busy = 1.0 - (idle - self._cpu[1]) / (total - self._cpu[0])
            percent = 100.0 * min(1.0, max(0.0, busy))
        self._cpu = (total, idle)
        memory = psutil.virtual_memory()
        try:
            disk = os.statvfs(self._disk_path)
            free = disk.f_bavail * disk.f_frsize / MIB
        except OSError:
            free = None
        received, sent = self._traffic()
        used = (memory.total - memory.available) / MIB
        return NodeRates(percent, used, memory.total / MIB, os.getloadavg()[0], free, received, sent)

    def _traffic(self) -> tuple[float | None, float | None]:
        counters = [
            counter
            for name, counter in psutil.net_io_counters(pernic=True, nowrap=False).items()
            if not name.startswith(_VIRTUAL)
        ]
        now = self._monotonic()
        received, sent = sum(c.bytes_recv for c in counters), sum(c.bytes_sent for c in counters)
        before, self._network = self._network, (now, received, sent)
        if before is None or now <= before[0]:
            return None, None
        span = (now - before[0]) * MIB
        return max(0.0, (received - before[1]) / span), max(0.0, (sent - before[2]) / span)


def _gpu_memory_mib(run: str, held: list[Reading], ours: Mapping[int, str]) -> float | None:
    """GPU memory of a run: of its processes where NVML tells, else all that is used on its GPUs."""
    total, known = 0.0, False
    for reading in held:
        mine = [p.memory_mib for p in reading.processes or () if ours.get(p.pid) == run and p.memory_mib is not None]
        if mine:
            total, known = total + sum(mine), True
        elif reading.memory_used_mib is not None:
            total, known = total + reading.memory_used_mib, True
    return total if known else None


def _log_mib(directory: str) -> float | None:
    """All kept parts of a run's log (output.log, output.log.1, …); None if there is none."""
    if not directory:
        return None
    total, found = 0, False
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("output.log"):
                    total, found = total + entry.stat(follow_symlinks=False).st_size, True
    except OSError:
        return None
    return total / MIB if found else None
