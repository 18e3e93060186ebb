"""What the OpenAPI document says of each route: keyword arguments for its decorator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from gpuloom.server.answers import JsonResponse
from gpuloom.server.problems import TITLES

JOB_EXAMPLE: dict[str, Any] = {
    "command": ["python", "train.py", "--epochs", "90"],
    "name": "resnet",
    "gpus": 2,
    "gpu_memory": "12GiB",
    "time_limit": "4h",
    "workdir": "/home/ada/resnet",
}
_VIEW_EXAMPLE: dict[str, Any] = {
    "id": 12,
    "name": "resnet",
    "user": "ada",
    "state": "running",
    "reason": None,
    "exit_code": None,
    "gpus": 2,
    "command": JOB_EXAMPLE["command"],
    "submitted_s": 1767225600.0,
    "started_s": 1767225600.2,
    "where": "node0:0,1",
    "attempts": 1,
}
_SUBMITTED = {"type": "object", "required": ["submitted"], "additionalProperties": False, "properties": {"submitted": {
    "type": "array", "items": {"type": "array", "items": {"type": "integer"}},
    "description": "Numbers of the jobs of each spec: several for an array."}}}  # fmt: skip
_MANY = {"type": "object", "required": ["jobs"], "additionalProperties": False, "properties": {"jobs": {"type": "array", "items": {"$ref": "#/components/schemas/JobView"}}}}  # fmt: skip  # noqa: E501


def ref(name: str) -> dict[str, Any]:
    """A schema by name."""
    return {"$ref": f"#/components/schemas/{name}"}


def _list_of(field: str, name: str, **more: Any) -> dict[str, Any]:
    fields = {field: {"type": "array", "items": ref(name)}, **more}
    return _closed(fields)


def _closed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "required": list(fields), "properties": dict(fields), "additionalProperties": False}


def _route(
    operation: str,
    summary: str,
    schema: Mapping[str, Any],
    *,
    status: int = 200,
    example: Any = None,
    body: Mapping[str, Any] | None = None,
    body_example: Any = None,
    body_needed: bool = True,
    problems: tuple[int, ...] = (),
    description: str = "",
    media: Mapping[str, Any] | None = None,
    headers: Mapping[str, Any] | None = None,
    open_: bool = False,
    tags: list[str] | None = None,
) -> dict[str, Any]:
    answer: dict[str, Any] = {"schema": schema}
    if example is not None:
        answer["example"] = example
    good: dict[str, Any] = {
        "description": "Done." if body else "The answer.",
        "content": media or {"application/json": answer},
    }
    if headers:
        good["headers"] = headers
    also = {
        400,
        408,
        421,
        422,
        431,
        500,
        503,
        *problems,
        *((429,) if "text/event-stream" in (media or ()) else ()),
        *(() if open_ else (401, 403)),
        *((413, 415) if body is not None else ()),
    }
    responses: dict[int | str, dict[str, Any]] = {status: good}
    for code in sorted(also):
        titles = [title for _, (number, title) in TITLES.items() if number == code]
        responses[code] = {
            "description": "; or: ".join(titles) + ".",
            "content": {"application/problem+json": {"schema": ref("Problem")}},
        }
    extra: dict[str, Any] = {}
    if body is not None:
        content: dict[str, Any] = {"schema": body}
        if body_example is not None:
            content["example"] = body_example
        extra["requestBody"] = {"required": body_needed, "content": {"application/json": content}}
    if open_:
        extra["security"] = []
    found: dict[str, Any] = {
        "operation_id": operation,
        "summary": summary,
        "description": description or summary,
        "status_code": status,
        "response_model": None,
        # Other kinds of answers say what they are in `media`; the framework adds nothing to those.
        "response_class": JsonResponse if media is None else Response,
        "responses": responses,
        "openapi_extra": extra,
    }
    return {**found, "tags": tags} if tags else found


submit = _route(
    "submit_jobs",
    "Submit one job or several.",
    _SUBMITTED,
    status=201,
    example={"submitted": [[12], [13, 14]]},
    body={"anyOf": [ref("JobSpec"), ref("Batch")]},
    body_example=JOB_EXAMPLE,
    problems=(404, 409),
    description='The body is one job, or `{"jobs": […]}` with up to 10,000, of which all are taken or none.',
)
jobs = _route(
    "list_jobs",
    "List jobs, page by page.",
    _list_of("jobs", "JobView", next={"type": ["string", "null"], "description": "`cursor` of the next page."}),
    example={"jobs": [_VIEW_EXAMPLE], "next": None},
)
show = _route(
    "show_job",
    "Everything about a job.",
    _closed(
        {
            "job": ref("JobView"),
            "spec": ref("JobSpec"),
            "attempts": {"type": "array", "items": ref("Attempt")},
            "events": {"type": "array", "items": ref("Event")},
            "log": {"type": "string", "description": "Path of its log on the node."},
        }
    ),
    problems=(404,),
)
update = _route(
    "update_job",
    "Change fields of a job.",
    ref("JobView"),
    body=ref("JobChanges"),
    body_example={"priority": 5, "time_limit": "8h"},
    problems=(404, 409),
    description="Of a job that runs: name, priority, time_limit, retries, estimate and grace.",
)
why = _route(
    "why_job",
    "Why a job waits, its position, and when it will start.",
    ref("WhyView"),
    problems=(404,),
)
cancel = _route(
    "cancel_job",
    "End a job.",
    ref("JobView"),
    body=ref("CancelOne"),
    body_example={"grace": "30s"},
    body_needed=False,
    problems=(404, 409),
    description="One that runs gets notice first, and time to end by itself.",
)
cancel_many = _route(
    "cancel_jobs",
    "End several jobs.",
    _MANY,
    body=ref("ActCancel"),
    body_example={"jobs": [12, 13], "grace": "30s"},
    problems=(404, 409),
)
array_action = _route(
    "act_on_array",
    "Do something to all jobs of an array with which it can be done, however many they are.",
    _closed({"array": {"type": "integer"}, "changed": {"type": "object", "additionalProperties": {"type": "integer"}}}),
    body=ref("CancelOne"),
    body_needed=False,
    example={"array": 12, "changed": {"cancelled": 99_996, "stopping": 4}},
    problems=(404, 409),
    description="`changed` is how many jobs were changed, by their state now. `grace` is for `cancel` only.",
)
update_many = _route(
    "update_jobs",
    "Change fields of several jobs.",
    _MANY,
    body=ref("ActUpdate"),
    body_example={"jobs": [12, 13], "changes": {"priority": 5}},
    problems=(404, 409),
)


def action(name: str, summary: str) -> dict[str, Any]:
    """Something done for one job, without further ado."""
    return _route(f"{name}_job", summary, ref("JobView"), body=ref("Nothing"), body_needed=False, problems=(404, 409))


def action_many(name: str, summary: str) -> dict[str, Any]:
    """The same for several jobs."""
    return _route(
        f"{name}_jobs",
        f"For several jobs: {summary[0].lower()}{summary[1:]}",
        _MANY,
        body=ref("Act"),
        body_example={"jobs": [12, 13]},
        problems=(404, 409),
    )


_TEXT = {"type": "string"}
log = _route(
    "read_log",
    "What a job has written, or writes.",
    _TEXT,
    media={"text/plain": {"schema": _TEXT}, "text/event-stream": {"schema": _TEXT, "example": (
        'event: log\nid: 1:13\ndata: {"text":"epoch 1 of 90\\n"}\n\n'
        'event: end\nid: 1:13\ndata: {"state":"finished","exit_code":0,"reason":"finished"}\n\n')}},
    headers={
        "X-Gpuloom-Attempt": {"schema": {"type": "integer"}, "description": "Which run; 0: it has not run yet."},
        "X-Gpuloom-Start": {"schema": {"type": "integer"}, "description": "Offset of the first byte."},
        "X-Gpuloom-Offset": {"schema": {"type": "integer"}, "description": "Offset after the last byte."},
        "X-Gpuloom-Ended": {"schema": {"type": "boolean"}, "description": "Nothing will follow this offset."},
    },
    problems=(404,),
    description="As text/event-stream it follows the log over all further attempts until the job ends: events `log`, "
    "`attempt`, `end`; ids are ATTEMPT:OFFSET, to resume by Last-Event-ID.",
)  # fmt: skip
events = _route(
    "list_events",
    "What happened, in order.",
    {},
    media={
        "application/json": {
            "schema": _list_of("events", "Event", last={"type": "integer", "description": "`after` of the next page."}),
            "example": {
                "events": [{"id": 7, "at_s": 1767225600.2, "type": "attempt.frozen", "job": 12, "data": {}}],
                "last": 7,
            },
        },
        "text/event-stream": {"schema": _TEXT},
    },
    description="As text/event-stream: events as they come, for ever, from now on or after `after`; the id of each is "
    "its number, to resume by Last-Event-ID.",
)
nodes = _route("list_nodes", "Nodes, their GPUs, and who uses them.", _list_of("nodes", "Node"), tags=["cluster"])
set_node = _route(
    "set_node",
    "Take a node out of service, or back.",
    ref("Node"),
    body=ref("NodeChange"),
    body_example={"state": "draining", "reason": "new fans"},
    problems=(404,),
    tags=["cluster"],
)
policy = _route("get_policy", "The scheduling policy.", ref("Policy"), tags=["cluster"])
set_policy = _route(
    "set_policy",
    "Swap the policy of the running scheduler.",
    ref("Policy"),
    body=ref("PolicyChange"),
    body_example={"policy": "muri-l", "interval": "60s"},
    description="No job is lost, and none is stopped by the swap itself.",
    tags=["cluster"],
)
usage = _route(
    "get_usage",
    "GPU time that was used.",
    _list_of("usage", "UsageRow"),
    example={"usage": [{"key": "ada", "jobs": 3, "attempts": 4, "held_s": 7200.0, "gpu_s": 14400.0, "failed": 1}]},
    tags=["cluster"],
)
history = _route(
    "get_history",
    "Past jobs as a trace for `gpuloom simulate` and `compare`.",
    _TEXT,
    media={"text/csv": {"schema": _TEXT}},
    tags=["cluster"],
)
health = _route(
    "get_health",
    "Whether it answers.",
    _closed({"ok": {"type": "boolean"}, "version": _TEXT}),
    example={"ok": True, "version": "1.0.0"},
    open_=True,
)
status = _route("get_status", "The scheduler about itself.", ref("Status"))
schema = _route(
    "get_job_schema",
    "JSON schema of a job, for editors.",
    {},
    media={"application/schema+json": {"schema": {"type": "object"}}},
    open_=True,
)
shutdown = _route(
    "shut_down",
    "End the scheduler.",
    _closed({"ending": {"type": "boolean"}, "stop_jobs": {"type": "boolean"}}),
    status=202,
    body=ref("Shutdown"),
    body_example={"stop_jobs": False},
    body_needed=False,
    description="Jobs that run go on, unless they are to be stopped.",
)
