"""Replaces a store by a backup."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from gpuloom.core.errors import InputError
from gpuloom.store.backup import BESIDE, copy_database, sync
from gpuloom.store.connect import open_reader
from gpuloom.store.errors import StoreError
from gpuloom.store.faults import store_error
from gpuloom.store.home import Home, take_lock
from gpuloom.store.port import CheckReport
from gpuloom.store.sqlite import SqliteStore


@dataclass(frozen=True, slots=True)
class Restored:
    """replaced: where the file lies that was there before, if there was one. report: of the store as it is now.
    strangers: runs that go on in this home and that the backup does not know as going on; the scheduler ends them."""

    path: Path
    replaced: Path | None
    report: CheckReport
    strangers: tuple[str, ...]


def restore(home: Home, backup: Path) -> Restored:
    """Put a backup in the place of a home's store, after it was checked. The file replaced is kept beside it.

    Raises:
        StoreBusy: a scheduler has the store open. StoreError: the backup is not sound, or can't be put there.
        InputError: there is no such backup, or it is the store itself.
    """
    if not backup.is_file():
        raise InputError(f"{backup}: there is no such file")
    if home.db.exists() and backup.samefile(home.db):
        raise InputError(f"{backup}: this is the store itself; name a backup")
    home.create()
    with take_lock(home):
        part = home.db.with_name(f".{home.db.name}.{secrets.token_hex(6)}.part")
        try:
            try:
                with closing(open_reader(backup, older=True)) as source:
                    copy_database(source, backup, part, overwrite=False)
            except sqlite3.Error as error:
                raise store_error(error, backup, "read the backup") from error
            report, known = _checked(part, backup)
            try:
                replaced = _swap(home.db, part)
            except OSError as error:
                raise store_error(error, home.db, "put the backup in its place") from error
        finally:
            for ending in ("", *BESIDE):
                Path(f"{part}{ending}").unlink(missing_ok=True)
    return Restored(home.db, replaced, report, _strangers(home, known))


def _strangers(home: Home, known: set[str]) -> tuple[str, ...]:
    if not home.live.is_dir():
        return ()
    return tuple(
        sorted(
            entry.name for entry in home.live.iterdir() if not entry.name.endswith(".new") and entry.name not in known
        )
    )


def _checked(part: Path, backup: Path) -> tuple[CheckReport, set[str]]:
    """What `check` says of a backup, and the runs that it knows as going on."""
    with SqliteStore(part) as copy:
        report = copy.check()
        known = set() if report.findings else {attempt.run for attempt in copy.load(recent=0).attempts}
    if report.findings:
        first = report.findings[0]
        more = f" (and {len(report.findings) - 1} more)" if len(report.findings) > 1 else ""
        raise StoreError(
            f"{backup}: this backup is damaged: {first.detail}{more}. Nothing was changed; take another backup"
        )
    return report, known


def _swap(db: Path, part: Path) -> Path | None:
    """`part` takes the place of `db` in one step; `db` stays under another name."""
    replaced = None
    aside: list[tuple[Path, Path]] = []
    try:
        if db.exists():
            _fold_log(db)
            stamp = time.strftime("%Y%m%d-%H%M%S")
            kept = next(path for n in range(10_000) if not (path := _kept_name(db, stamp, n)).exists())
            os.link(db, kept)
            replaced = kept
        # A log that could not be folded in belongs to the file replaced; the new one would take it for its own.
        for ending in BESIDE:
            if (beside := Path(f"{db}{ending}")).exists():
                log = Path(f"{replaced or _kept_name(db, 'lost', 0)}{ending}")
                beside.rename(log)
                aside.append((log, beside))
        sync(db.parent)
        os.replace(part, db)
    except OSError:
        with suppress(OSError):  # what can't be put back stays beside it, under the other name
            for log, beside in aside:
                log.rename(beside)
            if replaced is not None:
                replaced.unlink()
        raise
    sync(db.parent)
    return replaced


def _kept_name(db: Path, stamp: str, number: int) -> Path:
    return db.with_name(f"{db.name}.replaced-{stamp}" + (f"-{number}" if number else ""))


def _fold_log(db: Path) -> None:
    """Bring what is in the write-ahead log into the file itself. Of a damaged store that is not to be had."""
    with suppress(sqlite3.Error), closing(sqlite3.connect(db, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
