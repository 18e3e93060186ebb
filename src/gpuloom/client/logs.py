"""Logs of jobs as the client hands them on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuloom.live.views.job_answers import LogEnd


@dataclass(frozen=True, slots=True)
class LogPart:
    """A piece of a job's log. text: '' where a new attempt begins. end: state and exit code, at the end.

    skipped: so many bytes before the text are no longer kept. member: of a gang, whose log it is. nodes: where a gang's
    attempt begins, those of its members.
    """

    attempt: int
    text: str
    end: LogEnd | None = None
    skipped: int = 0
    member: int | None = None
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Some bytes of a log. start: the number of the first of them, counted from the first byte ever written.

    members: how many the attempt has, each with a log of its own. node: of a gang, that of the member.
    """

    attempt: int
    start: int
    content: bytes
    members: int = 1
    node: str = ""


@dataclass(frozen=True, slots=True)
class LogRead:
    """A log up to now. offset: the byte after its last, over all rotated files. ended: nothing more will come.

    member, node: of a gang, whose log it is. members: how many the attempt has.
    """

    content: bytes
    attempt: int
    offset: int
    ended: bool
    member: int = 0
    members: int = 1
    node: str = ""


def gang_of(headers: Mapping[str, str]) -> tuple[int, str]:
    """Of an answer's headers: how many members the attempt has, and the node of the one whose log it is; (1, '') of an
    attempt that is no gang's."""
    return int(headers.get("X-Gpuloom-Members") or 1), unquote(headers.get("X-Gpuloom-Node") or "")
