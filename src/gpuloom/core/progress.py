"""What a job reports of its progress, out of the file that it writes (docs/howto/write-jobs.md)."""

from __future__ import annotations

import json
import math

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


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
