"""Whether an answer of the API is what its document says of it."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
from fastapi import FastAPI

from gpuloom.live.views.answers import Problem
from gpuloom.server import docs
from gpuloom.server.shapes import model_of

_paths = dict[str, Any]()
"""Of the document. It is made once: it goes by the routes, which are the same for every scheduler."""


def operation_of(app: FastAPI, method: str, path: str) -> str | None:
    """The operation that a request asks for; None for one that the document does not name."""
    if not _paths:
        _paths.update(app.openapi()["paths"])
    for pattern, item in _paths.items():
        if method.lower() in item and re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", pattern), path):
            return str(item[method.lower()]["operationId"])
    return None


def judge(app: FastAPI, answer: httpx.Response) -> str | None:
    """Raises for a field too many, too few, or of another type; the operation, where it is one that answers in JSON."""
    kind = answer.headers.get("content-type", "")
    if not answer.content:  # of HEAD
        return None
    if kind == "application/problem+json":
        model_of(Problem).model_validate_json(_text(answer), strict=True)
        return None
    request = answer.request
    operation = operation_of(app, request.method, request.url.path)
    if kind != "application/json" or operation not in docs.ANSWERS:
        return None
    model_of(docs.ANSWERS[operation]).model_validate_json(_text(answer), strict=True)
    return operation


def _text(answer: httpx.Response) -> bytes:
    """The same with a mark in place of halves of characters, which JSON allows and the check does not."""
    return json.dumps(answer.json(), ensure_ascii=False).encode("utf-8", "replace")
