"""What a gang (gang.py) wants done: to one of its members, by rank, or told of the attempt as a whole."""

from __future__ import annotations

from dataclasses import dataclass

from gpuloom.core.end_reason import EndReason
from gpuloom.executors.port import RunStatus


@dataclass(frozen=True, slots=True)
class Start:
    """Ask the member's node to prepare it."""

    rank: int


@dataclass(frozen=True, slots=True)
class Go:
    rank: int


@dataclass(frozen=True, slots=True)
class Stop:
    rank: int
    reason: EndReason
    grace_s: float


@dataclass(frozen=True, slots=True)
class Freeze:
    rank: int


@dataclass(frozen=True, slots=True)
class Thaw:
    rank: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Read the last lines of the member's log, and say them with `Gang.log_read`."""

    rank: int


@dataclass(frozen=True, slots=True)
class Tell:
    """The attempt has another status."""

    status: RunStatus


Order = Start | Go | Stop | Freeze | Thaw | ReadLog | Tell
