"""Jobs: submit, list, show, change."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Path, Query, Request

from gpuloom.core.job import Phase
from gpuloom.live.service import Service
from gpuloom.live.submission.actions import Action
from gpuloom.live.views.job_answers import ActionOnArray, ArrayChange, JobList, JobPage, JobView, Submitted
from gpuloom.server import bodies, docs
from gpuloom.server.context import Context, printable
from gpuloom.server.encoded import JsonResponse
from gpuloom.server.parameters import JobNumber, Moment
from gpuloom.server.problems import ProblemError
from gpuloom.store.port import JobQuery

_SIMPLE = {
    "hold": "Hold a waiting job until it is released.",
    "release": "Release a held job: it queues again.",
    "suspend": "Have a running job leave its GPUs, and go on in the same attempt once it is resumed.",
    "resume": "Let a suspended job go on, and a held one queue again.",
    "requeue": "Put a running or ended job back into the queue.",
    "top": "Make it first in the queue: raise its priority above that of all other waiting jobs.",
}


def _cursor(job: int, *, oldest: bool) -> str:
    return base64.urlsafe_b64encode(f"{'o' if oldest else 'n'}{job}".encode()).decode().rstrip("=")


def _after_cursor(cursor: str, *, oldest: bool) -> int:
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode("ascii")
        kind, number = text[:1], int(text[1:])
        if kind not in ("n", "o") or not 0 < number < 2**53:
            raise ValueError
    except (ValueError, binascii.Error):
        message = f"is {cursor[:100]!r}, which no page gave: use 'next' of the page before"
        raise ProblemError("bad-request", f"query cursor {message}", [("query cursor", message)]) from None
    if (kind == "o") != oldest:
        message = "belongs to a list in the other order: give the same 'order' for every page"
        raise ProblemError("bad-request", f"query cursor {message}", [("query cursor", message)])
    return number


async def _body(request: Request) -> Any:
    return await bodies.read_json(request)


async def _optional_body(request: Request) -> Any:
    return await bodies.read_json(request, optional=True)


Body = Annotated[Any, Depends(_body)]
OptionalBody = Annotated[Any, Depends(_optional_body)]
ArrayNumber = Annotated[JobNumber, Path(description="The number of its first job.")]


def router(context: Context) -> APIRouter:
    """The routes under /v1/jobs, /v1/arrays and /v1/actions."""
    service = context.service
    routes = APIRouter(tags=["jobs"])
    _submitting(routes, context)
    _reading(routes, service)
    _changing(routes, service)
    _changing_arrays(routes, service)
    simple: dict[str, Callable[[Sequence[int]], Sequence[JobView]]] = {
        "hold": service.hold,
        "release": service.release,
        "suspend": service.suspend,
        "resume": service.resume,
        "requeue": service.requeue,
        "top": service.move_to_top,
    }
    for action, act in simple.items():
        _simple(routes, action, act)
    return routes


def _submitting(routes: APIRouter, context: Context) -> None:
    @routes.post("/v1/jobs", **docs.submit)
    def submit_jobs(
        data: Body,
        idempotency_key: Annotated[
            str | None,
            Header(description="If the same jobs are sent again with this key, the first answer is returned."),
        ] = None,
        x_gpuloom_user: Annotated[
            str | None, Header(description="Owner of the jobs; by default the user that runs the scheduler.")
        ] = None,
    ) -> JsonResponse:
        if idempotency_key is not None:
            idempotency_key = printable(idempotency_key, "header Idempotency-Key", 200)
        user = context.default_user
        if x_gpuloom_user is not None:
            user = printable(x_gpuloom_user, "header X-Gpuloom-User", 64)
        numbers = context.service.submit(bodies.submitted(data), user=user, idempotency_key=idempotency_key)
        return JsonResponse(Submitted(submitted=[list(of_spec) for of_spec in numbers]), status_code=201)


def _reading(routes: APIRouter, service: Service) -> None:
    @routes.get("/v1/jobs", **docs.jobs)
    def list_jobs(
        state: Annotated[list[Phase], Query(description="Only these states.")] = [],  # noqa: B006
        user: Annotated[list[str], Query(description="Only of these users.")] = [],  # noqa: B006
        name: Annotated[list[str], Query(description="Only of these names; * and ? stand for any text.")] = [],  # noqa: B006
        id: Annotated[list[JobNumber], Query(description="Only these jobs.")] = [],  # noqa: A002, B006
        array: Annotated[JobNumber | None, Query(description="Only jobs of the array with this number.")] = None,
        limit: Annotated[int, Query(ge=1, le=1000, description="Jobs on a page.")] = 100,
        cursor: Annotated[str | None, Query(max_length=100, description="`next` of the page before.")] = None,
        order: Annotated[Literal["newest", "oldest"], Query(description="Which come first.")] = "newest",
        submitted_from: Annotated[Moment | None, Query(description="Submitted at this time or later.")] = None,
        submitted_until: Annotated[Moment | None, Query(description="Submitted before.")] = None,
    ) -> JsonResponse:
        oldest = order == "oldest"
        passed = None if cursor is None else _after_cursor(cursor, oldest=oldest)
        query = JobQuery(
            phases=tuple(phase.value for phase in state),
            users=tuple(user),
            names=tuple(name),
            ids=tuple(id),
            array_id=array,
            submitted_from_s=submitted_from,
            submitted_until_s=submitted_until,
            before=None if oldest else passed,
            after=passed if oldest else None,
            oldest_first=oldest,
            limit=limit + 1,  # one more shows whether there is another page
        )
        found = list(service.jobs(query))
        more = len(found) > limit
        page = found[:limit]
        return JsonResponse(JobPage(jobs=page, next=_cursor(page[-1]["id"], oldest=oldest) if more else None))

    @routes.get("/v1/jobs/{job}", **docs.show)
    def show_job(job: Annotated[JobNumber, Path()]) -> JsonResponse:
        return JsonResponse(service.show(job))

    @routes.get("/v1/jobs/{job}/why", **docs.why)
    def why_job(
        job: Annotated[JobNumber, Path()],
        forecast: Annotated[bool, Query(description="Simulate ahead to predict when it will start.")] = True,
    ) -> JsonResponse:
        return JsonResponse(service.why(job, forecast=forecast))


def _changing(routes: APIRouter, service: Service) -> None:
    @routes.patch("/v1/jobs/{job}", **docs.update)
    def update_job(job: Annotated[JobNumber, Path()], data: Body) -> JsonResponse:
        return JsonResponse(service.update([job], bodies.changes_of(data))[0])

    @routes.post("/v1/jobs/{job}/cancel", **docs.cancel)
    def cancel_job(job: Annotated[JobNumber, Path()], data: OptionalBody) -> JsonResponse:
        return JsonResponse(service.cancel([job], grace_s=bodies.checked(bodies.CancelOne, data).grace)[0])

    @routes.post("/v1/actions/cancel", **docs.cancel_many)
    def cancel_jobs(data: Body) -> JsonResponse:
        body = bodies.checked(bodies.ActCancel, data)
        return JsonResponse(JobList(jobs=list(service.cancel(body.jobs, grace_s=body.grace))))

    @routes.post("/v1/actions/update", **docs.update_many)
    def update_jobs(data: Body) -> JsonResponse:
        body = bodies.checked(bodies.ActUpdate, data)
        changed = service.update(body.jobs, bodies.changes_of(body.changes, "/changes"))
        return JsonResponse(JobList(jobs=list(changed)))


def _changing_arrays(routes: APIRouter, service: Service) -> None:
    @routes.post("/v1/arrays/{array}/{action}", **docs.array_action)
    def act_on_array(
        array: ArrayNumber,
        action: Annotated[ActionOnArray, Path()],
        data: OptionalBody,
    ) -> JsonResponse:
        grace = bodies.checked(bodies.CancelOne, data).grace
        if grace is not None and action != "cancel":
            message = "is for 'cancel' only"
            raise ProblemError("invalid-body", f"grace {message}", [("/grace", message)])
        changed = service.act_on_array(array, Action(action), grace_s=grace)
        return JsonResponse(ArrayChange(array=array, changed=dict(changed)))

    @routes.patch("/v1/arrays/{array}", **docs.update_array)
    def update_array(array: ArrayNumber, data: Body) -> JsonResponse:
        changed = service.update_array(array, bodies.changes_of(data))
        return JsonResponse(ArrayChange(array=array, changed=dict(changed)))


def _simple(routes: APIRouter, action: str, act: Callable[[Sequence[int]], Sequence[JobView]]) -> None:
    """What is done to a job, or to several, without further ado."""

    @routes.post(f"/v1/jobs/{{job}}/{action}", **docs.action(action, _SIMPLE[action]))
    def one(job: Annotated[JobNumber, Path()], data: OptionalBody) -> JsonResponse:
        bodies.checked(bodies.Nothing, data)
        return JsonResponse(act([job])[0])

    @routes.post(f"/v1/actions/{action}", **docs.action_many(action, _SIMPLE[action]))
    def many(data: Body) -> JsonResponse:
        return JsonResponse(JobList(jobs=list(act(bodies.checked(bodies.Act, data).jobs))))
