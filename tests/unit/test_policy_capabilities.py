"""What a policy declares reaches whoever asks the policy that stands for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpuloom.core.errors import PolicyError
from gpuloom.live.trial import check
from gpuloom.policies import base, composed
from gpuloom.policies.base import CAPABILITIES, Policy, Preemptive, Traits
from gpuloom.policies.beside import Beside
from gpuloom.policies.elastic import Elastic
from gpuloom.policies.fifo import Fifo
from gpuloom.sim import rebuilt
from gpuloom.sim.explain import Watched

NOT_DEFAULT: dict[str, Any] = {
    "max_jobs_per_gpu": 3,
    "periodic": True,
    "spills_memory": True,
    "uses_stages": True,
    "preempts_at_intervals": True,
    "resizes": True,
    "rewarded": True,
    "own_priorities": True,
    "ranks_priorities": True,
    "moves_running": False,
    "pairs": True,
    "heeds_weights": True,
    "weaves": True,
    "shares_with": "packed",
    "remembers": (int,),
    "novel": "said",
}
"""`novel`: one that is new, and that no wrapper has heard of."""

Wrap = Callable[[Policy, pytest.MonkeyPatch], Policy]


def _elastic(inner: Policy, patch: pytest.MonkeyPatch) -> Policy:
    patch.setattr(composed.Composed, "made_inner", lambda self: inner)
    return Elastic()


def _rebuilt(inner: Policy, patch: pytest.MonkeyPatch) -> Policy:
    patch.setattr(rebuilt, "load_policy", lambda text: inner)
    return rebuilt.Rebuilt("fifo", compact=True)


def _inside(inner: Policy, patch: pytest.MonkeyPatch) -> Policy:
    patch.setattr(check, "load_policy", lambda text: inner)
    return check._Inside("fifo")


WRAPPERS: dict[str, tuple[Wrap, frozenset[str]]] = {
    "watched": (lambda inner, _: Watched(inner, "0"), frozenset()),
    "rebuilt": (_rebuilt, frozenset()),
    "inside": (_inside, frozenset()),
    "beside": (
        lambda inner, _: Beside(inner, 0.5),
        frozenset({"max_jobs_per_gpu", "pairs", "spills_memory", "remembers"}),
    ),
    "elastic": (_elastic, frozenset({"resizes", "ranks_priorities", "remembers"})),
}
"""How each is made around a policy, and which capabilities are its own."""


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("declares", [False, True])
def test_every_capability_passes_through_every_wrapper(
    name: str, declares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base.Capabilities, "novel", "", raising=False)
    monkeypatch.setattr(base, "CAPABILITIES", (*CAPABILITIES, "novel"))
    assert NOT_DEFAULT.keys() == {*base.CAPABILITIES}, "a new capability wants a value here"
    inner = Fifo()
    for capability, value in NOT_DEFAULT.items():
        if declares:
            setattr(inner, capability, value)
    wrap, own = WRAPPERS[name]
    outer = wrap(inner, monkeypatch)
    assert {c for c in base.CAPABILITIES if getattr(outer, c) != getattr(inner, c)} <= own
    assert set(inner.remembers) <= set(outer.remembers)


def test_only_capabilities_can_be_taken() -> None:
    with pytest.raises(TypeError, match="preiodic"):
        Fifo().take_capabilities(Fifo(), preiodic=True)


def test_when_a_policy_preempts_is_one_of_a_few_words() -> None:
    assert Traits("s", "k", "at rounds", False, False, "", "").preemptive is Preemptive.AT_ROUNDS  # type: ignore[arg-type]
    assert [word for word in Preemptive if not Traits("s", "k", word, False, False, "", "").preempts] == ["no"]
    with pytest.raises(PolicyError, match="no, yes, at rounds"):
        Traits("s", "k", "now and then", False, False, "", "")  # type: ignore[arg-type]
