"""Lines of several members of a gang in one output, each marked with whose it is."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

import click

LONGEST_LINE = 1 << 16
"""Of a line that does not end, so many bytes are kept back before they are shown."""
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_green")
_LINE = re.compile(rb"[^\n]*\n")
_BACK = re.compile(rb"\r(?=[^\r\n])")


class MarkedLines:
    """Whole lines of each member, as they come: what one writes never ends up within a line of another.

    nodes: by rank. colours: whether the marks have some.
    """

    def __init__(self, nodes: Mapping[int, str], *, colours: bool = False) -> None:
        self._nodes, self._colours = nodes, colours
        self._rest: dict[int, bytes] = {}

    def add(self, member: int, content: bytes) -> bytes:
        """What can be shown, now that a member has written this."""
        content = self._rest.pop(member, b"") + content
        end = content.rfind(b"\n") + 1
        if len(content) - end >= LONGEST_LINE:
            content, end = content + b"\n", len(content) + 1
        if content[end:]:
            self._rest[member] = content[end:]
        return self._marked(member, content[:end])

    def rest(self) -> bytes:
        """The lines that have not ended, where nothing will follow."""
        found = b"".join(self._marked(member, line + b"\n") for member, line in sorted(self._rest.items()))
        self._rest.clear()
        return found

    def _marked(self, member: int, lines: bytes) -> bytes:
        mark = self._mark(member)
        # A line that is written over (a bar of progress) shows its mark again.
        return b"".join(mark + _BACK.sub(b"\r" + mark, line) for line in _LINE.findall(lines))

    def _mark(self, member: int) -> bytes:
        node = self._nodes.get(member, "")
        text = f"[{member} {node}]" if node else f"[{member}]"
        if self._colours:
            text = click.style(text, fg=_COLOURS[member % len(_COLOURS)])
        return f"{text} ".encode()


def coloured() -> bool:
    """Whether what is printed may have colours."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
