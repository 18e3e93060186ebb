"""The OpenAPI document: routes as the framework knows them, and the schemas of what they take and give."""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import cache
from typing import Any, get_type_hints

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.json_schema import models_json_schema

from gpuloom.live.spec import JobSpec
from gpuloom.live.views import JobView, WhyView
from gpuloom.server import bodies

_TAGS = {
    "jobs": "Submit, list and change jobs.",
    "logs": "What jobs write.",
    "events": "What happens.",
    "cluster": "Nodes, policy, usage, history.",
    "scheduler": "The scheduler itself.",
}


class Fault(BaseModel):
    """One thing that is wrong."""

    where: str = Field(description="JSON pointer into the body, 'line 3, column 5' of it, or 'query limit'.")
    message: str


class Problem(BaseModel):
    """Why it was not done (RFC 9457)."""

    type: str = Field(examples=["urn:gpuloom:problem:not-found"])
    title: str
    status: int
    detail: str
    errors: list[Fault] | None = None


class Event(BaseModel):
    """Something that happened."""

    id: int
    at_s: float
    type: str = Field(examples=["attempt.running"])
    job: int | None
    data: dict[str, Any]


class _Open(BaseModel):
    model_config = ConfigDict(extra="allow")


class Node(_Open):
    """A machine."""

    name: str
    state: str = Field(description="up, cordoned, draining or down.")
    reason: str
    kind: str = Field(description="gpu, or cpu where CPU slots stand in for GPUs.")
    cpus: int | None
    memory_mib: int | None
    gpus: list[dict[str, Any]]


class Policy(_Open):
    """The policy in use."""

    policy: str
    interval_s: float
    since_s: float | None
    previous: str | None


class UsageRow(_Open):
    """What one user, name, day or node used."""

    key: str
    jobs: int
    attempts: int
    held_s: float
    gpu_s: float
    failed: int


class Status(_Open):
    """The scheduler about itself."""

    version: str
    pid: int
    started_s: float
    store: dict[str, Any]
    executor: dict[str, Any]
    policy: str
    interval_s: float
    jobs: dict[str, int] = Field(description="Jobs by state.")
    gpus: dict[str, Any]
    now_s: float


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


def _model_of(view: type) -> type[BaseModel]:
    """A model with the fields of a TypedDict."""
    told = _told_fields(view)
    fields: dict[str, Any] = {
        name: (kind, Field(description=told.get(name))) for name, kind in get_type_hints(view).items()
    }
    return create_model(view.__name__, __doc__=inspect.cleandoc(view.__doc__ or ""), **fields)


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
    given: list[type[BaseModel]] = [
        _model_of(JobView),
        _model_of(WhyView),
        Problem,
        Event,
        Node,
        Policy,
        UsageRow,
        Status,
    ]
    _, found = models_json_schema(
        [(model, "validation") for model in [*taken, *given]], ref_template="#/components/schemas/{model}"
    )
    definitions: dict[str, Any] = found["$defs"]
    return definitions


def describe(app: FastAPI) -> dict[str, Any]:
    """The document."""
    document = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=[{"name": name, "description": text} for name, text in _TAGS.items()],
    )
    components = document.setdefault("components", {})
    components["schemas"] = {**schemas(), **components.get("schemas", {})}
    components["securitySchemes"] = {
        "token": {"type": "http", "scheme": "bearer", "description": "What the file 'token' in the home says."}
    }
    document["security"] = [{"token": []}]
    return document
