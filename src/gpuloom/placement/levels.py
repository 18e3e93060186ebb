"""Order by attained service in levels: few priorities, first-in-first-out within each.

Attained service is GPUs × seconds held, over the job's weight. A job crosses to the next level when its service reaches
the level's limit; each level has a rank, small first. Within a level running jobs stay ahead of waiting ones, so that
equals never preempt each other. A preempted job waits ahead of those that came later. A job that has just crossed
queues behind all others of its new level. All of this is memory: an order that is built again from any snapshot goes
on as the old one would have.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import PER_JOB
from gpuloom.core.columns import floats, ints
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.policy_state import LevelJob, LevelsState
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.placement.ordered import OrderedPlanner

_LEVEL = float(1 << 43)
_WAITING = float(1 << 42)
_MIDDLE = float(1 << 41)
_TOLERANCE_S = 1e-9
UNKNOWN = -1
"""Marks a job whose level must be computed from its service, as the limits have changed."""


@dataclass(slots=True)
class LevelMemory:
    """Levels of jobs and their order within each.

    Per job:
        level. since_s: seconds held that no longer count (promotion resets the service).
        place: within its level, small first; below `_WAITING` while it runs; NaN: none yet.
        counts_from_s: for a running job, the start time that would give it its present service without a break.
        due_s: when a waiting job is promoted (infinity: never).
        crossed: its number in the order of jobs that crossed since jobs were last stopped for others (0: it did not).
            Such a job is placed behind all of its level.
    front, back, start: the places given last to jobs that wait again, that came, and that started.
    contested: whether running jobs could have been stopped for others since.
    """

    level: NDArray[np.int16] = field(metadata=PER_JOB)
    since_s: NDArray[np.float64] = field(metadata=PER_JOB)
    place: NDArray[np.float64] = field(metadata=PER_JOB)
    counts_from_s: NDArray[np.float64] = field(metadata=PER_JOB)
    due_s: NDArray[np.float64] = field(metadata=PER_JOB)
    crossed: NDArray[np.int32] = field(metadata=PER_JOB)
    front: float = 0.0
    back: float = 0.0
    start: float = 0.0
    contested: bool = False

    @classmethod
    def of(cls, jobs: int) -> Self:
        """The memory of a number of new jobs."""
        return cls(
            level=np.zeros(jobs, dtype=np.int16),
            since_s=np.zeros(jobs),
            place=np.full(jobs, np.nan),
            counts_from_s=np.full(jobs, np.nan),
            due_s=np.full(jobs, np.inf),
            crossed=np.zeros(jobs, dtype=np.int32),
        )


def _paces(workload: Workload) -> NDArray[np.float64]:
    """Service that each job gets in a second."""
    gpus = workload.gpus.astype(np.float64)
    return gpus if workload.weights is None else gpus / workload.weights


class LevelOrder:
    """An `Order` for `OrderedPlanner`, with the book-keeping of who crosses when.

    Args:
        memory: belongs to the policy's memory and is written here.
        limits_gpu_s: rising limits of attained service, GPU-seconds; level i ends at limits_gpu_s[i].
        ranks: per level (one more than limits), its place in the order.
        overheads: restart overheads count as service (a cluster that only sees who holds GPUs); otherwise they are
            taken off (service is work).
        whole_seconds: look for crossings at whole seconds of held time only (the Muri artifact's rule).
        promote: a waiting job goes back to level 0 when it has waited this many times as long as it has run;
            0: never.
    """

    clock = 0
    by_gpus = False

    def __init__(
        self,
        snapshot: Snapshot,
        memory: LevelMemory,
        limits_gpu_s: tuple[float, ...],
        ranks: tuple[int, ...],
        *,
        overheads: bool = True,
        whole_seconds: bool = False,
        promote: float = 0.0,
    ) -> None:
        self._memory = memory
        self._level, self._since_s, self._place = ints(memory.level), floats(memory.since_s), floats(memory.place)
        self._counts_from_s, self._due_s = floats(memory.counts_from_s), floats(memory.due_s)
        self._limits, self._ranks = limits_gpu_s, ranks
        self._overheads, self._whole, self._promote = overheads, whole_seconds, promote
        self._pace = floats(_paces(snapshot.workload))
        self._crossings: list[tuple[float, float, int, int]] = []
        """(time of crossing, time to look, job, its epoch)"""
        self._looks: list[tuple[float, int, int]] = []
        self._promotions: list[tuple[float, int, int]] = []
        self._epoch: dict[int, int] = {}
        crossed = np.flatnonzero(memory.crossed)
        self._crossed: dict[int, None] = dict.fromkeys(crossed[np.argsort(memory.crossed[crossed])].tolist())
        """Jobs that crossed since jobs were last stopped for others, in the order in which they did."""
        self._number = ints(memory.crossed)
        self._last = int(memory.crossed.max(initial=0))
        self._building = True
        self._resolve(snapshot)
        for job in (*snapshot.evicted, *snapshot.arrived):
            self._line_up(snapshot, job)

    def _resolve(self, snapshot: Snapshot) -> None:
        """Levels that must be computed from the service."""
        for job in np.flatnonzero(self._memory.level == UNKNOWN).tolist():
            served_s = snapshot.now_s - self._counting_from_s(snapshot, job)
            self._level[job] = bisect_right(self._limits, served_s * self._pace[job])

    # -- Order ----------------------------------------------------------------------------------------------

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        if self._building:
            self._line_up(snapshot, job)
        else:
            self._queue(snapshot, job)
        epoch = self._epoch[job] = self._epoch.get(job, 0) + 1
        if self._promote > 0 and self._due_s[job] < math.inf:
            heappush(self._promotions, (self._due_s[job], job, epoch))
        return self._ranks[self._level[job]] * _LEVEL + self._place[job]

    def running_key(self, snapshot: Snapshot, job: int) -> float:
        if self._building:
            if not self._place[job] < _WAITING and job not in self._crossed:
                self._begin(job)
                self._counts_from_s[job] = math.nan
            self._watch(snapshot, job, anew=math.isnan(self._counts_from_s[job]))
        return self._ranks[self._level[job]] * _LEVEL + self._place[job]

    def _line_up(self, snapshot: Snapshot, job: int) -> None:
        """A waiting job of a snapshot that this is built from: it keeps the place that it has."""
        if not self._place[job] >= _WAITING:
            self._queue(snapshot, job)

    def _queue(self, snapshot: Snapshot, job: int) -> None:
        """The job begins to wait: its place, and when it is to be promoted."""
        memory = self._memory
        started = not math.isnan(snapshot.first_start_s(job))
        if job not in self._crossed:
            if started and snapshot.held_s(job) > self._since_s[job]:
                memory.front -= 1.0
                self._place[job] = _WAITING + _MIDDLE + memory.front
            else:
                memory.back += 1.0
                self._place[job] = _WAITING + _MIDDLE + memory.back
        if self._promote > 0:
            due_s = math.inf
            if started and self._level[job] > 0:
                due_s = snapshot.now_s + self._promote * (snapshot.held_s(job) - self._since_s[job])
            self._due_s[job] = due_s

    def _begin(self, job: int) -> None:
        """The job begins to run, or is ahead of those that wait again."""
        self._memory.start += 1.0
        self._place[job] = self._memory.start

    # -- crossings ------------------------------------------------------------------------------------------

    def _counting_from_s(self, snapshot: Snapshot, job: int) -> float:
        """The start time that would give the job its present service if it had run without a break."""
        begun_s = snapshot.now_s - (snapshot.held_s(job) - self._since_s[job])
        if not self._overheads:
            starts = snapshot.starts(job) + (not snapshot.is_running(job))
            begun_s += starts * snapshot.restart_overhead_s[job]
        return begun_s

    def _watch(self, snapshot: Snapshot, job: int, *, anew: bool = True) -> None:
        """Note when the running job will cross to the next level."""
        epoch = self._epoch[job] = self._epoch.get(job, 0) + 1
        level = self._level[job]
        if level < len(self._limits):
            if anew:
                self._counts_from_s[job] = self._counting_from_s(snapshot, job)
            begun_s, limit_s = self._counts_from_s[job], self._limits[level] / self._pace[job]
            look = begun_s + (math.ceil(limit_s) if self._whole else limit_s)
            heappush(self._crossings, (begun_s + limit_s, look, job, epoch))
            heappush(self._looks, (look, job, epoch))

    def update(self, snapshot: Snapshot, planner: OrderedPlanner) -> None:
        """Let jobs cross that are due. Call between the planner's `observe` and `plan`."""
        now_s, memory = snapshot.now_s, self._memory
        self._building = False
        for job in snapshot.finished:
            self._epoch.pop(job, None)
            if job in self._crossed:
                del self._crossed[job]
                self._number[job] = 0
        while self._looks and self._looks[0][0] <= now_s:
            heappop(self._looks)
        # Jobs that crossed and kept their GPUs, though others could have had them, are ahead of those that wait there.
        if memory.contested:
            memory.contested = False
            crossed, self._crossed, self._last = self._crossed, {}, 0
            for job in crossed:
                self._number[job] = 0
                if snapshot.is_running(job):
                    self._begin(job)
                    planner.rekey(snapshot, job)
        # A job may be several levels behind, if nobody looked for a while.
        while due := self._due(snapshot):
            for job in sorted(due):
                self._level[job] += 1
                memory.back += 1.0
                self._place[job] = _WAITING + _MIDDLE + memory.back
                if job not in self._crossed:
                    self._last += 1
                    self._number[job] = self._last
                    self._crossed[job] = None
                planner.rekey(snapshot, job)
                self._watch(snapshot, job)
        while self._promotions and self._promotions[0][0] <= now_s + _TOLERANCE_S:
            _, job, epoch = heappop(self._promotions)
            if self._epoch.get(job) == epoch and snapshot.is_waiting(job):
                self._level[job] = 0
                self._since_s[job] = snapshot.held_s(job)
                planner.rekey(snapshot, job)

    def relocate(self, snapshot: Snapshot, planner: OrderedPlanner, job: int, placement: Placement) -> None:
        """A job moves, or starts elsewhere than planned; running ones are started anew. Call it after `plan`."""
        planner.relocate(job, placement)
        if snapshot.is_running(job) and not self._overheads:
            self._counts_from_s[job] += snapshot.restart_overhead_s[job]
            self._watch(snapshot, job, anew=False)

    def _due(self, snapshot: Snapshot) -> list[int]:
        """Running jobs whose service has reached their level's limit."""
        due = []
        while self._crossings and self._crossings[0][0] <= snapshot.now_s + _TOLERANCE_S:
            _, _, job, epoch = heappop(self._crossings)
            if self._epoch.get(job) == epoch and snapshot.is_running(job):
                due.append(job)
        return due

    def plan(self, snapshot: Snapshot, planner: OrderedPlanner) -> Decision:
        """The planner's decision, with the time at which the next crossing is due."""
        decision = planner.plan(snapshot)
        if snapshot.may_preempt:
            self._memory.contested = True
        for job in planner.entered:
            if job not in self._crossed:
                self._begin(job)
            self._watch(snapshot, job)
        wake = self.wake_at_s()
        return decision if wake == math.inf else Decision(decision.run, decision.wait, wake)

    def wake_at_s(self) -> float:
        """When the next job crosses or is promoted."""
        looks = self._looks
        while looks and self._epoch.get(looks[0][1]) != looks[0][2]:
            heappop(looks)
        wake = looks[0][0] if looks else math.inf
        promotions = self._promotions
        while promotions and self._epoch.get(promotions[0][1]) != promotions[0][2]:
            heappop(promotions)
        if promotions:
            wake = min(wake, promotions[0][0])
        return wake


def levels_state(
    snapshot: Snapshot, memory: LevelMemory, limits_gpu_s: tuple[float, ...], ranks: tuple[int, ...]
) -> LevelsState:
    """Who is in which level, running jobs first; service at the snapshot's time."""
    pace, workload = _paces(snapshot.workload), snapshot.workload
    running = sorted(snapshot.placements)

    def one(job: int) -> LevelJob:
        runs = job in snapshot.placements
        service = pace.item(job) * (snapshot.held_s(job) - memory.since_s.item(job))
        return LevelJob(workload.job_id(job), memory.level.item(job), runs, workload.gpus.item(job), service)

    jobs = tuple([one(job) for job in (*running, *snapshot.waiting())])
    return LevelsState(tuple(map(float, limits_gpu_s)), tuple(ranks), jobs)
