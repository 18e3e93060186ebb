"""Processes that die by kill -9 while they write to the store."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuloom.core.book import Book
from gpuloom.store.sqlite import POINTS, SqliteStore
from store_builders import Writer, same

TESTS = str(Path(__file__).resolve().parents[1])

AT_EVERY_POINT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_builders import NODE, Writer, submitted, starting
from gpuloom.store.port import Submission
from gpuloom.store.sqlite import POINTS, SqliteStore

class Dying(SqliteStore):
    dies_at = ""
    def _at(self, point):
        if point == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

for point in POINTS:
    child = os.fork()
    if child == 0:
        store = Dying(Path(sys.argv[1]) / f"{point}.db")
        writer = Writer(store)
        writer.submit()
        store.dies_at = point
        writer.write(
            ("jobs.submitted", None, submitted(2, count=50, indices=list(range(50)))),
            ("attempt.starting", 1, starting()),
            ("node.changed", None, {"node": NODE}),
            ("policy.set", None, {"policy": "srtf", "interval_s": 6.0}),
            submissions=[Submission("key", "digest", (2,), 1.0)],
        )
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
"""

FOR_EVER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_builders import Writer
from gpuloom.store.sqlite import SqliteStore

writer = Writer(SqliteStore(Path(sys.argv[1])))
while True:
    job = writer.submit(count=5, indices=[0, 1, 2, 3, 4])
    writer.start(job)
    writer.end(job)
    print(writer.last, flush=True)
"""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", AT_EVERY_POINT, str(folder), TESTS], check=True, timeout=60)
    return folder


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_step_all_is_written_or_nothing(killed: Path, point: str) -> None:
    with SqliteStore(killed / f"{point}.db") as store:
        events = len(store.events())
        assert events == (5 if point == "committed" else 1)
        assert sum(store.counts().values()) == (51 if point == "committed" else 1)
        assert (store.submission("key") is not None) == (point == "committed")
        assert store.check().findings == ()
        writer = Writer(store)
        writer.last, writer.book = events, _book(store)
        writer.submit()
        same(store.load(), writer.book)


def _book(store: SqliteStore) -> Book:
    book = Book()
    for event in store.events():
        book.commit(book.stage([event]))
    return book


@pytest.mark.slow
def test_killed_at_any_time_what_was_acknowledged_is_there(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    for round_ in range(4):
        path = tmp_path / f"{round_}.db"
        child = subprocess.Popen([sys.executable, "-c", FOR_EVER, str(path), TESTS], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline()
        time.sleep(random.uniform(0.0, 0.15))
        os.kill(child.pid, signal.SIGKILL)
        acknowledged = [int(line) for line in child.stdout.read().splitlines() if line.strip()]
        child.stdout.close()
        child.wait()
        with SqliteStore(path) as store:
            report = store.check()
            assert report.findings == ()
            assert report.events >= max(acknowledged, default=4)
            same(store.load(), _told(store))


def _told(store: SqliteStore) -> Book:
    book = Book()
    book.commit(book.stage(store.events(limit=1_000_000)))
    return book
