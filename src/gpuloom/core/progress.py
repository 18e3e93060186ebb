"""What a job reports of its progress, out of the file that it writes (docs/howto/write-jobs.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

GPU_FULL = "gpu_memory_full"
"""True: it ended as a GPU had no memory left."""
PROGRESS_BYTES = 65_536
"""A report that is larger is none."""


def progress_of(text: bytes | None) -> dict[str, object]:
    """What a job reported: a JSON object of at most 32 plain values. {} for anything else, however broken.

    Adds 'fraction' (0 to 1) where step and steps tell it.
    """
    if not text or len(text) > PROGRESS_BYTES:
        return {}
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(data, dict):
        return {}
    found: dict[str, object] = {}
    for key, value in list(data.items())[:32]:
        if isinstance(value, str):
            found[key[:64]] = value[:200]
        elif isinstance(value, float) and not math.isfinite(value):
            found[key[:64]] = str(value)
        elif isinstance(value, bool | float) or value is None or (isinstance(value, int) and abs(value) < 2**63):
            found[key[:64]] = value
    step, steps = found.get("step"), found.get("steps")
    if _number(step) and _number(steps) and steps > 0:  # type: ignore[operator]
        found["fraction"] = min(1.0, max(0.0, step / steps))  # type: ignore[operator]
    return found


LEAST_ITERATIONS, LEAST_S = 2, 0.5
"""Fewer iterations, or a shorter time, measure no speed."""


def measured_s(told: Mapping[str, object]) -> float:
    """Seconds over which `it_per_s` is measured: from the first step to the last report; 0 if that is not told."""
    since, at = told.get("first_s"), told.get("at_s")
    return max(float(at - since), 0.0) if _number(since) and _number(at) else 0.0  # type: ignore[operator]


def it_per_s(told: Mapping[str, object]) -> float | None:
    """Iterations per second since the first step, as a job's last report tells them; None: it doesn't."""
    step, first, since, at = (told.get(name) for name in ("step", "first_step", "first_s", "at_s"))
    if not (_number(step) and _number(first) and _number(since) and _number(at)):
        return None
    done, took_s = step - first, at - since  # type: ignore[operator]
    if done < LEAST_ITERATIONS or took_s < LEAST_S or not math.isfinite(speed := done / took_s):
        return None
    return float(speed)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
