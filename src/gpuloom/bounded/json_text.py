"""JSON as people and other programs send it: no number that is none, nothing given twice, nothing too deep."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from gpuloom.bounded.text import shown

DEPTH = 64
"""Lists and objects within each other."""
DIGITS = 40
"""Most digits of a whole number."""


def load_json(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        json.JSONDecodeError: it is not JSON; with the place.
        ValueError: it is, but holds what nobody can use: NaN, endless numbers, a name twice, too many levels.
    """
    decoded = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        found = json.loads(
            decoded, parse_constant=_constant, parse_int=_whole, parse_float=_number, object_pairs_hook=_object
        )
    except RecursionError:
        raise _too_deep() from None
    level = [found] if isinstance(found, list | dict) else []
    for _ in range(DEPTH):
        level = [
            item
            for outer in level
            for item in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(item, list | dict)
        ]
        if not level:
            return found
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested too deeply: at most {DEPTH} levels are allowed")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number in JSON")


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"the number {text[:20]}... has {len(text)} digits: at most {DIGITS} are allowed")
    return int(text)


def _number(text: str) -> float:
    found = float(text)
    if not math.isfinite(found):
        raise ValueError(f"the number {text[:DIGITS]} is too large")
    return found


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"{shown(name)} is given twice in one object")
            seen.add(name)
    return found
