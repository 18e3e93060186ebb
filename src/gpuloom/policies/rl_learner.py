"""What `rl` learns, and from what: rewards of placements, the table, and the groups of jobs (see `policies/rl.py`).

A placement is rewarded once. In a simulation and live alike that is at the first scheduling point at which the job has
worked on it for `measure`, or at the job's end if that comes first. Live its throughput is what the job reported of
itself by then; of who reports nothing nothing is learnt. A job that lost its GPUs before is not learnt from.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import A_JOB, JOBS, PER_JOB
from gpuloom.core.cluster import Cluster
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.learning.q_learning import bellman, carried_over, counts_over, k_means
from gpuloom.learning.ratios import fingerprint, log_ratios, models_of
from gpuloom.placement.even import WAIT, EvenQueue, Kind, cost_of

REGROUP_JOBS = 20
SETTLES_OVER = 50
"""Updates over which the change of the table and the reward are averaged."""
RECORD = 1000
"""The groups are formed from this many last jobs."""


@dataclass(slots=True)
class Memory:
    """What a restart must not forget.

    table: shape (centres + 1, choices), NaN where never tried; the last row is of jobs without a known ratio.
    centres, record: as in `LearntTable`. submitted, handled: jobs so far. draws: random numbers drawn.
    mean_value: running mean of max_a' Q(s', a'). best: by curve (`fingerprint`), the highest throughput seen.
    Per job: choice (-1: none), reward and next_value (NaN until known), begun_s, left_s (work left then), waited,
    speed (of the GPU model it was placed on, relative to its reference), recorded (it counts as submitted).
    open: jobs whose reward has not been learnt from. last: the job decided on last (-1: none).
    owed: of the job decided on last, if it has ended and only the value of the next job's state is to come: logarithm
    of its ratio, choice, what was promised of that, reward.
    rewarded: placements that had their reward; mean_reward: the running mean over about SETTLES_OVER of them.
    visits: as the table, how often each entry was learnt from. updates: all together; mean_change: |ΔQ| of an update,
    the running mean over about SETTLES_OVER of them.
    """

    choices: tuple[str, ...]
    table: F8
    centres: F8
    record: F8
    submitted: int
    handled: int
    mean_value: float
    best: dict[str, float]
    choice: NDArray[np.int32] = field(metadata=PER_JOB)
    reward: F8 = field(metadata=PER_JOB)
    next_value: F8 = field(metadata=PER_JOB)
    begun_s: F8 = field(metadata=PER_JOB)
    left_s: F8 = field(metadata=PER_JOB)
    waited: NDArray[np.bool_] = field(metadata=PER_JOB)
    speed: F8 = field(metadata=PER_JOB)
    recorded: NDArray[np.bool_] = field(metadata=PER_JOB)
    visits: F8
    draws: int = 0
    owed: list[float] = field(default_factory=list)
    updates: int = 0
    mean_change: float = 0.0
    rewarded: int = 0
    mean_reward: float = 0.0
    open: list[int] = field(default_factory=list, metadata=JOBS)
    last: int = field(default=-1, metadata=A_JOB)


class Learner:
    """Caches: each job's ratio, and what the models promise. `memory` and `snapshot` are those of the call."""

    def __init__(self, values: dict[str, Any], queue: EvenQueue, snapshot: Snapshot, memory: Memory) -> None:
        self._values, self._queue = values, queue
        self.memory, self.snapshot = memory, snapshot
        self._workload: Workload = snapshot.workload
        self._cluster: Cluster = snapshot.cluster
        self._models = models_of(self._workload)
        scaling = self._workload.scaling
        self._curves = [] if scaling is None else [fingerprint(curve) for curve in scaling.curves]
        self.ratios = log_ratios(self._workload, self._models)
        self._ratio: list[float] = self.ratios.tolist()
        self._between: tuple[F8, list[float]] = np.full(1, np.nan), []
        """The memory's centres, and the points halfway between them."""
        self._promises: dict[int, tuple[F8, float]] = {}
        """By id of a kind: the reward that the model promises for each of its choices, and its best throughput."""
        self._costs: dict[int, list[float]] = {}
        self.learns = values["mode"] == "learn"
        # Nothing can be learnt from a placement that the job could not have any more.
        memory.open = [job for job in memory.open if self._offers(job)]

    def _offers(self, job: int) -> bool:
        """Whether what the job chose is still to be had for it."""
        choice, choices = self.memory.choice.item(job), self._queue.kind(job).choices
        index = int(np.searchsorted(choices, choice))
        return choice == WAIT or (index < len(choices) and choices.item(index) == choice)

    def collect(self) -> None:
        """Rewards of what ran."""
        memory = self.memory
        still: list[int] = []
        for job in memory.open:
            if math.isnan(memory.reward.item(job)):
                rate = self._rate(job)
                if rate is None:
                    continue
                if math.isnan(rate):
                    still.append(job)
                    continue
                self._rewarded(job, self._reward(job, rate))
            if math.isnan(memory.next_value.item(job)):
                # Nobody has been decided on since. If it lost its node, what it chooses next is another action.
                if self.snapshot.is_waiting(job):
                    continue
                if self.snapshot.measured is not None and not self.snapshot.is_running(job):
                    self._owe(job)
                else:
                    still.append(job)
                continue
            if self.learns:
                self.learn(job, memory.choice.item(job), memory.reward.item(job))
        memory.open = still

    def _rate(self, job: int) -> float | None:
        """Throughput of the placement that the job got: work, or live iterations, per second. NaN: it can't be said
        yet; None: it never will, as the job lost its node before it was measured, had nothing to do, or told nothing.
        """
        memory, snapshot = self.memory, self.snapshot
        if snapshot.is_waiting(job):
            return None
        runs = snapshot.is_running(job)
        if snapshot.measured is not None:
            if not runs:
                return snapshot.measured.it_per_s.get(job)
            told = snapshot.measured.running.get(job)
            return math.nan if told is None or told.over_s < self._values["measure"] else told.it_per_s
        worked_s: float = snapshot.now_s - memory.begun_s.item(job) - snapshot.restart_overhead_s[job]
        if runs:
            return math.nan if worked_s < self._values["measure"] else snapshot.rate(job)
        if worked_s <= 0:
            return None
        return (memory.left_s.item(job) - snapshot.spare_s(job)) / worked_s

    def _rewarded(self, job: int, reward: float) -> None:
        memory = self.memory
        memory.reward[job] = reward
        memory.rewarded += 1
        memory.mean_reward += (reward - memory.mean_reward) / min(memory.rewarded, SETTLES_OVER)

    def _reward(self, job: int, rate: float) -> float:
        """process / cost of the placement that the job got; rate: work per second, on the GPU model that it got."""
        memory, kind = self.memory, self._queue.kind(job)
        rate /= memory.speed.item(job)
        index = int(np.searchsorted(kind.choices, memory.choice.item(job)))
        measured = self.snapshot.measured
        if measured is not None:
            best = self._best(measured.alike(job), rate)
            if (share := self._share_of_best(kind, index)) > 0:
                best = max(best, rate / share)
        elif kind.curve != NO_CURVE and self._workload.scaling is not None:
            rate *= self._workload.scaling.reference.item(job)
            best = max(self.promised(kind)[1], self._best(self._curves[kind.curve], rate))
        else:
            best = max(self.promised(kind)[1], rate)
        return rate / best / self._cost_of(kind)[index] if best > 0 else 0.0

    def _share_of_best(self, kind: Kind, index: int) -> float:
        """By the model, throughput of this choice over that of the kind's fastest; 0 where it promises nothing."""
        if kind.curve == NO_CURVE:
            return 0.0
        promise: float = self.promised(kind)[0].item(index)
        optimism: float = self._values["optimism"]
        return promise * self._cost_of(kind)[index] / (1.0 + optimism)

    def _best(self, name: str, rate: float) -> float:
        """The highest throughput known of jobs of this name."""
        best = self.memory.best[name] = max(self.memory.best.get(name, 0.0), rate)
        return best

    def _owe(self, job: int) -> None:
        """A job that has ended leaves the live scheduler's world: what is left to learn from it is kept."""
        memory, kind = self.memory, self._queue.kind(job)
        choice = memory.choice.item(job)
        promise = self.promised(kind)[0].item(int(np.searchsorted(kind.choices, choice)))
        if self.learns:
            memory.owed = [self._ratio[job], float(choice), promise, memory.reward.item(job)]

    def _cost_of(self, kind: Kind) -> list[float]:
        """What each choice of a kind costs."""
        cost = self._costs.get(id(kind))
        if cost is None:
            cost = self._costs[id(kind)] = self._cost(kind).tolist()
        return cost

    def learn(self, job: int, choice: int, reward: float) -> None:
        kind, promise = self._queue.kind(job), 0.0
        if choice != WAIT:
            promise = self.promised(kind)[0].item(int(np.searchsorted(kind.choices, choice)))
        self._update(self.row(job), choice, promise, reward, self.memory.next_value.item(job))

    def _update(self, row: int, choice: int, promise: float, reward: float, next_value: float) -> None:
        """Bellman's update. promise: what the choice counted for, beyond idling, if it was never tried."""
        memory = self.memory
        value = memory.table.item(row, choice)
        if math.isnan(value):
            value = self.idle + promise
        after = bellman(value, reward, next_value, self._values["alpha"], self._values["gamma"])
        memory.table[row, choice] = after
        memory.visits[row, choice] += 1.0
        memory.updates += 1
        over = min(memory.updates, SETTLES_OVER)
        memory.mean_change += (abs(after - value) - memory.mean_change) / over

    def record(self, job: int) -> None:
        memory = self.memory
        if memory.recorded[job]:
            return  # it is back
        memory.recorded[job] = True
        memory.submitted += 1
        ratio = self._ratio[job]
        if not math.isnan(ratio):
            memory.record = np.append(memory.record[-RECORD + 1 :], ratio)
            if len(memory.centres) < self._values["groups"] and ratio not in memory.centres:
                # While there are fewer groups than may be, a new ratio begins one of its own.
                row = int(np.searchsorted(memory.centres, ratio))
                memory.centres = np.insert(memory.centres, row, ratio)
                memory.table = np.insert(memory.table, row, np.nan, axis=0)
                memory.visits = np.insert(memory.visits, row, 0.0, axis=0)
        if memory.submitted % REGROUP_JOBS == 0 and len(memory.record):
            groups = self._values["groups"]
            centres = k_means(memory.record, groups, self._values["seed"], memory.draws + 1)
            memory.draws += groups
            if not np.array_equal(centres, memory.centres):
                rows = carried_over(memory.table[:-1], memory.centres, centres, memory.record)
                memory.table = np.vstack([rows, memory.table[-1:]])
                visits = counts_over(memory.visits[:-1], memory.centres, centres, memory.record)
                memory.visits = np.vstack([visits, memory.visits[-1:]])
                memory.centres = centres

    def row(self, job: int) -> int:
        """The job's group."""
        return self._row_of(self._ratio[job])

    def _row_of(self, ratio: float) -> int:
        """The nearest centre (as `learning.nearest`); the last row without a ratio."""
        centres = self.memory.centres
        if centres is not self._between[0]:
            self._between = centres, ((centres[1:] + centres[:-1]) / 2.0).tolist()
        return len(centres) if math.isnan(ratio) else bisect_left(self._between[1], ratio)

    # -- what is known of a kind ----------------------------------------------------------------------------

    def _cost(self, kind: Kind) -> F8:
        values = self._values
        return cost_of(kind, self._cluster, thrift=values["thrift"], fragmentation=values["fragmentation"])

    def promised(self, kind: Kind) -> tuple[F8, float]:
        found = self._promises.get(id(kind))
        if found is None:
            if self._values["initial"] == "zero":
                found = np.zeros(len(kind.choices)), 0.0
            elif kind.curve == NO_CURVE:
                found = (1.0 + self._values["optimism"]) / self._cost(kind), 1.0
            else:
                throughput = 1.0 / self._models[kind.curve].step_s(
                    kind.gpus.astype(np.float64), kind.nodes.astype(np.float64), np.array(1.0)
                )
                best = float(throughput.max())
                found = (1.0 + self._values["optimism"]) * throughput / best / self._cost(kind), best
            self._promises[id(kind)] = found
        return found

    @property
    def idle(self) -> float:
        """What waiting counts for before it was tried: no reward, and the next job's value."""
        return 0.0 if self._values["initial"] == "zero" else self._values["gamma"] * self.memory.mean_value

    def follow(self, value: float) -> None:
        """The value of this job's state is what follows the last job's action."""
        memory, alpha = self.memory, self._values["alpha"]
        if not self.learns:
            return
        memory.mean_value += alpha * (value - memory.mean_value) if memory.mean_value else value
        if memory.owed:
            ratio, choice, promise, reward = memory.owed
            memory.owed = []
            self._update(self._row_of(ratio), int(choice), promise, reward, value)
        if memory.last >= 0:
            memory.next_value[memory.last] = value
            if memory.choice[memory.last] == WAIT:
                self.learn(memory.last, WAIT, 0.0)
