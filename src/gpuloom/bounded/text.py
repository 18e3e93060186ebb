"""Values and messages in errors, never longer than a reader takes in."""

from __future__ import annotations

import reprlib
from typing import Any


def shown(value: Any, most: int = 100) -> str:
    """A value as an error shows it: its Python form, cut. Costs no more for a large value than for a small one."""
    form = reprlib.Repr()
    form.maxstring = form.maxother = most
    form.maxlist = form.maxtuple = form.maxdict = form.maxset = 6
    form.maxlevel = 3
    form.maxlong = 60
    try:
        text = form.repr(value)
    except (ValueError, RecursionError):  # a number with more digits than Python turns into text
        text = f"a very large {type(value).__name__}"
    return cut(text, most)


def cut(text: str, most: int = 500) -> str:
    """Cut a text to at most this many characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
