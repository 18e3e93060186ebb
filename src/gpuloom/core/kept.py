"""The newest save of an attempt: up to where it goes, from when it is, and who made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Keeper(StrEnum):
    """Who made the save of an attempt."""

    SCRIPT = "script"
    """The script, which reported it."""
    FRAMEWORK = "framework"
    """The framework, as the script asked it to."""
    HOOK = "hook"
    """gpuloom's hook, which adds what the framework lacks (`_gpuloom_hooks`)."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest save that an attempt reported. step: up to which it goes, as the attempt counts. at_s: when it was
    made, by the clock of its node. framework: whose checkpoint it is; '': not said."""

    step: float
    at_s: float | None
    keeper: Keeper = Keeper.SCRIPT
    framework: str = ""


def kept_of(data: Mapping[str, Any] | None) -> Kept | None:
    """From its JSON form; None: nothing is known to be kept."""
    return None if not data else Kept(**{**data, "keeper": Keeper(data.get("keeper", "script"))})


def kept_data(kept: Kept | None) -> dict[str, Any]:
    """Its JSON form; {}: nothing is known to be kept."""
    return {} if kept is None else asdict(kept)


def told_kept(told: Mapping[str, object]) -> Kept | None:
    """What a job's last report says of its saves (docs/howto/write-jobs.md)."""
    step, at_s, who, what = (told.get(name) for name in ("saved_step", "saved_s", "saved_who", "saved_what"))
    if not isinstance(step, int | float) or isinstance(step, bool):
        return None
    when = float(at_s) if isinstance(at_s, int | float) and not isinstance(at_s, bool) else None
    keeper = Keeper(who) if isinstance(who, str) and who in set(Keeper) else Keeper.SCRIPT
    return Kept(float(step), when, keeper, what[:40] if isinstance(what, str) else "")
