"""CPU time of what is measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def cpu(run: Callable[[], Any], times: int = 1) -> tuple[float, Any]:
    """(least CPU seconds, the last result)."""
    least, result = float("inf"), None
    for _ in range(times):
        begun = time.process_time()
        result = run()
        least = min(least, time.process_time() - begun)
    return least, result
