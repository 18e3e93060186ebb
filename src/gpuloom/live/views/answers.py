"""Every answer of the API, described once: the server gives it, OpenAPI publishes it, client and command line read it.

An answer is a plain JSON object. The text beside a field's type is its description in the OpenAPI document
(`server/shapes.py`). Times are epoch seconds. None: there is none (yet), or it is not known.

Here: the scheduler itself, and what can't be done. `job_answers.py`: jobs, attempts, events and logs.
`cluster_answers.py`: nodes, GPUs, groups, the policy and figures. `policy_answers.py`: what a policy goes by.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from gpuloom.live.views.cluster_answers import FailureView, KindOfDevice, LackView

# -- the scheduler ----------------------------------------------------------------------------------------------------


class StoreView(TypedDict):
    """The store and how it does."""

    kind: str
    path: str
    schema_version: int
    ok: bool
    problem: Annotated[str, "What is wrong with it; '' for nothing."]
    checked: Annotated[
        Literal["whole", "part", "damaged"], "How much of it was checked since the scheduler began."
    ]  # live/store_check.py, Checked


class ExecutorView(TypedDict):
    """What runs jobs, and how it does."""

    name: str
    ok: bool
    problem: Annotated[str, "What is wrong with it; '' for nothing."]
    limits: Annotated[dict[str, str], "Which limits of jobs are enforced, and how."]


class MonitorView(TypedDict):
    """What looks at the machine."""

    ok: bool
    problem: Annotated[str, "What is wrong with it; '' for nothing."]


class SharingView(TypedDict):
    """Whether jobs share GPUs kernel by kernel."""

    on: bool
    gated: bool
    text: str


class DevicesView(TypedDict):
    """GPUs, or the CPU slots in place of them."""

    total: int
    busy: int
    in_service: int
    kind: KindOfDevice


class StatusView(TypedDict):
    """The scheduler about itself."""

    version: str
    pid: int
    started_s: float
    now_s: float
    home: str
    store: StoreView
    executor: ExecutorView
    monitor: MonitorView
    policy: str
    policy_problem: Annotated[str, "What is wrong with the policy; '' for nothing."]
    policy_failure: FailureView | None
    policy_lacks: list[LackView]
    interval_s: float
    sharing: SharingView
    jobs: Annotated[dict[str, int], "Jobs by state."]
    gpus: DevicesView
    nodes: int
    last_pass_s: Annotated[float, "How long the last scheduling pass took."]


class Health(TypedDict):
    """The answer to a health check."""

    ok: bool
    version: str


class Ending(TypedDict):
    """The answer to a shutdown request."""

    ending: bool
    stop_jobs: bool


# -- what can't be done -----------------------------------------------------------------------------------------------


KindOfProblem = Literal[
    "bad-request",
    "malformed-json",
    "invalid-input",
    "unauthorized",
    "foreign-origin",
    "not-found",
    "no-such-route",
    "method-not-allowed",
    "too-slow",
    "conflict",
    "too-large",
    "not-json",
    "wrong-host",
    "invalid-body",
    "impossible-job",
    "too-many-streams",
    "headers-too-large",
    "internal-error",
    "store-unavailable",
    "node-unreachable",
]


def type_of(kind: KindOfProblem) -> str:
    """As `type` of an answer says it."""
    return f"urn:gpuloom:problem:{kind}"


class Fault(TypedDict):
    """One thing that is wrong."""

    where: Annotated[str, "JSON pointer into the body, 'line 3, column 5' of it, or 'query limit'."]
    message: str


class Problem(TypedDict):
    """Why it was not done (RFC 9457)."""

    type: Annotated[str, "Such as urn:gpuloom:problem:not-found."]
    title: str
    status: int
    detail: str
    errors: NotRequired[list[Fault]]
