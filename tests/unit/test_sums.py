"""Sums of what decides come out alike on every Python."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import gpuloom
from gpuloom.core.sums import sum_floats, sum_ints

SOURCE = Path(gpuloom.__file__).parent
ROOMS = ("core", "placement", "interleave", "policies", "engine", "sim", "sharing")
"""Where a sum decides something, or is a figure that is printed."""
OTHERS = {"sum", "sumprod", "fmean", "mean", "hypot", "dist"}
"""Functions of builtins, math and statistics whose last bit is another one on another Python."""
WORDS = re.compile(r"\b(sum|math|statistics)\b")
"""Of which a file has one that adds by other means."""


def test_each_step_is_rounded_as_before_python_3_12() -> None:
    values = [1e16, 1.0, 1.0, 1.0, -1e16]
    assert sum_floats(values) == 0.0
    assert sum_floats([0.1] * 10) == 0.9999999999999999
    assert sum_floats([]) == 0
    assert sum_ints(mask.bit_count() for mask in (3, 4)) == 3


def test_nobody_adds_by_other_means() -> None:
    found = []
    for room in ROOMS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            if path.name == "sums.py":
                continue
            if not WORDS.search(text := path.read_text(encoding="utf-8")):
                continue
            for node in ast.walk(ast.parse(text)):
                bare = isinstance(node, ast.Name) and node.id == "sum"
                of_module = (
                    isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in ("math", "statistics")
                    and node.attr in OTHERS
                )
                taken = isinstance(node, ast.ImportFrom) and node.module in ("math", "statistics")
                names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
                if bare or of_module or (taken and names & OTHERS):
                    found.append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    assert not found, f"use sum_floats or sum_ints of gpuloom.core.sums: {found}"
