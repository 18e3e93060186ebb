"""How busy a service is, and a kernel profile with it as users write them."""

from __future__ import annotations

import re
from typing import NamedTuple

DEFAULT_LOAD = 0.5
"""Share of the time that a service is busy, where nothing else is said of it."""

_LOAD = re.compile(r":\s*([0-9.]+)\s*(%|rps|/s)$")


class Load(NamedTuple):
    """How busy a service is: a share of the time, or requests per second (the other is None)."""

    share: float | None = DEFAULT_LOAD
    per_s: float | None = None


def profile_and_load(text: str) -> tuple[str, Load | None]:
    """A kernel profile as users write it, with the load of a service behind it: 'resnet50', 'resnet50:30%',
    'resnet50:15rps'. None: no load is given.

    Raises:
        ValueError: says what is wrong with the load.
    """
    found = _LOAD.search(text)
    if found is None:
        return text, None
    try:
        value = float(found[1])
    except ValueError:
        value = 0.0
    name = text[: found.start()]
    if not name:
        raise ValueError(f"{text!r} names no kernel profile before the load")
    if found[2] == "%":
        if not 0 < value < 100:
            raise ValueError(f"the load of {text!r} must be above 0 % and below 100 %")
        return name, Load(value / 100.0)
    if not value > 0:
        raise ValueError(f"the load of {text!r} must be above 0 requests per second")
    return name, Load(None, value)
