"""Order by attained service in levels: few priorities, first-in-first-out within each.

Attained service is GPUs × seconds held. A job crosses to the next level when its service reaches the level's
limit; each level has a rank, small first. Within a level running jobs stay ahead of waiting ones, so that equals
never preempt each other; a job that was preempted waits ahead of those that came later; a job that has just
crossed queues behind all others of its new level.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.columns import floats, ints
from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.ordered import OrderedPlanner

_LEVEL = float(1 << 43)
_WAITING = float(1 << 42)
_MIDDLE = float(1 << 41)
_TOLERANCE_S = 1e-9


class LevelOrder:
    """An `Order` for `OrderedPlanner`, with the book-keeping of who crosses when.

    Args:
        level: per job, its level; `since_s`: per job, seconds held that no longer count (promotion resets the
            service). Both belong to the policy's memory and are written here.
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
        level: NDArray[np.int16],
        since_s: NDArray[np.float64],
        limits_gpu_s: tuple[float, ...],
        ranks: tuple[int, ...],
        *,
        overheads: bool = True,
        whole_seconds: bool = False,
        promote: float = 0.0,
    ) -> None:
        self._level, self._since_s = ints(level), floats(since_s)
        self._limits, self._ranks = limits_gpu_s, ranks
        self._overheads, self._whole, self._promote = overheads, whole_seconds, promote
        self._gpus = ints(snapshot.workload.gpus)
        self._front = self._back = self._start = 0.0
        self._crossings: list[tuple[float, float, int, int]] = []
        """(time of crossing, time to look, job, its epoch)"""
        self._looks: list[tuple[float, int, int]] = []
        self._promotions: list[tuple[float, int, int]] = []
        self._epoch: dict[int, int] = {}
        self._crossed: dict[int, float] = {}
        """Jobs that crossed since jobs were last stopped for others, and their place: behind all of their level."""
        self._contested = False

    # -- Order ----------------------------------------------------------------------------------------------

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        self._epoch[job] = self._epoch.get(job, 0) + 1
        started = not math.isnan(snapshot.first_start_s(job))
        if job in self._crossed:
            place = self._crossed[job]
        elif started and snapshot.held_s(job) > self._since_s[job]:
            self._front -= 1.0
            place = self._front
        else:
            self._back += 1.0
            place = self._back
        if started and self._promote > 0 and self._level[job] > 0:
            due = snapshot.now_s + self._promote * (snapshot.held_s(job) - self._since_s[job])
            heappush(self._promotions, (due, job, self._epoch[job]))
        return self._ranks[self._level[job]] * _LEVEL + _WAITING + _MIDDLE + place

    def running_key(self, snapshot: Snapshot, job: int) -> float:
        if job in self._crossed:
            return self._ranks[self._level[job]] * _LEVEL + _WAITING + _MIDDLE + self._crossed[job]
        self._start += 1.0
        if job not in self._epoch:  # a cache built from a snapshot in the middle of things
            self._watch(snapshot, job)
        return self._ranks[self._level[job]] * _LEVEL + self._start

    # -- crossings ------------------------------------------------------------------------------------------

    def _watch(self, snapshot: Snapshot, job: int) -> None:
        """Note when the running job will cross to the next level."""
        epoch = self._epoch[job] = self._epoch.get(job, 0) + 1
        level = self._level[job]
        if level < len(self._limits):
            limit_s = self._limits[level] / self._gpus[job]
            begun_s = snapshot.now_s - (snapshot.held_s(job) - self._since_s[job])
            if not self._overheads:
                starts = snapshot.starts(job) + (not snapshot.is_running(job))
                begun_s += starts * snapshot.restart_overhead_s[job]
            look = begun_s + (math.ceil(limit_s) if self._whole else limit_s)
            heappush(self._crossings, (begun_s + limit_s, look, job, epoch))
            heappush(self._looks, (look, job, epoch))

    def update(self, snapshot: Snapshot, planner: OrderedPlanner) -> None:
        """Let jobs cross that are due. Call between the planner's `observe` and `plan`."""
        now_s = snapshot.now_s
        for job in snapshot.finished:
            self._epoch.pop(job, None)
            self._crossed.pop(job, None)
        while self._looks and self._looks[0][0] <= now_s:
            heappop(self._looks)
        # Those that crossed, and kept their GPUs when others could have had them, are ahead of their level's waiting.
        if self._contested:
            self._contested = False
            crossed, self._crossed = self._crossed, {}
            for job in crossed:
                if snapshot.is_running(job):
                    planner.rekey(snapshot, job)
        # A job may be several levels behind, if nobody looked for a while.
        while due := self._due(snapshot):
            for job in sorted(due):
                self._level[job] += 1
                self._back += 1.0
                self._crossed[job] = self._back
                planner.rekey(snapshot, job)
                self._watch(snapshot, job)
        while self._promotions and self._promotions[0][0] <= now_s + _TOLERANCE_S:
            _, job, epoch = heappop(self._promotions)
            if self._epoch.get(job) == epoch and snapshot.is_waiting(job):
                self._level[job] = 0
                self._since_s[job] = snapshot.held_s(job)
                planner.rekey(snapshot, job)

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
        self._contested = self._contested or snapshot.may_preempt
        for job in planner.entered:
            self._watch(snapshot, job)
        wake = self.wake_at_s()
        return decision if wake == math.inf else Decision(decision.run, decision.wait, wake)

    def wake_at_s(self) -> float:
        """When the next job crosses or is promoted."""
        looks = self._looks
        while looks and self._epoch.get(looks[0][1]) != looks[0][2]:
            heappop(looks)
        wake = looks[0][0] if looks else math.inf
        if self._promotions:
            wake = min(wake, self._promotions[0][0])
        return wake
