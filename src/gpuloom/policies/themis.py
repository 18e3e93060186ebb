"""Themis: finish-time fairness by leases.

Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling" (NSDI'20), sections 3 and 5. Of a job,

    ρ = T_shared / T_ideal,   T_shared = time since submission + time left,
    T_ideal = duration · max(1, g · N / G)

is how much later it ends than with a share 1/N of the cluster of its own, N being the mean number of jobs present
since its submission, G the cluster's GPUs, g the job's. Where jobs have weights w, its share is w over their sum: N is
the mean sum of the weights of jobs present, over w. GPUs are leased: at every multiple of `lease` all leases end
and GPUs go to the jobs with the largest ρ; a job that held GPUs and is chosen again keeps them. GPUs that fall free
in between go to the largest ρ that fits, as of the last lease end. (The paper auctions among the worst-off fraction of
multi-job apps; with one gang per app the auction's outcome is this order.)

`mode=muri` is what the released Muri simulator runs under this name: at every event the shares x that minimise the
largest (now − submitted + left / x) / (isolated time so far + iterations left / isolated share) with Σ g·x ≤ G,
0 ≤ x ≤ 1; jobs in order of x / time run (unrun ones first); everyone placed anew.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import JOBS, PER_JOB
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.errors import GpuloomError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_floats
from gpuloom.core.units import next_multiple
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.repack import repack, require_alike
from gpuloom.placement.shapes import shapes_of
from gpuloom.policies.base import Parameter, Preemptive, Traits, duration, one_of
from gpuloom.policies.upgrading import UPGRADE, Upgrading
from gpuloom.solvers.fair_shares import least_worst_shares
from gpuloom.solvers.interior import interior_shares_in_time, require_ecos

_CONSIDERED = 512
"""Waiting jobs per shape, the largest ρ first, that one auction looks at."""


@dataclass(slots=True)
class Memory:
    """Of ρ: `present_s`, the integral of the number of jobs present (the sum of their weights) over time until
    `since_s` (NaN: it has not begun), and its value at each job's submission (NaN: not known); `present`, that number
    since then.

    Of leases: when the next auction is (NaN: none was yet), and of waiting jobs -ρ as it was when they were last
    looked at (infinity: too many were before them; NaN: never).

    Of `mode=muri`, per job: isolated time so far, iterations left and isolated share at the last event, time it
    should have received; and the order of the last plan.
    """

    at_submit: F8 = field(metadata=PER_JOB)
    key: F8 = field(metadata=PER_JOB)
    isolated: F8 = field(metadata=PER_JOB)
    iterations_left: F8 = field(metadata=PER_JOB)
    isolated_share: F8 = field(metadata=PER_JOB)
    should_receive_s: F8 = field(metadata=PER_JOB)
    order: list[int] = field(default_factory=list, metadata=JOBS)
    present_s: float = 0.0
    present: float = 0
    since_s: float = math.nan
    auction_at_s: float = math.nan

    @classmethod
    def of(cls, jobs: int) -> Memory:
        """The memory of a number of new jobs."""
        unknown = np.full(jobs, np.nan)
        return cls(unknown, unknown.copy(), np.zeros(jobs), np.zeros(jobs), np.zeros(jobs), np.zeros(jobs))

    def passed_s(self, now_s: float) -> float:
        """Time since the last call; 0 at the first."""
        passed_s = now_s - self.since_s
        self.since_s = now_s
        return passed_s if passed_s > 0 else 0.0


class Themis(Upgrading):
    """See the module."""

    id = "themis"
    traits = Traits(
        summary="largest finish-time unfairness first, by leases",
        knows="durations",
        preemptive=Preemptive.AT_LEASE_ENDS,
        heterogeneity=False,
        sharing=False,
        paper="Mahajan et al., NSDI'20",
        weights="a share of the cluster by weight",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("lease", 1200.0, duration, "length of a lease", "20m"),
        Parameter("mode", "lease", one_of("lease", "muri"), "lease, or muri: the rule of the Muri artifact"),
        Parameter(
            "solver",
            "exact",
            one_of("exact", "ecos"),
            "of mode=muri, where GPUs are left over: exact: in proportion to what jobs lack; ecos: where the "
            "artifact's solver ends (gpuloom[gavel])",
        ),
        UPGRADE,
    )

    knows_ends = True

    remembers = (Memory,)
    cache: _Leases | set[int] | None

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.heeds_weights = self.values["mode"] == "lease"
        if self.values["solver"] == "ecos":
            require_ecos("themis:solver=ecos")

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        return Memory.of(len(workload))

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.values["mode"] == "muri":
            if not isinstance(self.cache, set):
                require_alike(snapshot.cluster)
                self.cache = set(snapshot.nodes_out)
                _line_up(snapshot, memory)
            self.cache.update(snapshot.nodes_down)
            self.cache.difference_update(snapshot.nodes_up)
            return _muri(snapshot, memory, self.cache, self.values["solver"]), memory
        if not isinstance(self.cache, _Leases):
            self.cache = _Leases(snapshot, memory, self.values["lease"])
        decision = self.cache.decide(snapshot, memory)
        return self.upgraded(snapshot, decision, self.cache.relocate), memory


class _Leases:
    """Caches of the lease mode: who waits, by shape, and the planner. It is its planner's `Order`."""

    clock = 0
    by_gpus = False

    def __init__(self, snapshot: Snapshot, memory: Memory, lease_s: float) -> None:
        self._memory, self._lease_s = memory, lease_s
        workload = snapshot.workload
        self._of_job = shapes_of(workload, snapshot.cluster).of_job
        self._waiting: list[set[int]] = [set() for _ in range(int(self._of_job.max(initial=-1)) + 1)]
        self._share = workload.gpus / snapshot.cluster.gpus
        self._weights = workload.weights
        if math.isnan(memory.auction_at_s):
            memory.auction_at_s = next_multiple(snapshot.now_s, lease_s)
        self._built = True
        self._planner = OrderedPlanner(snapshot, self, preemptive=True)

    # -- Order: keys are −ρ ---------------------------------------------------------------------------------

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        self._waiting[self._of_job[job]].add(job)
        if self._built:
            return 0.0  # `_settle` has the keys, once time is accounted for
        return self._key_now(snapshot, job)

    def _key_now(self, snapshot: Snapshot, job: int) -> float:
        key = -float(self.unfairness(snapshot, np.array([job]), np.array([snapshot.remaining_s(job)]))[0])
        self._memory.key[job] = key
        return key

    def running_key(self, snapshot: Snapshot, job: int) -> float | None:
        return None  # leased

    def unfairness(self, snapshot: Snapshot, jobs: NDArray[np.intp], left_s: F8) -> F8:
        """ρ of each job if it ran from now on."""
        memory, workload, now_s = self._memory, snapshot.workload, snapshot.now_s
        age_s = now_s - workload.submit_s[jobs]
        present = np.divide(
            memory.present_s - memory.at_submit[jobs],
            age_s,
            out=np.full(len(jobs), float(memory.present or 1)),
            where=age_s > 0,
        )
        if self._weights is not None:
            present /= self._weights[jobs]
        ideal_s = workload.duration_s[jobs] * np.maximum(1.0, self._share[jobs] * present)
        unfair: F8 = (age_s + left_s) / np.maximum(ideal_s, 1e-9)
        return unfair

    def _sum(self, jobs: Collection[int]) -> float:
        """How many they are; the sum of their weights where jobs have any."""
        return len(jobs) if self._weights is None else sum_floats([self._weights.item(job) for job in jobs])

    # -- deciding -------------------------------------------------------------------------------------------

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        # 1. Jobs present since the last call.
        now_s = snapshot.now_s
        memory.present_s += memory.present * memory.passed_s(now_s)
        memory.present += self._sum(snapshot.arrived) - self._sum(snapshot.finished)
        if self._built:
            self._settle(snapshot)
        else:
            memory.at_submit[snapshot.arrived] = memory.present_s
        self._planner.observe(snapshot)
        # 2. Where leases end, everyone's GPUs are on offer.
        if now_s >= memory.auction_at_s:
            memory.auction_at_s = next_multiple(now_s, self._lease_s)
            if any(self._waiting):
                self._offer(snapshot)
        else:
            self._refill(
                snapshot, [s for s, jobs in enumerate(self._waiting) if jobs and not self._planner.has_waiting(s)]
            )
        # 3. The largest ρ first; those that got GPUs hold a lease.
        decision = self._planner.plan(snapshot, may_preempt=True)
        for job in self._planner.entered:
            self._waiting[self._of_job[job]].discard(job)
            memory.key[job] = math.nan
        self._planner.expose({})
        if any(self._waiting):
            return Decision(decision.run, decision.wait, memory.auction_at_s)
        return decision

    def relocate(self, job: int, placement: Placement) -> None:
        """A running job will have other GPUs, which are free."""
        self._planner.relocate(job, placement)

    def _settle(self, snapshot: Snapshot) -> None:
        """The heaps as they were, of a planner that has just been built; and what is not known of jobs present."""
        self._built = False
        memory, now_s = self._memory, snapshot.now_s
        waiting = snapshot.waiting()
        memory.present = self._sum(snapshot.placements) + self._sum(waiting)
        arrived = set(snapshot.arrived)
        for job in (*snapshot.placements, *waiting):
            if math.isnan(memory.at_submit.item(job)):
                # As if as many jobs as now had been there since it was submitted.
                age_s = 0.0 if job in arrived else now_s - snapshot.workload.submit_s.item(job)
                memory.at_submit[job] = memory.present_s - memory.present * age_s
        for job in snapshot.evicted:
            memory.key[job] = math.nan
        for shape, jobs in enumerate(self._waiting):
            keys = [(memory.key.item(job), job) for job in sorted(jobs)]
            keys = [(self._key_now(snapshot, job) if math.isnan(key) else key, job) for key, job in keys]
            self._planner.refill(shape, [entry for entry in keys if entry[0] < math.inf])

    def _offer(self, snapshot: Snapshot) -> None:
        self._refill(snapshot, range(len(self._waiting)))
        running = list(snapshot.placements)
        left_s = np.array([snapshot.remaining_s(job) for job in running])
        unfair = self.unfairness(snapshot, np.array(running, dtype=np.intp), left_s)
        self._planner.expose(dict(zip(running, (-unfair).tolist(), strict=True)))

    def _refill(self, snapshot: Snapshot, shapes: Iterable[int]) -> None:
        """Bring the planner's heaps up to date: ρ of waiting jobs grows, each at its own pace."""
        left = snapshot.remaining_column()
        for shape in shapes:
            jobs = np.array(sorted(self._waiting[shape]), dtype=np.intp)
            keys = -self.unfairness(snapshot, jobs, left[jobs])
            self._memory.key[jobs] = np.inf
            if len(jobs) > _CONSIDERED:
                best = np.argpartition(keys, _CONSIDERED)[:_CONSIDERED]
                jobs, keys = jobs[best], keys[best]
            self._memory.key[jobs] = keys
            self._planner.refill(shape, list(zip(keys.tolist(), jobs.tolist(), strict=True)))


def _line_up(snapshot: Snapshot, memory: Memory) -> None:
    """Bring the order of `mode=muri` up to date with a snapshot whose earlier events were not seen."""
    present = {*snapshot.placements, *snapshot.waiting()}
    memory.order = [job for job in memory.order if job in present]
    memory.order += sorted(present - {*memory.order, *snapshot.arrived})


def _muri(snapshot: Snapshot, memory: Memory, down: set[int], solver: str) -> Decision:
    """One event of `mode=muri`; its steps are in the module's docstring."""
    workload, now_s = snapshot.workload, snapshot.now_s
    gone = {*snapshot.finished}
    memory.order = [job for job in memory.order if job not in gone]
    listed = set(memory.order)
    memory.order.extend([job for job in snapshot.arrived if job not in listed])
    passed_s = memory.passed_s(now_s)
    if not memory.order:
        return NOTHING
    jobs = np.array(memory.order, dtype=np.intp)
    gpus = workload.gpus[jobs].astype(np.float64)
    left_s = np.array([snapshot.remaining_s(job) for job in memory.order])
    iteration_s = np.ones(len(jobs))
    if workload.iteration_s is not None:
        known = workload.iteration_s[jobs]
        iteration_s = np.where(np.isfinite(known) & (known > 0), known, 1.0)
    iterations = left_s / iteration_s
    # 1. Isolated time: what was done since the last event, by the share that was held isolated then.
    seen = memory.isolated_share[jobs] > 0
    done = np.where(seen, memory.iterations_left[jobs] - iterations, 0.0)
    memory.isolated[jobs] += done / np.where(seen, memory.isolated_share[jobs], 1.0)
    share = np.minimum(math.ceil(snapshot.cluster.gpus / len(jobs)) / gpus, 1.0)
    memory.isolated_share[jobs], memory.iterations_left[jobs] = share, iterations
    # 2. Shares that minimise the largest ratio.
    age_s = now_s - workload.submit_s[jobs]
    alone = memory.isolated[jobs] + iterations / share
    x = least_worst_shares(age_s, left_s, alone, gpus, snapshot.cluster.gpus)
    if solver == "ecos":
        every = np.array([float(snapshot.cluster.gpus)])
        with suppress(GpuloomError):  # of numerical trouble: that optimum is as good
            x = interior_shares_in_time(1.0 / iteration_s[:, None], iterations, age_s, alone, gpus, every)[:, 0]
    # 3. Order: share over time run; ties by what is owed, then by share.
    run_s = np.array([snapshot.held_s(job) for job in memory.order])
    value = np.where(run_s == 0, x * 1e9, x / np.maximum(run_s, 1e-9))
    owed = memory.should_receive_s[jobs] - run_s
    memory.should_receive_s[jobs] += x * passed_s
    ranked = np.lexsort((np.arange(len(jobs)), -x, -owed, -value))
    # 4. Those that fit in this order, then placed anew, large ones first.
    walk = jobs[ranked].tolist()
    chosen = repack(snapshot, walk, down)
    order = sorted(walk, key=lambda job: -int(workload.gpus[job]))
    memory.order = order
    placed = repack(snapshot, [job for job in order if job in chosen], down)
    before = snapshot.placements
    run = {job: placement for job, placement in placed.items() if before.get(job) != placement}
    return Decision(run, [job for job in before if job not in placed])
