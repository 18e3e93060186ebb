"""Hooks in the test's own process: their state of modules made anew, and a clock that is set by hand."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

stages: Any = importlib.import_module("_gpuloom_hooks.stages")
records: Any = importlib.import_module("_gpuloom_hooks.records")


class Clock:
    """Nanoseconds by hand."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


def anew(monkeypatch: pytest.MonkeyPatch, folder: str = "") -> Clock:
    """Hooks as at the start of a process, with a clock by hand; records go to the folder."""
    hooks = importlib.import_module("_gpuloom_hooks")
    clock = Clock()
    monkeypatch.setenv("GPULOOM_HOOKS", folder)
    monkeypatch.setattr(hooks, "switched_off", set())
    for module, name, value in (
        (stages, "perf_counter_ns", clock),
        (stages, "listeners", []),
        (stages, "sinks", []),
        (stages, "counted_elsewhere", False),
        (stages, "_owner", 0),
        (stages, "_timeline", stages.Timeline()),
        (records, "facts", records.Facts()),
        (records, "before", []),
        (records, "_file", None),
        (records, "_rows", 0),
    ):
        monkeypatch.setattr(module, name, value)
    return clock
