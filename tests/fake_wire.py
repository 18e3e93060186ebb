"""A connection between head and node that carries nothing: what is sent on it is noted, what comes is said by hand."""

from __future__ import annotations

import json
from typing import Any


class Wire:
    """frames: what was sent over it. why: with what it was closed; None: it was not."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []
        self.why: str | None = None

    def send(self, text: str) -> None:
        self.frames.append(json.loads(text))

    def close(self, why: str = "") -> None:
        self.why = why

    @property
    def closed(self) -> bool:
        return self.why is not None

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The numbered messages among the frames."""
        return [frame["m"] for frame in self.frames if "n" in frame]

    @property
    def kinds(self) -> list[str]:
        """Their kinds."""
        return [message["kind"] for message in self.messages]
