"""One sample of a machine, as plain data. Times are epoch seconds, memory MiB, utilisation 0 to 100."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.core.usage import RunUsage


@dataclass(frozen=True, slots=True)
class RunOnNode:
    """A run of ours on this machine, as the caller knows it.

    pid, start_ticks: its first process (start_ticks from /proc/PID/stat; None: not checked). gpus: indices that it
    holds. directory: its files (output.log, progress.json); '' if it has none. frozen: its processes are stopped.
    """

    pid: int | None
    start_ticks: int | None
    gpus: tuple[int, ...]
    directory: str = ""
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Foreign:
    """A process on a GPU that is not of our runs. user, name: '?' where the process can't be seen from here."""

    pid: int
    user: str
    name: str
    memory_mib: float | None = None


class FindingKind(StrEnum):
    """What follows from something that was found."""

    FOREIGN = "foreign"
    """Others use the GPU."""
    UNHEALTHY = "unhealthy"
    """It must not be given to jobs."""
    NOTE = "note"
    """To be shown, no more."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something found on a GPU.

    code: what it is, the same from sample to sample ('xid-79', 'lost', 'ecc', 'pid-4711', …). event: it happened
    at this moment, rather than being so for as long as it is found. needs_reset: only a reset or reboot mends it.
    patience: so many samples in a row must find it before it counts.
    """

    kind: FindingKind
    gpu: int
    code: str
    text: str
    event: bool = False
    needs_reset: bool = False
    patience: int = 1


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU. None where NVML does not tell. error: why it could not be read at all, or ''."""

    index: int
    uuid: str
    utilization: float | None = None
    memory_used_mib: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    foreign: tuple[Foreign, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeRates:
    """The machine as a whole. cpu_percent: of all its cores together, None in the first sample, like other rates."""

    cpu_percent: float | None
    memory_used_mib: float
    memory_mib: float
    load: float
    disk_free_mib: float | None
    received_mib_per_s: float | None
    sent_mib_per_s: float | None


@dataclass(frozen=True, slots=True)
class Sample:
    """All that one look says. node: None: only its runs were looked at. xids: (index of the GPU, XID) of every XID
    error since the last sample, in order."""

    at_s: float
    node: NodeRates | None
    gpus: tuple[GpuSample, ...] = ()
    runs: Mapping[str, RunUsage] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    xids: tuple[tuple[int, int], ...] = ()
