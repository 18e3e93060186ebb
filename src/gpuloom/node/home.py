"""The home directory of a node process: what lies where, who holds it, and which node it is."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuloom.core.errors import GpuloomError, InputError
from gpuloom.executors.runner.restarts import free
from gpuloom.executors.wire import NODE_LOCK, read_json, write_atomic

HOME = "GPULOOM_NODE_HOME"
LOOKED_S = 0.01
"""Who only looks whether there is a node process, as its guard does, has the lock for less than that."""


class BusyError(GpuloomError):
    """Another node process works for this home."""


@dataclass(frozen=True, slots=True)
class State:
    """What a node process says of itself. state: 'joining', 'joined', 'cut', 'leaving', 'left', 'refused'.

    since_s, began_s: epoch seconds. detail: why, in words.
    """

    pid: int
    name: str
    url: str
    state: str
    since_s: float
    began_s: float
    detail: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class NodeHome:
    """Paths in a home directory (absolute)."""

    path: Path

    @property
    def lock(self) -> Path:
        return self.path / NODE_LOCK

    @property
    def log(self) -> Path:
        return self.path / "node.log"

    @property
    def state(self) -> Path:
        return self.path / "node.json"

    @property
    def settings(self) -> Path:
        """What it joined with the last time: head, token, name, slots."""
        return self.path / "join.json"

    @property
    def leave(self) -> Path:
        """Written by `gpuloom node leave --now` before it signals."""
        return self.path / "leave-now"

    @property
    def identity(self) -> Path:
        return self.path / "node.id"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    def create(self) -> NodeHome:
        """Make the directory, for its owner alone. Raises InputError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self.path.stat()
            if os.geteuid() not in (0, found.st_uid):
                raise InputError(f"{self.path}: belongs to user {found.st_uid}; give a folder of your own with --home")
            if found.st_mode & 0o077:
                self.path.chmod(0o700)
            if (self.path / "store.db").exists():
                raise InputError(f"{self.path} is the home of a scheduler: give a node a folder of its own with --home")
            self.runs.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.path}: can't be used as the node's home: {error.strerror}") from None
        return self

    def id(self) -> str:
        """Drawn once for this home. Raises InputError."""
        try:
            with suppress(FileExistsError):
                descriptor = os.open(self.identity, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(descriptor, "w", encoding="ascii") as file:
                    file.write(secrets.token_hex(16))
            found = self.identity.read_text(encoding="ascii").strip()
            if not found:  # the machine stopped before it was written
                self.identity.unlink()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.identity}: can't be used: {error}") from None
        return found or self.id()

    def take(self) -> int:
        """Hold the home for this process, until its end; the descriptor of the lock.

        Raises:
            BusyError: another one holds it. InputError: it can't be locked.
        """
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while not _locked(descriptor):
                if not free(str(self.lock)):
                    os.close(descriptor)
                    raise BusyError(
                        f"a node process (pid {self.holder() or 'unknown'}) works here already, home {self.path}: "
                        "`gpuloom node leave` ends it; --home gives another folder"
                    )
                time.sleep(LOOKED_S)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            raise InputError(f"{self.lock}: can't be locked: {error.strerror}") from None
        return descriptor

    def holder(self) -> int | None:
        """The pid of the process that works for this home; None: there is none."""
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            return int(text) if text.isdigit() else None
        else:
            return None
        finally:
            os.close(descriptor)

    def say(self, state: State) -> None:
        """Write down how it goes. Where that can't be done, nobody is told."""
        with suppress(OSError):
            write_atomic(str(self.state), asdict(state))

    def said(self) -> State | None:
        """What the process that works here, or that did last, said."""
        try:
            return State(**(read_json(str(self.state)) or {}))
        except (OSError, TypeError):
            return None

    def joined_with(self) -> dict[str, Any]:
        """What it joined with the last time; {} for never."""
        try:
            return read_json(str(self.settings)) or {}
        except OSError:
            return {}

    def joins_with(self, settings: Mapping[str, Any]) -> None:
        """Keep it for the next start. Raises InputError."""
        try:
            write_atomic(str(self.settings), settings)
        except OSError as error:
            raise InputError(f"{self.settings}: can't be written: {error.strerror}") from None


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def node_home(path: Path | str | None = None) -> NodeHome:
    """As given, else $GPULOOM_NODE_HOME, else `gpuloom-node` in the user's data directory. Not made yet.

    Raises:
        InputError: none is known.
    """
    given = path if path is not None else os.environ.get(HOME) or None
    try:
        if given is not None:
            return NodeHome(Path(os.path.abspath(Path(given).expanduser())))
        data = os.environ.get("XDG_DATA_HOME", "")
        base = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    except RuntimeError as error:
        raise InputError(f"no home directory is known ({error}): give one with --home") from None
    return NodeHome(base / "gpuloom-node")
