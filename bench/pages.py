"""Pages of docs/ of which a part is written by hand and a part by a benchmark."""

from __future__ import annotations


def with_part(page: str, begin: str, end: str, text: str) -> str:
    """The page with what stands between the mark `begin` and the next mark `end` replaced; the marks stay.

    Raises:
        SystemExit: the page does not hold `begin` once, and `end` after it.
    """
    before, mark, rest = page.partition(begin)
    _, end_mark, after = rest.partition(end)
    if not mark or not end_mark or begin in rest:
        raise SystemExit(f"the page must hold {begin} once, and {end} after it")
    return f"{before}{begin}\n{text.rstrip()}\n{end}{after}"
