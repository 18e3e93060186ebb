"""Opens a store's file: checks what it is, configures SQLite, and upgrades the schema."""

from __future__ import annotations

import os
import re
import sqlite3
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from urllib.parse import quote

from gpuloom.core.masked import masked
from gpuloom.store.errors import StoreError
from gpuloom.store.faults import RESTORE
from gpuloom.store.rows import dumps, loads

APPLICATION_ID = 0x67706C6D
BUSY_TIMEOUT_MS = 5000
FILE_MODE = 0o600


@dataclass(frozen=True, slots=True)
class Migration:
    """A step from one version of the schema to the next: `number` is the version that it leads to."""

    number: int
    name: str
    sql: str


@cache
def migrations() -> Sequence[Migration]:
    """All steps, in order: 1, 2, 3, …"""
    found = []
    for entry in resources.files("gpuloom.store").joinpath("migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match is not None:
            found.append(Migration(int(match[1]), match[2], entry.read_text(encoding="utf-8")))
    return sorted(found, key=lambda migration: migration.number)


def schema_version() -> int:
    """The version that this program writes."""
    return migrations()[-1].number


# -- connections -----------------------------------------------------------------------------------------------


def open_writer(path: Path) -> sqlite3.Connection:
    """A connection that writes, to a file that is made and brought up to date if need be.

    Raises:
        sqlite3.Error, OSError: see faults.py. StoreError: the file is not a store, or a newer program's.
    """
    _private(path)
    connection = _connect(path, "rw")
    try:
        refuse_others(connection, path)
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreError(
                f"{path}: its file system can't keep a write-ahead log (SQLite stays in mode {mode!r}); "
                "put the home directory on a local disk"
            )
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA secure_delete = ON")  # environments hold secrets
        connection.execute(f"PRAGMA journal_size_limit = {64 * 2**20}")
        migrate(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, *, older: bool = False) -> sqlite3.Connection:
    """A connection that can't write. older: an older program's store will do.

    Raises:
        sqlite3.Error: see faults.py. StoreError: the file is not a store, or one of another version.
    """
    connection = _connect(path, "ro")
    try:
        try:
            version = refuse_others(connection, path)
        except sqlite3.OperationalError:
            # A file in a place where nothing may be written can't get the log's index beside it. Without a log it
            # holds all there is, and is read as what nobody can change.
            if _may_write(path.parent) or not path.is_file() or _log_beside(path):
                raise
            connection.close()
            connection = _connect(path, "ro&immutable=1")
            version = refuse_others(connection, path)
        if version < schema_version() and not (older and version):
            raise StoreError(
                f"{path}: written by an older gpuloom (schema {version}; this one reads {schema_version()}); "
                "`gpuloom up` brings it up to date"
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_MS / 1000, isolation_level=None, check_same_thread=False
    )
    if mode != "rw":
        connection.execute("PRAGMA query_only = ON")
    return connection


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _private(path: Path) -> None:
    """The file, there and readable by its owner alone. SQLite gives those beside it the same mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)


def _log_beside(path: Path) -> bool:
    log = Path(f"{path}-wal")
    return log.exists() and log.stat().st_size > 0


# -- schema ----------------------------------------------------------------------------------------------------


def version_of(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def refuse_others(connection: sqlite3.Connection, path: Path) -> int:
    """The schema's version; 0 of an empty file.

    Raises:
        StoreError: another program's database, or a newer gpuloom's store.
    """
    version = version_of(connection)
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application != APPLICATION_ID and (application or version or tables):
        raise StoreError(f"{path}: this is another program's SQLite database; name another file or home directory")
    if version > schema_version():
        raise StoreError(
            f"{path}: written by a newer gpuloom (schema {version}; this one knows up to {schema_version()}); "
            "install that version again, or restore an older backup with `gpuloom db restore FILE`"
        )
    if application == APPLICATION_ID and (version < 1 or not tables):
        raise StoreError(f"{path}: the schema is gone; {RESTORE}")
    return version


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the steps that are missing, each in a transaction of its own."""
    for migration in migrations():
        if migration.number <= version_of(connection):
            continue
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have done it while this one waited for the lock.
            if refuse_others(connection, path) < migration.number:
                _apply(connection, migration)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _apply(connection: sqlite3.Connection, migration: Migration) -> None:
    # Not executescript: it commits first.
    connection.create_function("environment_of", 1, _environment_of, deterministic=True)
    connection.create_function("without_environment", 1, _without_environment, deterministic=True)
    for statement in _statements(migration.sql):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {migration.number}")
    if migration.number == 1:
        facts = {"store_id": uuid.uuid4().hex, "created_s": time.time(), "next_job": 1}
        connection.executemany(
            "INSERT INTO meta (key, value) VALUES (?, ?)", [(key, dumps(value)) for key, value in facts.items()]
        )


def _environment_of(spec: str) -> str | None:
    """The environment in a spec; None of one without."""
    env = loads(spec).get("env")
    return dumps(env) if isinstance(env, dict) and env else None


def _without_environment(data: str) -> str:
    """A spec, or the data of an event that brings one, with names of environment variables alone."""
    found = loads(data)
    return dumps({**found, "spec": masked(found["spec"])} if "spec" in found else masked(found))


def _statements(sql: str) -> list[str]:
    found, part = [], ""
    for line in sql.splitlines(keepends=True):
        part += line
        if sqlite3.complete_statement(part):
            found.append(part)
            part = ""
    if part.strip() and not all(line.lstrip().startswith("--") for line in part.strip().splitlines()):
        raise ValueError(f"a migration ends in half a statement: {part.strip()[:80]!r}")
    return found
