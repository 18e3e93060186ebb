"""Errors of SQLite and the file system, in words that say what to do about them."""

from __future__ import annotations

import errno
import os
import sqlite3
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from gpuloom.store.errors import StoreBusy, StoreError

if TYPE_CHECKING:
    from gpuloom.store.port import CheckReport

RESTORE = "`gpuloom db check` says what is wrong, `gpuloom db restore FILE` puts a backup in its place"

READABLE = "until then `gpuloom ls`, `show`, `events`, `history export` and `db backup` read what can be read of it"


def damaged_text(path: Path, report: CheckReport) -> str:
    """The message about a store with findings."""
    first, more = report.findings[0], len(report.findings) - 1
    others = f" (and {more} more)" if more else ""
    return f"{path}: the store is damaged: {first.detail}{others}; {RESTORE}"


_BY_TEXT = {
    "database or disk is full": "SQLITE_FULL",
    "attempt to write a readonly database": "SQLITE_READONLY",
    "database is locked": "SQLITE_BUSY",
    "disk I/O error": "SQLITE_IOERR",
    "file is not a database": "SQLITE_NOTADB",
    "unable to open database file": "SQLITE_CANTOPEN",
}
_BY_ERRNO = {
    errno.ENOSPC: "SQLITE_FULL",
    errno.EDQUOT: "SQLITE_FULL",
    errno.EROFS: "SQLITE_READONLY",
    errno.EACCES: "SQLITE_PERM",
    errno.EPERM: "SQLITE_PERM",
    errno.EIO: "SQLITE_IOERR",
    errno.ENOENT: "SQLITE_CANTOPEN",
    errno.ENOTDIR: "SQLITE_CANTOPEN",
    errno.EMFILE: "SQLITE_CANTOPEN",
}


def store_error(error: sqlite3.Error | OSError, path: Path, doing: str) -> StoreError:
    """The error to raise in place of this one: names the file, what is wrong, and what helps.

    doing: what was tried, such as 'read' or 'write'.
    """
    name = "SQLITE_CANTOPEN" if path.is_dir() else _name(error)
    if name.startswith("SQLITE_IOERR") and _full(path):
        name = "SQLITE_FULL"  # what a full disk looks like from the write-ahead log's index
    where = f"{path}: can't {doing}: "
    if name.startswith("SQLITE_FULL"):
        lacks_inodes = _lacking(path if path.is_dir() else path.parent) is _Lacks.INODES
        full = "no inodes are left" if lacks_inodes else "the disk is full"
        return StoreError(f"{where}{full}; make room on the disk ({_room(path)})")
    if name.startswith("SQLITE_READONLY") or name in {"SQLITE_PERM", "SQLITE_AUTH"}:
        return StoreError(
            f"{where}the file, its directory or the file system is read-only, or belongs to another user ({error}); "
            f"make {path.parent} writable for user {os.geteuid()}"
        )
    if name.startswith("SQLITE_NOTADB"):
        return StoreError(f"{where}this is not a gpuloom store ({error}); name another file or home directory")
    if name.startswith("SQLITE_CORRUPT"):
        return StoreError(f"{where}the file is damaged ({error}); {RESTORE}")
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"{where}another process keeps it locked ({error}); stop that process, or try again")
    if name.startswith("SQLITE_CANTOPEN"):
        return StoreError(f"{where}{_why_not_opened(path)}")
    if name.startswith("SQLITE_IOERR"):
        return StoreError(f"{where}the disk failed ({error}, {name}); check the system log and the disk")
    if isinstance(error, sqlite3.IntegrityError):
        return StoreError(f"{where}the database refused this ({error}): this is a bug, please report it")
    return StoreError(f"{where}{error} ({name or type(error).__name__})")


def _name(error: sqlite3.Error | OSError) -> str:
    if isinstance(error, OSError):
        return _BY_ERRNO.get(error.errno or 0, "")
    name: str | None = getattr(error, "sqlite_errorname", None)
    return name or _BY_TEXT.get(str(error), "")


def _free(path: Path) -> int | None:
    try:
        room = os.statvfs(path if path.is_dir() else path.parent)
    except OSError:
        return None
    return room.f_bavail * room.f_frsize


def _full(path: Path) -> bool:
    free = _free(path)
    return free is not None and free < 64 * 1024


class _Lacks(StrEnum):
    """What a disk has run out of."""

    NOTHING = ""
    SPACE = "no space is left"
    INODES = "no inodes are left"


def _lacking(folder: Path) -> _Lacks:
    try:
        found = os.statvfs(folder)
    except OSError:
        return _Lacks.NOTHING  # nobody knows
    if found.f_blocks and not found.f_bavail:
        return _Lacks.SPACE
    return _Lacks.INODES if found.f_files and not found.f_favail else _Lacks.NOTHING


def no_room(folder: Path) -> str:
    """A message if nothing can be written there; '' if it can, or if that is unknown."""
    return _lacking(folder).value


def _room(path: Path) -> str:
    free = _free(path)
    return f"{path.parent} has {'unknown space' if free is None else f'{free / 2**20:,.1f} MiB'} free"


def _why_not_opened(path: Path) -> str:
    if path.is_dir():
        return "this is a directory; name the file"
    if not path.parent.is_dir():
        return f"the directory {path.parent} does not exist; create it or name another"
    if lacking := no_room(path.parent):
        return f"{lacking} on the disk of {path.parent}; make room there"
    if not path.exists():
        return f"there is no such file, and {path.parent} may not be written to by user {os.geteuid()}"
    return f"no permission for user {os.geteuid()}, or too many open files; look at its owner and mode"
