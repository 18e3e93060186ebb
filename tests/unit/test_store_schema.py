"""The store's schema: what it refuses, its migrations, and that queries use their indexes."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from gpuloom.core.job import ACTIVE, ENDED, EndReason, Phase
from gpuloom.store import connect, queries
from gpuloom.store.connect import Migration, migrations, schema_version
from gpuloom.store.errors import StoreError
from gpuloom.store.port import JobQuery
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store with a job that runs (1) and one that has finished (2)."""
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        writer = Writer(store)
        for job in (writer.submit(), writer.submit()):
            writer.start(job)
        writer.end(2)
    return path


def test_every_phase_and_reason_is_known_to_the_schema_and_no_other(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:

        def takes(sql: str, *values: object) -> bool:
            connection.execute("BEGIN")
            try:
                connection.execute(sql, values)
            except sqlite3.IntegrityError:
                return False
            finally:
                connection.execute("ROLLBACK")
            return True

        for phase in Phase:
            end = 1.0 if phase in ENDED else None
            assert takes("UPDATE jobs SET phase = ?, ended_s = ? WHERE id = 1", phase, end)
            assert not takes("UPDATE jobs SET phase = ?, ended_s = ? WHERE id = 1", phase, None if end else 1.0)
            assert takes("UPDATE attempts SET phase = ? WHERE job = 1", phase) == (phase in ACTIVE)
        for reason in set(EndReason) - {EndReason.PEER}:  # that one is of members alone
            assert takes("UPDATE jobs SET reason = ?", reason)
            assert takes("UPDATE attempts SET stop_reason = ?", reason)
            assert takes("UPDATE attempts SET reason = ? WHERE job = 2", reason)
        for column in ("jobs SET phase", "jobs SET reason", "attempts SET stop_reason"):
            assert not takes(f"UPDATE {column} = 'bored'")
        assert not takes("UPDATE attempts SET reason = 'bored' WHERE job = 2")
        assert not takes("UPDATE attempts SET reason = NULL WHERE job = 2")
        assert not takes("UPDATE jobs SET gpus = 0")
        assert not takes("UPDATE jobs SET held_s = -1.0")


def test_writers_are_durable_and_hold_references(tmp_path: Path) -> None:
    with closing(connect.open_writer(tmp_path / "store.db")) as writer:
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert writer.execute("PRAGMA synchronous").fetchone() == (2,)
        assert writer.execute("PRAGMA foreign_keys").fetchone() == (1,)
        assert writer.execute("PRAGMA busy_timeout").fetchone() == (connect.BUSY_TIMEOUT_MS,)


def test_readers_can_not_write(path: Path) -> None:
    with closing(connect.open_reader(path)) as reader, pytest.raises(sqlite3.OperationalError):
        reader.execute("DELETE FROM events")


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch(mode=0o644)
    with SqliteStore(path) as store:
        Writer(store).submit()
        for file in tmp_path.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
        assert {file.name for file in tmp_path.iterdir()} == {"store.db", "store.db-wal", "store.db-shm"}


def test_migrations_are_numbered_from_one_without_gaps() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


def _one_more(sql: str) -> list[Migration]:
    return [*migrations(), Migration(len(migrations()) + 1, "test", sql)]


def test_an_older_store_is_brought_up_to_date_and_keeps_what_it_has(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SqliteStore(path) as store:
        before, identity = store.load(), store.store_id
    steps = _one_more("CREATE TABLE extra (x); -- a; comment\nINSERT INTO extra VALUES ('a;b');\n-- the end\n")
    monkeypatch.setattr(connect, "migrations", lambda: steps)
    with pytest.raises(StoreError, match=r"older gpuloom .*`gpuloom up` brings it up to date"):
        SqliteStore(path, read_only=True)
    with SqliteStore(path) as store:
        assert (store.load(), store.store_id, store.schema_version) == (before, identity, len(steps))
        assert store.check().findings == ()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT x FROM extra").fetchall() == [("a;b",)]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(connect, "migrations", lambda: _one_more("CREATE TABLE extra (x);\nDROP TABLE missing;\n"))
        with pytest.raises(StoreError, match="no such table: missing"):
            SqliteStore(path)
    with SqliteStore(path) as store:
        assert store.check().findings == ()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'extra'").fetchone() == (0,)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_newer_store_is_refused(path: Path, read_only: bool) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
    written = path.read_bytes()
    with pytest.raises(
        StoreError, match=r"store.db: written by a newer gpuloom \(schema 99; this one knows up to \d+\)"
    ):
        SqliteStore(path, read_only=read_only)
    assert path.read_bytes() == written


def plan(path: Path, statement: queries.Statement) -> str:
    sql, given = statement
    with closing(sqlite3.connect(path)) as connection:
        return " ".join(str(row[3]) for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", given))


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (queries.jobs(JobQuery(ids=(1, 2))), "USING INTEGER PRIMARY KEY"),
        (queries.jobs(JobQuery(phases=("queued",))), "jobs_by_phase"),
        (queries.jobs(JobQuery(users=("ada",))), "jobs_by_user"),
        (queries.jobs(JobQuery(names=("train",))), "jobs_by_name"),
        (queries.jobs(JobQuery(array_id=3)), "jobs_of_array"),
        (queries.jobs_to_load(["queued"], 10), "jobs_by_end"),
        (queries.events(0, 3, (), 10, False), "events_of_job"),
        (queries.events(0, None, ("job.held",), 10, True), "events_by_type"),
        (queries.events(5, None, (), 10, False), "USING INTEGER PRIMARY KEY"),
        (queries.runs_in(1.0, 2.0), "attempts_by_end"),
        (queries.history_page((1.0, 0), 2.0, 10), "jobs_by_submission (submitted_s=? AND id>?)"),
        ((queries.statements()["ended_runs_of_name"], ["ada", "train", 5]), "finished_by_name"),
        ((queries.statements()["ended_runs_of_user"], ["ada", 5]), "finished_by_user"),
        ((queries.statements()["measured_runs"], ["ada", "train", 5]), "finished_by_name"),
        ((queries.statements()["counts"], []), "COVERING INDEX jobs_by_phase"),
        (queries.attempts([1, 2]), "SEARCH attempts USING PRIMARY KEY"),
    ],
)
def test_queries_use_their_indexes(path: Path, statement: queries.Statement, index: str) -> None:
    found = plan(path, statement)
    assert index in found
    assert "SCAN jobs " not in f"{found} ".replace("SCAN jobs USING COVERING INDEX jobs_by_phase", "")
    assert "SCAN events" not in found


def test_the_numbers_of_migrations_follow_each_other() -> None:
    """Of two with one number the second would never be applied."""
    assert [migration.number for migration in migrations()] == list(range(1, schema_version() + 1))
