"""Sums that are the same on every Python: since 3.12 the built-in `sum` of floats compensates for rounding.

The last bit of a sum may decide a tie, and so who runs. The packages that make decisions therefore use these two
instead (`tests/unit/test_sums.py` checks that).
"""

from __future__ import annotations

from collections.abc import Iterable


def sum_floats(values: Iterable[float]) -> float:
    """The sum from left to right, each step rounded; 0 of nothing."""
    total: float = 0
    for value in values:
        total += value
    return total


def sum_ints(values: Iterable[int]) -> int:
    """The sum of whole numbers."""
    return sum(values)
