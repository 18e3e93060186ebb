"""The OpenAPI description of each route, as keyword arguments for its decorator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from gpuloom.live.views.answers import Ending, Health, StatusView
from gpuloom.live.views.cluster_answers import (
    EachSeriesView,
    GroupList,
    NodeList,
    NodeView,
    PolicyView,
    SeriesView,
    StatsView,
    UsageList,
)
from gpuloom.live.views.job_answers import (
    ArrayChange,
    EventPage,
    JobList,
    JobPage,
    JobView,
    ShowView,
    Submitted,
    WhyView,
)
from gpuloom.live.views.pilots import PilotsView
from gpuloom.server.encoded import JsonResponse
from gpuloom.server.problems import TITLES
from gpuloom.server.shapes import name_of, ref

JOB_EXAMPLE: dict[str, Any] = {
    "command": ["python", "train.py", "--epochs", "90"],
    "name": "resnet",
    "gpus": 2,
    "gpu_memory": "12GiB",
    "time_limit": "4h",
    "workdir": "/home/ada/resnet",
}
_VIEW_EXAMPLE: JobView = {
    "id": 12,
    "name": "resnet",
    "user": "ada",
    "state": "running",
    "reason": None,
    "message": "",
    "exit_code": None,
    "gpus": 2,
    "replicas": None,
    "gpu_types": [],
    "priority": 0,
    "command": JOB_EXAMPLE["command"],
    "submitted_s": 1767225600.0,
    "started_s": 1767225600.2,
    "ended_s": None,
    "waited_s": 0.2,
    "run_s": 3600.0,
    "jct_s": None,
    "attempts": 1,
    "preemptions": 0,
    "retries_left": 0,
    "array_id": None,
    "array_index": None,
    "after": [],
    "time_limit_s": 14_400.0,
    "estimate_s": 9000.0,
    "estimate_from": "earlier_runs",
    "estimate_runs": 3,
    "predicted_end_s": 1767234600.2,
    "predicted_end_s_low": 1767234100.0,
    "predicted_end_s_high": 1767235000.0,
    "overrun_s": 0.0,
    "where": "node0:0,1",
    "waiting": None,
    "progress": {"step": 36, "steps": 90},
    "usage": {"cpu_cores": 3.9, "memory_mib": 9216.0, "gpu_utilization": 97.0, "gpu_memory_mib": 21_504.0},
    "flags": {},
}
ANSWERS: dict[str, type] = {}
"""By operation: what it answers (`live/views/answers.py`), where that is JSON."""


def _route(
    operation: str,
    summary: str,
    answers: type | None,
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
    """answers: what it says in JSON, if it does. media: what it says in other forms."""
    answer: dict[str, Any] = {}
    if answers is not None:
        ANSWERS[operation] = answers
        answer["schema"] = ref(name_of(answers))
    if example is not None:
        answer["example"] = example
    good: dict[str, Any] = {
        "description": "Done." if body else "The answer.",
        "content": {**({"application/json": answer} if answers is not None else {}), **(media or {})},
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
    Submitted,
    status=201,
    example=Submitted(submitted=[[12], [13, 14]]),
    body={"anyOf": [ref("JobSpec"), ref("Batch")]},
    body_example=JOB_EXAMPLE,
    problems=(404, 409),
    description='The body is one job, or `{"jobs": […]}` with up to 10,000, of which all are taken or none.',
)
jobs = _route(
    "list_jobs",
    "List jobs, page by page.",
    JobPage,
    example=JobPage(jobs=[_VIEW_EXAMPLE], next=None),
)
show = _route(
    "show_job",
    "Everything known about a job.",
    ShowView,
    problems=(404,),
)
update = _route(
    "update_job",
    "Change fields of a job.",
    JobView,
    body=ref("JobChanges"),
    body_example={"priority": 5, "time_limit": "8h"},
    problems=(404, 409),
    description="Of a running job: name, priority, time_limit, retries, estimate and grace.",
)
why = _route(
    "why_job",
    "Why a job waits, its position, and when it will start.",
    WhyView,
    problems=(404,),
)
cancel = _route(
    "cancel_job",
    "End a job.",
    JobView,
    body=ref("CancelOne"),
    body_example={"grace": "30s"},
    body_needed=False,
    problems=(404, 409),
    description="A running job gets notice first, and time to end by itself.",
)
cancel_many = _route(
    "cancel_jobs",
    "End several jobs.",
    JobList,
    body=ref("ActCancel"),
    body_example={"jobs": [12, 13], "grace": "30s"},
    problems=(404, 409),
)
array_action = _route(
    "act_on_array",
    "Apply an action to all jobs of an array to which it applies, however many they are.",
    ArrayChange,
    body=ref("CancelOne"),
    body_needed=False,
    example=ArrayChange(array=12, changed={"cancelled": 99_996, "stopping": 4}),
    problems=(404, 409),
    description="`changed` is the number of jobs changed, by their new state. `grace` is for `cancel` only.",
)
update_array = _route(
    "update_array",
    "Change fields of all jobs of an array that have not ended, however many they are.",
    ArrayChange,
    body=ref("JobChanges"),
    body_example={"priority": 5},
    example=ArrayChange(array=12, changed={"queued": 99_996, "running": 4}),
    problems=(404, 409),
    description="`changed` is the number of jobs changed, by their state. With jobs that run: only what can be changed "
    "of a running job.",
)
update_many = _route(
    "update_jobs",
    "Change fields of several jobs.",
    JobList,
    body=ref("ActUpdate"),
    body_example={"jobs": [12, 13], "changes": {"priority": 5}},
    problems=(404, 409),
)


def action(name: str, summary: str) -> dict[str, Any]:
    """Something done for one job, without further ado."""
    return _route(f"{name}_job", summary, JobView, body=ref("Nothing"), body_needed=False, problems=(404, 409))


def action_many(name: str, summary: str) -> dict[str, Any]:
    """The same for several jobs."""
    return _route(
        f"{name}_jobs",
        f"For several jobs: {summary[0].lower()}{summary[1:]}",
        JobList,
        body=ref("Act"),
        body_example={"jobs": [12, 13]},
        problems=(404, 409),
    )


_TEXT = {"type": "string"}
log = _route(
    "read_log",
    "The output of a job.",
    None,
    media={"text/plain": {"schema": _TEXT}, "text/event-stream": {"schema": _TEXT, "example": (
        'event: log\nid: 1:13\ndata: {"text":"epoch 1 of 90\\n"}\n\n'
        'event: end\nid: 1:13\ndata: {"state":"finished","exit_code":0,"reason":"finished"}\n\n')}},
    headers={
        "X-Gpuloom-Attempt": {"schema": {"type": "integer"}, "description": "Number of the attempt; 0: it has not "
            "run yet."},
        "X-Gpuloom-Start": {"schema": {"type": "integer"}, "description": "Offset of the first byte."},
        "X-Gpuloom-Offset": {"schema": {"type": "integer"}, "description": "Offset after the last byte."},
        "X-Gpuloom-Ended": {"schema": {"type": "boolean"}, "description": "The log ends at this offset."},
        "X-Gpuloom-Member": {"schema": {"type": "integer"}, "description": "Of a gang: the member whose log it is."},
        "X-Gpuloom-Members": {"schema": {"type": "integer"}, "description": "Of a gang: how many members there are."},
        "X-Gpuloom-Node": {"schema": {"type": "string"}, "description": "Of a gang: the node, percent-encoded."},
    },
    problems=(404, 504),
    description="As text/event-stream it follows the log over all further attempts until the job ends: events `log`, "
    "`attempt`, `end`; ids are ATTEMPT:OFFSET, to resume by Last-Event-ID. Of a gang it follows all members unless one "
    "is named; ids are ATTEMPT:OFFSET,OFFSET,… then.",
)  # fmt: skip
events = _route(
    "list_events",
    "Events, in order.",
    EventPage,
    example=EventPage(
        events=[{"id": 7, "at_s": 1767225600.2, "type": "attempt.frozen", "job": 12, "data": {}}],
        last=7,
    ),
    media={"text/event-stream": {"schema": _TEXT}},
    description="As text/event-stream: events as they happen, from now on or after `after`; the id of each is "
    "its number, to resume by Last-Event-ID.",
)
nodes = _route("list_nodes", "Nodes, their GPUs, and the jobs on them.", NodeList, tags=["cluster"])
set_node = _route(
    "set_node",
    "Take a node out of service, or put it back.",
    NodeView,
    body=ref("NodeChange"),
    body_example={"state": "draining", "reason": "new fans"},
    problems=(404,),
    tags=["cluster"],
)
pilots = _route("list_pilots", "Allocations of Slurm on whose nodes jobs run.", PilotsView, tags=["cluster"])
policy = _route("get_policy", "The scheduling policy.", PolicyView, tags=["cluster"])
set_policy = _route(
    "set_policy",
    "Swap the policy of the running scheduler.",
    PolicyView,
    body=ref("PolicyChange"),
    body_example={"policy": "muri-l", "interval": "60s"},
    description="No job is lost, and the swap itself stops none.",
    tags=["cluster"],
)
usage = _route(
    "get_usage",
    "GPU time used.",
    UsageList,
    example=UsageList(
        usage=[
            {
                "key": "ada",
                "jobs": 3,
                "attempts": 4,
                "held_s": 7200.0,
                "gpu_s": 14400.0,
                "failed": 1,
                "cost_usd": 9.92,
                "suspensions": 1,
                "suspended_s": 600.0,
                "suspended_mib": 18_432.0,
            }
        ]
    ),
    tags=["cluster"],
)
groups = _route(
    "list_groups",
    "Jobs that hold the same GPUs at the same time, and since when.",
    GroupList,
    tags=["jobs"],
)
stats = _route(
    "get_stats",
    "Figures of what ran in a span of time: JCT, makespan, queue, utilisation.",
    StatsView,
    problems=(404,),
    description="Of jobs that ran and ended from `since` on and before `until`; by default in the last day.",
    tags=["cluster"],
)
series = _route(
    "get_series",
    "The same over time, sample by sample, with the rates of the machines.",
    SeriesView,
    problems=(404,),
    description="A sample every ten seconds; of times more than an hour ago one a minute, more than a day ago one an "
    "hour, for a year.",
    tags=["cluster"],
)
each_series = _route(
    "get_each_series",
    "What each node, GPU, user or job used over time.",
    EachSeriesView,
    problems=(404,),
    description="By the monitors, by default in the last hour. Kept of those that use most: of the last hour 1,024 "
    "nodes, 512 GPUs, 32 users, 128 jobs; of the last day 128, 64, 32, 64; before that 32, 8, 16, 8.",
    tags=["cluster"],
)
history = _route(
    "get_history",
    "Past jobs as a trace for `gpuloom simulate` and `compare`.",
    None,
    media={"text/csv": {"schema": _TEXT}},
    tags=["cluster"],
)
health = _route(
    "get_health",
    "Whether it answers.",
    Health,
    example=Health(ok=True, version="1.0.0"),
    open_=True,
)
status = _route("get_status", "The state of the scheduler.", StatusView)
schema = _route(
    "get_job_schema",
    "JSON schema of a job, for editors.",
    None,
    media={"application/schema+json": {"schema": {"type": "object"}}},
    open_=True,
)
shutdown = _route(
    "shut_down",
    "End the scheduler.",
    Ending,
    status=202,
    body=ref("Shutdown"),
    body_example={"stop_jobs": False},
    body_needed=False,
    description="Running jobs keep running, unless they are to be stopped.",
)
