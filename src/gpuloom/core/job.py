"""A live job: its phases, its attempts, and the table of transitions between them.

A *job* is what a user submitted; an *attempt* is one run of it. A job that is preempted, requeued or retried gets a
new attempt. Times are seconds since the epoch on the scheduler's own clock, which never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpuloom.core.end_reason import EndReason as EndReason
from gpuloom.core.kept import Kept
from gpuloom.core.run_name import RunName
from gpuloom.core.spec import Spec
from gpuloom.core.sums import sum_ints


class Phase(StrEnum):
    """Where a job is."""

    HELD = "held"
    """Its user keeps it back."""
    QUEUED = "queued"
    """It waits: for GPUs, for other jobs, or for the pause before a retry."""
    STARTING = "starting"
    """GPUs are its own and its process is being started."""
    RUNNING = "running"
    STOPPING = "stopping"
    """It was told to stop and has not ended yet."""
    FROZEN = "frozen"
    """Its processes are stopped where they are; it waits for GPUs."""
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


WAITING = frozenset({Phase.HELD, Phase.QUEUED})
ACTIVE = frozenset({Phase.STARTING, Phase.RUNNING, Phase.STOPPING, Phase.FROZEN})
ENDED = frozenset({Phase.FINISHED, Phase.FAILED, Phase.CANCELLED})


MAKES_WAY = frozenset({EndReason.PREEMPTED, EndReason.RESIZED, EndReason.NODE})
"""Reasons for a stop after which the job, as the policy sees it, waits again, unless it was given other GPUs."""


class SavedBy(StrEnum):
    """How it is known that an attempt which was told to make way saved its work."""

    NOTHING = ""
    """It is not known: work since the last known save counts as lost."""
    EXIT_CODE = "exit_code"
    """It exited with code 85, which says so."""
    SAVED_STEP = "saved_step"
    """It reported a save of its last step, or one after the notice."""
    CHECKPOINT = "checkpoint"
    """A file that it declared as its checkpoint is newer than the notice."""


class Needed(StrEnum):
    """What a job that waits for another one needs of it."""

    OK = "ok"
    """That it finishes well."""
    ANY = "any"
    """That it ends, well or not."""


class NodeState(StrEnum):
    """Whether a machine may be used."""

    UP = "up"
    CORDONED = "cordoned"
    """Nothing new starts."""
    DRAINING = "draining"
    """Jobs are moved away as well."""
    DOWN = "down"


class NodeSource(StrEnum):
    """Where a machine comes from."""

    HERE = "here"
    """The scheduler's own."""
    JOINED = "joined"
    """It joined by itself: `gpuloom node join`."""
    SLURM = "slurm"
    """It is part of an allocation of Slurm."""
    KUBERNETES = "kubernetes"
    """It is a node of a Kubernetes cluster."""


class GpuState(StrEnum):
    """Whether a GPU may be used."""

    OK = "ok"
    FOREIGN = "foreign"
    """Processes that are not ours use it."""
    UNHEALTHY = "unhealthy"


class DeviceKind(StrEnum):
    """What stands for the GPUs of a machine."""

    GPU = "gpu"
    CPU = "cpu"
    """CPU slots in place of GPUs."""


TRANSITIONS: Mapping[str, tuple[frozenset[Phase], frozenset[Phase]]] = {
    "job.held": (frozenset({Phase.QUEUED}), frozenset({Phase.HELD})),
    "job.released": (frozenset({Phase.HELD}), frozenset({Phase.QUEUED})),
    "job.suspended": (frozenset({Phase.RUNNING, Phase.FROZEN}), frozenset({Phase.RUNNING, Phase.FROZEN})),
    "job.resumed": (frozenset({Phase.RUNNING, Phase.FROZEN, Phase.STOPPING}),
                    frozenset({Phase.RUNNING, Phase.FROZEN, Phase.STOPPING})),
    "job.updated": (WAITING | ACTIVE, WAITING | ACTIVE),
    "job.cancelled": (WAITING, frozenset({Phase.CANCELLED})),
    "job.requeued": (ENDED, frozenset({Phase.QUEUED})),
    "job.flagged": (WAITING | ACTIVE | ENDED, WAITING | ACTIVE | ENDED),
    "attempt.starting": (frozenset({Phase.QUEUED}), frozenset({Phase.STARTING})),
    "attempt.running": (frozenset({Phase.STARTING}), frozenset({Phase.RUNNING})),
    "attempt.stopping": (frozenset({Phase.STARTING, Phase.RUNNING, Phase.FROZEN, Phase.STOPPING}),
                         frozenset({Phase.STOPPING})),
    "attempt.frozen": (frozenset({Phase.RUNNING}), frozenset({Phase.FROZEN})),
    "attempt.thawed": (frozenset({Phase.FROZEN}), frozenset({Phase.RUNNING})),
    "attempt.ended": (ACTIVE, WAITING | ENDED),
}  # fmt: skip
"""By type of event: the phases in which it may come, and those to which it may lead."""

Allocation = tuple[tuple[str, tuple[int, ...]], ...]
"""GPUs of an attempt: (node's name, indices of GPUs on it), node by node."""


def gpus_in(allocation: Allocation) -> int:
    """GPUs in all."""
    return sum_ints(len(gpus) for _, gpus in allocation)


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of a job.

    spec: what the user asked for; jobs of an array share it. spec_id: the event that brought it.
    priority: higher goes first. queued_s: when it last began to wait. not_before_s: the earliest next start.
    attempts: runs so far, the present one included. failures: those that count against `retries`.
    held_s, held_gpu_s: seconds and GPU-seconds for which it has held GPUs, the present run not included.
    work_s: of those, the work that need not be done again. work_on: the same by GPU model, as far as that is
        known, and by size (the texts of core/pace.py: RanOn).
    reason, exit_code, message: of the last attempt that ended.
    after: jobs it waits for. estimate_s: predicted run time, and its source.
    flags: what the monitor has to say of it, by name. suspended: somebody has told it to leave its GPUs until somebody
    lets it go on; it is frozen, or on its way. cause: number of the event that last changed it.
    """

    id: int
    name: str
    user: str
    gpus: int
    priority: int
    phase: Phase
    spec_id: int
    spec: Spec
    submitted_s: float
    queued_s: float
    not_before_s: float = 0.0
    first_start_s: float | None = None
    ended_s: float | None = None
    attempts: int = 0
    failures: int = 0
    held_s: float = 0.0
    held_gpu_s: float = 0.0
    work_s: float = 0.0
    work_on: Mapping[str, float] = field(default_factory=dict)
    reason: EndReason | None = None
    exit_code: int | None = None
    message: str = ""
    array_id: int | None = None
    array_index: int | None = None
    after: tuple[tuple[int, Needed], ...] = ()
    estimate_s: float = 3600.0
    estimate_from: str = "default"
    flags: Mapping[str, str] = field(default_factory=dict)
    suspended: bool = False
    cause: int = 0


@dataclass(frozen=True, slots=True)
class Member:
    """A process tree of an attempt on one node, with GPUs of that node.

    pid, start_ticks, boot_id: of its first process, once it runs. reason, exit_code, signal, message, ended_s: how and
    when it ended; reason None: it has not. released: nothing of it is left, and its GPUs are free.
    """

    node: str
    gpus: tuple[int, ...]
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str | None = None
    reason: EndReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    ended_s: float | None = None
    released: bool = True


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run of a job, of one member for each node of its allocation, in that order. phase is ACTIVE or None once
    ended. members: of a gang on several nodes; of any other attempt () (`parts` has it all the same).

    since_s: since when it has held its GPUs without a break (freezing is one). stop_reason, deadline_s: of a stop under
    way. saved, saved_by: it made way and saved its work, and how that is known.
    signal: the signal that ended it. work_s: the job's `work_s` after it. identity: drawn at random when it was
    written down ('' of those that an older gpuloom started). gpu_model: of all its GPUs; '' where that is not known.
    it_per_s: iterations per second that it reported while it had its GPUs for itself. gpu_memory_mib: the memory that
    it used on one GPU at its peak, while it had them for itself; None: not seen. kept: its newest save, if it reported
    one.
    """

    job: int
    number: int
    phase: Phase | None
    allocation: Allocation
    started_s: float
    since_s: float
    running_s: float | None = None
    pid: int | None = None
    start_ticks: int | None = None
    boot_id: str | None = None
    stop_reason: EndReason | None = None
    deadline_s: float | None = None
    ended_s: float | None = None
    reason: EndReason | None = None
    exit_code: int | None = None
    signal: int | None = None
    saved: bool = False
    saved_by: SavedBy = SavedBy.NOTHING
    held_s: float = 0.0
    work_s: float = 0.0
    message: str = ""
    peak_memory_mib: float | None = None
    identity: str = ""
    gpu_model: str = ""
    it_per_s: float | None = None
    gpu_memory_mib: float | None = None
    members: tuple[Member, ...] = ()
    kept: Kept | None = None
    cause: int = 0

    @property
    def parts(self) -> tuple[Member, ...]:
        """Every member, also where there is only one."""
        if self.members or not self.allocation:
            return self.members
        (node, gpus), *others = self.allocation
        if others:
            return tuple(Member(node, gpus) for node, gpus in self.allocation)
        return (
            Member(
                node,
                gpus,
                self.pid,
                self.start_ticks,
                self.boot_id,
                self.reason,
                self.exit_code,
                self.signal,
                self.message,
                self.ended_s,
            ),
        )

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where its members are, in the order of ranks."""
        return tuple(node for node, _ in self.allocation)

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of the runs of its members, in the order of ranks."""
        ranks = range(max(len(self.allocation), 1))
        return tuple(str(RunName(self.job, self.number, rank, self.identity)) for rank in ranks)

    @property
    def run(self) -> str:
        """The name of this run, such as '12.1-9f3a02bc': never used twice, not even by a store that was put back to an
        older state and gives the number 12.1 again."""
        return str(RunName(self.job, self.number, identity=self.identity))


RESET_WORDS = "needs a reset of the GPU or a reboot, then `gpuloom nodes NODE up`"
"""Ends the reason of a GPU that does not recover by itself."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a CPU slot in place of one.

    reason: why it is in that state; since_s: since when. needs_reset: only a reset or a reboot mends it.
    """

    index: int
    uuid: str
    model: str
    memory_mib: int | None = None
    state: GpuState = GpuState.OK
    reason: str = ""
    since_s: float | None = None
    needs_reset: bool = False


class Condition(NamedTuple):
    """The part of a GPU's record that may change."""

    state: GpuState
    reason: str = ""
    needs_reset: bool = False


def condition_of(gpu: Gpu) -> Condition:
    """That part of a GPU's record."""
    return Condition(gpu.state, gpu.reason, gpu.needs_reset)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A machine. state: 'up', 'cordoned' (nothing new starts), 'draining' (jobs are moved away as well) or 'down'."""

    name: str
    gpus: tuple[Gpu, ...]
    state: NodeState = NodeState.UP
    reason: str = ""
    since_s: float | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    kind: DeviceKind = DeviceKind.GPU
    """'gpu', or 'cpu' where CPU slots stand in for GPUs."""
    topology: tuple[tuple[int, int, str], ...] = ()
    """(GPU, GPU, link): how pairs of GPUs are connected ('NVLINK', 'PIX', 'PHB', 'NODE', 'SYS')."""
    source: NodeSource = NodeSource.HERE
    address: str = ""
    """Where other nodes can reach it; '' for the scheduler's own machine."""
    until_s: float | None = None
    """Until when it is ours, as its allocation says; None: for as long as it is there."""
    engine_job: str = ""
    """The job of the engine below to which the node belongs: the number of a Slurm job."""
    cause: int = 0
