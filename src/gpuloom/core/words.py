"""Words for messages: plurals, and hints for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def noun(count: int, one: str, many: str | None = None) -> str:
    """'job', 'jobs'. many: for several, where an s does not make it."""
    return one if count == 1 else many or f"{one}s"


def plural(count: int, one: str, many: str | None = None) -> str:
    """'1 job', '2,000 jobs'. many: the noun for several, where an s does not make it."""
    return f"{count:,} {noun(count, one, many)}"


def are(count: int, noun: str = "", verbs: tuple[str, str] = ("is", "are")) -> str:
    """'1 is', '2 are'; with a noun '1 GPU is', '2 GPUs are'."""
    what = plural(count, noun) if noun else f"{count:,}"
    return f"{what} {verbs[count != 1]}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'; did you mean 'fifo'?' where a known name is close, else ''. Upper and lower case count as alike."""
    by_lower = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""
