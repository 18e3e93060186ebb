"""The rules of other simulators, by name (`--compat`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuloom.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Compat:
    """What a mode changes.

    charge_every_step: every running job pays its restart overhead at every event.
    absolute_makespan: makespan is the last end on the trace's clock, not counted from the first submission.
    parameters: per policy, values of its parameters.
    """

    charge_every_step: bool = False
    absolute_makespan: bool = False
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


_MURI: Mapping[str, Any] = {
    "first_fit": True,
    "restart_partners": False,
    "slow_groups": "split",
    "matcher": "released",
    "floor": False,
}

MODES: dict[str, Compat] = {
    "muri": Compat(
        charge_every_step=True,
        absolute_makespan=True,
        parameters={
            "srtf": {"placement": "repack"},
            "srsf": {"placement": "repack"},
            "tiresias": {"scatter": True, "whole_seconds": True},
            "themis": {"mode": "muri"},
            "muri-s": {**_MURI, "first_estimate": True},
            "muri-l": _MURI,
            "muri-xs": {"restart_partners": False, "floor": False},
            "muri-xl": {"restart_partners": False, "floor": False},
            "weave": {"restart_partners": False, "floor": False},
        },
    ),
}


def compat_mode(name: str | None) -> Compat:
    """The mode of that name; None: gpuloom's own semantics."""
    if name is None:
        return Compat()
    if name not in MODES:
        raise InputError(f"unknown --compat {name!r}; known: {', '.join(MODES)}")
    return MODES[name]
