"""Policies by id: the built-in ones and those that other packages add by an entry point.

A policy is written `id` or `id:name=value;name=value` (`tiresias:thresholds=3250/7200`); a name alone is `name=yes`
(`hlas:literal`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from gpuloom.core.errors import InputError, PolicyError
from gpuloom.core.words import did_you_mean
from gpuloom.policies.base import Policy, Traits

ENTRY_POINTS = "gpuloom.policies"

BESIDE, BESIDE_SPEED, BESIDE_P99 = "beside", "beside_speed", "beside_p99"
_OF_PAIRS = (BESIDE, BESIDE_SPEED, BESIDE_P99)
"""Parameters of every policy that gives each job GPUs of its own (`policies/beside.py`)."""

BUILT_IN = {
    "fifo": "gpuloom.policies.fifo:Fifo",
    "sjf": "gpuloom.policies.sjf:Sjf",
    "srtf": "gpuloom.policies.srtf:Srtf",
    "srsf": "gpuloom.policies.srsf:Srsf",
    "tiresias": "gpuloom.policies.tiresias:Tiresias",
    "gittins": "gpuloom.policies.gittins:Gittins",
    "themis": "gpuloom.policies.themis:Themis",
    "antman": "gpuloom.policies.antman:Antman",
    "gavel": "gpuloom.policies.gavel:Gavel",
    "elastic": "gpuloom.policies.elastic:Elastic",
    "elastic-goodput": "gpuloom.policies.elastic_goodput:ElasticGoodput",
    "hlas": "gpuloom.policies.hlas:Hlas",
    "muri-s": "gpuloom.policies.muri:MuriS",
    "muri-l": "gpuloom.policies.muri:MuriL",
    "muri-xs": "gpuloom.policies.muri_x:MuriXS",
    "muri-xl": "gpuloom.policies.muri_x:MuriXL",
    "weave": "gpuloom.policies.weave:Weave",
    "rl": "gpuloom.policies.rl:Rl",
}

ALIASES = {
    "allox": "gavel:objective=allox",
    "finish_time_fairness": "gavel:objective=finish_time_fairness;blind",
    "finish_time_fairness_perf": "gavel:objective=finish_time_fairness",
    "max_min_fairness": "gavel:blind",
    "max_min_fairness_packed": "gavel:packed",
    "max_min_fairness_perf": "gavel",
    "max_min_fairness_water_filling": "gavel:objective=water_filling;blind",
    "max_min_fairness_water_filling_perf": "gavel:objective=water_filling",
    "max_sum_throughput_perf": "gavel:objective=max_sum_throughput",
    "max_sum_throughput_normalized_by_cost_perf": "gavel:objective=cost",
    "min_total_duration": "gavel:objective=makespan;blind",
    "min_total_duration_perf": "gavel:objective=makespan",
}
"""Names that Gavel's code has for its policies. There, those without `_perf` don't look at throughputs."""

GIVEN: dict[str, type[Policy]] = {}
"""Policies that this process was given as classes, by id; see `give`."""


def give(found: Any, what: str) -> str:
    """Make a class known in this process, as if a package had added it. Its id.

    Raises:
        PolicyError: it is not a policy, or has the id of another one. what: its name in the message.
    """
    cls = checked_class(found, what)
    if cls.id in policy_ids():
        raise PolicyError(f"{what}: {cls.__name__} has the id {cls.id!r}, which is in use: choose another")
    GIVEN[cls.id] = cls
    return cls.id


def policy_ids() -> list[str]:
    """Ids of all policies, built-in ones first."""
    added = sorted(point.name for point in entry_points(group=ENTRY_POINTS))
    return [*BUILT_IN, *(name for name in added if name not in BUILT_IN)]


def policy_class(policy_id: str) -> type[Policy]:
    """The class behind an id.

    Raises:
        PolicyError: unknown id, or an entry point that is not a policy.
    """
    if policy_id in GIVEN:
        return GIVEN[policy_id]
    if policy_id in BUILT_IN:
        module, name = BUILT_IN[policy_id].split(":")
        found: Any = getattr(importlib.import_module(module), name)
    else:
        points = [point for point in entry_points(group=ENTRY_POINTS) if point.name == policy_id]
        if not points:
            known = policy_ids()
            raise PolicyError(
                f"unknown policy {policy_id!r}{did_you_mean(policy_id, [*known, *ALIASES])} (known: {', '.join(known)})"
            )
        try:
            found = points[0].load()
        except (Exception, SystemExit) as error:
            raise PolicyError(
                f"policy {policy_id!r} of {points[0].value!r} can't be loaded: {type(error).__name__}: {error}"
            ) from error
    return checked_class(found, f"policy {policy_id!r}")


def checked_class(found: Any, what: str) -> type[Policy]:
    """A class that is to be a policy, if it is one. Raises PolicyError."""
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise PolicyError(f"{what}: {found!r} is not a gpuloom Policy")
    if not isinstance(getattr(found, "traits", None), Traits) or not isinstance(getattr(found, "id", None), str):
        raise PolicyError(f"{what}: {found.__name__} must have an id (str) and traits (gpuloom.policies.base.Traits)")
    if left := sorted(found.__abstractmethods__):
        raise PolicyError(f"{what}: {found.__name__} lacks the method {', '.join(left)}")
    return found


def parse_policy(text: str) -> tuple[str, dict[str, str]]:
    """('tiresias', {'thresholds': '3250/7200'}) of 'tiresias:thresholds=3250/7200'; 'yes' for a name alone; the policy
    that is meant by an alias."""
    policy_id, _, rest = text.strip().partition(":")
    values: dict[str, str] = {}
    for part in rest.split(";") if rest else []:
        name, equals, value = part.partition("=")
        if not equals and name.strip().isidentifier():
            value = "yes"
        elif not equals or not name.strip():
            raise PolicyError(f"{part!r} in policy {text!r} is not name=value (tiresias:thresholds=3250/7200)")
        values[name.strip()] = value.strip()
    if policy_id in ALIASES:
        policy_id, preset = parse_policy(ALIASES[policy_id])
        values = {**preset, **values}
    return policy_id, values


def create_policy(text: str, **defaults: Any) -> Policy:
    """A policy from its written form; `defaults` are parameter values that the text may override.

    Raises:
        PolicyError: unknown id or parameter, bad value.
    """
    policy_id, values = parse_policy(text)
    cls = policy_class(policy_id)
    names = {parameter.name for parameter in cls.parameters}
    chosen: dict[str, Any] = {name: value for name, value in defaults.items() if name in names}
    written = {name: values.pop(name) for name in _OF_PAIRS if name in values and name not in names}
    chosen.update(values)
    try:
        made = cls(**chosen)
    except InputError:
        raise
    except (Exception, SystemExit) as error:  # of its own code
        raise PolicyError(f"policy {policy_id!r} can't be made: {type(error).__name__}: {error}") from error
    asked = {name: defaults[name] for name in _OF_PAIRS if name in defaults and name not in names}
    return _with_pairs(made, asked, written) if asked or written else made


def _with_pairs(policy: Policy, defaults: Mapping[str, Any], written: Mapping[str, str]) -> Policy:
    """The policy with pairs of jobs on one GPU, if that is what was said."""
    from gpuloom.policies import beside

    if policy.max_jobs_per_gpu > 1 or policy.resizes:
        if written:
            why = "lets jobs share GPUs itself" if policy.max_jobs_per_gpu > 1 else "chooses sizes itself"
            raise PolicyError(
                f"policy {policy.id!r} {why}: {BESIDE} is for policies that give each job GPUs of its own "
                "(fifo, srtf, tiresias, ...)"
            )
        return policy
    said = {**defaults, **written}
    on = policy.parsed(beside.BESIDE, said.get(BESIDE, True))
    speed = policy.parsed(beside.SPEED, said.get(BESIDE_SPEED, beside.SPEED.default))
    most_p99 = policy.parsed(beside.P99, said.get(BESIDE_P99, beside.P99.default))
    return beside.Beside(policy, speed, most_p99) if on else policy
