"""The bounds that job.schema.json tells are those that hold: each bound is allowed itself, and nothing beyond it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from gpuloom.core.errors import InputError
from gpuloom.live.submission.spec import job_spec, json_schema

KNOWN = {
    ("gpus", "minimum"): 1,
    ("gpus", "maximum"): 1_000_000,
    ("cpus", "minimum"): 0.01,
    ("cpus", "maximum"): 100_000,
    ("priority", "minimum"): -1_000_000,
    ("priority", "maximum"): 1_000_000,
    ("retries", "minimum"): 0,
    ("retries", "maximum"): 1_000,
    ("grace", "minimum"): 0,
    ("grace", "maximum"): 86_400,
}


def bounds() -> dict[tuple[str, str], float]:
    found = {}
    for name, field in json_schema()["properties"].items():
        for form in (field, *field.get("anyOf", ()), *field.get("oneOf", ())):
            for bound in ("minimum", "maximum"):
                if bound in form:
                    found[name, bound] = form[bound]
    return found


def allowed(name: str, value: Any) -> bool:
    try:
        job_spec({"command": ["train"], name: value})
    except (InputError, ValidationError):
        return False
    return True


def test_the_schema_tells_these_bounds() -> None:
    assert KNOWN.items() <= bounds().items()


@pytest.mark.parametrize(("name", "bound"), [*KNOWN])
def test_a_bound_is_allowed_and_nothing_beyond(name: str, bound: str) -> None:
    at = KNOWN[name, bound]
    step = 1 if name != "cpus" or bound == "maximum" else 0.001
    assert allowed(name, at)
    assert not allowed(name, at - step if bound == "minimum" else at + step)


@pytest.mark.parametrize(
    ("name", "within", "beyond"),
    [
        ("time_limit", (0.001, 1e9), (0.0009, 1.001e9)),
        ("estimate", (0.001, 1e9), (0.0009, 1.001e9)),
        ("memory", (1, 2**30), (0, 2**30 + 1)),
        ("gpu_memory", (1, 2**30), (0, 2**30 + 1)),
        ("after", ([1] * 1, list(range(1, 1001))), ([0], list(range(1, 1002)))),
        ("name", ("a", "a" * 200), ("a" * 201,)),
    ],
)
def test_of_times_memory_and_lists(name: str, within: tuple[Any, ...], beyond: tuple[Any, ...]) -> None:
    assert all(allowed(name, value) for value in within)
    assert not any(allowed(name, value) for value in beyond)
