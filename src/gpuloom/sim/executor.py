"""The simulated executor: carries out commands without processes, and knows when jobs will end."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from gpuloom.core.columns import ints
from gpuloom.core.commands import Command, Resize, Start, Stop
from gpuloom.core.decision import Placement
from gpuloom.core.metrics import blocking_per_s, time_mean
from gpuloom.core.state import JobState, State
from gpuloom.sim.result import Segments


class SegmentLog:
    """Records which job ran where and when, as it happens."""

    def __init__(self) -> None:
        self._since: dict[int, tuple[float, Placement]] = {}
        self._job, self._node, self._layer = array("i"), array("i"), array("i")
        self._start, self._end = array("d"), array("d")
        self._mask: list[int] = []

    def begin(self, job: int, placement: Placement, now_s: float) -> None:
        self._since[job] = (now_s, placement)

    def end(self, job: int, now_s: float) -> None:
        start_s, placement = self._since.pop(job)
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            self._job.append(job)
            self._node.append(node)
            self._layer.append(placement.layer)
            self._start.append(start_s)
            self._end.append(now_s)
            self._mask.append(mask)

    def close(self, now_s: float) -> Segments:
        """All segments in order of start; those still open end now."""
        for job in list(self._since):
            self.end(job, now_s)
        start = np.array(self._start, dtype=np.float64)
        order = np.lexsort((np.array(self._node, dtype=np.int32), np.array(self._job, dtype=np.int32), start))
        mask = np.empty(len(order), dtype=object)
        mask[:] = [self._mask[row] for row in order.tolist()]
        return Segments(
            job=np.array(self._job, dtype=np.int32)[order],
            start_s=start[order],
            end_s=np.array(self._end, dtype=np.float64)[order],
            node=np.array(self._node, dtype=np.int32)[order],
            gpu_mask=mask,
            layer=np.array(self._layer, dtype=np.int32)[order],
        )


class WaitingAge:
    """Blocking index over time: the mean over waiting jobs of time waited / time left.

    Between events each job's share grows linearly, so two sums (at time 0, per second) carry the mean, and its
    integral over time is exact. Time left counts as one second at least.
    """

    __slots__ = ("_at_zero", "_count", "_integral", "_per_s", "_since_s", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._at_zero = self._per_s = self._integral = self._since_s = 0.0
        self._count = 0

    def advance(self, now_s: float) -> None:
        if self._count and now_s > self._since_s:
            middle = (self._since_s + now_s) / 2
            self._integral += (now_s - self._since_s) * (self._at_zero + self._per_s * middle) / self._count
        self._since_s = now_s

    def enter(self, job: int) -> None:
        state = self._state
        left = state.remaining_s[job]
        per_s = blocking_per_s(left)
        self._per_s += per_s
        self._at_zero -= per_s * (state.workload.submit_s.item(job) + state.held_s[job])
        self._count += 1

    def leave(self, job: int) -> None:
        self._count -= 1
        if self._count == 0:
            self._per_s = self._at_zero = 0.0
            return
        state = self._state
        left = state.remaining_s[job]
        per_s = blocking_per_s(left)
        self._per_s -= per_s
        self._at_zero += per_s * (state.workload.submit_s.item(job) + state.held_s[job])

    def mean(self, span_s: float) -> float:
        """Average over the span, seconds; 0 for an empty one."""
        return max(time_mean(self._integral, span_s), 0.0)


class SimExecutor:
    """Ends are predicted at every start and change of speed, and kept in a heap."""

    def __init__(self, state: State, log: SegmentLog | None) -> None:
        self.state = state
        self.age = WaitingAge(state)
        self._log = log
        self._ends: list[tuple[float, int, int]] = []
        self._epoch = ints(np.zeros(len(state.workload), dtype=np.int32))
        self.restarts = 0

    def end_s(self, job: int) -> float:
        """When a job that runs will end if nothing changes."""
        return self.state.predicted_end_s(job)

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        state, epoch, ends = self.state, self._epoch, self._ends
        for command in commands:
            job = command.job
            epoch[job] += 1
            if isinstance(command, Stop):
                self.age.enter(job)
                if self._log is not None:
                    self._log.end(job, now_s)
                continue
            if isinstance(command, Start):
                self.age.leave(job)
                if state.starts[job] > 1 and not command.goes_on:
                    self.restarts += 1
                if self._log is not None:
                    self._log.begin(job, command.placement, now_s)
            elif isinstance(command, Resize) and self._log is not None:
                self._log.end(job, now_s)
                self._log.begin(job, command.placement, now_s)
            heappush(ends, (self.end_s(job), job, epoch[job]))
        if len(ends) > 64 + 4 * len(state.placements):
            self._ends = [entry for entry in ends if epoch[entry[1]] == entry[2]]
            heapify(self._ends)

    def adopt(self, now_s: float) -> None:
        """Take over the jobs of a state that is not empty. An end that was predicted for a past time comes now."""
        state = self.state
        self._ends = [(max(self.end_s(job), now_s), job, self._epoch[job]) for job in state.placements]
        heapify(self._ends)
        self.age.advance(now_s)
        for job in np.flatnonzero(state.status_column == JobState.WAITING).tolist():
            self.age.enter(job)

    def next_end_s(self) -> float:
        """When the next job ends if nothing changes; infinity if none runs."""
        ends, epoch = self._ends, self._epoch
        while ends and epoch[ends[0][1]] != ends[0][2]:
            heappop(ends)
        return ends[0][0] if ends else math.inf

    def pop_ended(self, now_s: float) -> list[int]:
        """Jobs that end at `now_s`, in order of submission."""
        ends, epoch = self._ends, self._epoch
        ended = []
        while ends and ends[0][0] <= now_s:
            _, job, number = heappop(ends)
            if epoch[job] == number:
                epoch[job] += 1
                ended.append(job)
                if self._log is not None:
                    self._log.end(job, now_s)
        if len(ended) > 1:
            ended.sort()
        return ended


class EveryStepExecutor(SimExecutor):
    """For `charge_every_step`: every step moves every end, so ends are looked up afresh each time.

    Ends that differ by less than a billionth count as one (the Muri artifact's rule).
    """

    def __init__(self, state: State, log: SegmentLog | None) -> None:
        super().__init__(state, log)
        self._jobs = np.zeros(0, dtype=np.intp)
        self._predicted = np.zeros(0)

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        super().apply(commands, now_s)
        self._ends.clear()

    def next_end_s(self) -> float:
        state = self.state
        if not state.placements:
            return math.inf
        jobs = self._jobs = np.fromiter(state.placements, dtype=np.intp, count=len(state.placements))
        left = state.remaining_s_column[jobs] / state.rate_column[jobs]
        self._predicted = state.work_from_s_column[jobs] + left
        return float(self._predicted.min())

    def pop_ended(self, now_s: float) -> list[int]:
        if not self.state.placements:
            return []
        first = float(self._predicted.min())
        if first > now_s:
            return []
        limit = first + 1e-9 * max(abs(first), abs(now_s))
        ended: list[int] = self._jobs[self._predicted <= limit].tolist()
        for job in ended:
            if self._log is not None:
                self._log.end(job, now_s)
        return sorted(ended)
