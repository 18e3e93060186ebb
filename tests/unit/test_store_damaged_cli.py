"""A damaged store: `up` says what to do, and what reads still reads."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.core.errors import GpuloomError
from gpuloom.store.home import home_of
from gpuloom.store.sqlite import SqliteStore
from store_builders import NODE, Writer


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = home_of(tmp_path / "home").create()
    with SqliteStore(home.db) as store:
        writer = Writer(store)
        writer.write(
            ("node.changed", None, {"node": NODE}), ("policy.set", None, {"policy": "fifo", "interval_s": 1.0})
        )
        for _ in range(3):
            writer.start(writer.submit())
        writer.end(1)
        writer.end(2)
    return home.path


def damage(home: Path, sql: str) -> None:
    with closing(sqlite3.connect(home / "store.db")) as connection, connection:
        connection.execute(sql)


def gpuloom(home: Path, *words: str) -> Result:
    return CliRunner().invoke(cli, [*words, "--home", str(home)], standalone_mode=False)


DAMAGES = {
    "a record": "UPDATE jobs SET gpus = 7 WHERE id = 1",
    "a spec that is no JSON": "UPDATE specs SET spec = '{' WHERE id = (SELECT spec_id FROM jobs WHERE id = 2)",
    "an event that is gone": "DELETE FROM events WHERE id = 4",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", DAMAGES)
def test_what_reads_still_reads(home: Path, tmp_path: Path, kind: str) -> None:
    damage(home, DAMAGES[kind])
    refused = gpuloom(home, "up", "--detach", "--slots", "1", "--port", "0").exception
    assert isinstance(refused, GpuloomError)
    assert "the store is damaged" in str(refused)
    assert "gpuloom db restore FILE" in str(refused)
    found = gpuloom(home, "ls", "--all", "--json")
    assert found.exception is None, found.exception
    assert [job["id"] for job in json.loads(found.stdout)] == [3, 2, 1]
    assert "no scheduler is running; this was read from the store" in found.stderr
    shown = gpuloom(home, "show", "1", "--json")
    assert json.loads(shown.stdout)["job"]["state"] == "finished"
    assert gpuloom(home, "show", "2").exception is None
    assert json.loads(gpuloom(home, "events", "--json").stdout)[0]["id"] == 1
    assert gpuloom(home, "history", "export", str(tmp_path / "past.csv")).exception is None
    assert gpuloom(home, "db", "backup", str(tmp_path / "copy.db")).exception is None
    assert gpuloom(home, "db", "check").return_value == 1
    change = gpuloom(home, "cancel", "3").exception
    assert isinstance(change, GpuloomError)
    assert "no scheduler is running, and none can start" in str(change)


def test_a_sound_store_without_a_scheduler_is_not_read_behind_its_back(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqliteStore, "__init__", None)  # nor opened
    error = gpuloom(home, "ls").exception
    assert isinstance(error, GpuloomError)
    assert "gpuloom up" in str(error)


@pytest.mark.slow
def test_a_store_that_was_put_back_is_not_read_any_more(home: Path, tmp_path: Path) -> None:
    assert gpuloom(home, "db", "backup", str(tmp_path / "good.db")).exception is None
    damage(home, DAMAGES["a record"])
    gpuloom(home, "up", "--detach", "--slots", "1", "--port", "0")
    assert gpuloom(home, "ls").exception is None
    assert gpuloom(home, "db", "restore", str(tmp_path / "good.db")).exception is None
    error = gpuloom(home, "ls").exception
    assert isinstance(error, GpuloomError)
    assert "gpuloom up" in str(error)
    assert gpuloom(home, "up", "--detach", "--slots", "1", "--port", "0").exception is None
    assert not home_of(home).damaged.exists()
    assert gpuloom(home, "down").exception is None
