"""The OpenAPI document: routes as the framework knows them, and the schemas of what they take and give."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache, reduce
from operator import or_
from types import UnionType
from typing import Any, NotRequired, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import models_json_schema

from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views.models import AttemptView, JobView, NodeView, PolicyView, StatusView, WhyView
from gpuloom.server import bodies

TAGS = {
    "jobs": "Submit, list and change jobs.",
    "logs": "What jobs write.",
    "events": "What happens.",
    "cluster": "Nodes, policy, usage, history.",
    "scheduler": "The scheduler itself.",
}


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Fault(_Answer):
    """One thing that is wrong."""

    where: str = Field(description="JSON pointer into the body, 'line 3, column 5' of it, or 'query limit'.")
    message: str


class Problem(_Answer):
    """Why it was not done (RFC 9457)."""

    type: str = Field(examples=["urn:gpuloom:problem:not-found"])
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


class Event(_Answer):
    """Something that happened."""

    id: int
    at_s: float
    type: str = Field(examples=["attempt.running"])
    job: int | None
    data: dict[str, Any]


class UsageRow(_Answer):
    """What one user, name, day or node used."""

    key: str
    jobs: int
    attempts: int
    held_s: float
    gpu_s: float
    failed: int


def _told_fields(view: type) -> dict[str, str]:
    """The strings that stand below a class's fields."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(view))).body
    assert isinstance(body, ast.ClassDef)  # noqa: S101
    found = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found


@cache
def model_of(view: type) -> type[BaseModel]:
    """A model with the fields of a TypedDict, and no others."""
    told = _told_fields(view)
    fields: dict[str, Any] = {}
    for name, kind in get_type_hints(view, include_extras=True).items():
        optional = get_origin(kind) is NotRequired
        kind = get_args(kind)[0] if optional else kind
        fields[name] = (_kind_of(kind), Field(None if optional else ..., description=told.get(name)))
    name = view.__name__.removesuffix("View") if view not in (JobView, WhyView) else view.__name__
    closed = ConfigDict(extra="forbid")
    return create_model(name, __config__=closed, __doc__=inspect.cleandoc(view.__doc__ or ""), **fields)


def _kind_of(kind: Any) -> Any:
    """A type with models in place of the TypedDicts within it."""
    if is_typeddict(kind):
        return model_of(kind)
    if get_origin(kind) is list:
        return list[_kind_of(get_args(kind)[0])]  # type: ignore[misc]
    if get_origin(kind) is UnionType:
        return reduce(or_, map(_kind_of, get_args(kind)))
    return kind


def _changes(spec: dict[str, Any]) -> dict[str, Any]:
    """The schema of changes to a spec: any of its fields."""
    fields = {
        name: {key: value for key, value in field.items() if key != "default"}
        for name, field in spec["properties"].items()
    }
    return {
        "title": "JobChanges",
        "type": "object",
        "description": "Fields of a JobSpec: those not given stay as they are.",
        "properties": fields,
        "additionalProperties": False,
        "minProperties": 1,
    }


@cache
def schemas() -> dict[str, Any]:
    """All schemas by name."""
    taken: list[type[BaseModel]] = [
        JobSpec,
        bodies.Batch,
        bodies.Nothing,
        bodies.CancelOne,
        bodies.Act,
        bodies.ActCancel,
        bodies.ActUpdate,
        bodies.NodeChange,
        bodies.PolicyChange,
        bodies.Shutdown,
    ]
    views = (JobView, WhyView, AttemptView, NodeView, PolicyView, StatusView)
    given: list[type[BaseModel]] = [*map(model_of, views), Problem, Event, UsageRow]
    _, found = models_json_schema(
        [(model, "validation") for model in [*taken, *given]], ref_template="#/components/schemas/{model}"
    )
    definitions: dict[str, Any] = found["$defs"]
    definitions["JobChanges"] = _changes(definitions["JobSpec"])
    changes = definitions["ActUpdate"]["properties"]["changes"]
    definitions["ActUpdate"]["properties"]["changes"] = {
        "$ref": "#/components/schemas/JobChanges",
        "description": changes["description"],
    }
    return definitions


def describe(app: FastAPI) -> dict[str, Any]:
    """The document."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in TAGS.items()],
    )
    components = document.setdefault("components", {})
    components["schemas"] = {**schemas(), **components.get("schemas", {})}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "What the file 'token' in the home says."}
    }
    document["security"] = [{"token": []}]
    return document
