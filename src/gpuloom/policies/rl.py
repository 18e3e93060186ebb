"""Learnt placement: on how many nodes and GPUs a job runs, by Q-learning over groups of alike jobs.

Source: a Chinese patent application on reinforcement-learning scheduling of deep-learning jobs (claims 1 and 2).
    state: the job's group, by k-means on the logarithm of its compute/communication ratio (`learning/ratios.py`);
        every 20 submitted jobs the groups are formed anew and the table is carried over.
    action: an even placement (nodes, GPUs per node), or to wait, at most once a job; what does not fit now is masked.
    choice: ε-greedy; ε falls from `epsilon_start` to `epsilon_end` over `epsilon_jobs` jobs.
    reward: R = process / cost. process: throughput measured while the job ran, over the best known (on a cluster, what
        it reported itself over the best of its earlier runs; of who reports nothing nothing is learnt); cost: the share
        of the cluster's GPUs it held, times (nodes / fewest nodes)^`fragmentation`, all to the power of `thrift`.
        Measured speed is that of the placement: the speed of the GPU model, which is not chosen, is divided out.
    update: Q(s, a) += α · (R + γ · max_a' Q(s', a') - Q(s, a)), s' being the group of the next job that is decided on;
        a' includes to wait, where that job may.
    scheduling points: arrivals, ends, failures and repairs. Rewards first, then the queue in order of submission, until
        its end or until no GPU is free. Running jobs are left alone.
Other than in the patent, a job may wait more than once: while it has been here for less than `patience`, it refuses
placements worth less than `accept` of its best; the end of its patience is a scheduling point as well. With `accept=0`,
as in the patent, none is refused.
Beyond the patent: what was never tried counts as much as a compute/communication model of the job promises
(`initial=model`), times 1 + `optimism`; jobs of high priority are not explored on (`safe`); tables are saved and read.
Choices without learning serve as a yardstick (`mode`).
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.carrying import A_JOB, JOBS, PER_JOB, Rows
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Reason
from gpuloom.core.policy_state import RlEntry, RlGroup, RlState
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Measured, Snapshot
from gpuloom.core.words import are, plural
from gpuloom.core.workload import F8, Workload
from gpuloom.learning.learnt_table import LearntTable, read_table
from gpuloom.learning.q_learning import bellman, carried_over, counts_over, epsilon, k_means, nearest, uniform
from gpuloom.learning.ratios import fingerprint, log_ratios, models_of
from gpuloom.placement.even import (
    FRAGMENTATION,
    HOLD,
    HOLD_ALL,
    THRIFT,
    WAIT,
    EvenQueue,
    Kind,
    Mask,
    choices_of,
    cost_of,
    placement_name,
)
from gpuloom.policies.base import (
    Parameter,
    Policy,
    Preemptive,
    Traits,
    duration,
    fraction,
    not_negative,
    one_of,
    seed,
    share,
    whole,
    yes_or_no,
)

REGROUP_JOBS = 20
SETTLES_OVER = 50
"""Updates over which the change of the table is averaged."""
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
    open: list[int] = field(default_factory=list, metadata=JOBS)
    last: int = field(default=-1, metadata=A_JOB)


class Rl(Policy):
    """See the module."""

    id = "rl"
    traits = Traits(
        summary="learns on how many nodes and GPUs jobs run best",
        knows="compute/communication ratio",
        preemptive=Preemptive.NO,
        heterogeneity=False,
        sharing=False,
        paper="patent; Q-learning",
        weights="above 1: of high priority",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(
            "mode",
            "learn",
            one_of("learn", "frozen", "random", "greedy", "fixed"),
            "learn; frozen: use the table without learning; random: any placement that fits; greedy: the most GPUs "
            "that fit; "
            "fixed: always `fixed`",
        ),
        Parameter(
            "fixed", "1x1", placement_name, "the placement with mode=fixed, or the nearest that the job can have"
        ),
        Parameter(
            "state",
            None,
            str,
            "file of a learnt table to start from (simulate --save-memory writes one)",
            shown="none",
            names_file=True,
            content=read_table,
        ),
        Parameter("groups", 8, whole, "most groups of jobs"),
        Parameter("alpha", 0.2, share, "learning rate α"),
        Parameter("gamma", 0.1, fraction, "discount γ of the next job's value"),
        Parameter("epsilon_start", 0.1, fraction, "chance of an exploratory action at the beginning"),
        Parameter("epsilon_end", 0.02, fraction, "and in the end"),
        Parameter("epsilon_jobs", 200, whole, "jobs over which it falls"),
        Parameter(
            "thrift", THRIFT, not_negative, "power of the cost in the reward; below 1: larger placements are preferred"
        ),
        Parameter(
            "fragmentation", FRAGMENTATION, not_negative, "how much more it costs to be on more nodes than needed"
        ),
        Parameter("accept", 0.7, fraction, "a placement worth less than this share of the job's best is refused"),
        Parameter(
            "patience",
            6 * 3600.0,
            duration,
            "but not after the job has been in the system this long, or if no job runs",
            "6h",
        ),
        Parameter("measure", 60.0, duration, "a job's throughput counts after this much work, or at its end", "1m"),
        Parameter(
            "initial",
            "model",
            one_of("model", "zero"),
            "value of untried placements: predicted by a compute/communication model of the job, or 0",
        ),
        Parameter("optimism", 0.1, not_negative, "optimism: factor on what the model predicts"),
        Parameter("safe", True, yes_or_no, "no exploratory action for jobs of high priority", "yes"),
        Parameter("seed", 0, seed, "seed of exploration and of the groups; by default that of --seed"),
    )
    resizes = True
    rewarded = True
    remembers = (Memory,)

    cache: _Placer | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        n = len(workload)
        start = self.values["state"]
        names = choices_of(workload, cluster).names
        if start is None:
            start = LearntTable(names, np.zeros(0), np.full((1, len(names)), np.nan))
        nothing = np.full(n, np.nan)
        return Memory(
            choices=names,
            table=start.columns(names),
            centres=start.centres.copy(),
            record=start.record.copy(),
            submitted=start.submitted,
            handled=start.handled,
            mean_value=start.mean_value,
            best=dict(start.best),
            choice=np.full(n, -1, dtype=np.int32),
            reward=nothing,
            next_value=nothing.copy(),
            begun_s=nothing.copy(),
            left_s=nothing.copy(),
            waited=np.zeros(n, dtype=np.bool_),
            speed=np.ones(n),
            recorded=np.zeros(n, dtype=np.bool_),
            visits=np.zeros((len(start.centres) + 1, len(names))),
            draws=start.draws,
        )

    def carried(self, memory: Memory, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Memory:
        """Choices that the new world does not offer keep their columns, behind those that it does."""
        found: Memory = super().carried(memory, rows, nodes, workload, cluster)
        offered = choices_of(workload, cluster).names
        gone = [name for name in memory.choices if name not in offered]
        found.choices = (*offered, *gone)
        if found.choices != memory.choices:
            known = LearntTable(memory.choices, memory.centres, memory.table)
            found.table = known.columns(found.choices)
            visits = LearntTable(memory.choices, memory.centres, memory.visits)
            found.visits = np.nan_to_num(visits.columns(found.choices), nan=0.0)
            number = np.array([found.choices.index(name) for name in memory.choices], dtype=np.int32)
            if found.owed:
                found.owed = [found.owed[0], float(number[int(found.owed[1])]), *found.owed[2:]]
            chosen = found.choice >= 0
            found.choice[chosen] = number[found.choice[chosen]]
        return found

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            self.cache = _Placer(self, snapshot, memory)
        return self.cache.decide(snapshot, memory), memory

    def describe(self, snapshot: Snapshot, memory: Memory) -> RlState:
        values = self.values
        learns = values["mode"] == "learn"
        chance = epsilon(memory.handled, values["epsilon_start"], values["epsilon_end"], values["epsilon_jobs"])
        groups = []
        for ratio, row, visits in zip(
            [*logs.exp(memory.centres).tolist(), math.nan], memory.table.tolist(), memory.visits.tolist(), strict=True
        ):
            entries = [RlEntry(*entry) for entry in zip(memory.choices, row, visits, strict=True)]
            # The best first, what was never tried last.
            ordered = sorted(entries, key=lambda one: (math.isnan(one.value), -one.value))
            groups.append(RlGroup(ratio, tuple(ordered)))
        return RlState(
            values["mode"],
            tuple(groups),
            len(memory.choices),
            int(np.count_nonzero(~np.isnan(memory.table))),
            chance if learns else 0.0,
            memory.handled,
            memory.submitted,
            memory.updates,
            memory.mean_change,
            memory.mean_value,
            REGROUP_JOBS - memory.submitted % REGROUP_JOBS,
        )

    def saved(self, memory: Memory) -> str:
        return LearntTable(
            memory.choices,
            memory.centres,
            memory.table,
            memory.record,
            memory.submitted,
            memory.handled,
            memory.mean_value,
            memory.draws,
            memory.best,
        ).text()

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        scaling = snapshot.workload.scaling
        least = int(snapshot.workload.gpus[job] if scaling is None else scaling.min_gpus[job])
        free = snapshot.free_gpus
        numbers = {"gpus": least, "free_gpus": free, "waiting": snapshot.waiting_count}
        if free < least:
            return Reason(
                "not_enough_free_gpus", f"It needs at least {plural(least, 'GPU')} and {are(free)} free.", numbers
            )
        return Reason(
            "waits_for_placement",
            f"{are(free, 'GPU')} free, but no even placement of the job fits them, or it waits for a better one.",
            numbers,
        )


class _Placer:
    """Caches: the queue, each job's ratio, and what the models promise."""

    def __init__(self, policy: Rl, snapshot: Snapshot, memory: Memory) -> None:
        workload, cluster = snapshot.workload, snapshot.cluster
        self._values, self._memory, self._snapshot = policy.values, memory, snapshot
        self._workload, self._cluster = workload, cluster
        self._queue = EvenQueue(snapshot, choices_of(workload, cluster))
        self._models = models_of(workload)
        self._curves = [] if workload.scaling is None else [fingerprint(curve) for curve in workload.scaling.curves]
        self._ratios = log_ratios(workload, self._models)
        self._ratio: list[float] = self._ratios.tolist()
        self._mixed = self._queue.differing(self._ratios)
        """By kind: whether its jobs may be of different groups, and one refuse what another takes."""
        self._grouped_by: F8 | None = None
        """The centres by which the queue tells such jobs apart."""
        self._wake_s = math.inf
        self._between: tuple[F8, list[float]] = np.full(1, np.nan), []
        """The memory's centres, and the points halfway between them."""
        self._protected = _high_priority(workload) if policy.values["safe"] else np.zeros(len(workload), dtype=bool)
        self._promises: dict[int, tuple[F8, float]] = {}
        """By id of a kind: the reward that the model promises for each of its choices, and its best throughput."""
        self._costs: dict[int, list[float]] = {}
        self._orders: dict[int, list[int]] = {}
        """By id of a kind, for the modes greedy and fixed: its choices, the best first."""
        # Nothing can be learnt from a placement that the job could not have any more.
        memory.open = [job for job in memory.open if self._offers(job)]
        self._learns = policy.values["mode"] == "learn"
        self._choose = {"random": self._random, "greedy": self._in_order, "fixed": self._in_order}.get(
            policy.values["mode"], self._by_table
        )

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        self._snapshot, self._memory, self._wake_s = snapshot, memory, math.inf
        queue = self._queue
        queue.observe(snapshot)
        # 1. Rewards of what ran.
        if memory.open:
            self._collect(snapshot)
        # 2. Who came; new groups.
        if self._learns:
            for job in snapshot.arrived:
                self._record(job)
        # 3. The queue in order of submission.
        if not queue.waiting:
            return NOTHING
        if self._grouped_by is not memory.centres and self._mixed.any():
            queue.regroup(self._groups)
            self._grouped_by = memory.centres
        run = queue.walk(self._choose)
        for job, placement in run.items():
            memory.speed[job] = queue.speed(job, placement)
        return Decision(run, wake_at_s=self._wake_s) if run or self._wake_s < math.inf else NOTHING

    def _offers(self, job: int) -> bool:
        """Whether what the job chose is still to be had for it."""
        choice, choices = self._memory.choice.item(job), self._queue.kind(job).choices
        index = int(np.searchsorted(choices, choice))
        return choice == WAIT or (index < len(choices) and choices.item(index) == choice)

    def _groups(self, jobs: Sequence[int]) -> NDArray[np.intp]:
        """Rows of jobs that may refuse what others of their kind take."""
        ratios, centres = self._ratios[jobs], self._memory.centres
        rows = np.where(np.isnan(ratios), len(centres), nearest(centres, ratios))
        return np.where(self._mixed[self._queue.kind_of[jobs]], rows, 0)

    # -- learning -------------------------------------------------------------------------------------------

    def _collect(self, snapshot: Snapshot) -> None:
        memory, now_s = self._memory, snapshot.now_s
        still: list[int] = []
        for job in memory.open:
            if snapshot.measured is not None:
                if snapshot.is_running(job):
                    still.append(job)
                elif not snapshot.is_waiting(job) and job in snapshot.measured.it_per_s:
                    self._reported(job, snapshot.measured)
                continue
            if math.isnan(memory.reward.item(job)):
                worked_s = now_s - memory.begun_s.item(job) - snapshot.restart_overhead_s[job]
                if snapshot.is_running(job):
                    if worked_s < self._values["measure"]:
                        still.append(job)
                        continue
                    memory.reward[job] = self._reward(job, snapshot.rate(job))
                elif snapshot.is_waiting(job) or worked_s <= 0:
                    continue  # it lost its node before it could be measured, or had nothing to do
                else:
                    work_s = memory.left_s.item(job) - snapshot.spare_s(job)
                    memory.reward[job] = self._reward(job, work_s / worked_s)
            if math.isnan(memory.next_value.item(job)):
                # Nobody has been decided on since. If it lost its node, what it chooses next is another action.
                if not snapshot.is_waiting(job):
                    still.append(job)
                continue
            if self._learns:
                self._learn(job, memory.choice.item(job), memory.reward.item(job))
        memory.open = still

    def _reported(self, job: int, measured: Measured) -> None:
        """The job has ended and reported its speed: it is learnt from, now or once the next job is decided on."""
        memory, kind = self._memory, self._queue.kind(job)
        rate, name = measured.it_per_s[job] / memory.speed.item(job), measured.alike(job)
        best = memory.best[name] = max(memory.best.get(name, 0.0), rate)
        choice = memory.choice.item(job)
        place = int(np.searchsorted(kind.choices, choice))
        reward = rate / best / self._cost_of(kind)[place] if best > 0 else 0.0
        promise, next_value = self._promised(kind)[0].item(place), memory.next_value.item(job)
        if not self._learns:
            return
        if math.isnan(next_value):
            memory.owed = [self._ratio[job], float(choice), promise, reward]
        else:
            self._update(self._row(job), choice, promise, reward, next_value)

    def _reward(self, job: int, rate: float) -> float:
        """process / cost of the placement that the job got; rate: work per second, on the GPU model that it got."""
        memory, kind = self._memory, self._queue.kind(job)
        rate /= memory.speed.item(job)
        best = self._promised(kind)[1]
        index = int(np.searchsorted(kind.choices, memory.choice.item(job)))
        if kind.curve != NO_CURVE and self._workload.scaling is not None:
            rate *= self._workload.scaling.reference.item(job)
            curve = self._curves[kind.curve]
            memory.best[curve] = max(memory.best.get(curve, 0.0), rate)
            best = max(best, memory.best[curve])
        else:
            best = max(best, rate)
        return rate / best / self._cost_of(kind)[index] if best > 0 else 0.0

    def _cost_of(self, kind: Kind) -> list[float]:
        """What each choice of a kind costs."""
        cost = self._costs.get(id(kind))
        if cost is None:
            cost = self._costs[id(kind)] = self._cost(kind).tolist()
        return cost

    def _learn(self, job: int, choice: int, reward: float) -> None:
        kind, promise = self._queue.kind(job), 0.0
        if choice != WAIT:
            promise = self._promised(kind)[0].item(int(np.searchsorted(kind.choices, choice)))
        self._update(self._row(job), choice, promise, reward, self._memory.next_value.item(job))

    def _update(self, row: int, choice: int, promise: float, reward: float, next_value: float) -> None:
        """Bellman's update. promise: what the choice counted for, beyond idling, if it was never tried."""
        memory = self._memory
        value = memory.table.item(row, choice)
        if math.isnan(value):
            value = self._idle + promise
        after = bellman(value, reward, next_value, self._values["alpha"], self._values["gamma"])
        memory.table[row, choice] = after
        memory.visits[row, choice] += 1.0
        memory.updates += 1
        over = min(memory.updates, SETTLES_OVER)
        memory.mean_change += (abs(after - value) - memory.mean_change) / over

    def _record(self, job: int) -> None:
        memory = self._memory
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

    def _row(self, job: int) -> int:
        """The job's group."""
        return self._row_of(self._ratio[job])

    def _row_of(self, ratio: float) -> int:
        """The nearest centre (as `learning.nearest`); the last row without a ratio."""
        centres = self._memory.centres
        if centres is not self._between[0]:
            self._between = centres, ((centres[1:] + centres[:-1]) / 2.0).tolist()
        return len(centres) if math.isnan(ratio) else bisect_left(self._between[1], ratio)

    # -- what is known of a kind ----------------------------------------------------------------------------

    def _cost(self, kind: Kind) -> F8:
        values = self._values
        return cost_of(kind, self._cluster, thrift=values["thrift"], fragmentation=values["fragmentation"])

    def _promised(self, kind: Kind) -> tuple[F8, float]:
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
    def _idle(self) -> float:
        """What waiting counts for before it was tried: no reward, and the next job's value."""
        return 0.0 if self._values["initial"] == "zero" else self._values["gamma"] * self._memory.mean_value

    # -- choosing -------------------------------------------------------------------------------------------

    def _by_table(self, job: int, kind: Kind, fits: Mask) -> int:
        memory, idle = self._memory, self._idle
        row = memory.table[self._row(job)]
        values = row[kind.choices]
        unknown = np.isnan(values)
        values = np.where(unknown, self._promised(kind)[0] + idle, values)
        best = float(values.max())
        least = -math.inf
        picky = kind.curve != NO_CURVE and self._values["accept"] > 0
        patience_ends_s = self._workload.submit_s.item(job) + self._values["patience"]
        may_wait = self._queue.running > 0 and not memory.waited.item(job)
        if picky and (self._queue.running == 0 or self._snapshot.now_s >= patience_ends_s):
            may_wait = False  # takes whatever fits: nothing runs that would make room, or it was here for long
        elif picky:
            least = min(idle + self._values["accept"] * (best - idle), best)
            if self._values["initial"] == "zero":  # nothing is known against what was never tried
                fits = fits & ((values >= least) | unknown)
                least = -math.inf if fits.any() else math.inf
        able = np.where(fits, values, -np.inf)
        choice = int(able.argmax())
        if able[choice] < least:
            # Others of the kind and group came later: they refuse as well, and are as patient for longer.
            self._wake_s = min(self._wake_s, patience_ends_s)
            return HOLD_ALL
        wait = row.item(WAIT)
        if math.isnan(wait):
            wait = idle
        self._follow(max(best, wait) if may_wait else best)
        if self._explores(job):
            others = np.flatnonzero(fits & (able >= least))
            drawn = int(self._draw() * (len(others) + may_wait))
            choice = int(others[drawn]) if drawn < len(others) else HOLD
        elif may_wait and wait > able[choice]:
            choice = HOLD
        return self._chosen(job, kind, choice)

    def _random(self, job: int, kind: Kind, fits: Mask) -> int:
        able = np.flatnonzero(fits)
        return self._chosen(job, kind, int(able[int(self._draw() * len(able))]))

    def _in_order(self, job: int, kind: Kind, fits: Mask) -> int:
        """The first choice; greedy, or where nothing will come free, the first that fits."""
        order = self._orders.get(id(kind))
        if order is None:
            if self._values["mode"] == "greedy":
                rank = np.lexsort((kind.nodes, -kind.gpus))
            else:
                nodes, per_node = map(int, self._values["fixed"].split("x"))
                away = np.abs(logs.log(kind.gpus / (nodes * per_node)))
                rank = np.lexsort((kind.nodes, np.abs(logs.log(kind.nodes / nodes)), away))
            order = self._orders[id(kind)] = rank.tolist()
        if self._values["mode"] == "greedy" or not self._queue.running:
            return self._chosen(job, kind, next(choice for choice in order if fits[choice]))
        return self._chosen(job, kind, order[0]) if fits[order[0]] else HOLD_ALL

    def _chosen(self, job: int, kind: Kind, choice: int) -> int:
        """Write down what was chosen."""
        memory, snapshot = self._memory, self._snapshot
        memory.last = job
        memory.next_value[job] = math.nan if self._learns else 0.0
        if choice == HOLD:
            memory.choice[job], memory.reward[job], memory.waited[job] = WAIT, math.nan, True
            return HOLD
        if snapshot.starts(job) == 0:
            memory.handled += 1
        memory.choice[job] = kind.choices[choice]
        memory.reward[job] = math.nan
        memory.begun_s[job], memory.left_s[job] = snapshot.now_s, snapshot.remaining_s(job)
        if job not in memory.open:
            memory.open.append(job)
        return choice

    def _follow(self, value: float) -> None:
        """The value of this job's state is what follows the last job's action."""
        memory, alpha = self._memory, self._values["alpha"]
        if not self._learns:
            return
        memory.mean_value += alpha * (value - memory.mean_value) if memory.mean_value else value
        if memory.owed:
            ratio, choice, promise, reward = memory.owed
            memory.owed = []
            self._update(self._row_of(ratio), int(choice), promise, reward, value)
        if memory.last >= 0:
            memory.next_value[memory.last] = value
            if memory.choice[memory.last] == WAIT:
                self._learn(memory.last, WAIT, 0.0)

    def _explores(self, job: int) -> bool:
        if not self._learns or self._protected[job]:
            return False
        values = self._values
        chance = epsilon(self._memory.handled, values["epsilon_start"], values["epsilon_end"], values["epsilon_jobs"])
        return self._draw() < chance

    def _draw(self) -> float:
        self._memory.draws += 1
        return uniform(self._values["seed"], self._memory.draws)


def _high_priority(workload: Workload) -> Mask:
    """Guaranteed jobs where there are opportunistic ones too, and jobs of more than the ordinary weight."""
    high = np.zeros(len(workload), dtype=bool)
    if workload.priority is not None and (workload.priority != 0).any():
        high |= workload.priority == 0
    if workload.weight is not None:
        high |= workload.weight > 1
    return high
