"""Job numbers as people write them."""

from __future__ import annotations

import re

from gpuloom.core.errors import InputError

MAX_RANGE = 100_000


def parse(text: str) -> tuple[int, int, str | None]:
    """(first, last, None) of '12' or '12-20'; (array, array, index) of '12_3', with '' as the index of '12_'.

    Raises:
        InputError: not written so.
    """
    match = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15})|_(\d{0,15}))?", text, flags=re.ASCII)
    if match is None or int(match[1]) < 1:
        raise InputError(
            f"{text!r} is not a job: give 12, a range 12-20, 12_3 (index 3 of array 12) or 12_ (all of it)"
        )
    low = int(match[1])
    if match[3] is not None:
        return low, low, match[3] and str(int(match[3]))
    high = int(match[2] or low)
    if high < low:
        raise InputError(f"{text!r} is an empty range: give the smaller number first")
    if high - low >= MAX_RANGE:
        raise InputError(f"{text!r} are more than {MAX_RANGE:,} jobs")
    return low, high, None
