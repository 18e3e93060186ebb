"""The policy in use as the API shows it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from typing import Any, cast

from gpuloom.core.events import Event
from gpuloom.core.policy_state import HlasState, PolicyState
from gpuloom.live.planning.asking import PolicyFailure
from gpuloom.live.planning.describing import state_of
from gpuloom.live.planning.lacks import Lack, lacks
from gpuloom.live.planning.planning import Planning
from gpuloom.live.views.cluster_answers import FailureView, LackView, PolicyView
from gpuloom.live.views.policy_answers import ParameterView, PolicyStateView
from gpuloom.policies.base import Parameter, Policy


def policy_view(
    planning: Planning, swaps: Sequence[Event], *, failure: FailureView | None, began_s: float
) -> PolicyView:
    """The policy in use, without its state. swaps: the last two `policy.set`. began_s: of the scheduler."""
    seat = planning.seat
    return {
        "policy": seat.written,
        "interval_s": seat.interval_s,
        "since_s": swaps[-1].at_s if swaps else began_s,
        "previous": swaps[0].data["policy"] if len(swaps) > 1 else None,
        "serves": seat.serves,
        "failure": failure,
        "parameters": parameters_of(planning.policy),
        "lacks": [lack_view(one) for one in lacks(planning)],
        "state": None,
        "state_problem": "",
    }


def with_state(found: PolicyView, planning: Planning, now_s: float) -> PolicyView:
    """The same with the policy's state. In the scheduler's thread."""
    try:
        state = state_of(planning, now_s)
    except PolicyFailure as failure:  # the rest of the answer is true all the same
        return {**found, "state_problem": str(failure)}
    return {**found, "state": None if state is None else state_view(state)}


def lack_view(one: Lack) -> LackView:
    """An input that the policy lacks."""
    return {"input": one.input.value, "jobs": one.jobs, "text": one.text}


def parameters_of(policy: Policy) -> list[ParameterView]:
    """Its parameters, those of pairs on a GPU included where it forms any."""
    return [
        {
            "name": one.name,
            "value": written(one, policy.values[one.name]),
            "default": written(one, one.default),
            "help": one.help,
        }
        for one in policy.parameters
        if one.name in policy.values
    ]


def written(parameter: Parameter, value: Any) -> str:
    """The value of a parameter as one would write it."""
    if parameter.shown is not None and value == parameter.default:
        return parameter.shown
    if value is None:
        return "none"
    if parameter.names_file and not isinstance(value, str):
        return "as read from its file"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "/".join(f"{key}:{one:g}" for key, one in value.items())
    if isinstance(value, tuple | list):
        return "/".join(f"{one:g}" if isinstance(one, float) else str(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def state_view(state: PolicyState) -> PolicyStateView:
    """A policy's state: the same fields, jobs by number; null for what is not finite."""
    found = _plain(asdict(state))
    if isinstance(state, HlasState):
        found["performance"] = dict(state.performance)
    elif "base" in found and found["base"]["kind"] == "hlas":
        found["base"]["performance"] = dict(map(tuple, found["base"]["performance"]))
    return cast("PolicyStateView", found)  # the same fields: tests/unit/test_live_policy_state.py


def _plain(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(one, name) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return int(value) if key == "job" else value
