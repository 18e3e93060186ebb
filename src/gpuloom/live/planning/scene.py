"""What there is to decide about, as it is now: the jobs, who holds which GPUs, and the policy that decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuloom.core.book import Book
from gpuloom.core.job import Allocation, Attempt, DeviceKind, Job, NodeRecord, Phase, gpus_in
from gpuloom.core.pace import Pace
from gpuloom.core.spec import OnPreempt
from gpuloom.executors.suspending import KEEP_MIB
from gpuloom.live.planning.claims import Claims
from gpuloom.live.planning.estimates import Estimate, Estimates, left_s, like_of
from gpuloom.live.planning.gpu_memory import GpuMemory
from gpuloom.live.planning.kernel_speeds import KernelSpeeds
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.records.fleet import Slot, model_of, open_slots, slots_of
from gpuloom.live.records.rehearsals import Rehearsals
from gpuloom.live.records.work import WorkDone
from gpuloom.policies.base import Policy

STAYS = frozenset({OnPreempt.FREEZE, OnPreempt.SUSPEND})


@dataclass(frozen=True, slots=True)
class Coming:
    """Nodes that are asked of an engine below. last_s: for how long such a node will be ours; None: none is asked for,
    or it is not known. words: what has become of the last requests, in a sentence; '' if there is nothing to say."""

    last_s: float | None = None
    words: str = ""


NONE_COMES = Coming()


class Known(NamedTuple):
    """What is known of a job's work, in seconds on the GPU model of speed 1, at the size that it asks for: all of it by
    its estimate, what is done, all of it by its own reports (None: it makes none). speed: at which it works where it
    is."""

    total_s: float
    done_s: float
    told_s: float | None
    speed: float


@dataclass(slots=True)
class Scene:
    """Records, claims and the policy; whoever needs these, and not the planning, is handed this."""

    book: Book
    work: WorkDone
    estimates: Estimates
    speeds: ModelSpeeds
    claims: Claims
    policy: Policy
    kernels: KernelSpeeds
    coming: Coming = NONE_COMES
    memory: GpuMemory = field(default_factory=lambda: GpuMemory(lambda user, name, limit: ()))
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    free_mib: Callable[[NodeRecord], float | None] = lambda node: None
    """Main memory that a node has left, MiB, as was seen last; None: it was not."""
    room: dict[int, int] = field(default_factory=dict)
    """Suspended jobs, and the interactive job for which each makes room (dispatch/room.py)."""
    shut: Mapping[str, str] = field(default_factory=dict)
    """Nodes on which nothing can be started or stopped now, and why: who runs there goes on."""

    @property
    def open_slots(self) -> set[Slot]:
        """GPUs that may be given away or are, now."""
        return open_slots(node for node in self.book.nodes.values() if node.name not in self.shut)

    @property
    def free_slots(self) -> set[Slot]:
        """GPUs in service that nobody has or is about to have."""
        busy = [a.allocation for a in self.book.attempts.values() if a.phase is not Phase.FROZEN]
        held = {slot for allocation in (*busy, *self.claims.grants.values()) for slot in slots_of(allocation)}
        return self.open_slots - held

    @property
    def moves(self) -> set[str]:
        """Nodes on which a job that stands still can go on in other slots than its own."""
        return {name for name, node in self.book.nodes.items() if node.kind == DeviceKind.CPU}

    @property
    def preempts(self) -> bool:
        """Whether the policy stops running jobs, if only to move them."""
        return self.policy.stops_running

    def stays(self, job: Job) -> bool:
        """Whether a job that makes way does so where it is, and goes on there."""
        attempt = self.book.attempts.get(job.id)
        way = self.rehearsals.way(job, attempt)
        return way in STAYS and (way is not OnPreempt.SUSPEND or attempt is None or not self.no_memory(job, attempt))

    def no_memory(self, job: Job, attempt: Attempt) -> str:
        """Why a running job can't be suspended where it runs, as far as the node's memory goes; '' if it can."""
        node = self.book.nodes.get(attempt.nodes[0])
        free_mib = None if node is None else self.free_mib(node)
        mib = self.rehearsals.mib(job, attempt)
        if attempt.phase is Phase.FROZEN or node is None or free_mib is None or mib is None:
            return ""
        for number in self.claims.freezing():  # what is on its way there
            other = self.book.attempts[number]
            if number != job.id and other.nodes[0] == node.name:
                free_mib -= self.rehearsals.mib(self.book.jobs[number], other) or 0.0
        if free_mib >= mib + KEEP_MIB:
            return ""
        return f"it has {mib:,.0f} MiB on its GPUs, and node {node.name} has {max(free_mib, 0):,.0f} MiB of memory left"

    def again_s(self, job: Job) -> float | None:
        """What it costs that a job makes way by being suspended and goes on later, seconds; None: it is not suspended,
        or nobody has measured that."""
        attempt = self.book.attempts.get(job.id)
        if attempt is None or self.rehearsals.way(job, attempt) is not OnPreempt.SUSPEND or not self.stays(job):
            return None
        return self.rehearsals.round_s(job, attempt)

    def level(self, job: int) -> int:
        """The priority of a job as passes see it. What a policy with classes of its own reads from it stays in one."""
        priority = self.book.jobs[job].priority
        return max(priority, 0) if self.policy.own_priorities else priority

    def estimate(self, job: Job) -> Estimate:
        """What is known now of a job's whole work."""
        spec = job.spec
        like = like_of(spec, job.user, job.gpus, job.array_id)
        pace = self.speeds.of(like, spec.speeds, spec.sizes, spec.model)
        return self.estimates.of(
            like, given_s=spec.estimate, time_limit_s=spec.time_limit, pace=pace, wanted=spec.gpu_types
        )

    def pace(self, job: Job) -> Pace:
        """How fast a job is on each GPU model."""
        return self.speeds.of_job(job)

    def speed(self, job: Job, allocation: Allocation) -> float:
        """Work per second on these GPUs."""
        return self.pace(job).of(model_of(self.book.nodes, allocation), gpus_in(allocation))

    def done_s(self, job: Job) -> float:
        """Work that earlier attempts of a job have done."""
        return self.pace(job).work_s(job.work_s, job.work_on) if job.work_s > 0.0 else 0.0

    def known(self, job: Job, allocation: Allocation, now_s: float) -> Known:
        """What is known of the work of a job that has these GPUs."""
        speed = self.speed(job, allocation)
        before_s, done_s = self.done_s(job), self.work.expected(job.id, now_s)
        told_s = self.work.told_s.get(job.id)
        if told_s is not None:
            told_s = max(told_s * speed, before_s)
        return Known(self.estimate(job).total_s, before_s + done_s * speed, told_s, speed)

    def left_s(self, job: Job) -> float:
        """For how long a job that waits is expected to run, seconds, on the slowest GPU model that it accepts."""
        return left_s(self.estimate(job).total_s, self.done_s(job)) / self.pace(job).slowest(job.spec.gpu_types)

    def copy(self, policy: Policy) -> Scene:
        """The same with this policy, for another thread: nothing of it changes any more."""
        estimates = self.estimates.copy()
        return Scene(
            self.book.copy(),
            deepcopy(self.work),
            estimates,
            self.speeds.copy(estimates),
            self.claims.copy(),
            policy,
            self.kernels,
            self.coming,
            self.memory.copy(),
            self.rehearsals,
            self.free_mib,
            dict(self.room),
            self.shut,
        )
