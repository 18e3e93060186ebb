"""The rules by their ids."""

from __future__ import annotations

from collections.abc import Mapping

from gpuloom.core.errors import PolicyError
from gpuloom.goodput.base import Cluster, Nodes, Rule, one_model
from gpuloom.goodput.gains import Gains
from gpuloom.goodput.optimus import Optimus
from gpuloom.goodput.shares import Shares
from gpuloom.goodput.sia import P, Sia
from gpuloom.goodput.tiresias import Tiresias
from gpuloom.policies.registry import parse_policy

RULES = ("tiresias", "optimus", "goodput", "sia")
PARAMETERS = {"goodput": ("ends", "explore", "know"), "sia": ("know", "p")}


def create_rule(text: str, nodes: Cluster) -> Rule:
    """A rule for one run, from its written form: `tiresias`, `optimus`, `goodput:ends=known`, `sia:know=told`.

    Raises:
        PolicyError: unknown id or parameter, bad value, or a cluster of several GPU models where the rule knows one.
    """
    rule, values = parse_policy(text)
    if rule not in RULES:
        raise PolicyError(f"unknown policy {rule!r} in Pollux' simulation; there are: {', '.join(RULES)}")
    has = PARAMETERS.get(rule, ())
    unknown = sorted(values.keys() - set(has))
    if unknown and not has:
        raise PolicyError(f"policy {rule!r} takes no parameters here, got {', '.join(sorted(values))}")
    if unknown:
        raise PolicyError(f"policy {rule!r} has no parameter {unknown[0]!r}; it has: {', '.join(has)}")
    if rule == "goodput":
        return _goodput(nodes, values)
    if rule == "sia":
        return Sia(nodes, values.get("know", "learnt"), _power(values.get("p")))
    one_model(rule, nodes)
    return Tiresias() if rule == "tiresias" else Optimus()


def _goodput(nodes: Cluster, values: Mapping[str, str]) -> Rule:
    """Of equal nodes without a GPU model, with curves that are told: `Shares`, as on Pollux' ground; else `Gains`."""
    if isinstance(nodes, Nodes) and not nodes.model and values.get("know", "told") == "told":
        return Shares(nodes, **{name: value for name, value in values.items() if name != "know"})
    if "ends" in values:
        raise PolicyError("goodput: ends=known needs curves that are told, and nodes without a GPU model")
    return Gains(nodes, **values)


def _power(text: str | None) -> float:
    if text is None:
        return P
    try:
        return float(text)
    except ValueError as error:
        raise PolicyError(f"sia: p={text!r} must be a number") from error
