"""A fault at every system call that gpuloom itself makes around its store: home, lock, backup, restore, token, files of
the server. (SQLite's own calls: test_store_syscalls.py.) Each ends with a clear error, nothing is lost, and what could
not be done can be done once the fault is over.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults import Fault, Injector, errnos
from gpuloom.cli.main import main
from gpuloom.core.errors import GpuloomError
from gpuloom.server import up
from gpuloom.server.auth import load_or_make_token
from gpuloom.store.home import Home, take_lock
from gpuloom.store.sqlite import SqliteStore
from store_builders import Writer

pytestmark = pytest.mark.slow

OURS = ("store", "server/auth.py", "server/up.py", "cli/db.py")
ALWAYS = 1 << 30
SAMPLE = 20
"""Of a step's faults; GPULOOM_ALL_FAULTS=1 tries all thousand, which takes a minute."""
BEFORE, IN_BACKUP = 3, 1
"""Jobs in the store, and in its backup."""


@dataclass(frozen=True)
class Stage:
    """Folders of one try."""

    folder: Path

    @property
    def home(self) -> Home:
        return Home(self.folder / "home")

    @property
    def backup(self) -> Path:
        return self.folder / "backups" / "backup.db"

    def gpuloom(self, *words: str) -> None:
        sys.argv = ["gpuloom", *words]
        with pytest.raises(SystemExit) as ended:
            main()
        if ended.value.code != 0:
            raise FailedError(ended.value.code)

    def jobs(self, path: Path | None = None) -> int:
        """In its store, which is sound."""
        with SqliteStore(path or self.home.db, read_only=True) as store:
            assert store.check().findings == ()
            return sum(store.counts().values())


class FailedError(Exception):
    """A command that ended with this exit code."""


def check(stage: Stage) -> None:
    stage.gpuloom("db", "check", "--home", str(stage.home.path))


def backup(stage: Stage) -> None:
    stage.gpuloom("db", "backup", "--home", str(stage.home.path), str(stage.backup), "--overwrite")


def new_backup(stage: Stage) -> None:
    target = stage.backup.with_name("new.db")
    if not target.exists():  # it may have been there before it was told to be
        stage.gpuloom("db", "backup", "--home", str(stage.home.path), str(target))
    with SqliteStore(target, read_only=True) as store:
        assert store.check().findings == ()


def restore(stage: Stage) -> None:
    stage.gpuloom("db", "restore", "--home", str(stage.home.path), str(stage.backup))


def restore_to_nothing(stage: Stage) -> None:
    stage.gpuloom("db", "restore", "--home", str(stage.folder / "new"), str(stage.backup))


def lock(stage: Stage) -> None:
    with take_lock(stage.home.create()):
        pass


def token(stage: Stage) -> None:
    first = load_or_make_token(stage.home.token)
    assert load_or_make_token(stage.home.token) == first
    assert stage.home.token.stat().st_mode & 0o077 == 0


def server_json(stage: Stage) -> None:
    with up._described(stage.home):
        up._write_server(stage.home, "http://127.0.0.1:1", None)
        assert json.loads(stage.home.server_json.read_text())["url"] == "http://127.0.0.1:1"


def store(stage: Stage) -> None:
    with SqliteStore(stage.home.db) as store:
        store.load()
        store.backup(stage.backup, overwrite=True)


STEPS: list[Callable[[Stage], None]] = [
    check, backup, new_backup, restore, restore_to_nothing, lock, token, server_json, store,
]  # fmt: skip


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    stage = Stage(folder)
    stage.backup.parent.mkdir()
    with SqliteStore(stage.home.create().db) as made:
        writer = Writer(made)
        writer.submit(count=IN_BACKUP)
        made.backup(stage.backup)
        writer.submit(count=BEFORE - IN_BACKUP)
    return folder


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "argv", sys.argv)
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def fast(tmp_path: Path) -> Iterator[Path]:
    """In memory, where there is such a place: each try writes and syncs a few files."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place, prefix="gpuloom-test-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_fault_at_every_call(
    fast: Path, template: Path, step: Callable[[Stage], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("warm", "none"):  # what is imported late is imported once
        stage = Stage(fast / name)
        shutil.copytree(template, stage.folder)
        with Injector(OURS) as seen:
            step(stage)
    every = [Fault(call, number, times) for call in seen.calls for number in errnos(call) for times in (1, ALWAYS)]
    assert every
    tried = every if "GPULOOM_ALL_FAULTS" in os.environ else random.sample(every, min(SAMPLE, len(every)))
    for fault in tried:
        stage = Stage(fast / "try")
        shutil.copytree(template, stage.folder)
        try:
            _under(stage, step, fault, capsys)
        except BaseException as error:
            error.add_note(f"fault: {fault}, {'once' if fault.times == 1 else 'always'}")
            raise
        shutil.rmtree(stage.folder)
    print(f"{step.__name__}: {len(seen.calls)} calls, {len(tried)} of {len(every)} faults")


def _under(stage: Stage, step: Callable[[Stage], None], fault: Fault, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    error: BaseException | None = None
    with Injector(OURS, fault) as injector:
        try:
            step(stage)
        except (FailedError, GpuloomError, OSError) as found:
            error = found
    said = capsys.readouterr().err
    if isinstance(error, FailedError):
        assert error.args[0] in (1, 2)
        assert said.startswith("gpuloom: ")
        assert said.count("\n") == 1
        assert "internal error" not in said
        assert str(stage.folder) in said
    elif error is not None:
        assert str(stage.folder) in str(error)  # what `main` makes its text of
    assert injector.failed
    assert stage.jobs() in ((BEFORE, IN_BACKUP) if step is restore else (BEFORE,))
    if fault.call.function not in ("unlink", "remove"):
        left = [path for path in stage.folder.rglob(".*") if path.is_file()]
        left += stage.folder.rglob("*.tmp")
        assert left == []
    step(stage)  # and now it is over
    assert stage.jobs() == (IN_BACKUP if step is restore else BEFORE)
    if step is restore:
        kept = [stage.jobs(path) for path in stage.home.path.glob("*.replaced-*")]
        assert BEFORE in kept
