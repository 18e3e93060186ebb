"""What a start finds of a damaged store: it opens none that could cost somebody a job."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fake_executor import FakeExecutor
from gpuloom.live import store_check
from gpuloom.live.parts import LiveScheduler
from gpuloom.live.store_check import Checked, StoreCheck
from gpuloom.store import examine
from gpuloom.store.errors import StoreDamagedError, StoreError
from gpuloom.store.home import home_of, take_lock
from gpuloom.store.port import CheckReport, Finding
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer
from until import until

ENDED, RUNNING, QUEUED, TASK, HELD = 1, 2, 3, 5, 7


def made(path: Path) -> None:
    """A store with jobs that ended (and others, so that it has some pages), run, wait, wait in an array, are held."""
    with SqliteStore(path) as store:
        writer = Writer(store)
        writer.start(writer.submit(env={"A": "b"}))
        writer.end(ENDED)
        writer.start(writer.submit())
        writer.submit()
        writer.submit(count=3, indices=[0, 1, 2], name="many")
        writer.submit(held=True)
        writer.write(("job.flagged", QUEUED, {"flag": "idle", "text": "x"}))
        writer.write(("policy.set", None, {"policy": "fifo", "interval_s": 1.0}))
        for _ in range(60):
            job = writer.submit(name="x" * 150)
            writer.start(job)
            writer.end(job)


def sql(*statements: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for statement in statements:
                connection.execute(statement)
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    return damage


def pages_of(path: Path, name: str) -> list[int]:
    with closing(sqlite3.connect(path)) as connection:
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    return [root, size]


def page_of(name: str) -> Callable[[Path], None]:
    """Bytes of the first page of a table or index, turned."""

    def damage(path: Path) -> None:
        root, size = pages_of(path, name)
        with path.open("r+b") as file:
            file.seek((root - 1) * size)
            page = bytearray(file.read(size))
            for at in range(0, size, 7):
                page[at] ^= 0x55
            file.seek((root - 1) * size)
            file.write(page)

    return damage


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def other_log(path: Path) -> None:
    """The write-ahead log of another store beside it: some pages of that one stand in for its own."""
    other = path.with_name("other.db")
    with SqliteStore(other) as store:
        writer = Writer(store)
        for _ in range(100):
            writer.submit(name="y" * 200)
        with closing(sqlite3.connect(other)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        writer.submit()
        shutil.copy(f"{other}-wal", f"{path}-wal")


def index_of_before(path: Path) -> None:
    """An index that does not know a job that waits: it would never be loaded."""
    sql(
        "PRAGMA writable_schema = ON",
        "CREATE TEMP TABLE kept AS SELECT sql FROM sqlite_master WHERE name = 'jobs_by_phase'",
        "UPDATE sqlite_master SET sql = 'CREATE INDEX jobs_by_phase ON jobs (phase, id) WHERE id != 3' "
        "WHERE name = 'jobs_by_phase'",
    )(path)
    sql("REINDEX jobs_by_phase")(path)
    sql(
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE INDEX jobs_by_phase ON jobs (phase, id)' WHERE name = 'jobs_by_phase'",
    )(path)


COSTLY = {
    "bytes of the jobs": page_of("jobs"),
    "bytes of the events": page_of("events"),
    "bytes of the attempts": page_of("attempts"),
    "bytes of an index": page_of("jobs_by_phase"),
    "an index that lacks a job": index_of_before,
    "half the file": truncated,
    "a job that waits counts as finished": sql(f"UPDATE jobs SET phase = 'finished', ended_s = 5 WHERE id = {QUEUED}"),
    "a job that ended waits again": sql(f"UPDATE jobs SET phase = 'queued', ended_s = NULL WHERE id = {ENDED}"),
    "a held job waits": sql(f"UPDATE jobs SET phase = 'queued' WHERE id = {HELD}"),
    "a task of an array is gone": sql(f"DELETE FROM jobs WHERE id = {TASK}"),
    "a job is gone": sql(f"DELETE FROM jobs WHERE id = {QUEUED}"),
    "an attempt is gone": sql(f"DELETE FROM attempts WHERE job = {RUNNING}"),
    "an attempt runs on other GPUs": sql(f"UPDATE attempts SET allocation = '[[\"b\",[7]]]' WHERE job = {RUNNING}"),
    "an attempt has another name": sql(f"UPDATE attempts SET identity = 'x' WHERE job = {RUNNING}"),
    "a job asks for more": sql(f"UPDATE jobs SET gpus = 7 WHERE id = {QUEUED}"),
    "a job waits for another": sql(f"UPDATE jobs SET after_jobs = '[[1,\"ok\"]]' WHERE id = {QUEUED}"),
    "another command": sql("UPDATE specs SET spec = replace(spec, 'train.py', 'other.py')"),
    "a spec that is no JSON": sql("UPDATE specs SET spec = '{'"),
    "a spec is gone": sql(f"DELETE FROM specs WHERE id = (SELECT spec_id FROM jobs WHERE id = {QUEUED})"),
    "an event is gone": sql("DELETE FROM events WHERE id = 5"),
    "an event about a job that waits is no JSON": sql(f"UPDATE events SET data = '{{' WHERE job = {QUEUED}"),
    "the numbers of jobs begin again": sql("UPDATE meta SET value = '2' WHERE key = 'next_job'"),
    "a job of no event": sql(
        "CREATE TEMP TABLE one AS SELECT * FROM jobs WHERE id = 3", "UPDATE one SET id = 900",
        "INSERT INTO jobs SELECT * FROM one",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "store.db"
    made(path)
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    """A copy of it in a home of its own."""
    path = home_of(tmp_path / "home").create().db
    assert not sound.with_name(f"{sound.name}-wal").exists(), "all is in the one file"
    shutil.copy(sound, path)
    return path


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", COSTLY)
def test_no_store_with_costly_damage_is_opened(
    path: Path, kind: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    COSTLY[kind](path)
    if large:
        monkeypatch.setattr(examine, "ALL_EVENTS", 0)
    home = home_of(path.parent)
    before = path.read_bytes()
    executor = FakeExecutor()
    with pytest.raises(StoreError) as error:
        LiveScheduler(home, slots=2, executor=executor)
    assert "gpuloom db check" in str(error.value)
    assert "gpuloom db restore" in str(error.value)
    assert not executor.starts
    assert path.read_bytes() == before
    take_lock(home).release()


@pytest.mark.parametrize("large", [False, True])
def test_a_sound_store_is_opened(path: Path, large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr(examine, "ALL_EVENTS", 0)
    with SqliteStore(path, read_only=True) as store:
        found = store.examine()
    assert not found.report.findings
    assert found.complete is not large


def test_the_log_of_another_store_is_found(path: Path) -> None:
    other_log(path)
    with pytest.raises(StoreError, match="gpuloom db restore"):
        LiveScheduler(home_of(path.parent), slots=2, executor=FakeExecutor())


def test_a_long_look_at_the_file_is_cut_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "ALL_EVENTS", 0)
    monkeypatch.setattr(examine, "FILE_S", -1.0)
    monkeypatch.setattr(examine, "_STEPS", 1)
    page_of("jobs_by_name")(path)
    with SqliteStore(path, read_only=True) as store:
        found = store.examine()  # what only a look at all pages would have found
    assert not found.complete


@pytest.mark.slow
def test_what_a_start_did_not_look_at_is_checked_beside_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "ALL_EVENTS", 0)
    sql(f"UPDATE jobs SET message = 'x' WHERE id = {ENDED}")(path)
    told: list[str] = []
    live = LiveScheduler(home_of(path.parent), slots=2, executor=FakeExecutor())
    assert live.check is not None
    assert live.check._db == path
    live.close_unstarted()
    check = StoreCheck(path, told.append)
    check.start()
    assert check._worker.end(60.0)
    assert check.checked is Checked.DAMAGED
    assert "message is 'x' in the table" in told[0]
    assert "gpuloom db restore" in told[0]
    sql(f"UPDATE jobs SET message = '' WHERE id = {ENDED}")(path)
    again = StoreCheck(path, told.append)
    again.start()
    assert again._worker.end(60.0)
    assert again.checked is Checked.WHOLE
    assert len(told) == 1


def test_the_damage_is_named_as_such(path: Path) -> None:
    COSTLY["a job that waits counts as finished"](path)
    with pytest.raises(StoreDamagedError, match=r"job 3.*`gpuloom ls`, `show`, `events`"):
        LiveScheduler(home_of(path.parent), slots=2, executor=FakeExecutor())


def test_the_mark_of_a_damaged_store_is_there_as_long_as_it_is_damaged(tmp_path: Path) -> None:
    home = home_of(tmp_path)

    def found(*findings: Finding) -> Any:
        report = CheckReport(schema_version=4, events=1, jobs=1, attempts=1, findings=findings)
        return SimpleNamespace(examine=lambda: SimpleNamespace(report=report))

    store_check.examine(home, found())
    assert not home.damaged.exists()
    with pytest.raises(StoreDamagedError) as error:
        store_check.examine(home, found(Finding("jobs", "job 3 is gone")))
    text = home.damaged.read_text()
    assert "job 3 is gone" in text
    assert str(error.value) == f"{text.strip()}; {store_check.READABLE}"
    store_check.examine(home, found())
    assert not home.damaged.exists()


class FakeCheck:
    """`gpuloom db check` as a process that says this, once it may, or that was killed."""

    def __init__(self, said: bytes = b"", complained: bytes = b"", code: int = 0) -> None:
        self._out, self._code = (said, complained), code
        self.pid = os.getpid()
        self.returncode: int | None = None
        self.argv: list[str] = []
        self.may_end = threading.Event()

    def __call__(self, argv: list[str], **more: Any) -> FakeCheck:
        self.argv = argv
        return self

    def communicate(self) -> tuple[bytes, bytes]:
        assert self.may_end.wait(60.0)
        self.returncode = self._code if self.returncode is None else self.returncode
        return self._out

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self.returncode = -9
        self.may_end.set()


@pytest.fixture
def checking(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCheck], FakeCheck]:
    def use(process: FakeCheck) -> FakeCheck:
        monkeypatch.setattr(store_check.subprocess, "Popen", process)
        monkeypatch.setattr(store_check.os, "setpriority", lambda *of: None)
        return process

    return use


def test_closed_while_the_store_is_checked_it_ends_that_and_says_nothing(
    checking: Callable[[FakeCheck], FakeCheck], tmp_path: Path
) -> None:
    told: list[str] = []
    process, check = checking(FakeCheck(b"{}")), StoreCheck(tmp_path / "store.db", told.append)
    check.start()
    until(lambda: process.argv)
    check.close()
    assert process.returncode == -9
    assert not check._worker.alive
    assert (told, check.checked) == ([], Checked.PART)


def test_closed_before_it_begins_it_checks_nothing(checking: Callable[[FakeCheck], FakeCheck], tmp_path: Path) -> None:
    process, check = checking(FakeCheck()), StoreCheck(tmp_path / "store.db", lambda text: None)
    check.close()
    check._run()
    assert process.argv == []


@pytest.mark.parametrize(
    ("process", "says"),
    [
        (FakeCheck(b"", b"Traceback\nMemoryError: no room\n", 2), "(MemoryError: no room)"),
        (FakeCheck(b"half a li"), "Expecting value"),
        (FakeCheck(b"", b"", -9), "()"),
    ],
)
def test_a_check_that_fails_is_told_with_what_it_said_last(
    checking: Callable[[FakeCheck], FakeCheck], tmp_path: Path, process: FakeCheck, says: str
) -> None:
    told: list[str] = []
    process.may_end.set()
    checking(process)
    check = StoreCheck(tmp_path / "store.db", told.append)
    check._run()
    (text,) = told
    assert text.startswith("the rest of the store could not be checked (")
    assert says in text
    assert check.checked is Checked.PART
    assert process.argv[-2:] == ["--home", str(tmp_path)]
