"""Logs of jobs as the client hands them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuloom.live.views.answers import LogEnd


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a job's log. text: '' where a new attempt begins. end: state and exit code, at the end.

    skipped: so many bytes before the text are no longer kept.
    """

    attempt: int
    text: str
    end: LogEnd | None = None
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some bytes of a log. start: the number of the first of them, counted from the first byte ever written."""

    attempt: int
    start: int
    content: bytes


@dataclass(frozen=True, slots=True)
class LogRead:
    """A log up to now. offset: the byte after its last, over all rotated files. ended: nothing more will come."""

    content: bytes
    attempt: int
    offset: int
    ended: bool
