"""The OpenAPI document: routes as the framework knows them, and the schemas of what they take and give."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views.answers import Problem
from gpuloom.server import bodies, docs
from gpuloom.server.shapes import model_of, ref

TAGS = {
    "jobs": "Submit, list and change jobs.",
    "logs": "What jobs write.",
    "events": "What happens.",
    "cluster": "Nodes, policy, usage, history.",
    "scheduler": "The scheduler itself.",
}


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
    given = [model_of(answer) for answer in (Problem, *docs.ANSWERS.values())]
    _, found = models_json_schema(
        [(model, "validation") for model in dict.fromkeys([*taken, *given])], ref_template=ref("{model}")["$ref"]
    )
    definitions: dict[str, Any] = found["$defs"]
    definitions["JobChanges"] = _changes(definitions["JobSpec"])
    changes = definitions["ActUpdate"]["properties"]["changes"]
    definitions["ActUpdate"]["properties"]["changes"] = {
        **ref("JobChanges"),
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
        "token": {
            "type": "http",
            "scheme": "bearer",
            "description": "The token in the file 'token' in the scheduler's home.",
        }
    }
    document["security"] = [{"token": []}]
    return document
