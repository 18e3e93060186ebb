"""The rounds of Gavel's released simulator (`gavel:released`), by its `scheduler.py` and `max_min_fairness.py`.

What differs from `policies/gavel_rounds.py`:
    - Nothing happens between rounds: who ends leaves its GPUs idle, who comes waits.
    - A job does whole steps only, as many as fit a round, and then idles; the round ends when the last job has done its
      steps, so that rounds are seldom as long as `round`. (Steps count where the trace tells how long one takes.)
    - A job that came after the last allocation has no share, but a place in the queues, at their end: chosen for GPUs
      that nobody else took, it takes them from those behind it, and does not run.
    - Time counts from the end of the last round in which anybody ran, an idle time in between included.
    - Queues are walked V100, P100, K80; other models after these, in the cluster's order.
    - Programs are solved by ECOS, every job with a row of its own (`solvers/interior.py`), as Gavel states them: sums
      of throughputs in steps, finish-time fairness with the time alone counted from allocation to allocation, the
      makespan by bisection. (`cost`, `water_filling` and `allox` as elsewhere.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import plain_model
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import GpuloomError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8
from gpuloom.policies.gavel_ledger import Memory
from gpuloom.policies.gavel_objectives import OBJECTIVES, Present, released_max_min
from gpuloom.policies.gavel_rounds import Cluster, Terms
from gpuloom.solvers.interior import interior_shares_by, interior_shares_in_time, interior_shares_of_sum

_FIRST = ("v100", "p100", "k80")
_NEVER_S = 1e15
"""No time by which all jobs end is looked for beyond that."""
_MOMENT_S = 1e-6
"""Times that are this close are one."""


class Released(Cluster):
    """See the module."""

    def __init__(self, snapshot: Snapshot, memory: Memory, terms: Terms) -> None:
        super().__init__(snapshot, memory, terms)
        names = [plain_model(model) for model in snapshot.cluster.models]
        known = [names.index(name) for name in _FIRST if name in names]
        self._models: Sequence[int] = [*known, *(at for at in range(len(names)) if at not in known)]
        steps = snapshot.workload.iteration_s
        self._step_s: F8 = (
            np.full(len(snapshot.workload), np.nan) if steps is None else np.where(steps > 0, steps, np.nan)
        )
        self._left_alone(snapshot)

    def _left_alone(self, snapshot: Snapshot) -> None:
        """Runs of which this knows no round (it has just been built) end theirs now."""
        for job in self.where:
            if math.isnan(self.memory.done_s.item(job)):
                self.memory.done_s[job] = snapshot.now_s

    def decide(self, snapshot: Snapshot) -> Decision:
        memory, now_s = self.memory, snapshot.now_s
        # 1. Who has left the round.
        for job in (*snapshot.finished, *snapshot.evicted):
            self._account(job, self.lost.get(job, memory.on.item(job)))
        self.lost.clear()
        self.observe(snapshot)
        if self.where and now_s < memory.round_at_s - _MOMENT_S:
            return self._on(snapshot)
        # 2. The round is over, but for jobs that are about to end.
        late = [job for job in self.where if self._ends(snapshot, job) and snapshot.predicted_end_s(job) > now_s]
        if late:
            return Decision(wake_at_s=max(snapshot.predicted_end_s(job) for job in late))
        for job in self.where:
            self._account(job, memory.on.item(job))
        if memory.round_at_s > -math.inf:
            memory.began_s = memory.round_at_s
        if not self.present:
            return Decision()
        # 3. The next one.
        self._allocate(snapshot)
        return self._round(snapshot)

    def _on(self, snapshot: Snapshot) -> Decision:
        """Within a round: jobs that have done their steps stop, if they have more to do."""
        memory, now_s = self.memory, snapshot.now_s
        idle = []
        for job in list(self.where):
            done_s = memory.done_s.item(job)
            if done_s <= now_s + _MOMENT_S and done_s < memory.round_at_s - _MOMENT_S and not self._ends(snapshot, job):
                self._account(job, memory.on.item(job))
                self.release(job)
                idle.append(job)
        return Decision(wait=idle, wake_at_s=self._next_s(snapshot))

    def _next_s(self, snapshot: Snapshot) -> float:
        """When the next job has done its steps, or the round ends."""
        memory = self.memory
        due = [memory.done_s.item(job) for job in self.where if not self._ends(snapshot, job)]
        return min((at_s for at_s in due if at_s > snapshot.now_s + _MOMENT_S), default=memory.round_at_s)

    def _ends(self, snapshot: Snapshot, job: int) -> bool:
        """The job is to end within its steps."""
        return snapshot.predicted_end_s(job) <= self.memory.done_s.item(job) + _MOMENT_S

    def _account(self, job: int, model: int) -> None:
        """The job's part in the round, on this model, is over."""
        memory = self.memory
        done_s = memory.done_s.item(job)
        if model >= 0 and not math.isnan(done_s):
            since_s = memory.began_s if not math.isnan(memory.began_s) else 0.0
            memory.receive(job, model, max(done_s - since_s, 0.0))
        memory.done_s[job] = math.nan

    def _allocate(self, snapshot: Snapshot) -> None:
        memory, now_s = self.memory, snapshot.now_s
        due_s = memory.solved_at_s + self.terms.reset_s
        if not memory.stale or now_s < due_s - _MOMENT_S:
            return
        jobs, present = self.described(snapshot)
        memory.allocate(jobs, now_s, self.terms.round_s)
        try:
            memory.share[jobs] = self._share(jobs, present)
        except GpuloomError:  # ECOS ran into numerical trouble: another optimum
            memory.share[jobs] = OBJECTIVES[self.terms.objective](present)

    def _share(self, jobs: NDArray[np.intp], present: Present) -> F8:
        """What the released policies make of it. Throughputs are steps per second there, of whatever length."""
        objective = self.terms.objective
        step_s = np.nan_to_num(self._step_s[jobs], nan=1.0)
        throughput = present.speed / step_s[:, None]
        if objective == "max_min_fairness":
            return released_max_min(present, self.terms.throughput_term)
        if objective == "finish_time_fairness":
            return self._fair_in_time(jobs, present, step_s)
        if objective == "max_sum_throughput":
            return interior_shares_of_sum(throughput, present.gpus, present.capacity)
        if objective == "makespan":
            return _by_bisection(throughput, present.left_s / step_s, present)
        return OBJECTIVES[objective](present)

    def _fair_in_time(self, jobs: NDArray[np.intp], present: Present, step_s: F8) -> F8:
        """ρ with the time that a job would have run alone, from allocation to allocation; weights mean nothing."""
        memory = self.memory
        alone = replace(present, weight=np.ones(len(jobs))).isolated
        before = ~np.isnan(memory.alone[jobs])
        passed_s = (memory.left_s[jobs] - present.left_s) / np.where(before, memory.alone[jobs], 1.0)
        memory.alone_s[jobs] += np.where(before, passed_s, 0.0)
        memory.left_s[jobs], memory.alone[jobs] = present.left_s, alone
        return interior_shares_in_time(
            present.speed / step_s[:, None],
            present.left_s / step_s,
            present.age_s,
            memory.alone_s[jobs] + present.left_s / alone,
            present.gpus,
            present.capacity,
        )

    def _round(self, snapshot: Snapshot) -> Decision:
        memory, now_s = self.memory, snapshot.now_s
        free = self.in_service()
        chosen: dict[int, int] = {}
        for job, pool in self.pairs(np.array(list(self.present), dtype=np.intp), self._models):
            if job not in chosen and self.gpus(job) <= free[pool]:
                chosen[job] = pool
                free[pool] -= self.gpus(job)
        chosen = {job: pool for job, pool in chosen.items() if memory.known[job]}
        stopped = {job: self.release(job) for job in list(self.where) if chosen.get(job) != memory.on.item(job)}
        run: dict[int, Placement] = {}
        for job in sorted((job for job in chosen if job not in self.where), key=lambda job: -self.gpus(job)):
            if (taken := self.take(job, chosen[job])) is not None:
                run[job] = taken
        for job in [job for job in run if job in stopped]:
            if run[job] == stopped.pop(job):
                del run[job]
        for job in self.where:
            begin_s = max(now_s + snapshot.restart_overhead_s[job] if job in run else snapshot.works_from_s(job), now_s)
            memory.done_s[job] = begin_s + self._busy_s(snapshot, job, memory.on.item(job))
        if not self.where:
            memory.round_at_s = -math.inf
            return Decision(run, list(stopped), memory.solved_at_s + self.terms.reset_s)
        memory.round_at_s = max(memory.done_s.item(job) for job in self.where)
        # As in `_next_s`, but rates are not known yet.
        return Decision(run, list(stopped), min(memory.done_s.item(job) for job in self.where))

    def _busy_s(self, snapshot: Snapshot, job: int, model: int) -> float:
        """How long the steps of a round take."""
        speed, step_s = self.speed.item(job, model), self._step_s.item(job)
        left_s, round_s = snapshot.remaining_s(job) / speed, self.terms.round_s
        if not math.isfinite(step_s):
            return min(left_s, round_s)
        step_s /= speed
        steps = math.floor(round_s / step_s + 1e-9)
        # Less than one step a round would never end the job.
        return left_s if left_s <= steps * step_s * (1 + 1e-12) or steps == 0 else steps * step_s


def _by_bisection(throughput: F8, left: F8, present: Present) -> F8:
    """The least T, within 5 %, by which all jobs can end, from 100 s on: the shares of the last T that was enough."""
    low, high, top = 100.0, 1e6, 1e6
    found: F8 | None = None
    while found is None:
        while 1.05 * low < high:
            middle = (low + high) / 2
            shares = interior_shares_by(throughput, left, present.gpus, present.capacity, middle)
            if shares is None:
                low = middle
            else:
                found, high = shares, middle
        low, high, top = top, top * 10, top * 10
        if top > _NEVER_S:
            raise GpuloomError("ECOS finds no time by which all jobs can end")
    return found
