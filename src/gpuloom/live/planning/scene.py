"""What there is to decide about, as it is now: the jobs, who holds which GPUs, and the policy that decides."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field

from gpuloom.core.book import Book
from gpuloom.core.job import Job
from gpuloom.live.planning.claims import Claims
from gpuloom.live.planning.estimates import Estimate, Estimates, left_s, like_of
from gpuloom.live.records.fleet import Slot, open_slots
from gpuloom.live.records.work import WorkDone
from gpuloom.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Coming:
    """Nodes that are asked of an engine below. last_s: for how long such a node will be ours; None: none is asked for,
    or it is not known. words: what has become of the last requests, in a sentence; '' if there is nothing to say."""

    last_s: float | None = None
    words: str = ""


NONE_COMES = Coming()


@dataclass(slots=True)
class Scene:
    """Records, claims and the policy; whoever needs these, and not the planning, is handed this."""

    book: Book
    work: WorkDone
    estimates: Estimates
    claims: Claims
    policy: Policy
    coming: Coming = NONE_COMES
    shut: Mapping[str, str] = field(default_factory=dict)
    """Nodes on which nothing can be started or stopped now, and why: who runs there goes on."""

    @property
    def open_slots(self) -> set[Slot]:
        """GPUs that may be given away or are, now."""
        return open_slots(node for node in self.book.nodes.values() if node.name not in self.shut)

    @property
    def preempts(self) -> bool:
        """Whether the policy stops running jobs, if only to move them."""
        return self.policy.stops_running

    def level(self, job: int) -> int:
        """The priority of a job as passes see it. What a policy with classes of its own reads from it stays in one."""
        priority = self.book.jobs[job].priority
        return max(priority, 0) if self.policy.own_priorities else priority

    def estimate(self, job: Job) -> Estimate:
        """What is known now of a job's whole work."""
        like = like_of(job.spec, job.user, job.gpus, job.array_id)
        return self.estimates.of(like, given_s=job.spec.estimate, time_limit_s=job.spec.time_limit)

    def left_s(self, job: Job) -> float:
        """Expected work left of a job that waits, seconds."""
        return left_s(self.estimate(job).total_s, job.work_s)

    def copy(self, policy: Policy) -> Scene:
        """The same with this policy, for another thread: nothing of it changes any more."""
        return Scene(
            self.book.copy(),
            deepcopy(self.work),
            self.estimates.copy(),
            self.claims.copy(),
            policy,
            self.coming,
            self.shut,
        )
