"""Waiting for what others bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

MOST_PAUSE_S = 0.1
"""Between two looks."""


def until(found: Callable[[], Any], what: str = "it", timeout_s: float = 150.0) -> Any:
    """What is found, once that is true; the time-out is there to end a hang, also on a busy machine."""
    end, pause_s = time.monotonic() + timeout_s, 0.004
    while not (value := found()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.2, MOST_PAUSE_S)  # each look costs time on the cores on which the others work
    return value
