"""What a run uses, by the monitor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RunUsage:
    """Rates of a running run, by the monitor. None where it is not known. progress: what the job reported last.

    memory_mib: resident memory of all its processes (pages that they share count in each). gpu_utilization: 0 to 100,
    the mean over its GPUs. log_mib: all parts of its log that are kept.
    """

    run: str
    cpu_cores: float | None = None
    memory_mib: float | None = None
    gpu_utilization: float | None = None
    gpu_memory_mib: float | None = None
    read_mib_per_s: float | None = None
    write_mib_per_s: float | None = None
    log_mib: float | None = None
    progress: Mapping[str, object] = field(default_factory=dict)
