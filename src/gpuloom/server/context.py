"""Shared by all routes: the scheduler, the settings, and common checks."""

from __future__ import annotations

import getpass
import os
from dataclasses import dataclass

from gpuloom.live.service import Service
from gpuloom.server.problems import ProblemError
from gpuloom.server.sse import Hub


@dataclass(frozen=True, slots=True)
class Context:
    """The scheduler, its followers, and the user that requests without a name act for."""

    service: Service
    hub: Hub
    default_user: str


def os_user() -> str:
    """Name of the user that this process runs as."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no name for this number
        return f"uid{os.geteuid()}"


def printable(value: str, where: str, most: int) -> str:
    """The text of a header: bytes in UTF-8, at most `most` printable characters.

    Raises:
        ProblemError: it is not that.
    """
    try:
        text = value.encode("latin-1").decode("utf-8")
    except UnicodeError:
        text = "\0"
    if not (0 < len(text) <= most and text.isprintable()):
        message = f"must be 1 to {most} printable characters"
        raise ProblemError("bad-request", f"{where} {message}", [(where, message)])
    return text
