"""Answers of the API about jobs, their attempts, events and logs: as `answers.py`, in the same form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from gpuloom.live.views.cluster_answers import GroupView

StateOfJob = Literal[
    "held", "queued", "starting", "running", "stopping", "frozen", "finished", "failed", "cancelled"
]  # core/job.py, Phase
StateOfAttempt = Literal["starting", "running", "stopping", "frozen", "ended"]
ReasonOfEnd = Literal[
    "finished",
    "failed",
    "preempted",
    "resized",
    "timed_out",
    "cancelled",
    "requeued",
    "lost",
    "out_of_memory",
    "not_started",
    "node",
    "peer",
]  # core/job.py, EndReason
SourceOfEstimate = Literal[
    "given", "progress", "array", "earlier_runs", "time_limit", "unknown"
]  # live/planning/estimates.py, Source
SourceOfSpeed = Literal[
    "measured", "earlier_runs", "profiles", "given", "facts", "usual", "unknown"
]  # core/pace.py, SpeedSource
ActionOnArray = Literal[
    "cancel", "hold", "release", "suspend", "resume", "requeue", "top"
]  # live/submission/actions.py, Action
SavedHow = Literal["exit_code", "saved_step", "checkpoint"]  # core/job.py, SavedBy
Dependency = tuple[int, Literal["ok", "any"]]


@dataclass(frozen=True, slots=True)
class Fits:
    """Beside the type of a plain object: the schema of the OpenAPI document that it fits."""

    schema: str


# -- jobs -------------------------------------------------------------------------------------------------------------


class ReasonView(TypedDict):
    """Why a job waits."""

    code: str
    text: Annotated[str, "The same as a sentence."]
    numbers: dict[str, float]


class RatesView(TypedDict, total=False):
    """What a run uses, by the monitor. Empty before its first look."""

    cpu_cores: float | None
    memory_mib: Annotated[float | None, "Resident memory of all its processes; pages that they share count in each."]
    gpu_utilization: Annotated[float | None, "0 to 100, the mean over its GPUs."]
    gpu_memory_mib: float | None
    read_mib_per_s: float | None
    write_mib_per_s: float | None
    log_mib: Annotated[float | None, "All parts of its log that are kept."]


class ReplicasView(TypedDict):
    """The size of an elastic job."""

    now: Annotated[int | None, "Replicas of the present attempt; null: none is under way."]
    least: Annotated[int, "It never runs with fewer."]
    most: Annotated[int, "It never runs with more."]
    gpus: Annotated[int, "GPUs of one replica."]


class JobView(TypedDict):
    """A job for people and programs. Times are epoch seconds; null where there is none yet."""

    id: int
    name: str
    user: str
    state: StateOfJob
    reason: Annotated[ReasonOfEnd | None, "Why it ended, or why its last attempt did."]
    message: str
    exit_code: int | None
    gpus: Annotated[int, "That it asks for."]
    replicas: Annotated[ReplicasView | None, "Of an elastic job."]
    gpu_types: list[str]
    priority: int
    command: list[str]
    submitted_s: float
    started_s: Annotated[float | None, "Its first start."]
    ended_s: float | None
    waited_s: Annotated[float, "Time without GPUs so far, seconds."]
    run_s: Annotated[float, "Time with GPUs so far, seconds."]
    jct_s: Annotated[float | None, "Submission to end."]
    attempts: int
    preemptions: int
    retries_left: int
    array_id: int | None
    array_index: int | None
    after: Annotated[
        list[Dependency],
        "Jobs that it waits for: [number, how]. ok: until it has finished well; any: until it has ended.",
    ]
    time_limit_s: float | None
    estimate_s: Annotated[
        float | None,
        "Its whole running time, as far as it is known; null: nothing is but a bound, or not even that.",
    ]
    estimate_from: Annotated[SourceOfEstimate, "Whence that is known."]
    estimate_runs: Annotated[int, "Number of earlier runs that this rests on."]
    predicted_end_s: Annotated[
        float | None,
        "Of one that runs; never in the past. null where it is not known, or it has outlived what was known.",
    ]
    predicted_end_s_low: float | None
    predicted_end_s_high: Annotated[
        float | None, "It ends between these in eight of ten cases; the high alone is its time limit."
    ]
    overrun_s: Annotated[float, "By how much it has run longer than expected."]
    where: Annotated[str, "Node and GPUs of the present attempt ('host:0,1'), or ''."]
    waiting: Annotated[ReasonView | None, "Of one that waits: why."]
    progress: Annotated[dict[str, Any], "What the job reported last ({step, steps, fraction, …})."]
    usage: RatesView
    flags: Annotated[dict[str, str], "What the monitor noticed of it: a sentence each."]
    changed: NotRequired[
        Annotated[bool, "In the answer to an action: whether it changed the job; false: it was so already."]
    ]


class KeptView(TypedDict):
    """A save of an attempt."""

    step: Annotated[float, "Up to which step it goes, as the attempt counts them."]
    at_s: Annotated[float | None, "When it was made, epoch seconds."]
    by: Annotated[
        Literal["script", "framework", "hook"],
        "Who made it: the script; the framework, as the script asked it to; gpuloom's hook for the framework.",
    ]
    framework: Annotated[str | None, "Whose checkpoint it is, where that is known."]


class AttemptView(TypedDict):
    """One run of a job. Times are epoch seconds."""

    number: int
    state: StateOfAttempt
    where: Annotated[str, "Node and GPUs ('host:0,1')."]
    gpus: int
    replicas: Annotated[int | None, "Of an elastic job."]
    started_s: float
    running_s: float | None
    ended_s: float | None
    held_s: Annotated[float, "Time with GPUs so far, seconds."]
    cost_usd: Annotated[float | None, "Of that time until now, at the on-demand price of its GPU model; null: unknown."]
    reason: Annotated[ReasonOfEnd | None, "Why it ended."]
    exit_code: int | None
    signal: int | None
    saved: Annotated[bool, "Whether it saved when it was told to make way."]
    saved_by: Annotated[
        SavedHow | None,
        "How that is known: by its exit code, a save that it reported, or a checkpoint newer than the notice.",
    ]
    kept: Annotated[KeptView | None, "Its newest save, if it reported one."]
    message: str
    pid: int | None
    stop_reason: Annotated[ReasonOfEnd | None, "Why it was told to stop, if it was."]
    deadline_s: Annotated[float | None, "When it is ended, if it has not by then."]
    peak_memory_mib: float | None
    gpu_model: Annotated[str | None, "Of its GPUs; null: not known."]
    it_per_s: Annotated[float | None, "Iterations per second that it reported while it had its GPUs for itself."]
    gpu_memory_mib: Annotated[
        float | None,
        "On one GPU at its peak, while it had them for itself; of one that found too little beside others, what it is "
        "taken to need. null: not seen.",
    ]
    members: Annotated[list[MemberView], "One for each node, in the order of ranks."]


class MemberView(TypedDict):
    """A process tree of an attempt on one node."""

    rank: Annotated[int, "0 is the master."]
    node: str
    gpus: list[int]
    pid: int | None
    reason: Annotated[ReasonOfEnd | None, "Why it ended; 'peer': another member did, and the gang with it."]
    exit_code: int | None
    signal: int | None
    message: str
    ended_s: float | None
    restarts: Annotated[int, "How often it failed and was begun anew while the others ran on."]
    restarted: Annotated[str, "How it had failed, the last time; '' if never."]


class EventView(TypedDict):
    """Something that happened."""

    id: int
    at_s: float
    type: Annotated[str, "Such as attempt.running."]
    job: int | None
    data: dict[str, Any]


class EventPage(TypedDict):
    """Events, and where the list goes on."""

    events: list[EventView]
    last: Annotated[int, "`after` of the next page."]


class SizeView(TypedDict):
    """How fast an elastic job is at a size."""

    replicas: int
    gpus: int
    speed: Annotated[float, "Relative to the number of GPUs that it asks for."]
    it_per_s: Annotated[float | None, "Iterations per second, where its own runs reported them."]
    source: Annotated[SourceOfSpeed, "Whence it is known; usual: an estimate."]
    runs: Annotated[int, "Number of its runs that measured it."]


class ResizeView(TypedDict):
    """A change of an elastic job's size."""

    at_s: float
    attempt: Annotated[int, "The first one of the new size."]
    from_replicas: int
    to_replicas: int
    why: Literal["free_gpus", "from_others", "made_room", "policy", "node", "replica", "restarted"]
    jobs: Annotated[list[int], "Those that got its GPUs, or gave theirs up."]
    cost_s: Annotated[
        float | None, "For how long it stood still; null: it does not work again yet, or it was not there to resize."
    ]
    lost_steps: Annotated[float | None, "Steps that it did again; null: it does not say."]
    cost_from: Annotated[
        Literal["steps", "processes"] | None,
        "steps: from its last step to the next; processes: it reports none, from the notice to the new processes.",
    ]


class SuspensionView(TypedDict):
    """A time for which a job made way with its GPU memory in its node's memory."""

    at_s: Annotated[float, "When its GPUs were free."]
    mib: Annotated[float | None, "GPU memory that moved; null: it could not be suspended."]
    out_s: Annotated[float | None, "How long moving it out took."]
    back_at_s: Annotated[float | None, "When it went on; null: it has not yet."]
    in_s: Annotated[float | None, "How long bringing it back took."]
    why_not: Annotated[str, "Why it could not be suspended, and was told to save and end; '': it was."]
    why_ended: Annotated[str, "Why it was told to end before it could go on; '': it was not."]
    rehearsal: Annotated[bool, "It was only to see whether its program bears it: nobody else had its GPUs."]


Way = Literal["checkpoint", "freeze", "suspend", "never"]


class MakesWayView(TypedDict):
    """What happens to a running job that makes way."""

    way: Way
    why: Annotated[str, "Of one with on_preempt auto: why it is not suspended where its node could; '': it is."]


class GpuMemoryView(TypedDict):
    """How much memory a job needs on one GPU."""

    mib: int
    source: Annotated[Literal["given", "measured"], "measured: by the monitor, in this job or earlier runs of it."]
    runs: Annotated[int, "In how many earlier runs it was measured; 0: in attempts of its own, or it was given."]


class SpeedView(TypedDict):
    """How fast a job is on a GPU model."""

    gpu_model: str
    speed: Annotated[float, "Relative to the cluster's slowest GPU model."]
    it_per_s: Annotated[float | None, "Iterations per second, where its own runs reported them."]
    source: Annotated[SourceOfSpeed, "Whence it is known; facts and unknown: an estimate."]
    runs: Annotated[int, "Number of its runs that measured it."]
    price_usd_per_hour: Annotated[float | None, "On-demand price of one such GPU (gpuloom gpus); null: unknown."]


class MeasuredView(TypedDict):
    """A run's profile, measured from within. Times are seconds of an iteration."""

    framework: str
    iterations: Annotated[int, "That this process has done."]
    first_step: Annotated[int, "Steps done before it started."]
    steps: Annotated[int | None, "In all, where the framework knows."]
    began_s: float
    at_s: Annotated[float, "When it was measured."]
    timed: Annotated[int, "Of so many iterations are the times."]
    it_per_s: float
    iteration_s: float
    storage_s: Annotated[float, "Waits for storage."]
    cpu_s: Annotated[float, "Waits for work on batches."]
    gpu_s: Annotated[float, "Computing, on whatever device."]
    network_s: Annotated[float, "Communication that nothing hides."]
    turn_s: Annotated[float, "Waits for a turn on a device that is shared."]
    rest_s: Annotated[float, "All else; these six add up to the iteration."]
    stages_s: Annotated[list[float], "On storage, CPU, GPU and network, hidden or not: what a profile has."]
    compute_ratio: Annotated[float | None, "Computing over communication; null: it does not communicate."]
    noise: Annotated[float | None, "Standard deviation over mean, of windows of iterations."]
    drift: Annotated[float | None, "Change of the iteration time from its first quarter to its last."]
    prefetches: Annotated[bool, "Batches are made while it computes."]
    workers: Annotated[int, "Processes that make them."]
    batches: Annotated[float, "In an iteration."]
    batch_size: int | None
    memory_mib: Annotated[int | None, "The most that the framework took of a GPU."]
    world_size: int
    cores: Annotated[int, "Of the machine."]
    doubts: Annotated[list[str], "What could not be measured, in a word each."]
    not_measured: Annotated[list[str], "The same as sentences."]
    advice: Annotated[str, "What would make it faster by most."]
    advice_saves: Annotated[float, "By what share of an iteration, estimated."]


SeenByHooks = Literal["none", "python", "iterations", "profile"]  # files/hook_records.py, Sight


class LinkView(TypedDict):
    """Where a tracker has the run."""

    tracker: Literal["wandb", "mlflow", "tensorboard"]  # files/hook_records.py, Tracker
    where: Annotated[str, "An address, or a path on the run's node."]


class HooksView(TypedDict):
    """What hooks in a job's Python saw of its last run."""

    seen: Annotated[
        SeenByHooks,
        "none: no Python with hooks; python: one, but no iteration of a framework; iterations: too few for a profile.",
    ]
    iterations: int
    measured: MeasuredView | None
    links: Annotated[list[LinkView], "Where the script's own trackers have it, the newest last."]
    log: Annotated[list[str], "What was refused, and the last lines of the hooks' own log."]


class ShowView(TypedDict):
    """Everything about a job."""

    job: JobView
    spec: Annotated[dict[str, Any], "What was asked for.", Fits("JobSpec")]
    launcher: Annotated[
        Literal["direct", "torchrun", "horovod", "tensorflow", "accelerate launch", "deepspeed", "pods"] | None,
        "What starts its processes, as it was asked for or recognised by the command; null: the command alone.",
    ]
    speeds: Annotated[list[SpeedView], "How fast it is on each GPU model, the slowest model first; none: there is one."]
    sizes: Annotated[
        list[SizeView], "Of an elastic job, how fast it is at its sizes; of many those that were measured, and some."
    ]
    cost_usd: Annotated[float | None, "Of its attempts until now; null: the price of a GPU model is unknown."]
    gpu_memory: Annotated[GpuMemoryView | None, "What it needs on one GPU; null: not known."]
    attempts: list[AttemptView]
    resizes: Annotated[list[ResizeView], "Of an elastic job; of many the last thousand."]
    suspensions: Annotated[list[SuspensionView], "Also rehearsals; of many the last thousand."]
    makes_way: Annotated[MakesWayView | None, "null: it does not run."]
    events: Annotated[list[EventView], "The last ones about it."]
    log: Annotated[str, "Path of its last log; NODE:PATH where that is on another machine, the path in its home."]
    group: Annotated[GroupView | None, "Those that share GPUs with it now, it among them; null: nobody does."]
    hooks: Annotated[HooksView | None, "Of its last run; null: it has not run, or its node can't be asked."]


class WhyView(TypedDict):
    """Why a job waits, and when it will start."""

    job: int
    state: StateOfJob
    code: str
    text: str
    numbers: dict[str, float]
    position: Annotated[int | None, "1: next to start, in the order in which the forecast starts jobs."]
    waiting: int
    start_s: Annotated[float | None, "When it started; null: not yet."]
    start_s_low: float | None
    start_s_median: float | None
    start_s_high: Annotated[
        float | None,
        "Forecast of its start, epoch seconds: between low and high in eight of ten cases. null: unknown; a low alone: "
        "not before.",
    ]
    end_s: Annotated[float | None, "When it ended; null: not yet."]
    end_s_low: float | None
    end_s_median: float | None
    end_s_high: float | None
    source: Annotated[SourceOfEstimate, "What is known of its own running time, and whence."]
    n: Annotated[int, "Number of earlier runs that this rests on."]
    overrun_s: Annotated[float, "By how much it has run longer than that."]
    rests_on: Annotated[
        dict[str, int],
        "Sources of the running times of jobs that run or go before it: number of jobs by source.",
    ]
    unknown: Annotated[list[int], "Of those, jobs of unknown running time on which its start depends."]
    lacks: Annotated[list[str], "Inputs that the policy uses and that are unknown here."]
    assumptions: list[str]
    sentences: Annotated[list[str], "The whole answer, for people."]


class Submitted(TypedDict):
    """What became of a submission."""

    submitted: Annotated[list[list[int]], "Numbers of the jobs of each spec: several for an array."]


class JobPage(TypedDict):
    """Jobs, and where the list goes on."""

    jobs: list[JobView]
    next: Annotated[str | None, "`cursor` of the next page."]


class JobList(TypedDict):
    """Jobs to which something was done."""

    jobs: list[JobView]


class ArrayChange(TypedDict):
    """What was done to an array."""

    array: int
    changed: Annotated[dict[str, int], "Jobs that were changed, by their state now."]


# -- logs: data of the events of a stream -----------------------------------------------------------------------------


class LogText(TypedDict):
    """Of the event `log`: a piece of a log."""

    text: str
    member: NotRequired[Annotated[int, "Of a gang: whose log it is."]]
    skipped: NotRequired[Annotated[int, "So many bytes before it are no longer kept."]]


class LogAttempt(TypedDict):
    """Of the event `attempt`: another attempt begins."""

    attempt: int
    members: NotRequired[Annotated[list[str], "Of a gang: the node of each member."]]


class LogEnd(TypedDict):
    """Of the event `end`: how the job ended."""

    state: StateOfJob
    exit_code: int | None
    reason: ReasonOfEnd | None
