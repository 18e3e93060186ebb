"""What the fields of a job may be: times, memory, numbers of jobs, as Python values, text and JSON schema."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt

from gpuloom.core.errors import InputError
from gpuloom.core.units import parse_duration_s, parse_memory_mib


def _seconds(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a time, such as 90 (seconds) or '4h'")
    if isinstance(value, str):
        try:
            return parse_duration_s(value)
        except InputError as error:
            raise ValueError(str(error)) from None
    return value


def _mib(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must be a size, such as 512 (MiB) or '12GiB'")
    if isinstance(value, str):
        try:
            return parse_memory_mib(value)
        except InputError as error:
            raise ValueError(str(error)) from None
    return value


def _words(value: object) -> object:
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    return value


def dependencies_of(value: object) -> object:
    return [value] if isinstance(value, int | str) and not isinstance(value, bool) else value


LONGEST_S = 1e9
"""Longest time in a spec: thirty years."""
SHORTEST_S = 0.001
MOST_MIB = 2**30
"""Most memory in a spec: a pebibyte."""
MOST_CPUS = 100_000
LEAST_CPUS = 0.01
MOST_BYTES = 2**20
"""Most characters of a command and its environment together; the system accepts little more."""
LONGEST_WORD = 2**17 - 1
"""Most bytes of a word of the command, or of a variable with its value: the system's own limit."""
MOST_SPEED = 1e9
LONGEST_MODEL = 100
SPEED = "speed:"
MOST_AFTER = 1_000
"""Jobs that one waits for."""
JOB_NUMBER_MAX = 2**53

_TIME = r"^\s*[0-9][0-9.eE+-]*\s*(ms|s|m|min|h|d|w)?\s*$"
_MEMORY = r"^\s*[0-9.]+\s*([kKmMgGtT]?([iI]?[bB])?)\s*$"


def _duration_schema(least: float, most: float) -> dict[str, Any]:
    return {
        "anyOf": [
            {"type": "number", "minimum": least, "maximum": most},
            {"type": "string", "pattern": _TIME, "maxLength": 30, "examples": ["90s", "4h"]},
        ]
    }


_MEMORY_SCHEMA = {
    "anyOf": [
        {"type": "integer", "minimum": 1, "maximum": MOST_MIB},
        {"type": "string", "pattern": _MEMORY, "maxLength": 30, "examples": ["12GiB", "512MiB"]},
    ]
}


def _shown(shown: dict[str, Any]) -> Any:
    def put(schema: dict[str, Any]) -> None:
        for key in ("type", "exclusiveMinimum", "minimum", "maximum", "anyOf"):
            schema.pop(key, None)
        schema.update(shown)

    return put


def _duration(least: float, most: float) -> Any:
    schema = _shown(_duration_schema(least, most))
    return Field(ge=least, le=most, allow_inf_nan=False, json_schema_extra=schema)


SHORTEST_INTERVAL_S = 0.1


def _interval(value: float) -> float:
    if 0 < value < SHORTEST_INTERVAL_S:
        raise ValueError(f"must be 0 (at every event) or at least {SHORTEST_INTERVAL_S} seconds")
    return value


def interval(value: float) -> float:
    """A checked time between scheduling passes.

    Raises:
        InputError: it is none.
    """
    if not (value == 0 or SHORTEST_INTERVAL_S <= value <= LONGEST_S):
        raise InputError(
            f"interval is {value:g} s: must be 0 (at every event), or {SHORTEST_INTERVAL_S} to {LONGEST_S:g}"
        )
    return value


Seconds = Annotated[float, BeforeValidator(_seconds), _duration(SHORTEST_S, LONGEST_S)]
Grace = Annotated[float, BeforeValidator(_seconds), _duration(0.0, 86_400.0)]
Mib = Annotated[int, BeforeValidator(_mib), Field(ge=1, le=MOST_MIB, json_schema_extra=_shown(_MEMORY_SCHEMA))]
Interval = Annotated[float, BeforeValidator(_seconds), AfterValidator(_interval), _duration(0.0, LONGEST_S)]
JobNumber = Annotated[StrictInt, Field(ge=1, le=JOB_NUMBER_MAX)]
Words = Annotated[list[str], BeforeValidator(_words)]
