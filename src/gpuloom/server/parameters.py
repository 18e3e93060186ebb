"""Parameters of routes: their types, and the check that refuses unknown ones."""

from __future__ import annotations

import datetime
import inspect
import math
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from fastapi import Request
from fastapi.params import Query
from pydantic import BeforeValidator, Field

from gpuloom.core.words import did_you_mean
from gpuloom.server.problems import ProblemError


def _moment(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        seconds = float(value)
    except ValueError:
        try:
            moment = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("write seconds since 1970, or a date such as 2026-03-01 or 2026-03-01T12:00:00Z") from None
        seconds = (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError("must be finite")
    return seconds


LATEST_S = 1e11
"""In the year 5138."""


def _or_text(schema: dict[str, Any]) -> None:
    number = {key: schema.pop(key) for key in ("type", "minimum", "maximum") if key in schema}
    schema["anyOf"] = [number, {"type": "string", "examples": ["2026-03-01", "2026-03-01T12:00:00Z"]}]


JobNumber = Annotated[int, Field(ge=1, le=2**53, description="Number of a job.")]
Moment = Annotated[
    float,
    BeforeValidator(_moment),
    Field(
        ge=0,
        le=LATEST_S,
        description="Seconds since 1970, or a date in ISO 8601 (UTC).",
        json_schema_extra=lambda schema: _or_text(schema),
    ),
]

_known: dict[Any, dict[str, bool]] = {}


async def known_only(request: Request) -> None:
    """Refuses a parameter that the route does not have, or twice one that it takes once.

    Raises:
        ProblemError: names those that there are.
    """
    query = request.query_params
    if not query:
        return
    endpoint = request.scope["endpoint"]
    if endpoint not in _known:
        _known[endpoint] = _parameters(endpoint)
    known, found = _known[endpoint], []
    for name in query:
        where = f"query {name[:100]}"
        if name not in known:
            there = f"known: {', '.join(known)}" if known else "the route takes none"
            found.append((where, f"is unknown{did_you_mean(name, known)}; {there}"))
        elif not known[name] and len(query.getlist(name)) > 1:
            found.append((where, "is given more than once"))
    if found:
        raise ProblemError("bad-request", "; ".join(f"{where} {message}" for where, message in found[:3]), found)


def _parameters(endpoint: Any) -> dict[str, bool]:
    """Query parameters of a route, and whether each may come more than once."""
    hints = get_type_hints(inspect.unwrap(endpoint), include_extras=True)
    return {
        name: get_origin(get_args(hint)[0]) is list
        for name, hint in hints.items()
        if get_origin(hint) is Annotated and any(isinstance(part, Query) for part in get_args(hint)[1:])
    }
