"""Ends of attempts that look like failures of their jobs, and are none: such a job goes back into the queue, and no
retry is used up.

- A GPU of it is broken (an XID, memory errors, fallen off the bus), by the monitor, since it began there.
- How it ended is not known, as its runner was killed: up to `MOST_LOST` times in a row.
- No GPU memory was left beside other jobs: up to `MOST_CROWDED` times in a row (`ends.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuloom.core.job import Attempt, DeviceKind, EndReason, GpuState, NodeRecord
from gpuloom.core.words import plural
from gpuloom.executors.gang_ends import good
from gpuloom.executors.port import Cause, RunExit

MOST_LOST = 3
"""Runs in a row of which nobody saw the end, until that counts as a failure."""
MOST_CROWDED = 5
"""Runs in a row that found no memory beside others, until that counts as a failure."""


@dataclass(frozen=True, slots=True)
class Fault:
    """reason: of the attempt's end. text: what is said of it."""

    reason: EndReason
    text: str


def fault_of(
    attempt: Attempt, how: RunExit, nodes: Mapping[str, NodeRecord], *, before: Sequence[Attempt]
) -> Fault | None:
    """Why an attempt that nobody told to stop ended badly, where that is not its job's doing; None: it is.

    Args:
        nodes: as they are known now. before: the job's attempts; looked at only if this one was lost.
    """
    if attempt.stop_reason is not None or good(how):
        return None
    if how.reason is EndReason.LOST:
        if how.cause is Cause.RESTARTED or in_a_row(EndReason.LOST, attempt, before) >= MOST_LOST:
            return None
        return Fault(EndReason.LOST, "it goes on from its last save")
    if how.reason is not None:
        return None
    if broken := _broken(attempt, nodes):
        return Fault(EndReason.NODE, broken)
    return None


def in_a_row(reason: EndReason, attempt: Attempt, before: Sequence[Attempt]) -> int:
    """Attempts just before this one that ended so."""
    count = 0
    for one in sorted(before, key=lambda one: -one.number):
        if one.number >= attempt.number:
            continue
        if one.reason is not reason:
            break
        count += 1
    return count


def _broken(attempt: Attempt, nodes: Mapping[str, NodeRecord]) -> str:
    """What the monitor has found of its GPUs since it began; '' for nothing."""
    found = []
    for name, gpus in attempt.allocation:
        node = nodes.get(name)
        for gpu in () if node is None or node.kind is not DeviceKind.GPU else node.gpus:
            late = gpu.since_s is not None and gpu.since_s >= attempt.started_s
            if gpu.index in gpus and gpu.state is GpuState.UNHEALTHY and late:
                found.append(f"GPU {gpu.index} of {name}: {gpu.reason}")
    return f"{plural(len(found), 'GPU')} of it failed ({'; '.join(found)})" if found else ""
