"""Delimited text to typed columns: fast on good rows, exact about the first bad one.

Rows are taken in chunks. A column of a chunk is converted at once; only if that fails are its values looked
at one by one, to find which row is bad and why. A bad row is kept aside with its line, column and value.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import EmptyTableError, TraceError
from gpuloom.core.sums import sum_ints
from gpuloom.core.words import did_you_mean, plural
from gpuloom.core.workload import F8, I4, Labels, take_column
from gpuloom.files.clock import timestamps
from gpuloom.files.source import Mask, Part, ReadOptions, Source

CHUNK_ROWS = 1 << 15
INT_MAX = 2**31 - 1
SHOWN = 60  # characters of a value that a message shows
Kind = Literal["number", "whole", "time", "word", "text"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column to read.

    kind: `number` (float), `whole` (int), `time` (calendar time, as seconds since 1970), `word` (few distinct
    values: Labels), `text` (distinct values: list of str).
    minimum, maximum: bounds of numbers, both allowed; `above` is a bound that is not allowed itself.
    empty: what an empty field means; None refuses it. `nothing` are words that count as empty.
    optional: the column may be missing from the file.
    """

    name: str
    kind: Kind = "number"
    minimum: float = -math.inf
    maximum: float = math.inf
    above: float = -math.inf
    empty: float | str | None = None
    nothing: tuple[str, ...] = ()
    optional: bool = False

    def wanted(self) -> str:
        """What a value must be, for messages."""
        if self.kind in ("word", "text"):
            return "must not be empty"
        if self.kind == "time":
            return "must be a time such as 2020-01-31 23:59:59"
        noun = "a whole number" if self.kind == "whole" else "a finite number"
        if self.minimum > -math.inf and self.maximum < INT_MAX:
            return f"must be {noun} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum > -math.inf:
            return f"must be {noun} of at least {self.minimum:g}"
        return f"must be {noun} above {self.above:g}" if self.above > -math.inf else f"must be {noun}"


class _Codes(dict[str, int]):
    """Codes of words in order of first sight, without the spaces around them unless `exact`."""

    def __init__(self, exact: bool) -> None:
        super().__init__()
        self.exact = exact
        self.names: dict[str, int] = {}

    def __missing__(self, word: str) -> int:
        name = word if self.exact else word.strip()
        code = self[word] = self.names.setdefault(name, len(self.names))
        return code


@dataclass(slots=True)
class Table:
    """The rows of a file that could be taken apart, by column, and the rows that are bad."""

    source: Source
    options: ReadOptions
    line: I4
    numbers: dict[str, F8]
    words: dict[str, Labels]
    texts: dict[str, list[str]]
    bad: dict[int, TraceError]
    """Bad rows by line; the first finding on a line stays."""
    utc: bool = False
    notes: list[str] = field(default_factory=list)
    cluster: str = ""
    nodes: str = ""
    _out: Mask | None = None

    def __len__(self) -> int:
        return len(self.line)

    def __getitem__(self, name: str) -> F8:
        return self.numbers[name]

    def __contains__(self, name: str) -> bool:
        return name in self.numbers or name in self.words or name in self.texts

    def ints(self, name: str) -> I4:
        """A column of whole numbers as such; 0 on bad rows."""
        return np.nan_to_num(self.numbers[name]).astype(np.int32)

    def leave_out(self, rows: Mask, why: str) -> None:
        """Leave these rows out, not as bad rows, but with a note: '12 jobs left out, which {why}'."""
        rows = rows & ~self.left_out
        count = int(rows.sum())
        if count:
            self._out = self.left_out | rows
            self.notes.append(f"{self.source.name}: {plural(count, 'job')} left out, which {why}")

    def reject(self, rows: Mask, column: str | None, reason: Callable[[int], str]) -> None:
        """Mark rows as bad; `reason(row)` is asked only for those."""
        for row in np.flatnonzero(rows & ~self.left_out).tolist():
            line = int(self.line[row])
            if line not in self.bad:
                self.bad[line] = TraceError(reason(row), file=self.source.name, line=line, column=column)

    def unique(self, column: str) -> None:
        """Mark rows whose text was used by an earlier row as bad."""
        texts = self.texts[column]
        if len(set(texts)) == len(texts):
            return
        first: dict[str, int] = {}
        again = np.zeros(len(self), dtype=bool)
        for row, text in enumerate(texts):
            again[row] = first.setdefault(text, row) != row
        self.reject(
            again,
            column,
            lambda row: f"{column} {_show(texts[row])} was used before, on line {self.line[first[texts[row]]]}",
        )

    def part(self, submit_s: F8, duration_s: F8, gpus: F8, *, calendar: bool = False, **columns: object) -> Part:
        """The good rows that were not left out, as jobs.

        Raises:
            TraceError: the first bad row, unless bad rows are skipped; or no job is left.
        """
        raise_or_collect(self.bad, self.options)
        good = ~self.left_out
        if self.bad:
            good &= ~np.isin(self.line, np.fromiter(self.bad, dtype=np.int32, count=len(self.bad)))
        if not good.any():
            detail = "; ".join(note.split(": ", 1)[1] for note in self.notes)
            if self.bad:
                detail = "; ".join(
                    filter(None, [f"{plural(len(self.bad), 'bad row')}, the first: {_first(self.bad)}", detail])
                )
            raise EmptyTableError(f"holds no jobs{': ' + detail if detail else ''}", file=self.source.name)
        rows = np.flatnonzero(good)
        columns["line"] = self.line
        taken = {key: take_column(value, rows) for key, value in columns.items() if value is not None}
        return Part(
            submit_s=submit_s[rows],
            duration_s=duration_s[rows],
            gpus=gpus[rows].astype(np.int32),
            columns=taken,
            calendar=calendar,
            utc=self.utc,
            notes=self.notes,
        )

    @property
    def left_out(self) -> Mask:
        """Rows that were left out."""
        return np.zeros(len(self), dtype=bool) if self._out is None else self._out


def raise_or_collect(bad: dict[int, TraceError], options: ReadOptions) -> None:
    """Raise the bad row with the lowest line, or put all of them into `options.bad_rows`."""
    if bad and not options.skip_bad_rows:
        raise _first(bad)
    options.bad_rows.extend(bad[line] for line in sorted(bad))


def read_table(
    source: Source,
    options: ReadOptions,
    columns: Sequence[Column],
    *,
    names: Sequence[str] | None = None,
    delimiter: str = ",",
    exact: bool = False,
    refuse_unknown: bool = False,
    extra: Callable[[str], Column | None] = lambda name: None,
) -> Table:
    """Read a delimited file.

    Args:
        columns: what to read, by name; other columns are passed over.
        names: names of the fields, for a file without a header line.
        exact: keep the spaces around words.
        refuse_unknown: refuse columns that are neither in `columns` nor known to `extra`.
        extra: the column to read for a name that is not in `columns`, or None.

    Raises:
        TraceError: no header, a column missing, twice or unknown, or no rows. Bad rows stand in the table.
    """
    text: io.TextIOWrapper = io.TextIOWrapper(
        io.BytesIO(source.data), encoding="utf-8", errors="surrogateescape", newline=""
    )
    if source.data.startswith(codecs.BOM_UTF8):
        text.read(1)
    # A quote means something between commas only: elsewhere commands and names stand as they were typed.
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if delimiter == "," else csv.QUOTE_NONE
    skipped = 0
    if names is None:
        header, skipped, text = _header(source, text, delimiter)
    else:
        header = list(names)
    wanted, places = match_columns(source, header, columns, refuse_unknown, extra)
    rows = csv.reader(text, delimiter=delimiter, quoting=quoting, strict=True)
    parser = _Parser(source, wanted, places, len(header), exact)
    for chunk, lines in _chunks(rows, parser, skipped):
        parser.add(chunk, lines)
    if not parser.lines and not parser.bad:
        raise EmptyTableError("holds no jobs" + ("" if names is not None else ", only a header"), file=source.name)
    return parser.table(options)


def _header(source: Source, text: io.TextIOWrapper, delimiter: str) -> tuple[list[str], int, io.TextIOWrapper]:
    """The header's words, how many lines it and the comments before it took, and the text after it."""
    for number, line in enumerate(text, 1):
        if not line.strip() or line.startswith("#"):
            continue
        header = [word.strip() for word in next(csv.reader([line], delimiter=delimiter))]
        twice = sorted({word for word in header if header.count(word) > 1})
        if twice:
            raise TraceError(f"the header names column {twice[0]!r} twice", file=source.name, line=number)
        return header, number, text
    raise EmptyTableError("is empty: it holds no jobs", file=source.name)


def match_columns(
    source: Source,
    header: list[str],
    columns: Sequence[Column],
    refuse_unknown: bool,
    extra: Callable[[str], Column | None],
) -> tuple[list[Column], list[int]]:
    known = {column.name: column for column in columns}
    missing = [column.name for column in columns if not column.optional and column.name not in header]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        raise TraceError(
            f"the header lacks {noun} {', '.join(missing)}; it has {_show(', '.join(header))}",
            file=source.name,
        )
    wanted, places = [], []
    for place, name in enumerate(header):
        column = known.get(name) or extra(name)
        if column is not None:
            wanted.append(column)
            places.append(place)
        elif refuse_unknown:
            hint = did_you_mean(name, known) or f"; known columns: {', '.join(known)}"
            raise TraceError(f"unknown column {_show(name)}{hint}", file=source.name)
    return wanted, places


def _chunks(rows: _Rows, parser: _Parser, skipped: int) -> Iterator[tuple[list[list[str]], NDArray[np.int32]]]:
    """Rows and the lines they stand on. A row that breaks the quoting rules goes to `parser.bad`."""
    done = skipped
    while True:
        chunk: list[list[str]] = []
        broken = None
        try:
            chunk.extend(islice(rows, CHUNK_ROWS))
        except csv.Error as error:
            broken = error
        after = skipped + rows.line_num
        if after - done == len(chunk):
            starts = np.arange(done + 1, after + 2, dtype=np.int32)
        else:  # a quoted field may run over several lines: the row begins on the first of them
            taken = [1 + sum_ints(map(_line_breaks, row)) for row in chunk]
            starts = np.cumsum([done + 1, *taken], dtype=np.int32)
        if chunk:
            yield chunk, starts[:-1]
        if broken is not None:
            parser.refuse(int(starts[-1]), None, f"not a row of a CSV file: {broken}")
        elif not chunk:
            return
        done = after


def _line_breaks(text: str) -> int:
    return text.count("\n") + text.count("\r") - text.count("\r\n")


class _Rows(Protocol):
    """A csv.reader."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...
    def __next__(self) -> list[str]: ...


class _Parser:
    """Takes chunks of rows apart into typed columns."""

    def __init__(self, source: Source, columns: list[Column], places: list[int], fields: int, exact: bool) -> None:
        self.source, self.columns, self.places = source, columns, places
        self.fields, self.exact = fields, exact
        self.undecodable = not _is_utf8(source.data)
        self.lines: list[NDArray[np.int32]] = []
        self.bad: dict[int, TraceError] = {}
        self.utc = False
        self.codes = {c.name: _Codes(exact) for c in columns if c.kind == "word"}
        self.parts: dict[str, list[NDArray[np.generic]]] = {c.name: [] for c in columns if c.kind != "text"}
        self.texts: dict[str, list[str]] = {c.name: [] for c in columns if c.kind == "text"}

    def refuse(self, line: int, column: str | None, reason: str) -> None:
        self.bad.setdefault(line, TraceError(reason, file=self.source.name, line=line, column=column))

    def add(self, rows: list[list[str]], lines: NDArray[np.int32]) -> None:
        if set(map(len, rows)) != {self.fields} or self.undecodable:
            good = [self._well_formed(row, line) for row, line in zip(rows, lines.tolist(), strict=True)]
            rows = [row for row, ok in zip(rows, good, strict=True) if ok]
            lines = lines[np.asarray(good, dtype=bool)]
            if not rows:
                return
        by_place = list(zip(*rows, strict=True))
        self.lines.append(lines)
        for column, place in zip(self.columns, self.places, strict=True):
            values = by_place[place]
            if column.kind == "word":
                codes = self.codes[column.name]
                self.parts[column.name].append(
                    np.fromiter(map(codes.__getitem__, values), dtype=np.int32, count=len(values))
                )
                if column.empty is None and "" in codes.names:
                    self._refuse_empty(column, values, lines)
            elif column.kind == "text":
                kept = list(values) if self.exact else [value.strip() for value in values]
                self.texts[column.name].extend(kept)
                if column.empty is None and "" in kept:
                    self._refuse_empty(column, values, lines)
            else:
                self.parts[column.name].append(self._numbers(column, values, lines))

    def table(self, options: ReadOptions) -> Table:
        lines = np.concatenate(self.lines) if self.lines else np.empty(0, dtype=np.int32)
        empty = np.empty(0)
        joined = {name: np.concatenate(parts) if parts else empty for name, parts in self.parts.items()}
        words = {
            name: Labels(joined[name].astype(np.int32, copy=False), tuple(codes.names))
            for name, codes in self.codes.items()
        }
        numbers = {name: column.astype(np.float64, copy=False) for name, column in joined.items() if name not in words}
        return Table(self.source, options, lines, numbers, words, self.texts, self.bad, self.utc)

    def _well_formed(self, row: list[str], line: int) -> bool:
        if not row or (len(row) == 1 and not row[0].strip() and self.fields > 1):
            return False  # an empty line is not a row
        if self.undecodable and not all(map(_encodable, row)):
            self.refuse(line, None, "holds bytes that are not UTF-8 text")
            return False
        if len(row) != self.fields:
            self.refuse(line, None, f"has {len(row)} fields, must have {self.fields}")
            return False
        return True

    def _refuse_empty(self, column: Column, values: Sequence[str], lines: NDArray[np.int32]) -> None:
        for value, line in zip(values, lines.tolist(), strict=True):
            if not (value if self.exact else value.strip()):
                self.refuse(line, column.name, f"{column.name} is empty, {column.wanted()}")

    def _numbers(self, column: Column, values: Sequence[str], lines: NDArray[np.int32]) -> F8:
        void = frozenset(("", *column.nothing))
        try:
            if column.empty is None or not any(value in void for value in values):
                array = self._convert(column, values)
                if not out_of_bounds(column, array).any():
                    return array
            else:
                there = np.fromiter((value not in void for value in values), dtype=bool, count=len(values))
                array = np.full(len(values), float(column.empty))
                array[there] = self._convert(column, [value for value in values if value not in void])
                if not out_of_bounds(column, array[there]).any():
                    return array
        except (ValueError, OverflowError):
            pass  # some value is not a number: found below, one by one
        array = np.empty(len(values))
        for row, (value, line) in enumerate(zip(values, lines.tolist(), strict=True)):
            text = value.strip()
            if text in void:
                array[row] = math.nan if column.empty is None else float(column.empty)
                if column.empty is None:
                    self.refuse(line, column.name, f"{column.name} is empty, {column.wanted()}")
                continue
            try:
                array[row] = self._convert(column, (text,))[0]
            except (ValueError, OverflowError):
                array[row] = math.nan
            if out_of_bounds(column, array[row : row + 1])[0]:
                self.refuse(line, column.name, f"{column.name} is {_show(text)}, {column.wanted()}")
                array[row] = math.nan
        return array

    def _convert(self, column: Column, values: Sequence[str]) -> F8:
        if column.kind == "time":
            array, utc = timestamps(values)
            self.utc |= utc
            return array
        joined = "".join(values)
        if "_" in joined or not joined.isascii():  # Python's float() would take 1_000 and digits of any script
            raise ValueError
        return np.fromiter(map(float, values), dtype=np.float64, count=len(values))


def out_of_bounds(column: Column, array: F8) -> Mask:
    bad = ~np.isfinite(array)
    if column.kind == "whole":
        bad |= (array != np.floor(array)) | (array > INT_MAX)
    if column.minimum > -math.inf:
        bad |= array < column.minimum
    if column.maximum < math.inf:
        bad |= array > column.maximum
    if column.above > -math.inf:
        bad |= array <= column.above
    return bad


def check_numbers(table: Table, column: Column, *, missing: Mask) -> None:
    """Apply a column's bounds to numbers that did not come from text (Parquet). `missing` rows are fine."""
    array = table[column.name]
    table.reject(
        out_of_bounds(column, array) & ~missing,
        column.name,
        lambda row: f"{column.name} is {float(array[row])!r}, {column.wanted()}",
    )


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _encodable(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _show(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")


def _first(bad: dict[int, TraceError]) -> TraceError:
    return bad[min(bad)]
