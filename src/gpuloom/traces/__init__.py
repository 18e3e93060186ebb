"""Read traces of DL clusters: `read_trace`, `write_trace`, `formats` (docs/reference/traces.md).

A third party adds a format with a `Reader` in the entry-point group `gpuloom.trace_readers`.

May import: core, bounded, files, facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuloom.core.errors import InputError, TraceError
from gpuloom.core.pairs import PairTable
from gpuloom.core.words import plural
from gpuloom.core.workload import Workload
from gpuloom.facts.pairs import read_pairs, with_pairs
from gpuloom.files.load import expand, load
from gpuloom.files.source import Head, Part, ReadOptions, Source
from gpuloom.files.table import Column, Table, read_table
from gpuloom.traces import registry
from gpuloom.traces.base import Reader
from gpuloom.traces.merge import merge
from gpuloom.traces.own import REQUIRED
from gpuloom.traces.registry import formats
from gpuloom.traces.write import write_trace

__all__ = [
    "Column",
    "Head",
    "Part",
    "ReadOptions",
    "Reader",
    "Source",
    "Table",
    "TraceRead",
    "formats",
    "read_table",
    "read_trace",
    "write_trace",
]


@dataclass(frozen=True, slots=True)
class TraceRead:
    """What `read_trace` found: the jobs, the format's id, the files read, and the rows that were skipped."""

    workload: Workload
    format: str
    files: tuple[Path, ...]
    bad_rows: tuple[TraceError, ...]


def read_trace(
    paths: Sequence[Path | str] | Path | str,
    *,
    format: str | None = None,  # noqa: A002 - the name users know
    skip_bad_rows: bool = False,
    throughputs: Path | None = None,
    gpu_model: str | None = None,
    pairs: Path | None = None,
) -> TraceRead:
    """Read a trace of one or several files of one format.

    Args:
        paths: files (gzipped or not), folders, `ARCHIVE.tar.gz::MEMBER`, or '-' for standard input.
            Several files are merged by time of submission. A folder stands for the traces in it.
        format: id of the format (see `formats`); None finds it out from the content.
        skip_bad_rows: pass over rows that can't be read (they are returned in `bad_rows`).
        throughputs: profiles for the formats whose jobs are given as work (gavel, shockwave, pollux), or that have
            the curves of elastic jobs apart (elasticflow).
        gpu_model: GPU model on which `duration_s` is counted, where the throughputs know several.
        pairs: measured speeds of jobs that share GPUs (docs/reference/data.md), by the jobs' models; they win over
            those of the throughputs.

    Returns:
        Times in seconds. Numeric times of submission are kept as they are; calendar times are counted from
        the first submission.

    Raises:
        TraceError: a file or, unless skipped, a row that can't be read.
        InputError: no such file, an unknown format, or files of several formats.
        MissingDependencyError: a Parquet file, and pyarrow is not installed.
    """
    asked = [paths] if isinstance(paths, Path | str) else list(paths)
    if throughputs is not None and not Path(throughputs).exists():
        raise InputError(f"throughputs {throughputs}: no such file or folder")
    options = ReadOptions(skip_bad_rows, None if throughputs is None else Path(throughputs), gpu_model)
    notes: list[str] = []
    reader, sources = _choose(asked, format, notes)
    if options.throughputs is not None and not reader.throughputs:
        notes.append(f"{options.throughputs}: not used, as traces of the format {reader.id!r} need no throughputs")
    parts = [reader.read(source, options) for source in sources]
    workload = merge(_name(asked, sources), sources, parts)
    if (known := _pairs(parts, pairs)) is not None:
        workload = with_pairs(workload, known)
        if pairs is not None and workload.pairs is None:
            raise InputError(f"{pairs}: knows none of the trace's jobs beside each other (by model and GPUs)")
    if notes or options.bad_rows:
        if options.bad_rows:
            notes.append(f"{plural(len(options.bad_rows), 'bad row')} skipped")
        workload = replace(workload, notes=(*notes, *workload.notes))
    files = tuple(source.path if source.path is not None else Path(source.name) for source in sources)
    return TraceRead(workload, reader.id, files, tuple(options.bad_rows))


def _pairs(parts: Sequence[Part], path: Path | None) -> PairTable | None:
    """What is known of jobs that share GPUs: of the file that the user named, then of the throughputs."""
    found = None if path is None else read_pairs(path)
    for part in parts:
        if part.pairs is not None:
            found = part.pairs if found is None else found.over(part.pairs)
    return found


def _choose(asked: list[Path | str], format_id: str | None, notes: list[str]) -> tuple[Reader, list[Source]]:
    """The one format, and the files that are of it. What is left out of a folder goes to `notes`."""
    forced = registry.find(format_id) if format_id is not None else None
    found: list[tuple[Source, Reader]] = []
    others: dict[Path, list[str]] = {}
    for path, folder in expand(asked):
        try:
            source = load(path)
        except TraceError as error:
            if folder is None:
                raise
            others.setdefault(folder, []).append(f"{Path(path).name} ({error.reason.splitlines()[0]})")
            continue
        if folder is None and forced is not None:
            found.append((source, forced))
            continue
        reader = registry.detect(source.head, source.name)
        if reader is None and folder is None:
            raise TraceError(_unknown(source), file=source.name)
        if folder is not None and (reader is None or (forced is not None and reader is not forced)):
            what = registry.known_no_trace(source.head) if reader is None else f"format {reader.id}"
            others.setdefault(folder, []).append(source.path.name + (f" ({what})" if what else ""))  # type: ignore[union-attr]
            continue
        if reader is not None:
            found.append((source, reader))
    kinds = {reader.id for _, reader in found}
    if len(kinds) > 1:
        listing = "".join(f"\n  {source.name}: {reader.id}" for source, reader in found)
        raise InputError(f"files of several formats, choose one with --format:{listing}")
    if not found:
        where = ", ".join(map(str, asked))
        wanted = f"trace of format {format_id}" if format_id else "trace"
        seen = "; ".join(name for names in others.values() for name in names)
        raise InputError(f"{where}: the folder holds no {wanted}; it holds {seen}")
    for folder, names in others.items():
        notes.append(f"left out of {folder}: {', '.join(names)}")
    return found[0][1], [source for source, _ in found]


def _unknown(source: Source) -> str:
    if not source.data.strip():
        return "is empty: it holds no jobs"
    what = registry.known_no_trace(source.head)
    if what is not None:
        return f"is not a trace but {what}"
    known = ", ".join(formats())
    own = f"{', '.join(REQUIRED[:-1])} and {REQUIRED[-1]}"
    lacks = [name for name in REQUIRED if name not in source.head.header]
    first = source.head.lines[0] if source.head.lines else ""
    seen = f"; its first line is {_shortened(first)!r}" if first and first.isprintable() else ""
    found = f" (it lacks {', '.join(lacks)})" if 0 < len(lacks) < len(REQUIRED) else ""
    return (
        f"has no known trace format{seen}. A CSV of your own needs the columns {own}{found}; for any other format that "
        f"gpuloom reads name it with --format: {known}"
    )


def _shortened(line: str, most: int = 60) -> str:
    return line if len(line) <= most else f"{line[:most]}…"


def _name(asked: list[Path | str], sources: list[Source]) -> str:
    if len(asked) == 1 and Path(asked[0]).is_dir():
        return Path(asked[0]).resolve().name
    stems = [source.stem for source in sources]
    return "+".join(stems) if len(stems) <= 3 else f"{stems[0]}+{len(stems) - 1} more"
