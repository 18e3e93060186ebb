"""Errors as answers: application/problem+json (RFC 9457), one table for all of them.

`errors` names each thing that is wrong: `where` is a JSON pointer into the body ('/jobs/3/gpus'; '' is all of it),
'line 3, column 5' of a body that is no JSON, or 'query limit', 'header Idempotency-Key', 'path job'.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from gpuloom.bounded.text import cut, shown
from gpuloom.core.errors import (
    ConflictError,
    GpuloomError,
    ImpossibleJobError,
    InputError,
    InvalidTransition,
    NotFoundError,
)
from gpuloom.core.words import did_you_mean
from gpuloom.executors.logs import NoLogError
from gpuloom.executors.port import ExecutorError
from gpuloom.live.submission.spec import said_of
from gpuloom.live.views.answers import KindOfProblem, Problem, type_of
from gpuloom.server.encoded import JsonResponse
from gpuloom.store.errors import StoreError

MOST_ERRORS = 20
"""Of a body with more mistakes the first ones are told, and how many there are."""

HEADER_BYTES = 16 * 1024
"""Of a request's headers, and of its first line."""

_log = logging.getLogger(__name__)

TITLES: Mapping[KindOfProblem, tuple[int, str]] = {
    "bad-request": (400, "The request is wrong"),
    "malformed-json": (400, "The body is not JSON"),
    "invalid-input": (400, "The parameters are wrong"),
    "unauthorized": (401, "A token is needed"),
    "foreign-origin": (403, "Requests of other web pages are refused"),
    "not-found": (404, "Not found"),
    "no-such-route": (404, "There is no such route"),
    "method-not-allowed": (405, "The route has no such method"),
    "too-slow": (408, "The request arrived too slowly"),
    "conflict": (409, "Not possible in this state"),
    "too-large": (413, "The body is too large"),
    "not-json": (415, "The body must be sent as JSON"),
    "wrong-host": (421, "The request is for another host"),
    "invalid-body": (422, "The body is wrong"),
    "impossible-job": (422, "The job is impossible on this cluster"),
    "too-many-streams": (429, "Too many streams are open"),
    "headers-too-large": (431, "The headers are too large"),
    "internal-error": (500, "The scheduler failed"),
    "store-unavailable": (503, "The store can't be used"),
    "node-unreachable": (504, "The node can't be asked"),
}
"""By last part of the type ('urn:gpuloom:problem:…'): status and title."""

_OF_ERROR: Sequence[tuple[type[GpuloomError], KindOfProblem]] = (
    (NotFoundError, "not-found"),
    (NoLogError, "not-found"),
    (ImpossibleJobError, "impossible-job"),
    (ConflictError, "conflict"),
    (InvalidTransition, "conflict"),
    (StoreError, "store-unavailable"),
    (InputError, "invalid-input"),
    (ExecutorError, "node-unreachable"),
)


class ProblemError(GpuloomError):
    """An answer other than the one asked for. kind: a key of TITLES. errors: (where, message)."""

    def __init__(
        self,
        kind: KindOfProblem,
        detail: str,
        errors: Iterable[tuple[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.errors, self.headers = kind, detail, tuple(errors), headers

    def response(self) -> JsonResponse:
        """The answer that says so."""
        status, title = TITLES[self.kind]
        body: Problem = {
            "type": type_of(self.kind),
            "title": title,
            "status": status,
            "detail": self.detail,
        }
        if self.errors:
            body["errors"] = [{"where": where, "message": message} for where, message in self.errors[:MOST_ERRORS]]
        headers = dict(self.headers or {})
        return JsonResponse(body, status_code=status, headers=headers, media_type="application/problem+json")


def problem_of(error: GpuloomError) -> ProblemError:
    """What an error of gpuloom is to a client."""
    if isinstance(error, ProblemError):
        return error
    kind: KindOfProblem = next((kind for type_, kind in _OF_ERROR if isinstance(error, type_)), "internal-error")
    detail = str(error)
    if kind == "store-unavailable":
        return ProblemError(kind, f"{detail}. Nothing was changed", headers={"Retry-After": "5"})
    return ProblemError(kind, detail)


def pointer(path: Iterable[object]) -> str:
    """A JSON pointer from a place as pydantic names it."""
    parts = [str(part) for part in path]
    shown = [part for part in parts if part != "[key]" and not part.startswith("function-")]
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in shown)


def told(entry: Mapping[str, Any], known: Sequence[str] = ()) -> str:
    """What is wrong with a field, as a sentence from an entry of pydantic's. known: fields that there are."""
    if entry["type"] == "extra_forbidden":
        name = cut(str(entry["loc"][-1]), 60)
        return f"unknown field {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}"
    if entry["type"] == "missing":
        return "is missing"
    if entry["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return f"must be a JSON object, not {_kind(entry.get('input'))}"
    message = said_of(entry)
    if isinstance(entry.get("input"), dict):
        return message  # about several fields together
    return f"is {shown(entry.get('input'))}: {cut(message)}"


def _kind(value: object) -> str:
    names = {list: "a list", str: "a text", bool: "true or false", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def invalid_body(found: Sequence[tuple[str, str]]) -> ProblemError:
    """A body that is JSON but not what the route takes. found: (pointer, what is wrong)."""
    shown = "; ".join(f"{where or 'the body'}: {message}" for where, message in found[:3])
    more = f"; and {len(found) - 3} more" if len(found) > 3 else ""
    return ProblemError("invalid-body", shown + more, found)


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Every error that leaves a route becomes a problem. routes: those that there are."""

    @app.exception_handler(GpuloomError)
    async def _of_gpuloom(request: Request, error: GpuloomError) -> JsonResponse:
        problem = problem_of(error)
        if problem.kind == "internal-error":
            _log.error("%s %s", request.method, request.url.path, exc_info=error)
        return problem.response()

    @app.exception_handler(RequestValidationError)
    async def _of_parameters(request: Request, error: RequestValidationError) -> JsonResponse:
        return _parameters(error).response()

    @app.exception_handler(HTTPException)
    async def _of_routing(request: Request, error: HTTPException) -> JsonResponse:
        return _routing(routes, request, error).response()

    @app.exception_handler(Exception)
    async def _of_anything(request: Request, error: Exception) -> JsonResponse:
        # The framework logs the traceback; the answer holds nothing of it.
        return ProblemError("internal-error", "an error inside the scheduler; see its log").response()


def _parameters(error: RequestValidationError) -> ProblemError:
    found = []
    for entry in error.errors():
        source, *path = entry["loc"]
        found.append((" ".join(map(str, (source, *path))), told(entry)))
    return ProblemError("bad-request", "; ".join(f"{where} {message}" for where, message in found[:3]), found)


def _routing(routes: Sequence[BaseRoute], request: Request, error: HTTPException) -> ProblemError:
    path = request.url.path
    if error.status_code == 405:
        methods = sorted(
            method
            for route in routes
            if route.matches(dict(request.scope))[0] is not Match.NONE
            for method in getattr(route, "methods", None) or ()
        )
        allowed = ", ".join(methods)
        return ProblemError(
            "method-not-allowed", f"{path} has no {request.method}; it has {allowed}", headers={"Allow": allowed}
        )
    if error.status_code == 404:
        known = [str(getattr(route, "path", "")) for route in routes]
        return ProblemError("no-such-route", f"there is no {path}{did_you_mean(path, known)}; /openapi.json lists all")
    return ProblemError("bad-request" if error.status_code < 500 else "internal-error", str(error.detail))
