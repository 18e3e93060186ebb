"""What happened: pages of events, or a stream of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response

from gpuloom.live.views.job_answers import EventPage
from gpuloom.live.views.jobs import event_view
from gpuloom.server import docs
from gpuloom.server.context import Context
from gpuloom.server.encoded import JsonResponse
from gpuloom.server.parameters import JobNumber
from gpuloom.server.sse import EventStream, follow_events, resume_id


def router(context: Context) -> APIRouter:
    """The route /v1/events."""
    service = context.service
    routes = APIRouter(tags=["events"])

    @routes.get("/v1/events", **docs.events)
    def list_events(
        after: Annotated[int | None, Query(ge=0, le=2**53, description="Only events with a higher number.")] = None,
        job: Annotated[JobNumber | None, Query(description="Only about this job.")] = None,
        type: Annotated[list[str], Query(description="Only of these types.")] = [],  # noqa: A002, B006
        limit: Annotated[int, Query(ge=1, le=1000, description="Events on a page.")] = 1000,
        newest: Annotated[bool, Query(description="The last `limit` events instead of the first.")] = False,
        accept: Annotated[
            str, Header(include_in_schema=False, description="text/event-stream: events as they happen.")
        ] = "",
        last_event_id: Annotated[str | None, Header(description="Continue a stream after this event.")] = None,
    ) -> Response:
        if "text/event-stream" in accept:
            resumed = resume_id(last_event_id)
            start = after if resumed is None else resumed
            return EventStream(context.hub, follow_events(service, context.hub, after=start, job=job, types=type))
        # Asked for before the page: events that come in between are not passed over.
        last = service.wait_for_events(0, 0.0)
        found = service.events(after=after or 0, job=job, types=type, limit=limit, newest=newest)
        if found and (newest or len(found) < limit):
            last = max(last, found[-1].id)
        elif found:
            last = found[-1].id
        return JsonResponse(EventPage(events=[event_view(event) for event in found], last=last))

    return routes
