"""Bodies of requests: read whole, parsed once, checked once; every error names its place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

from gpuloom.bounded.json_text import load_json
from gpuloom.live.submission.fields import Grace, Interval
from gpuloom.live.submission.spec import JobSpec
from gpuloom.server.problems import ProblemError, invalid_body, pointer, told

Body = TypeVar("Body", bound=BaseModel)

MOST_JOBS = 10_000
"""Jobs in one request."""

JobNumber = Annotated[int, Field(strict=True, ge=1, le=2**53)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Batch(_Body):
    """Several jobs at once: all are taken, or none."""

    jobs: list[JobSpec] = Field(min_length=1, max_length=MOST_JOBS)


class Nothing(_Body):
    """No fields."""


class CancelOne(_Body):
    """How to end a job."""

    grace: Grace | None = Field(None, description="Time between notice and kill; by default what the job asked for.")


class Act(_Body):
    """Jobs for which something is done: for all of them, or none."""

    jobs: list[JobNumber] = Field(min_length=1, max_length=MOST_JOBS)


class ActCancel(CancelOne):
    """Jobs to end, and how."""

    jobs: list[JobNumber] = Field(min_length=1, max_length=MOST_JOBS)


class ActUpdate(Act):
    """Jobs to change, and fields of their specs."""

    changes: dict[str, Any] = Field(min_length=1, description="Fields of a JobSpec, as for PATCH.")


class NodeChange(_Body):
    """What becomes of a node."""

    state: Literal["up", "cordoned", "draining"] = Field(
        description="cordoned: no new job starts; draining: its jobs are preempted as well."
    )
    reason: str = Field("", max_length=500, description="Shown to users.")


class PolicyChange(_Body):
    """Another policy."""

    policy: str = Field(min_length=1, max_length=1000, description="As for `gpuloom simulate --policy`.")
    interval: Interval | None = Field(None, description="Time between scheduling passes; by default unchanged.")


class Shutdown(_Body):
    """How to end the scheduler."""

    stop_jobs: bool = Field(
        False, strict=True, description="Put running jobs back into the queue first; otherwise they keep running."
    )


def _command_in_place(value: object) -> object:
    # A spec must have a command, a change need not.
    return {"command": ["-"], **value} if isinstance(value, dict) else value


_SPEC = TypeAdapter(JobSpec)
_CHANGED = TypeAdapter(Annotated[JobSpec, BeforeValidator(_command_in_place)])
_BATCH = TypeAdapter(Batch)
_SPEC_FIELDS = tuple(JobSpec.model_fields)


async def read_json(request: Request, *, optional: bool = False) -> Any:
    """The body as plain data. optional: none is {}.

    Raises:
        ProblemError: not sent as JSON, or not JSON (with line and column).
    """
    raw = await request.body()
    if not raw.strip():
        if optional:
            return {}
        raise ProblemError("malformed-json", "the body is empty: send a JSON object")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise ProblemError(
            "not-json", f"the Content-Type is {kind or 'missing'}: send it with 'Content-Type: application/json'"
        )
    try:
        return load_json(raw)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ProblemError("malformed-json", f"{where}: {error.msg}", [(where, error.msg)]) from None
    except UnicodeDecodeError as error:
        before = raw[: error.start]
        where = f"line {before.count(10) + 1}, column {len(before) - before.rfind(10)}"
        message = f"byte 0x{raw[error.start]:02x} is not UTF-8"
        raise ProblemError("malformed-json", f"{where}: {message}", [(where, message)]) from None
    except ValueError as error:
        raise ProblemError("malformed-json", str(error)) from None


def submitted(data: Any) -> list[JobSpec]:
    """Specs of a submission: one, or {"jobs": […]}.

    Raises:
        ProblemError: names index and field.
    """
    batch = isinstance(data, dict) and "jobs" in data and "command" not in data
    try:
        specs = _BATCH.validate_python(data).jobs if batch else [_SPEC.validate_python(data)]
    except ValidationError as error:
        _refuse(error, ("jobs",) if batch else _SPEC_FIELDS)
    return [spec.named() for spec in specs]


def changes_of(data: Any, under: str = "") -> dict[str, Any]:
    """Checked changes of a spec: the fields given, in their plain form (seconds, MiB). under: pointer to them."""
    try:
        spec = _CHANGED.validate_python(data)
    except ValidationError as error:
        _refuse(error, _SPEC_FIELDS, under)
    if not data:
        raise invalid_body([(under, f"no change: give one or more of {', '.join(_SPEC_FIELDS)}")])
    whole = spec.model_dump(mode="json")
    return {name: whole[name] for name in data}


def checked(model: type[Body], data: Any) -> Body:
    """A body of another shape."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        _refuse(error, tuple(model.model_fields))


def _refuse(error: ValidationError, known: Sequence[str], under: str = "") -> NoReturn:
    entries: Sequence[Mapping[str, Any]] = error.errors(include_url=False, include_context=False)
    found = []
    for entry in entries:
        inside = "jobs" in entry["loc"][:1] and len(entry["loc"]) > 2
        found.append((under + pointer(entry["loc"]), told(entry, _SPEC_FIELDS if inside else known)))
    raise invalid_body(found) from None
