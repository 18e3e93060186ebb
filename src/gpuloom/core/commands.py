"""What the engine tells an executor to do."""

from __future__ import annotations

from dataclasses import dataclass

from gpuloom.core.decision import Placement


@dataclass(frozen=True, slots=True)
class Start:
    """Start a job, or start it again from its checkpoint, on these GPUs.

    goes_on: it lies suspended there, and goes on where it was.
    """

    job: int
    placement: Placement
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a job; it keeps its progress and waits."""

    job: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A running job goes on with another number of GPUs, some of which it has already."""

    job: int
    placement: Placement


@dataclass(frozen=True, slots=True)
class Retime:
    """A running job's speed changed (a partner on its GPUs came or went)."""

    job: int


Command = Start | Stop | Resize | Retime
