"""Tokens with which machines may join: minted at the head, kept there as hashes alone, each to be revoked by its id.

A token is one line, ``glt_ID_SECRET`` or ``glt_ID_SECRET_FINGERPRINT``: 8 hex digits, 256 random bits, and (where the
head has TLS) the SHA-256 of its certificate, the last two in URL-safe base64 without padding. The node shows ID and
SECRET, and only to a head with that certificate.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpuloom.core.errors import InputError, NotFoundError
from gpuloom.executors.wire import write_atomic

_FORM = re.compile(r"glt_([0-9a-f]{8})_([A-Za-z0-9_-]{43})(?:_([A-Za-z0-9_-]{43}))?")
MOST = 10_000
"""Tokens that a head keeps."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as its holder has it. fingerprint: of the head's certificate, hex; '' for a head without TLS."""

    id: str
    secret: str
    fingerprint: str = ""

    def __str__(self) -> str:
        end = f"_{_text(bytes.fromhex(self.fingerprint))}" if self.fingerprint else ""
        return f"{self.shown}{end}"

    @property
    def shown(self) -> str:
        """What the node shows to the head."""
        return f"glt_{self.id}_{self.secret}"


def token_of(text: str) -> Token:
    """The token that is written so.

    Raises:
        InputError: it is none.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise InputError(
            "the token is not one of `gpuloom node token`: it is one line that begins with glt_ (was it cut?)"
        )
    fingerprint = "" if found[3] is None else base64.urlsafe_b64decode(found[3] + "=").hex()
    return Token(found[1], found[2], fingerprint)


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Known:
    """A token as the head keeps it. sha256: of what is shown. Times are epoch seconds; expires_s None: never."""

    id: str
    sha256: str
    made_s: float
    expires_s: float | None = None
    revoked_s: float | None = None
    note: str = ""

    def why_not(self, now_s: float) -> str:
        """'' or why it does not count."""
        if self.revoked_s is not None:
            return "it was revoked"
        if self.expires_s is not None and now_s >= self.expires_s:
            return "it has expired"
        return ""


class Tokens:
    """The tokens of a head, in a file of its home that its owner alone can read. Any process may use it at any time."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._read: tuple[tuple[int, int, int], dict[str, Known]] | None = None

    def mint(self, *, lasts_s: float | None = None, note: str = "", fingerprint: str = "") -> Token:
        """A new token. lasts_s: seconds for which machines may join with it, None: for ever."""
        with self._changing() as known:
            while (number := secrets.token_hex(4)) in known:
                continue
            token = Token(number, _text(secrets.token_bytes(32)), fingerprint)
            now = self._clock()
            expires = None if lasts_s is None else now + lasts_s
            known[number] = Known(number, _hash(token.shown), now, expires, note=note)
            if len(known) > MOST:
                oldest = min(known.values(), key=lambda one: (not one.why_not(now), one.made_s))
                del known[oldest.id]
        return token

    def revoke(self, number: str) -> Known:
        """Machines may join with it no more, and those that did are cut off. Raises NotFoundError."""
        with self._changing() as known:
            if number not in known:
                raise NotFoundError(f"there is no token {number!r}: `gpuloom node tokens` lists them")
            if known[number].revoked_s is None:
                known[number] = replace(known[number], revoked_s=self._clock())
            return known[number]

    def all(self) -> tuple[Known, ...]:
        """Every token, the oldest first."""
        return tuple(sorted(self._load().values(), key=lambda one: one.made_s))

    def why_not(self, shown: str) -> str:
        """'' if what is shown here is a token that was not revoked, else why it does not count; one that has expired
        still serves who has joined with it (`why_no_more`). As long for a wrong secret as for a right one."""
        found = _FORM.fullmatch(shown)
        known = None if found is None else self._load().get(found[1])
        if not secrets.compare_digest("" if known is None else known.sha256, _hash(shown)):
            return "it is none of this head's"
        return "" if known is None or known.revoked_s is None else known.why_not(self._clock())

    def why_no_more(self, number: str, *, joins: bool = False) -> str:
        """'' while this token counts, else why not. joins: for a machine that has not joined yet."""
        known = self._load().get(number)
        if known is None:
            return "it is gone"
        return known.why_not(self._clock()) if joins or known.revoked_s is not None else ""

    def _load(self) -> dict[str, Known]:
        try:
            with self.path.open("rb") as file:
                info = os.fstat(file.fileno())
                mark = (info.st_mtime_ns, info.st_size, info.st_ino)
                if self._read is not None and self._read[0] == mark:
                    return self._read[1]
                found = {one["id"]: Known(**one) for one in json.loads(file.read())["tokens"]}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise InputError(f"{self.path}: the tokens can't be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self.path} holds no tokens ({error!r}): remove it, and mint new ones") from None
        self._read = (mark, found)
        return found

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Known]]:
        """The tokens, written when they have been changed. One process at a time. Raises InputError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InputError(f"{self.path}: the tokens can't be written: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = dict(self._load())
            yield known
            self._write(known)
        finally:
            os.close(lock)

    def _write(self, known: dict[str, Known]) -> None:
        try:
            write_atomic(str(self.path), {"tokens": [asdict(one) for one in known.values()]}, durable=True)
        except OSError as error:
            raise InputError(f"{self.path}: the tokens can't be written: {error.strerror}") from None
        self._read = None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
