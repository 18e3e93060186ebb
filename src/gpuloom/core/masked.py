"""Environments of jobs without their values: values may be secrets, and events and answers are kept for ever."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MASK = "***"
"""Stands for the value of an environment variable wherever one can be read."""


def masked(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec with the names of its environment variables, but without their values."""
    env = spec.get("env")
    return {**spec, "env": dict.fromkeys(env, MASK)} if isinstance(env, Mapping) and env else dict(spec)


def unmasked(env: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    """The variables; a masked value means the value from before."""
    return {name: before.get(name, value) if value == MASK else value for name, value in env.items()}
