"""The token that every request must bring."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from gpuloom.core.errors import InputError

SHORTEST = 20
"""Characters of a token that can't be guessed."""


def load_or_make_token(path: Path) -> str:
    """The token in a file that its owner alone can read; a new one where there is no file.

    Raises:
        InputError: others can read the file, it belongs to someone else, or holds no token.
    """
    while True:
        try:
            return _load(path)
        except FileNotFoundError:
            pass
        try:
            _make(path)
        except FileExistsError:
            continue  # another process was faster: its token counts
        except OSError as error:
            raise InputError(f"{path}: the token can't be written: {error.strerror}") from None


def _make(path: Path) -> None:
    """Complete or not at all: a reader never sees half a token."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink()


def _load(path: Path) -> str:
    try:
        content = _read(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: the token can't be read: {error.strerror}") from None
    try:
        token = content.decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    check_token(token, str(path))
    return token


def _read(path: Path) -> bytes:
    """What is in a file that its owner alone can read. Raises OSError, InputError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{path} is not a file: remove it, and a new token is made")
        if found.st_uid not in (os.geteuid(), 0):
            raise InputError(
                f"{path} belongs to user {found.st_uid}: the token file must belong to the user who reads it"
            )
        if found.st_mode & 0o077:
            raise InputError(
                f"{path} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}), so others may know the "
                f"token: remove the file, and a new token is made; or, if nobody has seen it, chmod 600 {path}"
            )
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def check_token(token: str, source: str) -> None:
    """Raises InputError unless it is one line of at least SHORTEST visible ASCII characters."""
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise InputError(
            f"{source}: a token is one line of {SHORTEST} or more visible ASCII characters; remove the file to get a "
            f"new one"
        )


def allowed(header: bytes | None, token: bytes) -> bool:
    """Whether an Authorization header brings the token. Takes as long for a wrong one as for a right one."""
    scheme, _, given = (header or b"").partition(b" ")
    return scheme.lower() == b"bearer" and secrets.compare_digest(given.strip(), token)
