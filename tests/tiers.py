"""What `make quick` leaves to `make test`: values of parameters, and examples of hypothesis."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

NO_TRAINING = "training environment: make test-training"
"""Why tests with real frameworks are skipped where `make test` runs them: they have an environment of their own."""


def slow(*values: Any) -> list[Any]:
    """Values of a parameter that only `make test` tries."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


def mostly_slow(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values of a parameter, of which `make quick` tries these."""
    found = list(values)
    assert set(quick) <= set(found)
    return [value if value in quick else slow(value)[0] for value in found]


def examples(number: int) -> int:
    """How many examples are tried, of a number that leaves little to find: an eighth of them, but at least four. `make
    properties` tries more: GPULOOM_EXAMPLES times that number."""
    return max(min(4, number), round(number * float(os.environ.get("GPULOOM_EXAMPLES", "0.125"))))
