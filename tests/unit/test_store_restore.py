"""Backups and their return; the home directory and its lock."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from faults import Fault, Injector
from gpuloom.core.errors import InputError
from gpuloom.store.errors import StoreBusy, StoreError
from gpuloom.store.home import Home, home_of, take_lock
from gpuloom.store.restore import restore
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home").create()


@pytest.fixture
def backup(home: Home, tmp_path: Path) -> Path:
    """A backup with one job; the store has three."""
    with SqliteStore(home.db) as store:
        writer = Writer(store)
        writer.submit()
        store.backup(tmp_path / "backup.db")
        writer.submit()
        writer.submit()
    return tmp_path / "backup.db"


def test_backups_leave_no_file_open(home: Home, tmp_path: Path) -> None:
    with SqliteStore(home.db) as store:
        Writer(store).submit()
        store.backup(tmp_path / "0.db")
        before = len(os.listdir("/proc/self/fd"))
        for number in range(1, 4):
            store.backup(tmp_path / f"{number}.db")
        assert len(os.listdir("/proc/self/fd")) <= before  # what others left may be closed meanwhile


def jobs_in(path: Path) -> int:
    with SqliteStore(path, read_only=True) as store:
        return sum(store.counts().values())


def names(home: Home) -> list[str]:
    return sorted(path.name for path in home.path.iterdir())


class TestRestore:
    def test_a_store_that_stays_keeps_what_is_in_its_log(
        self, home: Home, backup: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One who reads it meanwhile keeps the log from being folded in."""
        monkeypatch.setattr("gpuloom.store.restore._fold_log", lambda db: None)  # it would wait for the reader
        whole = Path(shutil.copytree(home.path, home.path.with_name("whole")))
        with Injector(("store/restore.py",)) as seen:
            restore(Home(whole), backup)
        call = next(call for call in seen.calls if call.function == "replace")
        with closing(sqlite3.connect(home.db, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            assert reader.execute("SELECT count(*) FROM jobs").fetchone() == (3,)
            with SqliteStore(home.db) as store:
                store.save_memory("rl", b"x")
            before = names(home)
            with Injector(("store",), Fault(call, errno.EIO)), pytest.raises(StoreError, match="in its place: "):
                restore(home, backup)
            assert names(home) == sorted({*before, "scheduler.lock"})
            with SqliteStore(home.db) as store:
                assert store.load().memory == ("rl", b"x")

    def test_the_backup_takes_the_stores_place_and_the_store_is_kept(self, home: Home, backup: Path) -> None:
        done = restore(home, backup)
        assert jobs_in(home.db) == 1
        assert done.replaced is not None
        assert jobs_in(done.replaced) == 3
        assert done.replaced.parent == home.path
        assert (done.report.jobs, done.report.findings) == (1, ())
        assert stat.S_IMODE(home.db.stat().st_mode) == 0o600
        assert jobs_in(backup) == 1
        again = restore(home, backup)
        assert again.replaced not in (None, done.replaced)

    def test_what_is_only_in_the_log_of_the_store_replaced_is_kept_too(self, home: Home, backup: Path) -> None:
        script = (
            "import os, sys; from pathlib import Path; from gpuloom.store.sqlite import SqliteStore; "
            "store = SqliteStore(Path(sys.argv[1])); store.save_memory('rl', b'late'); os._exit(0)"
        )
        subprocess.run([sys.executable, "-c", script, str(home.db)], check=True)
        assert Path(f"{home.db}-wal").stat().st_size > 0
        replaced = restore(home, backup).replaced
        assert jobs_in(home.db) == 1
        with SqliteStore(home.db) as store:
            assert store.load().memory is None
        assert replaced is not None
        with SqliteStore(replaced) as store:
            assert store.load().memory == ("rl", b"late")

    def test_where_there_was_no_store(self, backup: Path, tmp_path: Path) -> None:
        fresh = Home(tmp_path / "fresh")
        done = restore(fresh, backup)
        assert done.replaced is None
        assert names(fresh) == ["scheduler.lock", "store.db"]
        assert jobs_in(fresh.db) == 1

    def test_a_damaged_store_is_replaced_and_kept_as_it_is(self, home: Home, backup: Path) -> None:
        home.db.write_bytes(b"not a store" * 1000)
        Path(f"{home.db}-wal").write_bytes(b"nor a log")
        done = restore(home, backup)
        assert jobs_in(home.db) == 1
        assert done.replaced is not None
        assert done.replaced.read_bytes() == b"not a store" * 1000

    @pytest.mark.parametrize("damage", ["UPDATE jobs SET priority = 5", "DELETE FROM events", "DROP TABLE attempts"])
    def test_a_backup_that_is_not_sound_is_refused(self, home: Home, backup: Path, damage: str) -> None:
        with closing(sqlite3.connect(backup)) as connection, connection:
            connection.execute(damage)
        with pytest.raises(StoreError):
            restore(home, backup)
        assert names(home) == ["scheduler.lock", "store.db"]
        assert jobs_in(home.db) == 3

    def test_what_is_no_backup_is_refused(self, home: Home, backup: Path, tmp_path: Path) -> None:
        (tmp_path / "text").write_text("job,user\n" * 500)
        with pytest.raises(StoreError, match=r"text: can't read the backup: this is not a gpuloom store"):
            restore(home, tmp_path / "text")
        with pytest.raises(InputError, match="there is no such file"):
            restore(home, tmp_path / "none")
        with pytest.raises(InputError, match="this is the store itself"):
            restore(home, home.db)
        (tmp_path / "empty").touch()
        with pytest.raises(StoreError, match="empty"):
            restore(home, tmp_path / "empty")
        assert jobs_in(home.db) == 3

    def test_not_while_a_scheduler_has_the_store_open(self, home: Home, backup: Path) -> None:
        with take_lock(home), pytest.raises(StoreBusy, match=rf"a scheduler \(pid {os.getpid()}\) has this home open"):
            restore(home, backup)
        assert jobs_in(home.db) == 3
        restore(home, backup)


class TestBackup:
    def test_the_store_itself_is_no_target(self, home: Home, backup: Path, tmp_path: Path) -> None:
        os.link(home.db, tmp_path / "link")
        with SqliteStore(home.db) as store:
            for target in (home.db, Path(f"{home.db}-wal"), tmp_path / "link"):
                with pytest.raises(InputError, match="belongs to the store itself"):
                    store.backup(target, overwrite=True)
            with pytest.raises(InputError, match="is a directory"):
                store.backup(tmp_path)
        assert jobs_in(home.db) == 3

    def test_overwrite(self, home: Home, backup: Path) -> None:
        with SqliteStore(home.db) as store:
            store.backup(backup, overwrite=True)
        assert jobs_in(backup) == 3

    def test_a_backup_is_one_file_that_can_be_read_alone(self, backup: Path) -> None:
        with closing(sqlite3.connect(f"file:{backup}?mode=ro&immutable=1", uri=True)) as connection:
            assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (1,)
        assert [path.name for path in backup.parent.iterdir() if "backup" in path.name] == ["backup.db"]


class TestHome:
    def test_where_it_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "by-variable"))
        assert home_of(tmp_path / "given").path == tmp_path / "given"
        assert home_of().path == tmp_path / "by-variable"
        monkeypatch.delenv("GPULOOM_HOME")
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
        assert home_of().path == tmp_path / "data" / "gpuloom"
        monkeypatch.setenv("XDG_DATA_HOME", "relative")
        monkeypatch.setenv("HOME", str(tmp_path))
        assert home_of().path == tmp_path / ".local" / "share" / "gpuloom"
        assert home_of("~/mine").path == tmp_path / "mine"
        monkeypatch.chdir(tmp_path)
        assert home_of("here").path == tmp_path / "here"

    def test_it_is_made_for_its_owner_alone(self, tmp_path: Path) -> None:
        open_to_all = tmp_path / "a" / "b"
        open_to_all.mkdir(parents=True, mode=0o755)
        for path in (tmp_path / "x" / "y" / "z", open_to_all):
            home = Home(path).create()
            assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
            home.create()

    def test_what_is_no_directory_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(InputError, match="must be a directory"):
            Home(tmp_path / "file").create()
        with pytest.raises(InputError, match="can't be used as home directory"):
            Home(tmp_path / "file" / "below").create()

    def test_a_home_with_a_long_path_leaves_nothing_elsewhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
        Home(tmp_path / ("d" * 60) / ("e" * 60)).create()
        assert [path.name for path in tmp_path.iterdir()] == ["d" * 60]

    def test_the_lock_is_held_by_one_and_let_go(self, home: Home) -> None:
        lock = take_lock(home)
        with pytest.raises(StoreBusy):
            take_lock(home)
        lock.release()
        lock.release()
        take_lock(home).release()

    def test_the_lock_is_let_go_by_a_process_that_dies_and_not_passed_to_its_children(self, home: Home) -> None:
        script = (
            "import os, subprocess, sys; from pathlib import Path; from gpuloom.store.home import Home, take_lock; "
            "lock = take_lock(Home(Path(sys.argv[1]))); child = subprocess.Popen(['sleep', '30'], close_fds=False); "
            "print(child.pid, flush=True); os.kill(os.getpid(), 9)"
        )
        process = subprocess.Popen([sys.executable, "-c", script, str(home.path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.stdout.close()
        process.wait()
        try:
            take_lock(home).release()
        finally:
            os.kill(child, 9)
