"""The policy that was set, made of what was written, with what it remembered. All its code runs guarded (`asking`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuloom.core.errors import InputError
from gpuloom.facts.inputs import load_policy
from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.policy_memory import memory_from_bytes
from gpuloom.live.planning.world import Memory
from gpuloom.policies.base import Policy
from gpuloom.policies.registry import parse_policy
from gpuloom.policies.weaving import OWN

log = logging.getLogger("gpuloom.scheduler")


def read(written: str, *, beside: bool | None = None) -> Policy:
    """The policy of a text. Where it never stops a job for another, it moves none either, unless the text says so:
    on a cluster its users count on that. Jobs that share GPUs have processes of their own.

    Raises:
        PolicyError: no such policy, or a bad parameter.
    """
    given: dict[str, Any] = {} if beside is None else {"beside": beside}
    given["processes"] = OWN  # of Muri's policies and weave: each run has a process of its own here
    policy = load_policy(written, **given)
    if policy.moves_running and not policy.traits.preempts and "upgrade" not in parse_policy(written)[1]:
        return load_policy(written, **given, upgrade=False)
    return policy


def made(written: str, *, beside: bool, ended_gpu_s: Sequence[float]) -> Policy:
    """The policy, told of what jobs that have ended took.

    Raises:
        PolicyError: no such policy, or a bad parameter; PolicyFailure: its code fails.
    """
    try:
        policy = read(written, beside=beside)
    except InputError:
        raise
    except BaseException as error:
        raise PolicyFailure(Call.BEGIN, error, None) from error
    learn(policy, ended_gpu_s)
    return policy


def learn(policy: Policy, ended_gpu_s: Sequence[float]) -> None:
    """Tell a policy what jobs that have ended took. Raises PolicyFailure."""
    ended = np.asarray(ended_gpu_s, dtype=np.float64)
    asked: Policy | None = policy
    while asked is not None:
        with Asking(Call.LEARN_FROM, asked):
            asked.learn_from(ended)
        asked = asked.inner


def recalled(policy: Policy, saved: bytes | None) -> Memory:
    """The memory that was written down last; a new one if there is none, or it can't be read."""
    if saved is None:
        return Memory()
    try:
        with Asking(Call.READ_MEMORY, policy):
            return memory_from_bytes(saved, policy)
    except PolicyFailure as error:
        log.warning("the memory of policy %s can't be read, so it starts without: %s", policy.id, error)
        return Memory()
