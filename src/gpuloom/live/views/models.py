"""What the API returns and the command line prints: plain JSON objects, one shape each, described here once."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class JobView(TypedDict):
    """A job for people and programs. Times are epoch seconds; None where there is none yet."""

    id: int
    name: str
    user: str
    state: str
    """held, queued, starting, running, stopping, frozen, finished, failed or cancelled."""
    reason: str | None
    """Why it ended, or why its last attempt did (core/job.py, EndReason)."""
    message: str
    exit_code: int | None
    gpus: int
    gpu_types: list[str]
    priority: int
    command: list[str]
    submitted_s: float
    started_s: float | None
    """Its first start."""
    ended_s: float | None
    waited_s: float
    """Seconds in which it held no GPUs, so far."""
    run_s: float
    """Seconds in which it held GPUs, so far."""
    jct_s: float | None
    """Submission to end."""
    attempts: int
    preemptions: int
    retries_left: int
    array_id: int | None
    array_index: int | None
    after: list[list[Any]]
    time_limit_s: float | None
    estimate_s: float | None
    """Its whole running time, as far as it is known; None: nothing is but a bound, or not even that."""
    estimate_from: str
    """given, progress, array, earlier_runs, time_limit or unknown (live/forecasts/estimates.py, Source)."""
    estimate_runs: int
    """How many earlier runs that rests on."""
    predicted_end_s: float | None
    """Of one that runs; never in the past. None where it is not known, or it has outlived what was known."""
    predicted_end_s_low: float | None
    predicted_end_s_high: float | None
    """Between these it ends in eight of ten cases; the high alone is its time limit."""
    overrun_s: float
    """By how much it has outlived what was known of its running time."""
    where: str
    """Node and GPUs of the present attempt ('host:0,1'), or ''."""
    waiting: dict[str, Any] | None
    """Of one that waits: {code, text, numbers}."""
    progress: dict[str, Any]
    """What the job reported last ({step, steps, fraction, …})."""
    usage: dict[str, float | None]
    flags: dict[str, str]
    changed: NotRequired[bool]
    """In the answer to an action: whether it changed the job; false: it was so already."""


class WhyView(TypedDict):
    """Why a job waits, and when it will start."""

    job: int
    state: str
    code: str
    text: str
    numbers: dict[str, float]
    position: int | None
    """1: next to start, in the order in which the forecast starts jobs."""
    waiting: int
    start_s: float | None
    """When it started; None: not yet."""
    start_s_low: float | None
    start_s_median: float | None
    start_s_high: float | None
    """Forecast of its start, epoch seconds: between low and high in eight of ten cases. None: unknown; a low alone: not
    before."""
    end_s: float | None
    """When it ended; None: not yet."""
    end_s_low: float | None
    end_s_median: float | None
    end_s_high: float | None
    source: str
    """What is known of its own running time, and whence (live/forecasts/estimates.py, Source)."""
    n: int
    """How many earlier runs that rests on."""
    overrun_s: float
    """By how much it has outlived that."""
    rests_on: dict[str, int]
    """What is known of the running times of the jobs that run or go before it: how many by which source."""
    unknown: list[int]
    """Of those, jobs of which nothing is known and on which its start depends."""
    lacks: list[str]
    """What the policy would go by and is not told of here."""
    assumptions: list[str]
    sentences: list[str]
    """The whole answer, for people."""


class AttemptView(TypedDict):
    """One run of a job. Times are epoch seconds."""

    number: int
    state: str
    """starting, running, stopping, frozen or ended."""
    where: str
    """Node and GPUs ('host:0,1')."""
    gpus: int
    started_s: float
    running_s: float | None
    ended_s: float | None
    held_s: float
    """Seconds in which it held GPUs, so far."""
    reason: str | None
    """Why it ended."""
    exit_code: int | None
    signal: int | None
    saved: bool
    """Whether it saved when it was told to make way."""
    saved_by: str | None
    """How that is known: exit_code, saved_step (it reported the save) or checkpoint (a file newer than the notice)."""
    message: str
    pid: int | None
    stop_reason: str | None
    """Why it was told to stop, if it was."""
    deadline_s: float | None
    """When it is ended, if it has not by then."""
    peak_memory_mib: float | None


class ForeignView(TypedDict):
    """A process on a GPU that is not of our jobs."""

    pid: int
    user: str
    name: str
    memory_mib: float | None


class GpuView(TypedDict):
    """A GPU, or a CPU slot in place of one, with its newest rates (null: not known)."""

    index: int
    uuid: str
    model: str
    memory_mib: int | None
    state: str
    """ok, foreign (processes that are not ours use it) or unhealthy."""
    reason: str
    since_s: float | None
    utilization: float | None
    memory_used_mib: float | None
    temperature_c: float | None
    power_w: float | None
    jobs: list[int]
    foreign: list[ForeignView]
    notes: list[str]
    """What was noticed of it."""


class NodeView(TypedDict):
    """A machine with its newest rates (null: not known)."""

    name: str
    state: str
    """up, cordoned, draining or down."""
    reason: str
    since_s: float | None
    kind: str
    """gpu, or cpu where CPU slots stand in for GPUs."""
    cpus: int | None
    memory_mib: int | None
    cpu_percent: float | None
    memory_used_mib: float | None
    disk_free_mib: float | None
    load: float | None
    received_mib_per_s: float | None
    sent_mib_per_s: float | None
    sampled_s: float | None
    """When the rates were taken."""
    gpus: list[GpuView]
    topology: list[list[Any]]
    """[GPU, GPU, link]: how pairs of GPUs are connected ('NVLINK', 'PIX', 'PHB', 'NODE', 'SYS')."""
    jobs: list[int]


class FailureView(TypedDict):
    """That a policy fails, and how it did last."""

    policy: str
    call: str
    """What it was asked for (live/planning/asking.py, Call)."""
    error: str
    where: str
    """The line of its code."""
    since_s: float
    last_s: float
    times: int
    serves: str
    """The policy that decides now; '': none."""


class PolicyView(TypedDict):
    """The policy in use."""

    policy: str
    interval_s: float
    since_s: float | None
    previous: str | None
    """The one before, if there was another."""
    serves: str
    """The policy that decides now: another one while this one fails."""
    failure: FailureView | None


class StoreView(TypedDict):
    """The store and how it does."""

    kind: str
    path: str
    schema_version: int
    ok: bool
    problem: str
    """What is wrong with it; '' for nothing."""
    checked: str
    """How much of it was checked since the scheduler began: whole, part or damaged (live/care.py, Checked)."""


class ExecutorView(TypedDict):
    """What runs jobs, and how it does."""

    name: str
    ok: bool
    problem: str
    """What is wrong with it; '' for nothing."""
    limits: dict[str, str]
    """Which limits of jobs are enforced, and how."""


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
    kind: str
    """gpu or cpu."""


class LackView(TypedDict):
    """What the policy would go by and is not told of."""

    input: str
    """stages, sizes or speeds (live/planning/lacks.py, Input)."""
    jobs: int
    """Of how many jobs."""
    text: str


class MonitorView(TypedDict):
    """What looks at the machine."""

    ok: bool
    problem: str
    """What is wrong with it; '' for nothing."""


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
    policy_problem: str
    """What is wrong with the policy; '' for nothing."""
    policy_failure: FailureView | None
    policy_lacks: list[LackView]
    interval_s: float
    sharing: SharingView
    jobs: dict[str, int]
    """Jobs by state."""
    gpus: DevicesView
    nodes: int
    last_pass_s: float
    """How long the last scheduling pass took."""


class ShowView(TypedDict):
    """Everything about a job."""

    job: JobView
    spec: dict[str, Any]
    attempts: list[AttemptView]
    events: list[dict[str, Any]]
    log: str
    """Path of its log on the node."""
