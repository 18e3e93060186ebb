"""Where the scheduler of this machine keeps its state, and how to reach it from there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuloom.client.errors import AccessError, ClientError, NoSchedulerError
from gpuloom.core.errors import InputError
from gpuloom.store.home import home_of

URL = "GPULOOM_URL"
TOKEN_FILE = "GPULOOM_TOKEN_FILE"  # noqa: S105 - the name of a variable
CERTIFICATE = "GPULOOM_CERTIFICATE"


def home_directory(home: Path | str | None = None) -> Path:
    """The folder of the scheduler: as given, else $GPULOOM_HOME, else `gpuloom` in the user's data directory."""
    return home_of(home).path


@dataclass(frozen=True, slots=True)
class Running:
    """What `server.json` says of a scheduler: pid, URL, version, start (epoch seconds); with TLS, the file of its
    certificate and its SHA-256, hex."""

    pid: int
    url: str
    version: str
    started_s: float
    certificate: str = ""
    fingerprint: str = ""


def running(home: Path) -> Running | None:
    """The scheduler that last said that it is ready in this home; None if none did, or it ended in order.

    Raises:
        ClientError: the file can't be read.
    """
    path = home / "server.json"
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
        return Running(
            int(found["pid"]),
            str(found["url"]),
            str(found["version"]),
            float(found["started_s"]),
            str(found.get("certificate", "")),
            str(found.get("fingerprint", "")),
        )
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        raise AccessError(f"{path}: no permission to read; this scheduler belongs to another user") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ClientError(f"{path}: this was not written by a scheduler ({error}); is it a gpuloom home?") from None


def alive(pid: int) -> bool:
    """Whether there is such a process (a zombie counts as none)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
    except OSError:
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def no_scheduler(home: Path) -> NoSchedulerError:
    """What to say, and what to do, where none runs."""
    flag = "" if home == home_directory() else f" --home {home}"
    found = running(home)
    if found is not None and not alive(found.pid):
        return NoSchedulerError(
            f"the scheduler of {home} (pid {found.pid}) has died; its jobs keep running. Start it again: gpuloom "
            f"up{flag} --detach"
        )
    if found is not None:
        return NoSchedulerError(
            f"the scheduler (pid {found.pid}) does not answer at {found.url}; see {home / 'scheduler.log'}"
        )
    return NoSchedulerError(f"no scheduler is running here ({home}); start one: gpuloom up{flag} --detach")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a scheduler listens and what it wants to see. home: None if it was reached by its URL alone. certificate:
    the only one that is taken for its own; '': one that the system's authorities have signed."""

    url: str
    token: str
    home: Path | None
    certificate: str = ""


def find(home: Path | str | None = None, url: str | None = None, token: str | None = None) -> Address:
    """The scheduler to talk to: by what is given, else by GPULOOM_URL and GPULOOM_TOKEN_FILE, else by the home.

    A home that is given goes before GPULOOM_URL.

    Raises:
        NoSchedulerError: none runs. AccessError: its token can't be read.
    """
    folder = home_directory(home)
    if url is None and home is None:
        url = os.environ.get(URL) or None
    by_url, certificate = url is not None, os.environ.get(CERTIFICATE, "")
    if url is None:
        found = running(folder)
        if found is None:
            raise no_scheduler(folder)
        url, certificate = found.url, found.certificate
    if not url.startswith(("http://", "https://")):
        raise InputError(f"{url!r} is not the URL of a scheduler: give https://HOST:PORT")
    if token is None:
        token = _token(Path(os.environ.get(TOKEN_FILE) or folder / "token").expanduser())
    return Address(url.rstrip("/"), token, None if by_url else folder, certificate)


def _token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        why = error.strerror or str(error)
        raise AccessError(
            f"{path}: {why}; it must hold the scheduler's token ({TOKEN_FILE} names another file)"
        ) from None
    if not token or not token.isascii() or not token.isprintable():
        raise AccessError(f"{path}: must hold the scheduler's token, one line of plain characters")
    return token
