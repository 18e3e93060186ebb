"""Answers that refuse, as Kubernetes words them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Refused(Exception):  # noqa: N818 - an answer
    """An answer other than 2xx. body: an object, or plain text."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"{status}: {body}")
        self.status, self.body, self.headers = status, body, dict(headers or {})


def status_object(
    code: int, message: str, reason: str = "", details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A Status that tells of a failure."""
    found: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    found["message"] = message
    if reason:
        found["reason"] = reason
    if details is not None:
        found["details"] = dict(details)
    return {**found, "code": code}


def refused(code: int, message: str, reason: str = "", details: Mapping[str, Any] | None = None) -> Refused:
    return Refused(code, status_object(code, message, reason, details))


def page_not_found() -> Refused:
    return Refused(404, "404 page not found\n")


def no_resource() -> Refused:
    return refused(404, "the server could not find the requested resource", "NotFound", {})


def not_allowed() -> Refused:
    return refused(405, "the server does not allow this method on the requested resource", "MethodNotAllowed", {})


def details_of(name: str, group: str, kind: str) -> dict[str, Any]:
    return {"name": name, **({"group": group} if group else {}), "kind": kind}


def called(plural: str, group: str) -> str:
    return f"{plural}.{group}" if group else plural


def not_found(name: str, plural: str, group: str) -> Refused:
    details = details_of(name, group, plural)
    return refused(404, f'{called(plural, group)} "{name}" not found', "NotFound", details)


def exists(name: str, plural: str, group: str) -> Refused:
    details = details_of(name, group, plural)
    return refused(409, f'{called(plural, group)} "{name}" already exists', "AlreadyExists", details)


def modified(name: str, plural: str, group: str) -> Refused:
    text = (
        f'Operation cannot be fulfilled on {called(plural, group)} "{name}": the object has been modified; please '
        "apply your changes to the latest version and try again"
    )
    return refused(409, text, "Conflict", details_of(name, group, plural))


def precondition(name: str, group: str, kind: str, field: str, wanted: str, found: str) -> Refused:
    """field: 'UID' or 'ResourceVersion'."""
    how = "deleted and then recreated" if field == "UID" else "modified"
    text = (
        f'Operation cannot be fulfilled on {called(kind, group)} "{name}": the {field} in the precondition ({wanted}) '
        f"does not match the {field} in record ({found}). The object might have been {how}"
    )
    return refused(409, text, "Conflict", details_of(name, group, kind))


def bad(message: str) -> Refused:
    return refused(400, message, "BadRequest")


def invalid(kind: str, group: str, name: str, causes: Sequence[tuple[str, str, str]]) -> Refused:
    """causes: (field, reason, message)."""
    told = [f"{field}: {message}" for field, _, message in causes]
    text = told[0] if len(told) == 1 else f"[{', '.join(told)}]"
    details = {
        "name": name,
        **({"group": group} if group else {}),
        "kind": kind,
        "causes": [{"reason": reason, "message": message, "field": field} for field, reason, message in causes],
    }
    if not name:
        del details["name"]
    who = f"{kind}.{group}" if group else kind
    return refused(422, f'{who} "{name}" is invalid: {text}', "Invalid", details)


def unsupported(accepted: Sequence[str]) -> Refused:
    text = f"the body of the request was in an unknown format - accepted media types include: {', '.join(accepted)}"
    return refused(415, text, "UnsupportedMediaType")


def our_error() -> Refused:
    return refused(422, "the server rejected our request due to an error in our request", "Invalid", {})


def too_old(version: int, oldest: int) -> dict[str, Any]:
    return status_object(410, f"too old resource version: {version} ({oldest})", "Expired")


def too_large(version: int, current: int) -> Refused:
    text = f"Too large resource version: {version}, current: {current}"
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}],
        "retryAfterSeconds": 1,
    }
    body = status_object(504, f"Timeout: {text}", "Timeout", details)
    return Refused(504, body, {"Retry-After": "1"})
