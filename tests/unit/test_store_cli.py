"""`gpuloom db`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.db import db
from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.store.connect import schema_version
from gpuloom.store.errors import StoreBusy, StoreError
from gpuloom.store.home import Home, take_lock
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path / "home").create()
    monkeypatch.setenv("GPULOOM_HOME", str(home.path))
    with SqliteStore(home.db) as store:
        writer = Writer(store)
        writer.start(writer.submit())
    return home


def run(*words: object) -> Result:
    """As cli/main.py calls it; errors come out as they are."""
    result = CliRunner().invoke(db, [str(word) for word in words], standalone_mode=False)
    if isinstance(result.exception, GpuloomError):
        raise result.exception
    assert result.exception is None, result.exception
    return result


def test_check_of_a_sound_store(home: Home) -> None:
    result = run("check")
    assert result.return_value == 0
    assert result.output == f"{home.db}: schema {schema_version()}, 3 events, 1 job, 1 attempt\nsound\n"
    found = json.loads(run("check", "--json").output)
    assert found == {
        "path": str(home.db),
        "sound": True,
        "schema_version": schema_version(),
        "events": 3,
        "jobs": 1,
        "attempts": 1,
        "findings": [],
    }


def test_check_runs_beside_a_scheduler_that_writes(home: Home) -> None:
    with take_lock(home), SqliteStore(home.db) as store:
        writer = Writer(store)
        writer.last = 3
        writer.write(("scheduler.started", None, {}))
        assert json.loads(run("check", "--json").output)["events"] == 4


def test_check_says_what_is_wrong_and_what_helps(home: Home) -> None:
    with closing(sqlite3.connect(home.db)) as connection, connection:
        connection.execute("UPDATE jobs SET priority = 3")
    result = run("check", "--home", home.path)
    assert result.return_value == 1
    assert "job: job 1: priority is 3 in the table, 0 by the log" in result.output
    assert "gpuloom db restore FILE" in result.output
    found = run("check", "--json")
    assert found.return_value == 1
    assert json.loads(found.output)["findings"][0]["what"] == "job"


@pytest.mark.parametrize("words", [["check"], ["backup", "copy.db"]])
def test_where_there_is_no_store(tmp_path: Path, words: list[str]) -> None:
    with pytest.raises(InputError, match=r"there is no store here; `gpuloom up` makes one") as error:
        run(*words, "--home", tmp_path / "none")
    assert error.value.exit_code == 2
    assert not (tmp_path / "none").exists()


def test_backup_and_restore(home: Home, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert f"{copy}: a copy of {home.db}" in run("backup", copy).output
    with pytest.raises(InputError, match="--overwrite"):
        run("backup", copy)
    found = json.loads(run("backup", copy, "--overwrite", "--json").output)
    assert found == {"path": str(home.db), "backup": str(copy), "bytes": copy.stat().st_size}
    with SqliteStore(home.db) as store:
        store.save_memory("rl", b"later")
    with take_lock(home), pytest.raises(StoreBusy, match="gpuloom down") as busy:
        run("restore", copy)
    assert busy.value.exit_code == 1
    done = json.loads(run("restore", copy, "--json").output)
    assert (done["sound"], done["jobs"], done["path"]) == (True, 1, str(home.db))
    with SqliteStore(home.db) as store:
        assert store.load().memory is None
    with SqliteStore(Path(done["replaced"])) as store:
        assert store.load().memory == ("rl", b"later")
    again = run("restore", copy)
    assert "the old store is kept as" in again.output
    assert (again.exit_code, again.return_value) == (0, 0)


def test_restore_of_what_is_no_backup(home: Home, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("not a store\n" * 100)
    with pytest.raises(StoreError, match="this is not a gpuloom store"):
        run("restore", tmp_path / "notes")
    assert run("check").return_value == 0


@pytest.mark.parametrize("command", ["check", "backup", "restore"])
def test_help_has_examples(command: str) -> None:
    assert f"gpuloom db {command}" in run(command, "--help").output
