"""The GPU memory that attempts use at their peaks, by the monitor's samples."""

from __future__ import annotations

from collections.abc import Collection

from gpuloom.core.job import Attempt
from gpuloom.core.run_name import run_name_of
from gpuloom.core.usage import RunUsage
from gpuloom.live.planning.gpu_memory import SETTLED_S


class Peaks:
    """Used by the scheduler's thread alone."""

    def __init__(self) -> None:
        self._mib: dict[str, float] = {}
        """Of attempts that are under way, by the names of their runs."""

    def take(
        self, attempt: Attempt, run: str, usage: RunUsage, *, beside: Collection[int], now_s: float
    ) -> float | None:
        """A sample of a member; MiB on one GPU, where that is what its job needs. beside: other jobs on its GPUs, whose
        memory the monitor may not be able to tell from its own."""
        name = run_name_of(run)
        if usage.gpu_memory_mib is None or beside or name is None or attempt.running_s is None:
            return None
        if "first_s" not in usage.progress and now_s - attempt.running_s < SETTLED_S:
            return None
        mib = usage.gpu_memory_mib / len(attempt.allocation[name.member][1])
        self._mib[attempt.run] = max(mib, self._mib.get(attempt.run, 0.0))
        return self._mib[attempt.run]

    def ended(self, run: str) -> float | None:
        """What an attempt used that has ended; None: not known. It is forgotten."""
        return self._mib.pop(run, None)

    def of(self, run: str) -> float | None:
        """What an attempt has used so far."""
        return self._mib.get(run)
