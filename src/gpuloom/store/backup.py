"""Copies of a store, made while it is in use."""

from __future__ import annotations

import os
import secrets
import sqlite3
from contextlib import closing
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.store.connect import FILE_MODE
from gpuloom.store.faults import store_error

BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite may keep beside a database."""


def copy_database(source: sqlite3.Connection, store: Path, target: Path, *, overwrite: bool) -> None:
    """Copy what `source` (a connection to `store`) sees to `target`: whole or not at all.

    Raises:
        InputError: the target is there already, or is the store. StoreError: it can't be written.
    """
    target = Path(os.path.abspath(target))
    for own in (store, *(Path(f"{store}{ending}") for ending in BESIDE)):
        if target == own or (target.exists() and own.exists() and target.samefile(own)):
            raise InputError(f"{target}: belongs to the store itself; name another file")
    if target.is_dir():
        raise InputError(f"{target}: is a directory; name a file")
    if target.exists() and not overwrite:
        raise InputError(f"{target} exists already; --overwrite replaces it")
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.part")
    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except OSError as error:
        raise store_error(error, target, "write the copy") from error
    try:
        with closing(sqlite3.connect(part, isolation_level=None)) as copy:
            source.backup(copy)
            # One file that needs nothing beside it, and can be read where nothing may be written.
            copy.execute("PRAGMA journal_mode = DELETE")
        sync(part)
        os.replace(part, target)
        sync(target.parent)
    except (sqlite3.Error, OSError) as error:
        raise store_error(error, target, "write the copy") from error
    finally:
        for ending in ("", *BESIDE):
            Path(f"{part}{ending}").unlink(missing_ok=True)


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
