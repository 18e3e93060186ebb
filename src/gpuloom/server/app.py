"""The API over a scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fastapi import Depends, FastAPI

import gpuloom
from gpuloom.live.service import Service
from gpuloom.server import openapi, problems
from gpuloom.server.context import Context, os_user
from gpuloom.server.guard import Guard
from gpuloom.server.parameters import known_only
from gpuloom.server.routes import cluster, events, front, jobs, scheduler
from gpuloom.server.routes import logs as log_routes
from gpuloom.server.sse import Hub

MOST_BYTES = 32 * 1024 * 1024
"""Largest size of a body: enough for 10,000 jobs of 3 KiB each."""


def make_app(
    service: Service,
    *,
    token: str | None,
    hosts: Iterable[str] = ("localhost",),
    default_user: str | None = None,
    most_bytes: int = MOST_BYTES,
) -> FastAPI:
    """The application. `app.state.hub.close()` ends its streams.

    token: what every request must bring; None: nothing. hosts: names under which it may be called, besides loopback
    addresses; none: any name. default_user: whose jobs they are that come without a name (the process's own user).
    """
    app = FastAPI(
        title="gpuloom",
        version=gpuloom.__version__,
        description="The scheduler's API. Errors are application/problem+json; times are seconds since 1970.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(known_only)],
    )
    hub = Hub(service)
    context = Context(service, hub, default_user or os_user())
    app.state.hub = hub
    routers = [
        front.router(),
        *(resource.router(context) for resource in (jobs, log_routes, events, cluster, scheduler)),
    ]
    for router in routers:
        app.include_router(router)
    problems.install(app, [route for router in routers for route in router.routes])
    app.add_middleware(Guard, token=token, hosts=tuple(hosts), most=most_bytes)

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.describe(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return app
