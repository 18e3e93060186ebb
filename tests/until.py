"""Waiting for what others bring about."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def until(found: Callable[[], Any], what: str = "it", timeout_s: float = 60.0) -> Any:
    """What is found, once that is true; the time-out is there to end a hang, also on a busy machine."""
    end = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < end, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.005)
    return value
