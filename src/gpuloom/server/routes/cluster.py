"""Nodes, policy, usage and history."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from gpuloom.core.job import NodeState
from gpuloom.live.figures.each import Of
from gpuloom.live.views.cluster_answers import GroupList, NodeList, UsageList
from gpuloom.server import bodies, docs
from gpuloom.server.context import Context
from gpuloom.server.encoded import JsonResponse
from gpuloom.server.parameters import Moment


async def _body(request: Request) -> Any:
    return await bodies.read_json(request)


Since = Annotated[Moment | None, Query(description="From then on.")]
Until = Annotated[Moment | None, Query(description="Before then.")]
OfUser = Annotated[str | None, Query(min_length=1, max_length=64, description="Of this user's jobs alone.")]
Body = Annotated[Any, Depends(_body)]


def router(context: Context) -> APIRouter:
    """The routes about the cluster as a whole."""
    service = context.service
    routes = APIRouter()

    @routes.get("/v1/nodes", **docs.nodes)
    def list_nodes() -> JsonResponse:
        return JsonResponse(NodeList(nodes=list(service.nodes())))

    @routes.post("/v1/nodes/{name}", **docs.set_node)
    def set_node(name: Annotated[str, Path(max_length=255)], data: Body) -> JsonResponse:
        change = bodies.checked(bodies.NodeChange, data)
        return JsonResponse(service.set_node(name, NodeState(change.state), reason=change.reason))

    @routes.get("/v1/pilots", **docs.pilots)
    def list_pilots() -> JsonResponse:
        return JsonResponse(service.pilots())

    @routes.get("/v1/policy", **docs.policy)
    def get_policy(
        state: Annotated[bool, Query(description="With the policy's own state, of each job.")] = False,
    ) -> JsonResponse:
        return JsonResponse(service.policy(state=state))

    @routes.put("/v1/policy", **docs.set_policy)
    def set_policy(data: Body) -> JsonResponse:
        change = bodies.checked(bodies.PolicyChange, data)
        return JsonResponse(service.set_policy(change.policy, interval_s=change.interval))

    @routes.get("/v1/usage", **docs.usage)
    def get_usage(
        since: Since = None,
        until: Until = None,
        by: Annotated[Literal["user", "name", "day", "node"], Query(description="A row for each of these.")] = "user",
    ) -> JsonResponse:
        return JsonResponse(UsageList(usage=list(service.usage(since_s=since, until_s=until, by=by))))

    @routes.get("/v1/groups", **docs.groups)
    def list_groups() -> JsonResponse:
        return JsonResponse(GroupList(groups=list(service.groups())))

    @routes.get("/v1/stats", **docs.stats)
    def get_stats(since: Since = None, until: Until = None, user: OfUser = None) -> JsonResponse:
        return JsonResponse(service.stats(since_s=since, until_s=until, user=user))

    @routes.get("/v1/stats/series", **docs.series)
    def get_series(since: Since = None, until: Until = None, user: OfUser = None) -> JsonResponse:
        return JsonResponse(service.series(since_s=since, until_s=until, user=user))

    @routes.get("/v1/stats/series/{by}", **docs.each_series)
    def get_each_series(
        by: Annotated[Of, Path(description="What the figures are of.")],
        name: Annotated[str | None, Query(max_length=300, description="Of this one alone; a GPU: NODE:INDEX.")] = None,
        since: Since = None,
        until: Until = None,
    ) -> JsonResponse:
        return JsonResponse(service.each_series(by=by, name=name, since_s=since, until_s=until))

    @routes.get("/v1/history.csv", **docs.history)
    def get_history(since: Since = None, until: Until = None) -> Response:
        return Response(service.history(since_s=since, until_s=until), media_type="text/csv")

    return routes
