"""What files of rows are read from, what may be asked for, and the jobs that one file gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import TraceError
from gpuloom.core.pairs import PairTable
from gpuloom.core.workload import F8, I4

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Source:
    """One trace file, unpacked: its bytes, the name to use in messages, and where to look for companions.

    `path` is None for standard input; `stem` is the file's name without its suffixes.
    """

    name: str
    stem: str
    data: bytes
    path: Path | None = None

    @cached_property
    def head(self) -> Head:
        return Head.of(self.data)

    def companions(self) -> tuple[Path, ...]:
        """Folders in which files that belong to the trace may lie: its own, and the one above."""
        if self.path is None:
            return ()
        folder = self.path.resolve().parent
        return (folder, folder.parent)


@dataclass(frozen=True, slots=True)
class Head:
    """The start of a file, by which its format is recognised (file names are not considered).

    `lines` are the first non-empty lines that are no comment ('#'), `header` the comma-separated words of
    the first of them.
    """

    start: bytes
    lines: tuple[str, ...]

    SIZE = 65536
    LINES = 8

    @classmethod
    def of(cls, data: bytes) -> Head:
        start = data[: cls.SIZE]
        if start.startswith(b"PAR1") or b"\0" in start:
            return cls(start, ())
        text = start.decode("utf-8-sig", errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        return cls(start, tuple(lines[: cls.LINES]))

    @property
    def header(self) -> frozenset[str]:
        return self.split(",")

    def split(self, delimiter: str) -> frozenset[str]:
        """The words of the first line between these."""
        first = self.lines[0] if self.lines else ""
        return frozenset(word.strip().strip('"') for word in first.split(delimiter))

    def has(self, *names: str) -> bool:
        """Whether the header names all of these columns."""
        return self.header.issuperset(names)

    def fields(self, delimiter: str) -> int:
        """Number of fields of the first line; 0 for an empty file."""
        return self.lines[0].count(delimiter) + 1 if self.lines else 0


@dataclass(slots=True)
class ReadOptions:
    """What the user asked for.

    `throughputs` and `gpu_model` are for the formats whose rows give work instead of time.
    `bad_rows` collects the rows that were skipped; it stays empty unless `skip_bad_rows`.
    """

    skip_bad_rows: bool = False
    throughputs: Path | None = None
    gpu_model: str | None = None
    bad_rows: list[TraceError] = field(default_factory=list)


@dataclass(slots=True)
class Part:
    """The jobs of one file, in the order of the file. Columns are those of `Workload`.

    `calendar` says that `submit_s` are seconds since 1970-01-01 of the trace's calendar; the caller then
    counts from the first submission. `utc` says that the file gave its offset from UTC. `cluster` is the one on which
    the trace was taken, in short form, '' where the file does not say. `pairs` is what is known of jobs that share
    GPUs.
    """

    submit_s: F8
    duration_s: F8
    gpus: I4
    columns: dict[str, object] = field(default_factory=dict)
    calendar: bool = False
    utc: bool = False
    notes: list[str] = field(default_factory=list)
    cluster: str = ""
    pairs: PairTable | None = None

    def __len__(self) -> int:
        return len(self.submit_s)
