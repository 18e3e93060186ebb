"""Which jobs of a base policy get more GPUs than their smallest size: see `policies/elastic_goodput.py`."""

from __future__ import annotations

import math
from typing import Any

from gpuloom.core.snapshot import Snapshot
from gpuloom.core.units import next_multiple
from gpuloom.policies.base import Parameter, duration, not_negative, number, one_of
from gpuloom.policies.composed import Composed, Memory
from gpuloom.policies.gpu_allocator import GpuAllocator
from gpuloom.scaling.lending import Lending

GOODPUT = (
    Parameter("weight", "asked", one_of("asked", "remaining"), "what jobs are weighted by"),
    Parameter(
        "alpha", -0.5, number, "how much more speed is worth to a job that is fast already; 1: as much as to any other"
    ),
    Parameter("power", 0.3, not_negative, "weight=remaining: how much short jobs are preferred; 0: not at all"),
    Parameter("floor", 300.0, duration, "least time a job is assumed to need", "5m"),
    Parameter("horizon", 1800.0, duration, "longest time a new size is expected to last", "30m"),
    Parameter("period", 120.0, duration, "time between two transfers of GPUs from job to job", "2m"),
    Parameter("least", 0.1, not_negative, "least relative speed-up for which a running job is given GPUs of others"),
)
"""Parameters of those who share GPUs out so."""


class Growing(Composed):
    """Lends GPUs where these bring most."""

    cache: Any

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.heeds_weights = True

    def first_to_shrink(self, snapshot: Snapshot, memory: Memory, job: int) -> Any:
        """The job that loses least per GPU by going back to its smallest size."""
        return self._desk(snapshot).loss_per_gpu(snapshot, job)

    def lend(self, snapshot: Snapshot, memory: Memory, lending: Lending, *, stirred: bool) -> float:
        if stirred or snapshot.now_s >= memory.look_s:
            memory.dirty = True
        if not memory.dirty or not lending.gpus:
            return memory.look_s if lending.gpus else math.inf
        desk = self._desk(snapshot)
        shift = snapshot.now_s >= memory.check_at_s
        desk.grown, desk.shrunk = [], []
        owed = desk.share_out(snapshot, shift=shift, quiet_s=snapshot.now_s - memory.stirred_s)
        memory.look_s = desk.look_s
        for job in desk.grown:
            self.note_expansion(snapshot, memory, job)
        for job in desk.shrunk:
            self.note_shrink(snapshot, memory, job)
        if shift:
            memory.check_at_s = next_multiple(snapshot.now_s, self.lending_values()["period"])
        memory.dirty = owed
        return min(memory.check_at_s, memory.look_s) if owed else memory.look_s

    def lending_values(self) -> dict[str, Any]:
        """What `GOODPUT` names."""
        return self.values

    def _desk(self, snapshot: Snapshot) -> GpuAllocator:
        lending: Lending = self.cache
        if not isinstance(lending.attached, GpuAllocator):
            lending.attached = GpuAllocator(self.lending_values(), snapshot, lending)
        return lending.attached
