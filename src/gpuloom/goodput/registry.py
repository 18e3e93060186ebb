"""The rules by their ids."""

from __future__ import annotations

from collections.abc import Callable

from gpuloom.core.errors import PolicyError
from gpuloom.goodput.base import Nodes, Rule
from gpuloom.goodput.optimus import Optimus
from gpuloom.goodput.shares import Shares
from gpuloom.goodput.tiresias import Tiresias
from gpuloom.policies.registry import parse_policy

RULES = ("tiresias", "optimus", "goodput")


def create_rule(text: str, nodes: Nodes) -> Rule:
    """A rule for one run, from its written form: `tiresias`, `optimus`, `goodput`, `goodput:ends=known`.

    Raises:
        PolicyError: unknown id or parameter, bad value.
    """
    rule, values = parse_policy(text)
    makers: dict[str, Callable[[], Rule]] = {"tiresias": Tiresias, "optimus": Optimus}
    if rule == "goodput":
        unknown = sorted(values.keys() - {"ends", "explore"})
        if unknown:
            raise PolicyError(f"policy 'goodput' has no parameter {unknown[0]!r}; it has: ends, explore")
        return Shares(nodes, **values)
    if rule not in makers:
        raise PolicyError(f"unknown policy {rule!r} in Pollux' simulation; there are: {', '.join(RULES)}")
    if values:
        raise PolicyError(f"policy {rule!r} takes no parameters here, got {', '.join(sorted(values))}")
    return makers[rule]()
