"""What can go wrong between a client and its scheduler. Each is also a GpuloomError, with the exit code of its kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuloom.core.errors import GpuloomError, InputError


class ClientError(GpuloomError):
    """Root of the client's errors. The message is what the scheduler said, as a sentence.

    status: of HTTP, 0 where there was no answer. problems: [{where, message}], as far as the scheduler told them apart.
    """

    def __init__(self, message: str, *, status: int = 0, problems: Sequence[Mapping[str, str]] = ()) -> None:
        super().__init__(message)
        self.status, self.problems = status, tuple(problems)


class NoSchedulerError(ClientError):
    """No scheduler runs here, or none answers."""


class ConnectionLostError(ClientError):
    """The connection broke, and it is not known what became of the request."""


class AccessError(ClientError):
    """The token is missing, unreadable or wrong."""


class RequestError(ClientError, InputError):
    """What was asked for is wrong: nothing was changed."""


class NotFoundError(RequestError):
    """No such job, node or policy."""


class ImpossibleError(RequestError):
    """A job that can never be placed on this cluster."""


class ConflictError(ClientError):
    """Not in the state in which the job is, or an idempotency key that was used for something else."""


class ServerError(ClientError):
    """The scheduler could not do it (store full or read-only, or a bug): nothing was changed."""


class WaitTimeoutError(ClientError):
    """Jobs had not ended when the time was up. jobs: which."""

    def __init__(self, message: str, jobs: Sequence[int]) -> None:
        super().__init__(message)
        self.jobs = tuple(jobs)


_OF_STATUS: Mapping[int, type[ClientError]] = {
    400: RequestError,
    401: AccessError,
    403: AccessError,
    404: NotFoundError,
    405: RequestError,
    409: ConflictError,
    413: RequestError,
    415: RequestError,
    422: RequestError,
}


def of_answer(status: int, reason: str, problem: Any) -> ClientError:
    """The error that an answer stands for.

    Args:
        problem: the body (application/problem+json), or what came in its place.
    """
    from gpuloom.live.views.answers import type_of  # not needed while all goes well

    fields = problem if isinstance(problem, Mapping) else {}
    found = fields.get("errors")
    details = [e for e in found if isinstance(e, Mapping)] if isinstance(found, list) else []
    message = str(fields.get("detail") or fields.get("title") or f"the scheduler answered {status} {reason}")
    if details and fields.get("type") == type_of("invalid-body"):
        # JSON pointers mean nothing to people who wrote no JSON: '/jobs/3/gpus' is jobs.3.gpus.
        parts = [(str(e.get("where", "")).strip("/").replace("/", "."), str(e.get("message", ""))) for e in details]
        message = "; ".join(f"{where} {text}".strip() for where, text in parts)
    kind = _OF_STATUS.get(status, ServerError if status >= 500 else ClientError)
    if fields.get("type") == type_of("impossible-job"):
        kind = ImpossibleError
    return kind(message, status=status, problems=details)
