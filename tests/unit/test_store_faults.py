"""A store on a full disk, on a read-only one, damaged, not a store at all, pulled away while in use."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from gpuloom.core.book import Changes
from gpuloom.core.events import Event
from gpuloom.store.errors import StoreBusy, StoreError
from gpuloom.store.port import JobQuery, Submission
from gpuloom.store.sqlite import POINTS, SqliteStore
from store_builders import Writer, same, submitted

NOBODY = 65534


# -- faults that are made ----------------------------------------------------------------------------------------


class Faulty(SqliteStore):
    """Raises `fault` where `append` comes to `point`."""

    point = ""
    fault: BaseException | None = None

    def _at(self, point: str) -> None:
        if point == self.point and self.fault is not None:
            raise self.fault


FULL = sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("point", POINTS[:-1])
@pytest.mark.parametrize(("fault", "says"), [(FULL, "disk is full"), (OSError(errno.EROFS, "so it is"), "read-only")])
def test_a_fault_at_any_step_changes_nothing_and_is_over_when_it_is_gone(
    tmp_path: Path, point: str, fault: Exception, says: str
) -> None:
    with Faulty(tmp_path / "store.db") as store:
        writer = Writer(store)
        writer.start(writer.submit())
        before = store.load()
        store.point, store.fault = point, fault
        with pytest.raises(StoreError, match=says) as error:
            writer.write(("jobs.submitted", None, submitted(2)), submissions=[Submission("k", "d", (2,), 1.0)])
        assert str(tmp_path / "store.db") in str(error.value)
        assert store.load() == before
        same(before, writer.book)
        store.point = ""
        writer.write(("jobs.submitted", None, submitted(2)), submissions=[Submission("k", "d", (2,), 1.0)])
        same(store.load(), writer.book)
        assert store.check().findings == ()


def test_a_commit_that_is_made_and_reports_a_fault_counts_as_made(tmp_path: Path) -> None:
    with Faulty(tmp_path / "store.db") as store:
        writer = Writer(store)
        store.point, store.fault = "committed", FULL
        for _ in range(3):
            writer.submit()
        same(store.load(), writer.book)
        assert store.check().findings == ()


def test_what_is_no_fault_of_the_disk_comes_out_as_it_is(tmp_path: Path) -> None:
    with Faulty(tmp_path / "store.db") as store:
        writer = Writer(store)
        store.point, store.fault = "jobs", KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            writer.submit()
        assert store.events() == []
        store.point = ""
        writer.submit()


def test_who_is_interrupted_after_a_commit_goes_on_behind_it(tmp_path: Path) -> None:
    """The store looks into its file, not at what it remembers, once a call did not return as it should."""
    with Faulty(tmp_path / "store.db") as store:
        writer = Writer(store)
        writer.submit()
        store.point, store.fault = "committed", KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            writer.submit()
        store.point = ""
        (_, made) = store.events()
        writer.book.commit(writer.book.stage([made]))
        writer.last = made.id
        writer.submit()
        same(store.load(), writer.book)
        assert store.check().findings == ()


class Slow(SqliteStore):
    """Waits before the commit until it may go on."""

    def __init__(self, path: Path) -> None:
        self.there, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        super().__init__(path)

    def _at(self, point: str) -> None:
        if point == "commit":
            self.there.set()
            assert self.go_on.wait(60)


def test_readers_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    with Slow(tmp_path / "store.db") as store:
        writer = Writer(store)
        writer.submit()
        store.there.clear()
        store.go_on.clear()
        slow = threading.Thread(target=writer.submit)
        slow.start()
        try:
            assert store.there.wait(60)
            assert store.load().last_event == 1
            assert store.check().findings == ()
        finally:
            store.go_on.set()
            slow.join()
        assert store.load().last_event == 2


# -- a full disk -------------------------------------------------------------------------------------------------


@contextmanager
def few_pages(folder: Path) -> Iterator[Callable[[SqliteStore], None]]:
    """A file that may not grow."""

    def limit(store: SqliteStore, pages: int = 1) -> None:
        with store._lock:
            store._open().execute(f"PRAGMA max_page_count = {pages}")

    yield limit


@contextmanager
def small_disk(folder: Path) -> Iterator[Callable[[SqliteStore], None]]:
    """A disk of 1 MiB, which a file of others fills."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "gpuloom-test", str(folder)], check=True)
    try:

        def fill(_: SqliteStore) -> None:
            with open(folder / "others", "wb", buffering=0) as file, suppress(OSError):
                while file.write(b"\0" * 4096):
                    pass
            assert os.statvfs(folder).f_bavail == 0

        yield fill
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def _can_mount() -> bool:
    if os.geteuid() != 0:
        return False
    with tempfile.TemporaryDirectory() as folder:
        words = ["-t", "tmpfs", "-o", "size=64k", "gpuloom-test", folder]
        if subprocess.run(["mount", *words], capture_output=True).returncode != 0:
            return False
        subprocess.run(["umount", folder], check=True)
    return True


DISKS = [few_pages, small_disk] if _can_mount() else [few_pages]


def submit_for_ever(writer: Writer) -> None:
    for _ in range(2000):
        writer.submit(env={"A": "x" * 3000})


@pytest.mark.parametrize("disk", DISKS)
def test_a_full_disk(tmp_path: Path, disk: Callable[[Path], object]) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    with disk(folder) as fill, SqliteStore(folder / "store.db") as store:  # type: ignore[attr-defined]
        writer = Writer(store)
        writer.start(writer.submit())
        fill(store)
        with pytest.raises(StoreError, match="the disk is full") as error:
            submit_for_ever(writer)
        assert f"{folder / 'store.db'}: can't write" in str(error.value)
        same(store.load(), writer.book)
        with pytest.raises(StoreError, match="the disk is full"):
            store.save_memory("rl", b"x" * 2_000_000)
        if disk is few_pages:
            fill(store, 2**30)
        else:
            (folder / "others").unlink()
        writer.submit()
        store.save_memory("rl", b"x")
        same(store.load(), writer.book)
        assert store.check().findings == ()


@pytest.mark.parametrize("folder", ["/dev/null", "/proc"])
def test_a_backup_that_can_not_be_written(tmp_path: Path, folder: str) -> None:
    with SqliteStore(tmp_path / "store.db") as store:
        Writer(store).submit()
        with pytest.raises(StoreError, match=rf"{folder}/copy.db: can't write the copy"):
            store.backup(Path(folder) / "copy.db")


if small_disk in DISKS:

    def test_a_backup_to_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
        folder = tmp_path / "disk"
        folder.mkdir()
        with SqliteStore(tmp_path / "store.db") as store, small_disk(folder) as fill:
            Writer(store).submit()
            fill(store)
            with pytest.raises(StoreError, match=r"copy.db: can't write the copy: the disk is full"):
                store.backup(folder / "copy.db")
            assert [path.name for path in folder.iterdir()] == ["others"]


# -- where nothing may be written ----------------------------------------------------------------------------------


@contextmanager
def an_ordinary_user() -> Iterator[None]:
    """Root may write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user can get to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        path.chmod(0o755)
        yield path
        path.chmod(0o755)


def test_a_store_in_a_place_that_is_read_only_can_be_read(public: Path) -> None:
    path = public / "store.db"
    with SqliteStore(path) as store:
        writer = Writer(store)
        writer.submit()
    path.chmod(0o444)
    public.chmod(0o555)
    with an_ordinary_user():
        with pytest.raises(StoreError, match=r"store.db: can't open: .*read-only.* make .* writable for user"):
            SqliteStore(path)
        with SqliteStore(path, read_only=True) as store:
            same(store.load(), writer.book)
            assert store.check().findings == ()
            with pytest.raises(StoreError, match="read only"):
                store.append([Event(2, 2.0, "scheduler.started")], Changes())


def test_a_store_can_not_be_made_where_nothing_may_be_written(public: Path) -> None:
    public.chmod(0o555)
    with an_ordinary_user(), pytest.raises(StoreError, match=f"{public}/store.db: can't open: .*writable for user"):
        SqliteStore(public / "store.db")


def test_a_file_that_becomes_read_only_while_in_use(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store.db") as store:
        writer = Writer(store)
        writer.submit()
        with store._lock:
            store._open().execute("PRAGMA query_only = ON")
        with pytest.raises(StoreError, match="read-only"):
            writer.submit()
        with store._lock:
            store._open().execute("PRAGMA query_only = OFF")
        writer.submit()
        same(store.load(), writer.book)


def test_another_process_that_writes_is_named_as_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.store.connect.BUSY_TIMEOUT_MS", 50)
    path = tmp_path / "store.db"
    with SqliteStore(path) as store, closing(sqlite3.connect(path, isolation_level=None)) as other:
        writer = Writer(store)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="another process keeps it locked"):
            writer.submit()
        other.execute("ROLLBACK")
        writer.submit()


def test_two_schedulers_on_one_store_are_told_apart(tmp_path: Path) -> None:
    with SqliteStore(tmp_path / "store.db") as one, SqliteStore(tmp_path / "store.db") as two:
        first, second = Writer(one), Writer(two)
        first.submit()
        with pytest.raises(StoreError, match="event 1 can't follow event 1: something else wrote"):
            second.submit()
        first.submit()
        assert one.check().findings == ()


# -- files that are none, or no more -------------------------------------------------------------------------------


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_no_database(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "store.db"
    path.write_text("job,user\n" * 1000)
    with pytest.raises(StoreError, match=f"{path}: can't open: this is not a gpuloom store"):
        SqliteStore(path, read_only=read_only)
    assert path.read_text() == "job,user\n" * 1000


@pytest.mark.parametrize("read_only", [True, False])
def test_another_programs_database(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "store.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE bookmarks (x)")
    with pytest.raises(StoreError, match="another program's SQLite database"):
        SqliteStore(path, read_only=read_only)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda path: None, "there is no such file"),
        (lambda path: path.mkdir(), "this is a directory"),
    ],
)
def test_what_is_not_there_can_not_be_read(tmp_path: Path, make: Callable[[Path], None], says: str) -> None:
    make(tmp_path / "store.db")
    with pytest.raises(StoreError, match=says):
        SqliteStore(tmp_path / "store.db", read_only=True)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"the directory .*/none does not exist"):
        SqliteStore(tmp_path / "none" / "store.db")


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    path.touch()
    with SqliteStore(path) as store:
        Writer(store).submit()
    with SqliteStore(path, read_only=True) as store:
        assert [job.id for job in store.load().jobs] == [1]


@pytest.fixture
def sizeable(tmp_path: Path) -> Path:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        writer = Writer(store)
        writer.submit(count=300, indices=list(range(300)))
        for job in range(1, 200):
            writer.write(("job.held", job, {}), ("job.released", job, {}))
    return path


def health(path: Path) -> str:
    """What opening and checking have to say; '' for a clean bill of health."""
    try:
        with SqliteStore(path, read_only=True) as store:
            return "; ".join(finding.detail for finding in store.check().findings)
    except StoreError as error:
        return str(error) if str(path) in str(error) else ""


def contents(path: Path) -> tuple[object, ...]:
    with SqliteStore(path, read_only=True) as store:
        return store.load(), store.events(limit=10_000), store.jobs(JobQuery(users=("ada",), limit=1000))


def test_damage_is_found_wherever_it_is(sizeable: Path) -> None:
    """Zeros over a stretch of the file: never anything but StoreError, and a clean bill of health only if the stretch
    held nothing (there is room in a database's pages)."""
    assert health(sizeable) == ""
    whole, before, found = sizeable.read_bytes(), contents(sizeable), 0
    for at in range(0, len(whole) - 2048, len(whole) // 16):
        sizeable.write_bytes(whole[:at] + b"\0" * 2048 + whole[at + 2048 :])
        if health(sizeable):
            found += 1
        else:
            assert contents(sizeable) == before, f"zeros at byte {at} of {len(whole)} were not found"
    assert found > 8


def test_a_file_cut_short(sizeable: Path) -> None:
    os.truncate(sizeable, sizeable.stat().st_size // 2)
    assert "damaged" in health(sizeable) or "malformed" in health(sizeable)


def test_records_changed_by_hand_are_named_field_by_field(sizeable: Path) -> None:
    with closing(sqlite3.connect(sizeable)) as connection, connection:
        connection.execute("UPDATE jobs SET priority = 7 WHERE id = 5")
        connection.execute("UPDATE jobs SET estimate_s = 1.0 WHERE id > 200")
        connection.execute("DELETE FROM jobs WHERE id = 6")
        connection.execute("DELETE FROM events WHERE id = 399")
        connection.execute("UPDATE meta SET value = '17' WHERE key = 'next_job'")
    with SqliteStore(sizeable, read_only=True) as store:
        details = [finding.detail for finding in store.check().findings]
    assert "job 5: priority is 7 in the table, 0 by the log" in details
    assert "job 6 is in the log and not in the table" in details
    assert "the next job's number is 17, but by the log it is 301" in details
    assert any("job 201: estimate_s is 1.0 in the table, 3600.0 by the log" in detail for detail in details)
    assert any(detail.startswith("… and ") and detail.endswith("more") for detail in details)
    assert len(details) < 30


def test_a_gap_in_the_log_is_named(sizeable: Path) -> None:
    with closing(sqlite3.connect(sizeable)) as connection, connection:
        connection.execute("DELETE FROM events WHERE id = 7")
    with SqliteStore(sizeable, read_only=True) as store:
        details = [finding.detail for finding in store.check().findings]
    assert "event 7 is missing: event 8 follows instead" in details


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_pulled_away_while_in_use_takes_nothing_more(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "store.db"
    with SqliteStore(path) as store:
        writer = Writer(store)
        writer.submit()
        path.rename(tmp_path / "elsewhere")
        if replaced:
            path.touch()
        with pytest.raises(StoreError, match="was replaced" if replaced else "was removed"):
            writer.submit()
        (tmp_path / "elsewhere").rename(path)
        writer.submit()
        same(store.load(), writer.book)
