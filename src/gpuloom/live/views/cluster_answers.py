"""Answers of the API about nodes, GPUs, groups, the policy and figures: as `answers.py`, in the same form."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from gpuloom.core.definitions import DEFINITIONS
from gpuloom.live.views.policy_answers import ParameterView, PolicyStateView

StateOfNode = Literal["up", "cordoned", "draining", "down"]
SourceOfNode = Literal["here", "joined", "slurm", "kubernetes"]  # core/job.py, NodeSource
StateOfGpu = Literal["ok", "foreign", "unhealthy"]
KindOfDevice = Literal["gpu", "cpu"]


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
    state: Annotated[StateOfGpu, "foreign: processes that are not ours use it."]
    reason: str
    since_s: float | None
    utilization: float | None
    memory_used_mib: float | None
    temperature_c: float | None
    power_w: float | None
    jobs: list[int]
    foreign: list[ForeignView]
    notes: Annotated[list[str], "The monitor's findings."]


class SuspendedHereView(TypedDict):
    """A suspended job."""

    job: int
    mib: Annotated[float, "Its GPU memory, which is in the node's main memory."]


class NodeView(TypedDict):
    """A machine with its newest rates (null: not known)."""

    name: str
    state: Annotated[StateOfNode, "cordoned: nothing new starts; draining: jobs are moved away as well."]
    reason: str
    source: Annotated[SourceOfNode, "here: the scheduler's own; joined: `gpuloom node join`; slurm: of a pilot."]
    address: Annotated[str, "Where other nodes can reach it."]
    until_s: Annotated[float | None, "Until when it is ours, as its allocation says."]
    engine_job: Annotated[str, "The Slurm job to which it belongs."]
    cut: Annotated[str, "Why it can't be talked to now; '' where it can."]
    shut: Annotated[str, "Why nothing can be started there now, though it is up; '' where jobs can be."]
    since_s: float | None
    kind: Annotated[KindOfDevice, "cpu: CPU slots stand in for GPUs."]
    cpus: int | None
    memory_mib: int | None
    cpu_percent: float | None
    memory_used_mib: float | None
    disk_free_mib: float | None
    load: float | None
    received_mib_per_s: float | None
    sent_mib_per_s: float | None
    sampled_s: Annotated[float | None, "When the rates were taken."]
    limits: Annotated[
        dict[str, str],
        "By what processes are ended, frozen and kept to their limits there (processes, freezing, memory, cpus, time); "
        "{} while it is not there.",
    ]
    gpus: list[GpuView]
    topology: Annotated[
        list[tuple[int, int, str]],
        "[GPU, GPU, link]: how pairs of GPUs are connected ('NVLINK', 'PIX', 'PHB', 'NODE', 'SYS').",
    ]
    jobs: list[int]
    suspended: Annotated[list[SuspendedHereView], "Jobs that lie there without GPUs, and what they hold of its memory."]


class NodeList(TypedDict):
    """All nodes."""

    nodes: list[NodeView]


class GroupMemberView(TypedDict):
    """A job that shares its GPUs with others."""

    job: int
    name: str
    user: str
    expected_rate: Annotated[float | None, "Part of its speed alone that the policy's model expects."]
    expected_from: Annotated[str | None, "Where that is known from, in words; null: it is not known now."]
    it_per_s: Annotated[float | None, "Iterations per second that it reports."]
    alone_it_per_s: Annotated[float | None, "Alone on these GPUs: its own, of earlier runs, or of its profile."]
    beside_it_per_s: Annotated[float | None, "Since all members have begun; null: too few iterations to tell."]
    share: Annotated[float | None, "Part of its speed alone that was measured: the latter over the former."]


class GroupView(TypedDict):
    """Jobs that hold the same GPUs at the same time."""

    members: list[GroupMemberView]
    gpus: Annotated[dict[str, list[int]], "All GPUs of the members, by node."]
    since_s: Annotated[float, "Since when it is these members."]
    order: Annotated[list[int] | None, "Members as their stages follow each other; null: no stage times are known."]
    efficiency: Annotated[float | None, "γ, how busy the resources are by stage times, 0 to 1; null: not known."]
    gain: Annotated[
        float | None,
        "Measured normalised throughput: the sum of the shares. 1: as much as one after another. null: not known yet.",
    ]


class GroupList(TypedDict):
    """All groups."""

    groups: list[GroupView]


class FailureView(TypedDict):
    """A policy that fails, and its last failure."""

    policy: str
    call: Annotated[str, "What it was asked for (live/planning/asking.py, Call)."]
    error: str
    where: Annotated[str, "The line of its code."]
    since_s: float
    last_s: float
    times: int
    serves: Annotated[str, "The policy that decides now; '': none."]


class LackView(TypedDict):
    """An input that the policy uses and that is unknown."""

    input: Literal["stages", "memory", "sizes", "speeds", "ratios", "rates", "sharing"]  # live/planning/lacks.py, Input
    jobs: Annotated[int, "Of how many jobs."]
    text: str


class PolicyView(TypedDict):
    """The policy in use."""

    policy: str
    interval_s: float
    since_s: float | None
    previous: Annotated[str | None, "The one before, if there was another."]
    serves: Annotated[str, "The policy that decides now: another one while this one fails."]
    failure: FailureView | None
    parameters: Annotated[list[ParameterView], "Of the policy that decides."]
    lacks: Annotated[list[LackView], "Inputs that it uses and that are unknown here."]
    state: Annotated[
        PolicyStateView | None,
        "Of the policy that decides, where asked for; null: it was not, or nothing is decided yet.",
    ]
    state_problem: Annotated[str, "Why the policy can't tell its state; '': it can."]


class UsageRow(TypedDict):
    """What one user, name, day or node used."""

    key: str
    jobs: int
    attempts: int
    held_s: float
    gpu_s: float
    failed: int
    cost_usd: Annotated[
        float | None, "Of the GPU time, at on-demand prices (gpuloom gpus); null: that of a GPU model is unknown."
    ]
    suspensions: Annotated[int, "How often jobs were suspended or frozen in the span."]
    suspended_s: Annotated[float, "For how long jobs lay so, all together. They hold no GPUs then."]
    suspended_mib: Annotated[float, "GPU memory that went to the nodes' memory, all these times together."]


class UsageList(TypedDict):
    """Usage of one user, day or job name."""

    usage: list[UsageRow]


class StatsView(TypedDict):
    """Figures of jobs that ran and ended in a span of time, by the simulator's names; null: there is none to tell."""

    since_s: float
    until_s: float
    user: Annotated[str | None, "Whose jobs alone; null: all."]
    jobs: Annotated[int, "That ran and ended in the span."]
    finished: int
    failed: int
    cancelled: int
    avg_jct_s: Annotated[float | None, DEFINITIONS["avg_jct_s"]]
    median_jct_s: Annotated[float | None, DEFINITIONS["median_jct_s"]]
    p99_jct_s: Annotated[float | None, DEFINITIONS["p99_jct_s"]]
    makespan_s: Annotated[float | None, f"{DEFINITIONS['makespan_s']}, of these jobs."]
    covered_s: Annotated[float, "Seconds of the span in which a scheduler ran: averages over time are over these."]
    avg_queue_length: Annotated[float | None, DEFINITIONS["avg_queue_length"]]
    blocking_index: Annotated[
        float | None, f"{DEFINITIONS['blocking_index']} By what is known of running times, every ten seconds."
    ]
    utilization: Annotated[float | None, DEFINITIONS["utilization"]]
    gpu_s: Annotated[float, "GPU-seconds held in the span; a GPU that two jobs share counts for both."]
    restarts: Annotated[int, DEFINITIONS["restarts"]]
    preemptions: Annotated[int, "Attempts that were stopped for other jobs."]
    resizes: Annotated[int, "Attempts that ended to go on with another number of GPUs."]
    resize_s: Annotated[
        float | None, "Seconds for which a job stood still for a resize: the mean of the last ones that were measured."
    ]


FigureOfEach = Literal[
    "cpu_percent",
    "cpu_cores",
    "memory_used_mib",
    "memory_mib",
    "disk_free_mib",
    "read_mib_per_s",
    "write_mib_per_s",
    "received_mib_per_s",
    "sent_mib_per_s",
    "gpu_utilization",
    "gpu_utilization_most",
    "gpu_memory_used_mib",
    "gpu_memory_mib",
]


class UserPointView(TypedDict):
    """A sample, of one user."""

    user: Annotated[str, "'': those beyond the 32 who have most."]
    queue_length: float
    running: float
    busy_gpus: float
    blocking_index: float
    ended: int
    avg_jct_s: float | None


class PointView(TypedDict):
    """A sample: what held over a span of time, on average. null: not known."""

    from_s: float
    span_s: Annotated[float, "10 s; of times an hour ago a minute, of times a day ago an hour."]
    queue_length: Annotated[float, "Jobs that wait for GPUs."]
    running: Annotated[float, "Jobs that hold GPUs."]
    busy_gpus: Annotated[float, "GPUs held by jobs."]
    gpus: Annotated[float, "Of nodes that are not down."]
    utilization: Annotated[float | None, "busy_gpus / gpus."]
    blocking_index: float
    ended: Annotated[int, "Jobs that ran and ended."]
    avg_jct_s: Annotated[float | None, "Mean JCT of these."]
    avg_jct_so_far_s: Annotated[float | None, "The same, from the first sample that is shown to this one."]
    users: Annotated[float, "With jobs that wait or run."]
    nodes: Annotated[float, "That are not down."]
    nodes_up: Annotated[float, "That jobs may be started on."]
    gpu_utilization: Annotated[float | None, "0 to 100, the mean over all GPUs that tell."]
    gpu_memory_used_mib: float | None
    gpu_memory_mib: float | None
    cpu_percent: Annotated[float | None, "0 to 100, the mean over the nodes."]
    memory_used_mib: float | None
    memory_mib: float | None
    disk_free_mib: Annotated[float | None, "Of all nodes together."]
    read_mib_per_s: Annotated[float | None, "What jobs read from disks."]
    write_mib_per_s: float | None
    received_mib_per_s: Annotated[float | None, "By all nodes, over the network."]
    sent_mib_per_s: float | None
    by_user: list[UserPointView]


class EachLineView(TypedDict):
    """What one node, GPU, user or job used, sample by sample; null: not known then."""

    name: Annotated[str, "A node; a GPU as NODE:INDEX; a user; a job's number."]
    figures: Annotated[
        dict[FigureOfEach, list[float | None]],
        "By figure, a value for each sample: means over its span, but `gpu_utilization_most`, the most that any GPU of "
        "the node was used. Memory and rates of users and jobs are of all their processes together; of nodes of all "
        "that runs there, but what is read and written, which is by jobs. GPU utilisation is the mean over the GPUs.",
    ]


class EachSeriesView(TypedDict):
    """What each used over time."""

    since_s: float
    until_s: float
    by: Literal["node", "gpu", "user", "job"]  # live/figures/each.py, Of
    from_s: Annotated[list[float], "Of each sample, when it begins."]
    span_s: Annotated[list[float], "10 s; of times an hour ago a minute, of times a day ago an hour."]
    lines: Annotated[list[EachLineView], "Those of which something is known in that time, by name."]


class SeriesView(TypedDict):
    """Figures over time."""

    since_s: float
    until_s: float
    user: str | None
    points: list[PointView]
