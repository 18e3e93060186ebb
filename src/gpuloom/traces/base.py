"""What a trace format is: how to tell it, how to read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuloom.core.errors import InputError
from gpuloom.files.source import Head, Part, ReadOptions, Source


@dataclass(frozen=True, slots=True)
class Reader:
    """A trace format.

    `detect(head)` says by content whether a file is of this format; no two formats may both say yes.
    `read(source, options)` returns the jobs of one file and raises TraceError for what it can't read.
    """

    id: str
    title: str
    help: str
    detect: Callable[[Head], bool]
    read: Callable[[Source, ReadOptions], Part]
    throughputs: bool = True
    """Whether it looks at the throughputs that the user named."""

    def __post_init__(self) -> None:
        if not self.id or not all(c.isalnum() or c in "-_." for c in self.id):
            raise InputError(f"trace format id {self.id!r}: use letters, digits, '-', '_' and '.'")
