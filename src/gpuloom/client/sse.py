"""Parser of server-sent events."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream. id: the last that was sent. A comment (a heartbeat) has the type ''."""

    type: str
    data: str
    id: str


_END = re.compile(rb"\r\n|\n|\r")


def messages(chunks: Iterable[bytes]) -> Iterator[Message]:
    """The events of a stream, one as soon as its empty line is there; what is cut off at the end is dropped.

    Lines end by CR, LF or both, as the standard says: not at the other separators of Unicode, which may stand in data.
    """
    rest, kind, data, last = b"", "", list[str](), ""
    for chunk in chunks:
        rest += chunk
        start = 0
        while (end := _END.search(rest, start)) is not None:
            if end.group() == b"\r" and end.end() == len(rest):
                break  # its LF may be in the next chunk
            line, start = rest[start : end.start()].decode("utf-8", "replace"), end.end()
            if not line:
                if data:
                    yield Message(kind or "message", "\n".join(data), last)
                kind, data = "", []
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if not name:
                yield Message("", value, last)
            elif name == "event":
                kind = value
            elif name == "data":
                data.append(value)
            elif name == "id" and "\0" not in value:
                last = value
        rest = rest[start:]
