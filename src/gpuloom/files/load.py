"""From what the user names (files, folders, archives, '-') to unpacked sources."""

from __future__ import annotations

import io
import sys
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from gpuloom.core.errors import InputError, TraceError
from gpuloom.files.source import Source
from gpuloom.files.unpack import GZIP, UnpackedTooLargeError, gunzip

MEMBER = "::"
_SUFFIXES = {".gz", ".csv", ".tsv", ".txt", ".trace", ".parquet"}
_TAR_MAGIC = slice(257, 262)
_NAMED = 8
"""Most files of an archive that a message names."""

MOST_BYTES = 8 * 2**30
"""Largest size of a file, unpacked."""
DENSE_BYTES, MOST_TIMES = 2**30, 200
"""Above this many bytes, the limit on the ratio of unpacked to packed size (of traces: 3 to 30)."""


def expand(paths: Sequence[Path | str]) -> list[tuple[Path | str, Path | None]]:
    """The files that the user means, each with the folder it was found in (None: named directly).

    Raises:
        InputError: a path is not there, is given twice, or is a folder without files.
    """
    found: list[tuple[Path | str, Path | None]] = []
    for path in paths:
        if str(path) == "-" or _is_member(path):
            found.append((str(path), None))
        elif Path(path).is_dir():
            inside = sorted(p for p in Path(path).iterdir() if p.is_file() and not p.name.startswith("."))
            if not inside:
                folders = sorted(p.name for p in Path(path).iterdir() if p.is_dir())
                hint = f"; it has the folders {', '.join(folders)}" if folders else ""
                raise InputError(f"{path}: the folder holds no files{hint}")
            found += [(file, Path(path)) for file in inside]
        elif Path(path).exists():
            found.append((Path(path), None))
        else:
            raise InputError(f"{path}: no such file or folder")
    seen: set[str] = set()
    for entry, _ in found:
        key = entry if isinstance(entry, str) else str(entry.resolve())
        if key in seen:
            raise InputError(f"{entry} is given twice")
        seen.add(key)
    if not found:
        raise InputError("no trace given: name a file, a folder or '-' for standard input")
    return found


def load(path: Path | str) -> Source:
    """Read and unpack one file, archive member (`FILE.tar.gz::MEMBER`) or standard input ('-').

    Raises:
        TraceError: damaged compression, or an archive without a member's name.
        OSError: the file can't be read.
    """
    text = str(path)
    if text == "-":
        return Source("<stdin>", "stdin", _gunzip(sys.stdin.buffer.read(), "<stdin>"))
    if _is_member(path):
        archive, member = text.split(MEMBER, 1)
        if not Path(archive).is_file():
            raise InputError(f"{archive}: no such file")
        members = read_members(Path(archive), "")
        if member not in members:
            known = _some(sorted(members))
            raise TraceError(f"holds no file {member!r}; it has {', '.join(known)}", file=archive)
        data = _gunzip(members[member], text)
        return Source(text, _stem(Path(member)), data, Path(archive))
    data = _gunzip(Path(path).read_bytes(), text)
    if is_tar(data):
        listing = _some([f"{text}{MEMBER}{name}" for name in _names(data, text)])
        raise TraceError("is an archive: name one of its files\n" + "\n".join(f"  {one}" for one in listing), file=text)
    return Source(text, _stem(Path(path)), data, Path(path))


def _is_member(path: Path | str) -> bool:
    return MEMBER in str(path) and not Path(path).exists()


def is_tar(data: bytes) -> bool:
    return data[_TAR_MAGIC] == b"ustar"


def read_members(archive: Path, suffix: str = ".csv") -> dict[str, bytes]:
    """The files of a tar archive whose names end with `suffix`, by name.

    Raises:
        TraceError: not an archive, damaged, or no such file in it.
    """
    data = _gunzip(archive.read_bytes(), str(archive))
    if not is_tar(data):
        raise TraceError("is not a tar archive", file=str(archive))
    found: dict[str, bytes] = {}
    total = 0
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            for member in tar:
                if not member.isfile() or not member.name.endswith(suffix):
                    continue
                total += member.size
                if total > len(data):  # a sparse file: holes take no room in an archive
                    raise TraceError(f"{member.name} says that it is larger than the archive", file=str(archive))
                file = tar.extractfile(member)
                if file is not None:
                    found[member.name] = file.read()
    except tarfile.TarError as error:
        raise TraceError(f"damaged archive: {error}", file=str(archive)) from error
    if not found:
        names = ", ".join(_some(_names(data, str(archive))))
        raise TraceError(f"holds no file that ends with {suffix!r}; it has {names}", file=str(archive))
    return found


def read_unpacked(path: Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped."""
    return _gunzip(path.read_bytes(), str(path))


def _names(data: bytes, name: str) -> list[str]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            return sorted(member.name for member in tar if member.isfile())
    except tarfile.TarError as error:
        raise TraceError(f"damaged archive: {error}", file=name) from error


def _some(names: list[str]) -> list[str]:
    """As many of them as a message has room for."""
    more = len(names) - _NAMED
    return names if more <= 1 else [*names[:_NAMED], f"and {more:,} more"]


def _gunzip(data: bytes, name: str) -> bytes:
    if not data.startswith(GZIP):
        return data
    try:
        return gunzip(data, min(MOST_BYTES, max(DENSE_BYTES, MOST_TIMES * len(data))))
    except UnpackedTooLargeError as error:
        raise TraceError(
            f"{error}, packed it is {len(data) / 2**20:,.1f} MiB; if that is meant, unpack it before (gunzip)",
            file=name,
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"damaged gzip file: {error}", file=name) from error


def _stem(path: Path) -> str:
    while path.suffix.lower() in _SUFFIXES and path.stem:
        path = path.with_suffix("")
    return path.name
