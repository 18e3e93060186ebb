"""Quantities and times as Kubernetes writes them."""

from __future__ import annotations

from datetime import datetime

_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60}
_DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}


def quantity(text: object) -> float:
    """A quantity ('500m', '64Gi', '8', '1e3') as a number; 0 for what is none."""
    said = str(text).strip()
    for suffix, factor in _BINARY.items():
        if said.endswith(suffix):
            return _number(said.removesuffix(suffix)) * factor
    if said[-1:] in _DECIMAL and not said[-1:].isdigit():
        return _number(said[:-1]) * _DECIMAL[said[-1]]
    return _number(said)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def time_s(text: object) -> float | None:
    """A time ('2026-11-22T08:57:56Z') as seconds since the epoch; None for none."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
