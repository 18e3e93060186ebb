"""What policies for elastic jobs share: a base policy decides who runs, as if each job had its smallest size.

See `scaling/lending.py` for that world. Without jobs of several sizes such a policy is its base.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuloom.core.carrying import PER_JOB, PLACES_BY_JOB, Rows, carry
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision, Placement, Reason
from gpuloom.core.errors import PolicyError
from gpuloom.core.policy_state import (
    ElasticPool,
    ElasticSize,
    ElasticState,
    Resized,
    ResizeWhy,
    RlState,
)
from gpuloom.core.snapshot import Sizing, Snapshot
from gpuloom.core.words import are, plural
from gpuloom.core.workload import F8, I4, Workload
from gpuloom.policies.base import Parameter, Policy
from gpuloom.policies.registry import create_policy
from gpuloom.scaling.base_view import Sizes, base_workload
from gpuloom.scaling.lending import Lending

BASE = Parameter(
    "base",
    "tiresias",
    str,
    "the policy that decides which jobs run; with parameters as in tiresias:promote=2&scatter=yes",
)


KEPT_CHANGES = 50


@dataclass(slots=True)
class Memory:
    """base: the base policy's own. home: where every running elastic job lives in the base's world.

    Per job how often it grew and shrank, and when it last did (minus infinity: never). check_at_s: when sizes are
    looked at next; checked_s: when they last were; dirty: something has happened since they were. stirred_s: when
    something last happened. look_s: when a change of size that does not pay yet will.
    rehomed_s: when jobs last got homes where they live.
    """

    base: Any
    home: dict[int, Placement] = field(metadata=PLACES_BY_JOB)
    expansions: I4 = field(metadata=PER_JOB)
    last_expansion_s: F8 = field(metadata=PER_JOB)
    shrinks: I4 = field(metadata=PER_JOB)
    last_shrink_s: F8 = field(metadata=PER_JOB)
    stirred_s: float = -math.inf
    rehomed_s: float = -math.inf
    look_s: float = math.inf
    check_at_s: float = -math.inf
    checked_s: float = -math.inf
    dirty: bool = False


class Composed(Policy):
    """A base policy for who runs; the derived class for who gets more than its smallest size."""

    resizes = True
    inner: Policy
    cache: Lending | str | None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.inner = self.made_inner()
        self.changes: deque[Resized] = deque(maxlen=KEPT_CHANGES)
        """The last jobs that grew or shrank, to be shown; a restart forgets them."""
        self.take_capabilities(self.inner, resizes=True, remembers=(Memory, *self.inner.remembers))

    def made_inner(self) -> Policy:
        """The base policy.

        Raises:
            PolicyError: it is none, or one that shares GPUs or chooses sizes.
        """
        text = str(self.values["base"])
        try:
            inner = create_policy(text.replace("&", ";"))
        except PolicyError as error:
            raise PolicyError(f"policy {self.id!r}: base={text}: {error}") from error
        if inner.max_jobs_per_gpu > 1 or inner.resizes:
            why = "lets jobs share GPUs" if inner.max_jobs_per_gpu > 1 else "chooses sizes itself"
            raise PolicyError(
                f"policy {self.id!r}: base={text}: {inner.id} {why}; the base must give each job GPUs of its own, "
                "of one size (fifo, srtf, tiresias, ...)"
            )
        return inner

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        n = len(workload)
        never = np.full(n, -math.inf)
        counts = np.zeros(n, dtype=np.int32)
        base = self.inner.new_memory(self._base_workload(workload, cluster), cluster)
        return Memory(base, {}, counts, never, counts.copy(), never.copy())

    def carried(self, memory: Memory, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Memory:
        found = carry(memory, self.new_memory(workload, cluster), rows, nodes)
        found.base = self.inner.carried(memory.base, rows, nodes, self._base_workload(workload, cluster), cluster)
        return found

    def learn_from(self, ended_gpu_s: F8) -> None:
        self.inner.learn_from(ended_gpu_s)

    def _base_workload(self, workload: Workload, cluster: Cluster) -> Workload:
        """The jobs as the base policy sees them."""
        if workload.scaling is None:
            return workload
        return base_workload(workload, Sizes(workload, cluster, woven=self.max_jobs_per_gpu > 1))

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            self.inner.cache = None
            rigid = snapshot.workload.scaling is None
            lending = None if rigid else self._lending(snapshot, memory.home)
            self.cache = "rigid" if lending is None or not lending.sizes.any_elastic else lending
        self.inner.explains = self.explains
        if not isinstance(self.cache, Lending):
            decision, memory.base = self.inner.decide(snapshot, memory.base)
            return decision, memory
        # 1. What happened. 2. Who runs, each at its smallest size. 3. Borrowed GPUs that this needs are given back.
        lending = self.cache
        lending.take_in(snapshot)
        decision, memory.base = self.inner.decide(lending.view, memory.base)
        lending.apply(decision, lambda job: self.first_to_shrink(snapshot, memory, job))
        for job in dict.fromkeys(lending.reclaimed):
            self.note_shrink(snapshot, memory, job, ResizeWhy.GIVEN_BACK)
        stirred = bool(
            decision.run
            or decision.wait
            or snapshot.arrived
            or snapshot.finished
            or snapshot.evicted
            or snapshot.nodes_down
            or snapshot.nodes_up
            # It was set, or lost its memory, while jobs ran: nobody has looked at their sizes.
            or (memory.stirred_s == -math.inf and snapshot.placements)
        )
        if stirred:
            memory.stirred_s = snapshot.now_s
        if snapshot.sizing is Sizing.LATER:
            return lending.decision(decision.wake_at_s, decision.why), memory
        # 4. Who borrows what is left.
        stirred = stirred or (snapshot.sizing is Sizing.NOW and memory.stirred_s == snapshot.now_s)
        wake_at_s = self.lend(snapshot, memory, lending, stirred=stirred)
        if snapshot.now_s > memory.rehomed_s and lending.rehome(snapshot):
            memory.rehomed_s = snapshot.now_s
            if not lending.woven:  # who weaves takes all places from the view, and notes none
                self.inner.cache = None
            wake_at_s = snapshot.now_s
        return lending.decision(min(decision.wake_at_s, wake_at_s), decision.why), memory

    def _lending(self, snapshot: Snapshot, home: dict[int, Placement]) -> Lending:
        return Lending(snapshot, home, woven=self.max_jobs_per_gpu > 1)

    @abstractmethod
    def first_to_shrink(self, snapshot: Snapshot, memory: Memory, job: int) -> Any:
        """Key of a job that borrows: the smallest gives GPUs back first."""

    @abstractmethod
    def lend(self, snapshot: Snapshot, memory: Memory, lending: Lending, *, stirred: bool) -> float:
        """Grow and shrink jobs; returns when to be asked again (infinity: at the next event).

        Args:
            stirred: something has happened, or the base decided something.
        """

    def note_shrink(self, snapshot: Snapshot, memory: Memory, job: int, why: ResizeWhy = ResizeWhy.GAINS) -> None:
        memory.shrinks[job] += 1
        memory.last_shrink_s[job] = snapshot.now_s
        self._changed(snapshot, job, why)

    def note_expansion(self, snapshot: Snapshot, memory: Memory, job: int, why: ResizeWhy = ResizeWhy.GAINS) -> None:
        memory.expansions[job] += 1
        memory.last_expansion_s[job] = snapshot.now_s
        self._changed(snapshot, job, why)

    def describe(self, snapshot: Snapshot, memory: Memory) -> ElasticState:
        lending = self.cache if isinstance(self.cache, Lending) else None
        view = snapshot if lending is None else lending.view
        view.now_s = snapshot.now_s
        base = self.inner.describe(view, memory.base)
        assert not isinstance(base, ElasticState | RlState)  # noqa: S101 - no policy that chooses sizes is a base
        workload, lent = snapshot.workload, {} if lending is None else lending.gpus

        def one(job: int, sizes: Sequence[int]) -> ElasticSize:
            expansions, shrinks = memory.expansions.item(job), memory.shrinks.item(job)
            asked = workload.gpus.item(job)
            return ElasticSize(workload.job_id(job), lent[job], sizes[0], asked, sizes[-1], expansions, shrinks)

        jobs = () if lending is None else tuple([one(job, lending.sizes.of[job]) for job in sorted(lent)])
        pool = self.pool(snapshot, memory, lending)
        named = str(self.values.get(BASE.name, self.inner.id))
        return ElasticState(pool, jobs, tuple(self.changes), named, base)

    def pool(self, snapshot: Snapshot, memory: Memory, lending: Lending | None) -> ElasticPool | None:
        """The elastic pool, for a policy that goes by one."""
        return None

    def twin(self) -> Composed:
        found = super().twin()
        assert isinstance(found, Composed)  # noqa: S101 - a copy
        found.changes = deque(self.changes, KEPT_CHANGES)
        return found

    def _changed(self, snapshot: Snapshot, job: int, why: ResizeWhy) -> None:
        """A job has another number of GPUs from this decision on. Asked twice in one, the last one counts."""
        if not isinstance(self.cache, Lending):
            return
        name, now_s = snapshot.workload.job_id(job), snapshot.now_s
        if self.changes and (self.changes[-1].at_s, self.changes[-1].job) == (now_s, name):
            self.changes.pop()
        self.changes.append(Resized(now_s, name, snapshot.gpus_of(job), self.cache.gpus.get(job, 0), why))

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        """Why a waiting job waits. GPUs that are borrowed count as free."""
        workload = snapshot.workload
        if workload.scaling is None:
            return self.inner.reason(snapshot, job)
        lending = self.cache if isinstance(self.cache, Lending) else self._lending(snapshot, {})
        gpus, free = lending.sizes.of[job][0], lending.view.free_gpus
        numbers = {"gpus": gpus, "free_gpus": free, "waiting": snapshot.waiting_count}
        if free < gpus:
            text = f"It needs at least {plural(gpus, 'GPU')} at once and {are(free)} free or borrowed."
            return Reason("not_enough_free_gpus", text, numbers)
        text = (
            f"{are(free, 'GPU')} free or borrowed, but {self.inner.id} reserves them for others, or they are not "
            f"together."
        )
        return Reason("behind_others", text, numbers)
