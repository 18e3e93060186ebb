"""The scheduler itself: health, status, shutdown."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request

import gpuloom
from gpuloom.live.submission.spec import json_schema
from gpuloom.live.views.answers import Ending, Health
from gpuloom.server import bodies, docs
from gpuloom.server.context import Context
from gpuloom.server.encoded import JsonResponse


async def _optional_body(request: Request) -> Any:
    return await bodies.read_json(request, optional=True)


def router(context: Context) -> APIRouter:
    """The routes about the scheduler."""
    service = context.service
    routes = APIRouter(tags=["scheduler"])

    @routes.get("/v1/health", **docs.health)
    async def get_health() -> JsonResponse:
        return JsonResponse(Health(ok=True, version=gpuloom.__version__))

    @routes.get("/v1/status", **docs.status)
    def get_status() -> JsonResponse:
        return JsonResponse(service.status())

    @routes.get("/v1/schema/job.json", **docs.schema)
    def get_job_schema() -> JsonResponse:
        return JsonResponse(json_schema(), media_type="application/schema+json")

    @routes.post("/v1/shutdown", **docs.shutdown)
    def shut_down(data: Annotated[Any, Depends(_optional_body)]) -> JsonResponse:
        body = bodies.checked(bodies.Shutdown, data)
        service.stop(stop_jobs=body.stop_jobs)
        return JsonResponse(Ending(ending=True, stop_jobs=body.stop_jobs), status_code=202)

    return routes
