"""A plan by value: which jobs run, with which others and where, as one choice (see `policies/valued.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.core.workload import F8, Workload
from gpuloom.interleave.across import spread
from gpuloom.interleave.efficiency import MAX_GROUP
from gpuloom.interleave.groups import GroupTimes
from gpuloom.interleave.pairing import Pairing
from gpuloom.interleave.tables import SetTable
from gpuloom.interleave.valued import Group, exchange, in_parts
from gpuloom.interleave.worth import GroupWorth
from gpuloom.placement.pool import Pool, pool_of_node
from gpuloom.placement.shapes import shapes_of, speeds_by_pool, speeds_on
from gpuloom.placement.shared import SharedPlacer
from gpuloom.policies.valued_rooms import Filling, Jobs, deal_out
from gpuloom.policies.valued_score import Score
from gpuloom.policies.weaving import OWN, group_times, partners_restart, smallest_memory_mib
from gpuloom.solvers.assignment import assign, bids, prices

_BETTER = 1e-9
_AT_EASE = 0.1
"""The power of the time left where nobody waits."""
_PRICE_AT_EASE = 0.5
"""The power of what a second costs where nobody waits: faster GPUs are short even then."""
_CROWDED = 0.25
"""Jobs that need this share of the cluster more than it has are a crowd: worth goes by GPU time altogether."""
_CROWDED_IN_PAIRS = 1.0
"""The same where plans are made pair by pair."""

_PAIRABLE = 0.8
"""Plans are made pair by pair where jobs that can share ask for this part of all GPUs that are asked for."""
_LOOKED_AT = 4.0
"""Jobs that are looked at for pairs ask for this many times the GPUs that there are, at most."""

Plan = tuple[list[Group], list[Placement]]
"""Groups, and where each is."""


class _Held(NamedTuple):
    """What the jobs that run have: the first ones of a plan."""

    pools: list[int]
    keeps: F8
    """The share of its worth that each keeps where it must start again, shape (jobs that run, 1)."""


class _Present(NamedTuple):
    """The jobs of one plan, those that run first, and what each is worth per iteration (worth · seconds per iteration
    alone)."""

    jobs: Jobs
    value: F8
    held: _Held
    plain: dict[int, float]
    """`value` by job."""
    there: dict[int, list[float]]
    """By job its value in each pool; empty where models don't matter."""
    starting: dict[int, list[float]]
    """The same, starts paid: in other pools than its own a running job must start again."""


class Worth(Protocol):
    """What a plan asks of its policy."""

    values: dict[str, Any]
    weighs_models: bool

    def time_s(self, snapshot: Snapshot, memory: Any, jobs: Jobs, left_s: F8) -> F8:
        """The solo time that each of these jobs is taken to have left, seconds."""

    def classes(self, workload: Workload) -> NDArray[np.intp]:
        """The class of each job."""

    def bonus(self) -> float:
        """A factor on the worth of running jobs."""


class Planner:
    """The waiting jobs, the tables of groups, and the steps of a plan."""

    def __init__(self, snapshot: Snapshot, policy: Worth) -> None:
        values, workload, cluster = policy.values, snapshot.workload, snapshot.cluster
        self._policy = policy
        self._times: GroupTimes = group_times(workload, values)
        self._memory_mib = smallest_memory_mib(cluster)
        shapes = shapes_of(workload, cluster)
        self._shapes, self._shape_of = shapes.shapes, shapes.of_job.astype(np.intp)
        self._pools_of_shape = [shape.pools for shape in self._shapes]
        self.class_of: Jobs = policy.classes(workload)
        self._column_of = np.zeros(len(workload), dtype=np.intp)
        self._tables = self._made_tables(GroupWorth(self._times, cluster.models), values["group_size"])
        """By shape, for a group that may be on any of the cluster's GPU models."""
        self._tables_of = [self._tables] * len(cluster.models)
        """By pool and shape: pairs may have been measured by GPU model."""
        if self._times.pairs is not None and len(cluster.models) > 1:
            self._tables_of = [
                self._made_tables(GroupWorth(self._times, [model]), values["group_size"]) for model in cluster.models
            ]
        self._woven = [number for number, table in enumerate(self._tables) if table.weaves]
        """Shapes of which jobs can share GPUs."""
        self._gpus = np.array([shape.gpus for shape in self._shapes], dtype=np.float64)[self._shape_of]
        self._solo_s = np.array([0.0] * len(workload))
        for number, table in enumerate(self._tables):
            rows = self._shape_of == number
            self._solo_s[rows] = table.solo_s[self._column_of[rows]]
        self._speeds = speeds_on(workload, cluster.models) if workload.speeds is not None else None
        self._pool_of_node = pool_of_node(cluster)
        several = len(cluster.models) > 1 and policy.weighs_models
        self._speed_by_pool = speeds_by_pool(workload, cluster, shapes) if several else None
        self._log_fastest: F8 | None = None
        """The logarithm of each job's speed where it is fastest."""
        if self._speed_by_pool is not None:
            self._log_fastest = logs.log(np.maximum(self._speed_by_pool.max(axis=1), _BETTER))
        self._log_bonus = float(logs.log(policy.bonus()))
        self._pairing: Pairing | None = None
        """Plans of weave where all that is known of jobs beside each other are measured pairs."""
        self._thrifty: tuple[Jobs, F8] | None = None
        """The jobs of one plan, and `_thrift` of them."""
        self._in_pairs = False
        """Whether the present plan is such a one."""
        pairs = self._times.pairs
        if policy.weighs_models and pairs is not None and not any(self._times.staged) and values["group_size"] > 1:
            self._pairing = Pairing(self._times, cluster.models, self._memory_mib)
            self._can_pair = pairs.may_share()
            self._pair_speed = speeds_by_pool(workload, cluster, shapes)
            nodes = cluster.nodes
            of_model = [[node.gpus for node in nodes if node.gpu_model == model] for model in cluster.models]
            self._capacity = np.array([sum_ints(each) for each in of_model], dtype=np.float64)
            self._profile_of = np.array(self._times.of_job, dtype=np.intp)
        self._filling = Filling(
            shapes.shapes,
            self._shape_of,
            self._tables_of,
            self._column_of,
            self._times,
            self._speeds,
            self._speed_by_pool,
        )
        self._placer = SharedPlacer(
            snapshot,
            layers=MAX_GROUP,
            first_fit=False,
            restart_partners=partners_restart(values),
            moves_models=self._speed_by_pool is not None,
        )
        self._own = values["processes"] == OWN
        """Jobs that share GPUs have processes of their own: who stays while others join does not start again."""
        self._horizon_s: float = values["horizon"] if values["restart_partners"] else float("inf")
        weights = workload.weights
        self._log_weight = None if weights is None else logs.log(weights)
        self._waiting: dict[int, None] = dict.fromkeys(snapshot.waiting())
        weaves = any(table.weaves for tables in self._tables_of for table in tables)
        self._crosses = weaves and self._speed_by_pool is not None
        """Members of groups may change between GPU models."""
        self._built = True

    def _made_tables(self, worth: GroupWorth, size: int) -> list[SetTable]:
        """A table of groups for each shape. The columns of all that are made are the same."""
        profile_of = np.asarray(self._times.of_job)
        tables: list[SetTable] = []
        for number, shape in enumerate(self._shapes):
            rows = np.flatnonzero(self._shape_of == number)
            profiles, which = np.unique(profile_of[rows], return_inverse=True)
            table = SetTable(shape.gpus, profiles.tolist(), self._times, size, worth.pays, self._memory_mib, worth)
            tables.append(table)
            columns = np.array([table.column_of[profile] for profile in profiles.tolist()], dtype=np.intp)
            self._column_of[rows] = columns[which.reshape(-1)]
        return tables

    def plan(self, snapshot: Snapshot, memory: Any) -> Decision:
        if self._built:
            self._built = False
        else:
            self._waiting.update(dict.fromkeys((*snapshot.evicted, *snapshot.arrived)))
        if not snapshot.may_preempt:
            return self._fill_free(snapshot, memory)
        if not snapshot.placements and not self._waiting:
            return NOTHING
        together = self._placer.together(snapshot)
        if not self._waiting and self._speed_by_pool is None and all(len(jobs) == 1 for jobs in together.values()):
            return NOTHING
        jobs, value = self._values(snapshot, memory)
        if self._pairing is not None and self._in_pairs:
            rooms = self._placer.empty_pools(snapshot)
            paired, places = self._paired(self._pairing, snapshot, rooms, jobs, value, together.values())
            return self._settled(self._placer.settle(snapshot, paired, places, together))
        groups, places = self._best_plan(snapshot, together, jobs, value)
        self._filling.trim(groups, together.values())
        return self._settled(self._placer.settle(snapshot, [tuple(group.jobs) for group in groups], places, together))

    def _best_plan(self, snapshot: Snapshot, together: dict[Any, list[int]], jobs: Jobs, value: F8) -> Plan:
        """Step 4: to go on, to go on with single changes between GPU models, or all anew."""
        present = self._present(snapshot, jobs, value)
        anew = self._anew(snapshot, present)
        plans: list[Plan] = []
        if self._horizon_s < float("inf"):
            groups, places, rooms = self._kept(snapshot, together, present)
            plans.append((groups, places))
            if self._crosses:
                changed, their_places = [group.copy() for group in groups], places[:]
                self._across(present, rooms, changed, their_places)
                plans.append((changed, their_places))
        plans += anew
        if len(plans) == 1:
            return plans[0]
        score = Score(
            snapshot,
            together,
            jobs,
            value,
            self._solo_s,
            self._speed_by_pool,
            self._pool_of_node,
            self._horizon_s,
            own=self._own,
        )
        best, found = score.of(*plans[0]), plans[0]
        for plan in plans[1:]:
            worth = score.of(*plan)
            # Equal but for rounding (like jobs that swap partners) is not better.
            if worth > best * (1.0 + _BETTER):
                best, found = worth, plan
        return found

    def _settled(self, decision: Decision) -> Decision:
        for job in decision.run:
            self._waiting.pop(job, None)
        self._waiting.update(dict.fromkeys(decision.wait))
        return decision if decision.run or decision.wait else NOTHING

    def _paired(
        self,
        pairing: Pairing,
        snapshot: Snapshot,
        rooms: Sequence[Pool],
        jobs: Jobs,
        value: F8,
        together: Iterable[Sequence[int]],
    ) -> tuple[list[tuple[int, ...]], list[Placement]]:
        """Steps 2 and 3 at once: the pairs and single jobs that are worth most in these rooms.

        Args:
            together: who runs together now.
        """
        capacity = np.array([room.free_gpus for room in rooms], dtype=np.float64)
        speed, gpus, held = self._pair_speed[jobs], self._gpus[jobs], snapshot.placements
        # As many as could ever be chosen, and some to choose from: the most valuable per GPU.
        order = np.argsort(-value * speed.max(axis=1) / gpus, kind="stable")
        rows = np.sort(order[: int(np.searchsorted(gpus[order].cumsum(), _LOOKED_AT * capacity.sum())) + 1])
        jobs, value, speed, gpus = jobs[rows], value[rows], speed[rows], gpus[rows]
        at = {job: place for place, job in enumerate(jobs.tolist())}
        on, beside = np.full(len(jobs), -1, dtype=np.intp), np.full(len(jobs), -1, dtype=np.intp)
        starts = np.zeros(len(jobs))
        for job, place in at.items():
            starts[place] = min(snapshot.again_s[job] / self._horizon_s, 1.0)
            if job in held:
                on[place] = self._pool_of_node[held[job].nodes[0]]
        for members in together:
            if len(members) == 2 and members[0] in at and members[1] in at:
                beside[at[members[0]]], beside[at[members[1]]] = at[members[1]], at[members[0]]
        worth = value / self._solo_s[jobs]
        found = pairing.choose(self._profile_of[jobs], worth, speed, gpus, capacity, starts, on, beside, own=self._own)
        groups: list[tuple[int, ...]] = []
        places: list[Placement] = []
        for one in sorted(found, key=lambda one: -gpus[one.members[0]]):
            taken = rooms[one.model].take(int(gpus[one.members[0]]))
            if taken is not None:
                groups.append(tuple(int(jobs[place]) for place in one.members))
                places.append(taken)
        return groups, places

    def _fill_free(self, snapshot: Snapshot, memory: Any) -> Decision:
        """Groups of waiting jobs on free GPUs; what runs is left alone."""
        # Members of groups may get GPUs of their own, and jobs better ones: at the next interval.
        wake = snapshot.now_s if snapshot.placements else float("inf")
        free = snapshot.free_gpus
        if not free:
            return NOTHING if self._speed_by_pool is None else Decision(wake_at_s=wake)
        rooms = self._placer.idle_pools(snapshot)
        fits = [
            any(rooms[pool].fits(shape.gpus) for pool in shape.pools) if shape.gpus <= free else False
            for shape in self._shapes
        ]
        fitting = [job for job in self._waiting if fits[self._shape_of[job]]]
        if not fitting:
            return Decision(wake_at_s=wake) if wake == snapshot.now_s else NOTHING
        groups: list[Group] = []
        places: list[Placement] = []
        if self._speed_by_pool is None and sum_ints(self._gpus[fitting]) <= free:
            # Worth does not matter if there is room for all.
            self._filling.alone(dict(enumerate(rooms)), np.array(fitting), np.ones(len(fitting)), set(), groups, places)
        if not groups:
            jobs, value = self._values(snapshot, memory)
            fit = np.isin(jobs, fitting)
            if self._pairing is not None and self._in_pairs:
                paired, places = self._paired(self._pairing, snapshot, rooms, jobs[fit], value[fit], ())
                return self._started(self._placer.start(paired, places), wake)
            best = self._best_pools(jobs[fit], value[fit], rooms)
            self._filling.fill_rooms(rooms, jobs[fit], value[fit], groups, places, best=best)
            self._filling.trim(groups)
        return self._started(self._placer.start([tuple(group.jobs) for group in groups], places), wake)

    def _started(self, run: dict[int, Placement], wake_at_s: float) -> Decision:
        for job in run:
            del self._waiting[job]
        return Decision(run, wake_at_s=wake_at_s)

    # -- steps ----------------------------------------------------------------------------------------------

    def _values(self, snapshot: Snapshot, memory: Any) -> tuple[Jobs, F8]:
        """Steps 1 and 2: all present jobs, running ones first, and what each is worth per iteration (worth · seconds
        per iteration alone)."""
        policy, values = self._policy, self._policy.values
        jobs = np.array([*snapshot.placements, *sorted(self._waiting)], dtype=np.intp)
        running = len(snapshot.placements)
        if self._pairing is not None:
            gpus = self._gpus[jobs]
            self._in_pairs = bool(gpus[self._can_pair[jobs]].sum() >= _PAIRABLE * gpus.sum())
        left_s = snapshot.remaining_column()[jobs]
        left_s[:running] = snapshot.remaining_of(jobs[:running])
        price = self._gpus[jobs] * self._thrift(jobs)
        time_s = policy.time_s(snapshot, memory, jobs, left_s)
        waited = (snapshot.now_s - snapshot.workload.submit_s[jobs]) / time_s
        # In logarithms, as only ratios matter: no worth is 0 or infinite, whatever the parameters.
        worth = self._urgency(snapshot, jobs, time_s, price, waited)
        waited /= values["patience"]
        if (waited > 1.0).any():
            old = logs.log(np.maximum(waited, 1.0))
            old[:running] += self._log_bonus
            worth += old
        else:
            worth[:running] += self._log_bonus
        if self._log_weight is not None:
            worth += self._log_weight[jobs]
        return jobs, logs.exp(np.maximum(worth - worth.max(), -300.0)) * self._solo_s[jobs]

    def _urgency(self, snapshot: Snapshot, jobs: Jobs, time_s: F8, price: F8, waited: F8) -> F8:
        """The logarithm of what a second on its best GPUs is worth to each job; `waited`: times of `time_s`.

        While all jobs have GPUs nobody's end frees what others wait for: a second saved is worth nearly the same to
        every job, and only slightly more to one that will soon be gone. A job on many GPUs counts for more, but not for
        as many jobs: small ones would else leave the rest of a fast node idle. The more jobs there are the more it
        counts how many GPU-seconds a job needs. Once jobs wait that did not come just now that alone counts: the GPUs
        that they need may not be together, or they can't run on those that are free.

        Where plans are made pair by pair, what work costs says all this already (`interleave/pairing.py`): only how
        much shorter jobs are preferred, by `power`, depends on the crowd.
        """
        power: float = self._policy.values["power"]
        if self._log_fastest is None:
            log_price, log_need, log_waited = logs.logs(price, time_s * price, 1.0 + waited)
        else:
            log_price, log_need, log_waited = logs.logs(price, time_s, 1.0 + waited)
        ageing = self._policy.values["ageing"] * logs.log1p_by(waited, log_waited)
        worth: F8
        if self._log_fastest is None:
            worth = log_price - power * log_need + ageing
            return worth
        crowd = sum_floats(price.tolist()) / snapshot.cluster.gpus
        if self._in_pairs:
            share = min(max((crowd - 1.0) / _CROWDED_IN_PAIRS, 0.0), 1.0)
            worth = (1.0 - share * power) * log_price + share * ageing
            worth -= ((1.0 - share) * min(_AT_EASE, power) + share * power) * log_need
            return worth
        some_wait = not self._waiting.keys() <= {*snapshot.arrived, *snapshot.evicted}
        share = 1.0 if some_wait else min(max((crowd - 1.0) / _CROWDED, 0.0), 1.0)
        by_time = (1.0 - share) * min(_AT_EASE, power) + share * power
        by_price = (1.0 - share) * min(_PRICE_AT_EASE, 1.0 - power) + share * (1.0 - power)
        worth = by_price * log_price - by_time * log_need + share * ageing
        # Speeds are relative to one model, the same for all: what counts is the share of a job's own best.
        worth -= self._log_fastest[jobs]
        return worth

    def _present(self, snapshot: Snapshot, jobs: Jobs, value: F8) -> _Present:
        """`jobs`: those that run come first, in their order."""
        held, names = self._held(snapshot, jobs), jobs.tolist()
        plain = dict(zip(names, value.tolist(), strict=True))
        there: dict[int, list[float]] = {}
        starting = there
        if self._speed_by_pool is not None:
            there = dict(zip(names, (value[:, None] * self._speed_by_pool[jobs]).tolist(), strict=True))
            starting = there
            if self._crosses and held.pools and (held.keeps < 1.0).any():
                worth = self._by_pool(jobs, value, self._speed_by_pool, held)
                starting = dict(zip(names, worth.tolist(), strict=True))
        return _Present(jobs, value, held, plain, there, starting)

    def _anew(self, snapshot: Snapshot, present: _Present) -> list[Plan]:
        """Step 3, as if no job ran. Prices alone say which GPU model each job should have, as if a job could be split.
        Gangs can't be, and what prices leave of a node is too small for them. So where jobs of several GPUs have to
        wait there is a second plan: jobs of all models bid for the nodes of each."""
        jobs, value, held = present.jobs, present.value, present.held
        rooms = self._placer.empty_pools(snapshot)
        gpus = self._gpus[jobs]
        crowded = bool(gpus.sum() > sum_ints(room.free_gpus for room in rooms))  # whole numbers
        speed = self._speed_by_pool
        if speed is None:
            every = np.repeat(value[:, None], len(rooms), axis=1)
            return [self._filled(present, rooms, None, every if crowded else None)]
        worth, demand, free = self._market(jobs, value, speed, rooms, held)
        price = prices(worth, demand, free)
        best = assign(worth, demand, free, price)
        if not crowded:
            return [self._filled(present, rooms, best, None)]
        wanted = best[:, None] == np.arange(len(rooms))
        again = [room.copy() for room in rooms]
        plans = [self._filled(present, rooms, best, np.where(wanted, value[:, None], 0.0))]
        if gpus.max() > 1:
            bid = bids(worth, demand, price) * self._solo_s[jobs][:, None]
            there = speed[jobs]
            offered = np.divide(bid, there, out=np.zeros_like(bid), where=there > 0)
            plans.append(self._filled(present, again, best, offered))
        return plans

    def _filled(
        self, present: _Present, rooms: Sequence[Pool], best: NDArray[np.intp] | None, offered: F8 | None
    ) -> Plan:
        """A plan in these rooms. `best`: see `Filling.fill_rooms`; `offered`: see `deal_out`, None if all jobs fit
        alone."""
        jobs, value = present.jobs, present.value
        groups: list[Group] = []
        places: list[Placement] = []
        dealt_out = offered is not None and deal_out(
            self._filling, self._tables_of, rooms, jobs, offered, groups, places
        )
        self._at_their_worth(present, groups, places)
        # What is left over is for the most valuable groups, or to split groups: those dealt out are not the best alone.
        self._filling.fill_rooms(rooms, jobs, value, groups, places, alone=not dealt_out, best=best)
        if self._crosses:
            self._across(present, rooms, groups, places)
        by_shape: dict[tuple[int, int], list[Group]] = {}
        for group, place in zip(groups, places, strict=True):
            by_shape.setdefault((group.shape, self._pool_of_node[place.nodes[0]]), []).append(group)
        for alike in by_shape.values():
            for some in in_parts(alike):
                exchange(some)
        return groups, places

    def _at_their_worth(self, present: _Present, groups: Sequence[Group], places: Sequence[Placement]) -> None:
        """What the members of groups are worth where they are, whatever they were chosen by."""
        there = present.there
        if not there:
            return
        for group, place in zip(groups, places, strict=True):
            pool = self._pool_of_node[place.nodes[0]]
            group.values[:] = [there[job][pool] for job in group.jobs]
            group.revalued()

    def _across(self, present: _Present, rooms: Sequence[Pool], groups: list[Group], places: list[Placement]) -> None:
        """Members change between GPU models, and jobs without GPUs take what that leaves free."""
        worth = present.starting
        if not worth:
            return
        spread(groups, places, worth, rooms, self._pool_of_node, self._tables_of, self._pools_of_shape)
        if any(room.free_gpus for room in rooms):
            placed = {job for group in groups for job in group.jobs}
            waiting = [row for row, job in enumerate(worth) if job not in placed]
            density = (present.value / self._gpus[present.jobs]).tolist() if waiting else []
            for row in sorted(waiting, key=density.__getitem__, reverse=True):
                self._started_alone(int(present.jobs[row]), worth, rooms, groups, places)
        self._at_their_worth(present, groups, places)

    def _started_alone(
        self,
        job: int,
        worth: Mapping[int, Sequence[float]],
        rooms: Sequence[Pool],
        groups: list[Group],
        places: list[Placement],
    ) -> None:
        """Give the job GPUs of its own, where it is worth most of the pools that have any."""
        shape, there = int(self._shape_of[job]), worth[job]
        for pool in self._filling.choices(job, shape, there.index(max(there))):
            place = rooms[pool].take(self._shapes[shape].gpus)
            if place is not None:
                groups.append(Group(self._tables_of[pool][shape], shape, [job], [int(self._column_of[job])], [0.0]))
                places.append(place)
                break

    def _best_pools(
        self,
        jobs: Jobs,
        value: F8,
        rooms: Sequence[Pool],
        held: _Held | None = None,
    ) -> NDArray[np.intp] | None:
        """The pool that each job should be in; None where that does not matter. `held`: see `_by_pool`."""
        speed = self._speed_by_pool
        if speed is None:
            return None
        return assign(*self._market(jobs, value, speed, rooms, held))

    def _market(self, jobs: Jobs, value: F8, speed: F8, rooms: Sequence[Pool], held: _Held | None) -> tuple[F8, F8, F8]:
        """What jobs are worth per second by pool, how many GPUs each takes, and how many there are: see `prices`."""
        worth = self._by_pool(jobs, value / self._solo_s[jobs], speed, held)
        free = np.array([room.free_gpus for room in rooms], dtype=np.float64)
        # Jobs that all fit alone will run alone.
        demand = self._gpus[jobs]
        if demand.sum() > free.sum():  # whole numbers
            demand = demand * self._thrift(jobs)
        return worth, demand, free

    def _held(self, snapshot: Snapshot, jobs: Jobs) -> _Held:
        """`jobs`: those that run come first, in their order."""
        pools = [self._pool_of_node[place.nodes[0]] for place in snapshot.placements.values()]
        start_s = snapshot.again_s
        return self._held_at(pools, [start_s[job] for job in jobs[: len(pools)].tolist()])

    def _held_at(self, pools: list[int], start_s: list[float]) -> _Held:
        return _Held(pools, 1.0 - np.minimum(np.array(start_s) / self._horizon_s, 1.0)[:, None])

    def _by_pool(self, jobs: Jobs, value: F8, speed: F8, held: _Held | None) -> F8:
        """`value` times the speed in each pool: shape (jobs, pools). The first jobs are held: in other pools than their
        own they must start again."""
        worth: F8 = value[:, None] * speed[jobs]
        if held is not None and held.pools:
            rows = np.arange(len(held.pools))
            here = worth[rows, held.pools]
            worth[: len(held.pools)] *= held.keeps
            worth[rows, held.pools] = here
        return worth

    def _thrift(self, jobs: Jobs) -> F8:
        """The share of their GPUs' time that jobs cost when woven as well as can be (asked twice in a plan)."""
        if self._thrifty is None or self._thrifty[0] is not jobs:
            self._thrifty = jobs, self._thrift_of(jobs)
        return self._thrifty[1]

    def _thrift_of(self, jobs: Jobs) -> F8:
        if self._pairing is not None and self._in_pairs:
            gpus = self._gpus[jobs]
            return self._pairing.costs(self._profile_of[jobs], self._pair_speed[jobs], gpus, self._capacity) / gpus
        price = np.ones(len(jobs))
        shape, column = self._shape_of[jobs], self._column_of[jobs]
        for number in self._woven:
            rows = (shape == number).nonzero()[0]
            if len(rows):
                columns = column[rows]
                price[rows] = self._tables[number].prices(tuple(sorted({*columns.tolist()})))[columns]
        return price

    def _kept(
        self, snapshot: Snapshot, together: dict[Any, list[int]], present: _Present
    ) -> tuple[list[Group], list[Placement], list[Pool]]:
        """Who runs goes on, and free GPUs are filled; and what is still free."""
        jobs, value, worth = present.jobs, present.value, present.plain
        groups: list[Group] = []
        places: list[Placement] = []
        for (nodes, masks), members in together.items():
            shape = int(self._shape_of[members[0]])
            columns = [int(self._column_of[job]) for job in members]
            pool = self._pool_of_node[nodes[0]]
            values = [worth[job] * self._filling.speed(job, pool) for job in members]
            groups.append(Group(self._tables_of[pool][shape], shape, members[:], columns, values))
            places.append(Placement(nodes, masks))
        rooms = self._placer.idle_pools(snapshot)
        if any(room.free_gpus for room in rooms):
            rest = np.fromiter((job in self._waiting for job in jobs.tolist()), dtype=bool, count=len(jobs))
            best = self._best_pools(jobs[rest], value[rest], rooms)
            self._filling.fill_rooms(rooms, jobs[rest], value[rest], groups, places, best=best)
        return groups, places, rooms
