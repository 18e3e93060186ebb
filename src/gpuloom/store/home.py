"""The home directory of a scheduler: where its state lies, and which process holds it."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpuloom.core.errors import InputError
from gpuloom.store.errors import StoreBusy, StoreError
from gpuloom.store.faults import no_room

HOME = "GPULOOM_HOME"


@dataclass(frozen=True, slots=True)
class Home:
    """Paths in a home directory (absolute). None of them need exist."""

    path: Path

    @property
    def db(self) -> Path:
        return self.path / "store.db"

    @property
    def token(self) -> Path:
        return self.path / "token"

    @property
    def server_json(self) -> Path:
        return self.path / "server.json"

    @property
    def lock(self) -> Path:
        """Held (flock) by the scheduler that has the store open."""
        return self.path / "scheduler.lock"

    @property
    def log(self) -> Path:
        return self.path / "scheduler.log"

    @property
    def damaged(self) -> Path:
        """There while the store is so damaged that no scheduler starts with it: what is wrong."""
        return self.path / "store.damaged"

    @property
    def watched(self) -> Path:
        """Of a scheduler that only watches a cluster: which one."""
        return self.path / "watched.json"

    @property
    def kubernetes(self) -> Path:
        """Of a scheduler whose jobs are pods: of which cluster and namespace."""
        return self.path / "kubernetes.json"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def live(self) -> Path:
        """One file for each run that goes on, or whose end is not written down yet."""
        return self.path / "live"

    @property
    def nodes(self) -> Path:
        """What is known of the nodes that joined: `tokens.json`, `nodes.json`; for pilots `port`, `shared-*`."""
        return self.path / "nodes"

    @property
    def tls(self) -> Path:
        """The scheduler's own certificate and its key: `cert.pem`, `key.pem`."""
        return self.path / "tls"

    def create(self) -> Home:
        """Make the directory, for its owner alone.

        Raises:
            InputError: it can't be made, or belongs to someone else.
        """
        _own_directory(self.path)
        return self


def home_of(path: Path | str | None = None) -> Home:
    """The home directory: as given, else $GPULOOM_HOME, else `gpuloom` in the user's data directory. Not made yet.

    Raises:
        InputError: none is known.
    """
    given = path if path is not None else os.environ.get(HOME) or None
    try:
        if given is not None:
            return Home(Path(os.path.abspath(Path(given).expanduser())))
        data = os.environ.get("XDG_DATA_HOME", "")
        # As the XDG base directory specification says, relative paths are passed over.
        base = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise InputError(f"no home directory is known ({error}): set {HOME} to a folder") from error
    return Home(base / "gpuloom")


def _own_directory(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.stat()
        if not stat.S_ISDIR(found.st_mode):
            raise InputError(f"{path}: must be a directory")
        if os.geteuid() not in (0, found.st_uid):
            raise InputError(f"{path}: belongs to user {found.st_uid}; set {HOME} to a folder of your own")
        if found.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        what = error.strerror or str(error)
        raise InputError(f"{path}: can't be used as home directory ({what}); set {HOME} to another folder") from error


class HomeLock:
    """Holds a home directory for one scheduler, until `release` or the process's end. Not inherited by children."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> HomeLock:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()


def take_lock(home: Home) -> HomeLock:
    """Hold the home directory; the lock's file names the holder's pid.

    Raises:
        StoreBusy: another process holds it. StoreError: the lock's file can't be written.
    """
    try:
        descriptor = os.open(home.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        helps = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else f"make {home.path} writable"
        lacking = no_room(home.path) or error.strerror
        raise StoreError(f"{home.lock}: can't be opened ({lacking}); {helps}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreBusy(
            f"{home.path}: a scheduler (pid {holder}) has this home open; `gpuloom down` stops it, jobs keep running"
        ) from None
    except OSError as error:
        os.close(descriptor)
        raise StoreError(f"{home.lock}: can't be locked ({error.strerror}); is {home.path} on a local disk?") from error
    return HomeLock(home.lock, descriptor)
