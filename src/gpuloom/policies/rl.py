"""Learnt placement: on how many nodes and GPUs a job runs, by Q-learning over groups of alike jobs.

Source: a Chinese patent application on reinforcement-learning scheduling of deep-learning jobs (claims 1 and 2).
    state: the job's group, by k-means on the logarithm of its compute/communication ratio (`learning/ratios.py`);
        every 20 submitted jobs the groups are formed anew and the table is carried over.
    action: an even placement (nodes, GPUs per node), or to wait, at most once a job; what does not fit now is masked.
    choice: ε-greedy; ε falls from `epsilon_start` to `epsilon_end` over `epsilon_jobs` jobs.
    reward: R = process / cost. process: throughput measured while the job ran, over the best known (on a cluster, what
        it reported itself over the best of its earlier runs; of who reports nothing nothing is learnt). A placement
        is rewarded once, at the first scheduling point at which the job has worked for `measure`, or at its end; cost:
        the share
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
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.carrying import Rows
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Reason
from gpuloom.core.policy_state import RlEntry, RlGroup, RlState
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.words import are, plural
from gpuloom.core.workload import F8, Workload
from gpuloom.learning.learnt_table import LearntTable, read_table
from gpuloom.learning.q_learning import epsilon, nearest, uniform
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
from gpuloom.policies.rl_learner import REGROUP_JOBS, Learner, Memory


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
            memory.rewarded,
            memory.mean_reward,
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
    """Caches: the queue, and what has been learnt (`rl_learner.py`)."""

    def __init__(self, policy: Rl, snapshot: Snapshot, memory: Memory) -> None:
        workload = snapshot.workload
        self._values, self._memory, self._snapshot, self._workload = policy.values, memory, snapshot, workload
        self._queue = EvenQueue(snapshot, choices_of(workload, snapshot.cluster))
        self._learner = Learner(policy.values, self._queue, snapshot, memory)
        self._mixed = self._queue.differing(self._learner.ratios)
        """By kind: whether its jobs may be of different groups, and one refuse what another takes."""
        self._grouped_by: F8 | None = None
        """The centres by which the queue tells such jobs apart."""
        self._wake_s = math.inf
        self._protected = _high_priority(workload) if policy.values["safe"] else np.zeros(len(workload), dtype=bool)
        self._orders: dict[int, list[int]] = {}
        """By id of a kind, for the modes greedy and fixed: its choices, the best first."""
        self._choose = {"random": self._random, "greedy": self._in_order, "fixed": self._in_order}.get(
            policy.values["mode"], self._by_table
        )

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        self._snapshot, self._memory, self._wake_s = snapshot, memory, math.inf
        queue, learner = self._queue, self._learner
        learner.snapshot, learner.memory = snapshot, memory
        queue.observe(snapshot)
        # 1. Rewards of what ran.
        if memory.open:
            learner.collect()
        # 2. Who came; new groups.
        if learner.learns:
            for job in snapshot.arrived:
                learner.record(job)
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

    def _groups(self, jobs: Sequence[int]) -> NDArray[np.intp]:
        """Rows of jobs that may refuse what others of their kind take."""
        ratios, centres = self._learner.ratios[jobs], self._memory.centres
        rows = np.where(np.isnan(ratios), len(centres), nearest(centres, ratios))
        return np.where(self._mixed[self._queue.kind_of[jobs]], rows, 0)

    # -- choosing -------------------------------------------------------------------------------------------

    def _by_table(self, job: int, kind: Kind, fits: Mask) -> int:
        memory, learner = self._memory, self._learner
        idle = learner.idle
        row = memory.table[learner.row(job)]
        values = row[kind.choices]
        unknown = np.isnan(values)
        values = np.where(unknown, learner.promised(kind)[0] + idle, values)
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
        learner.follow(max(best, wait) if may_wait else best)
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
        memory.next_value[job] = math.nan if self._learner.learns else 0.0
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

    def _explores(self, job: int) -> bool:
        if not self._learner.learns or self._protected[job]:
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
