"""Which elastic jobs get how many GPUs of which model: see `policies/elastic_goodput.py`.

A job's size and its GPU model are one choice. All elastic jobs that run are looked at together, and what they have
counts as free. With s0 a job's speed as it is, s its speed at another choice (both relative to its smallest size on its
best model), u the utility, o what the change costs (a resize, or on other GPUs a restart) and T the time for which the
job is expected to go on, the choice is worth, per second,

    weight · [ (u(s) - u(s0)) · (T - o)  -  min(s, s0) · (u(s) - u(s0)) / (s - s0) · o ] / T:

no work is done while it changes, and a second of work is worth what it is at the margin. (Sia's restart factor,
SOSP'23, does the same to a job's goodput.) `scaling/choose.py` finds the choices that are worth most in all. Once in a
`period` jobs may so lose GPUs to others; GPUs that are free go at once to whom they are worth most, grown or moved
there. Where a change begins to pay only later, as a job is expected to go on for the longer the longer it has run, it
is looked at again then.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.errors import PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8
from gpuloom.placement.shapes import shapes_of, speeds_by_pool
from gpuloom.scaling.choose import LEAST, Chosen, Options, choose, improve
from gpuloom.scaling.lending import Lending, Pieces

Pays = Callable[[NDArray[np.bool_]], float]
LEAST_WEIGHT = 1e-6
"""No job's weight counts as less, over the largest of those that run."""
AFTER_S = 1.0
"""So long after a change begins to pay it is looked at: it is to be clear then that it pays."""


class GpuAllocator:
    """How many GPUs of which model each job gets. A cache: speeds and utilities of choices by kind of job."""

    def __init__(self, values: dict[str, Any], snapshot: Snapshot, lending: Lending) -> None:
        self.lending = lending
        workload, cluster = snapshot.workload, snapshot.cluster
        scaling = workload.scaling
        if scaling is None:
            raise PolicyError("jobs are resized, but none has several sizes")
        self._curve, self._curves = scaling.curve.tolist(), scaling.curves
        base = lending.view.workload
        factor = speeds_by_pool(base, cluster, shapes_of(base, cluster))
        best = factor.max(axis=1, keepdims=True, initial=0.0)
        self._factor: F8 = factor / np.where(best > 0, best, 1.0)
        self._node_gpus = [max(cluster.nodes[node].gpus for node in nodes) for nodes in lending.nodes_of]
        self._alpha, self._floor_s, self._power = values["alpha"], values["floor"], values["power"]
        self._horizon_s, self._known = values["horizon"], values["weight"] == "remaining"
        self._least = 1.0 + values["least"]
        self._own_weight = workload.weights
        self._unit = 1.0
        """The largest weight of the jobs that are looked at."""
        self._asked = lending.sizes.base_speed.tolist()
        elastic = {sizes for sizes in lending.sizes.of if len(sizes) > 1}
        self._options = Options.of(len(self._node_gpus), sorted({size for sizes in elastic for size in sizes}))
        self._size_of = {
            size: index for index, size in enumerate(self._options.gpus[self._options.model == 0].tolist())
        }
        self._fewest = [
            math.ceil(size / self._node_gpus[model])
            for size, model in zip(self._options.gpus.tolist(), self._options.model.tolist(), strict=True)
        ]
        """By option: on how many nodes it lies at least."""
        self._kind_of: dict[int, int] = {}
        self._kinds: dict[tuple[Any, ...], int] = {}
        self._speed: list[F8] = []
        self._speeds: dict[tuple[int, int, int, int], float] = {}
        """By kind, GPUs, nodes and model."""
        self._fastest: dict[tuple[int, int], float] = {}
        """By kind and GPUs."""
        self._widest = max([curve.shape[1] for curve in self._curves], default=1)
        self._tables: tuple[F8, F8] | None = None
        self.grown: list[int] = []
        self.shrunk: list[int] = []
        self.look_s = math.inf
        """When a change that does not pay yet will."""

    # -- speeds and values ----------------------------------------------------------------------------------

    def speed(self, job: int, gpus: int, nodes: int, model: int) -> float:
        """Relative to the smallest size on the fewest nodes of the job's best model."""
        nodes = min(nodes, self._widest)
        key = (self._kind(job), gpus, nodes, model)
        found = self._speeds.get(key)
        if found is None:
            found = self._speeds[key] = self._speed_of(job, gpus, nodes, model)
        return found

    def _speed_of(self, job: int, gpus: int, nodes: int, model: int) -> float:
        curve = self._curves[self._curve[job]]
        width = curve.shape[1]
        least = self.lending.sizes.of[job][0]
        best = self._node_gpus[int(self._factor[job].argmax())]
        one = curve[least, min(math.ceil(least / best), width) - 1]
        return float(curve[gpus, min(nodes, width) - 1] / one * self._factor.item(job, model))

    def _kind(self, job: int) -> int:
        """The row of a job in the tables of speeds and utilities."""
        found = self._kind_of.get(job)
        if found is None:
            sizes = self.lending.sizes.of[job]
            key = (self._curve[job], sizes, *self._factor[job].tolist())
            found = self._kinds.get(key, len(self._kinds))
            if found == len(self._kinds):
                self._kinds[key] = found
                row = np.zeros(len(self._options.gpus))
                for model, node in enumerate(self._node_gpus):
                    for size in sizes:
                        at = model * len(self._size_of) + self._size_of[size]
                        row[at] = self._speed_of(job, size, math.ceil(size / node), model)
                self._speed.append(row)
                self._tables = None
            self._kind_of[job] = found
        return found

    def _rows(self, jobs: list[int]) -> tuple[F8, F8]:
        """Speeds and utilities of all choices: shape (jobs, options) each."""
        kinds = [self._kind(job) for job in jobs]
        if self._tables is None:
            speed = np.stack(self._speed)
            self._tables = speed, self._utility(speed)
        return self._tables[0][kinds], self._tables[1][kinds]

    def _utility(self, speed: F8) -> F8:
        with np.errstate(divide="ignore"):
            found: F8 = logs.log(speed) if self._alpha == 0 else logs.power(speed, self._alpha) / self._alpha
        return np.where(speed > 0, found, -np.inf)

    def _weight(self, job: int) -> float:
        # What differs by `LEAST` is equal: the weights' unit must not matter.
        own = 1.0 if self._own_weight is None else max(self._own_weight.item(job) / self._unit, LEAST_WEIGHT)
        if self._known:
            weight: float = (self.lending.view.remaining_s(job) + self._floor_s) ** -self._power
            return weight * own
        asked: float = self._asked[job]
        return asked * own

    def loss_per_gpu(self, snapshot: Snapshot, job: int) -> float:
        """What the job loses per GPU by going back to its smallest size, per second."""
        sizes, gpus = self.lending.sizes.of[job], self.lending.gpus[job]
        model = self._model(job)
        node = self._node_gpus[model]
        now, then = (self.speed(job, size, math.ceil(size / node), model) for size in (gpus, sizes[0]))
        lost: F8 = self._utility(np.array([now])) - self._utility(np.array([then]))
        return self._weight(job) * float(lost[0]) / max(gpus - sizes[0], 1)

    def _model(self, job: int) -> int:
        """The GPU model that the job runs on."""
        if self._options.models == 1:
            return 0
        return self.lending.pool_of[next(iter(self.lending.held[job]))]

    def _present(self, jobs: list[int]) -> Chosen:
        """The options that the jobs have now."""
        size_of, gpus = self._size_of, self.lending.gpus
        if self._options.models == 1:
            return np.array([size_of[gpus[job]] for job in jobs], dtype=np.intp)
        return np.array([self._model(job) * len(size_of) + size_of[gpus[job]] for job in jobs], dtype=np.intp)

    def _worth(self, snapshot: Snapshot, jobs: list[int], quiet_s: float) -> tuple[F8, F8, Pays]:
        """Of each option to each job, shape (jobs, options): its worth over the present one, its speed over the present
        one; and when those will pay that do not yet."""
        lending = self.lending
        speed, utility = self._rows(jobs)
        present = self._present(jobs)
        rows = np.arange(len(jobs))
        now = speed[rows, present][:, None]
        for row, (job, option) in enumerate(zip(jobs, present.tolist(), strict=True)):
            nodes = len(lending.held[job])
            if nodes != self._fewest[option]:
                now[row] = self.speed(job, lending.gpus[job], nodes, self._options.model.item(option))
        if self._own_weight is not None:
            self._unit = float(self._own_weight[jobs].max())
        weight = np.array([self._weight(job) for job in jobs])[:, None]
        cost_s = np.array([snapshot.resize_overhead_s[job] for job in jobs])[:, None]
        if self._options.models > 1:
            restart = np.array([snapshot.again_s[job] for job in jobs])[:, None]
            here = self._options.model[None, :] == self._options.model[present][:, None]
            cost_s = np.where(here, cost_s, restart)
        most_s = max(self._horizon_s, quiet_s)
        if self._known:
            lasts_s = np.array([snapshot.predicted_end_s(job) - snapshot.now_s for job in jobs])[:, None]
        else:
            lasts_s = np.array([snapshot.held_s(job) + self._floor_s for job in jobs])[:, None]
        gain = utility - self._utility(now)
        with np.errstate(invalid="ignore", divide="ignore"):
            slope = np.where(np.abs(speed - now) < 1e-9, logs.power(now, self._alpha - 1.0), gain / (speed - now))
            lost = np.minimum(speed, now) * slope * cost_s
            time_s = np.maximum(np.minimum(lasts_s, most_s), 1e-3)
            worth = (gain * np.maximum(time_s - cost_s, 0.0) - lost) / time_s
        fresh = [row for row, job in enumerate(jobs) if job in lending.run]
        worth[fresh] = gain[fresh]
        pays = worth > LEAST
        worth = weight * worth
        worth[rows, present] = 0.0
        worth[~(speed > 0)] = -np.inf
        # GPUs given back in this very call are not asked for again; such a job keeps what it has.
        stuck = [row for row, job in enumerate(jobs) if job in lending.reclaimed]
        worth[stuck] = -np.inf
        worth[stuck, present[stuck]] = 0.0

        def pays_s(open_: NDArray[np.bool_]) -> float:
            """In how many seconds the first of these options will pay if nothing happens; infinity: never."""
            open_ = open_ & (gain > 0) & ~pays & np.isfinite(worth)
            if self._known or not open_.any():
                return math.inf
            # Time passes for the job and for the state of things: it has been quiet for as long as nothing happened.
            needs_s = (np.broadcast_to(cost_s, gain.shape)[open_]) + lost[open_] / gain[open_]
            later = np.where(needs_s > most_s, needs_s - quiet_s, 0.0)
            later = np.maximum(later, needs_s - np.broadcast_to(lasts_s, gain.shape)[open_])
            return float(np.maximum(later, 1e-6).min())

        return worth, speed / now, pays_s

    # -- who gets them --------------------------------------------------------------------------------------

    def share_out(self, snapshot: Snapshot, *, shift: bool, quiet_s: float) -> bool:
        """Give jobs other GPUs; whether it ought to be looked at again when GPUs may be taken from jobs.

        Args:
            quiet_s: for how long nothing has happened.
        """
        lending = self.lending
        self.look_s = math.inf
        jobs = sorted(lending.held)
        if lending.woven:
            jobs = [job for job in jobs if lending.view.alone(job)]
        if not jobs:
            return False
        if self._settled(jobs, shift=shift):
            return not shift or bool(lending.reclaimed)
        options, present = self._options, self._present(jobs)
        worth, ratio, pays_s = self._worth(snapshot, jobs, quiet_s)
        capacity = options.used(present)
        for node, mask in enumerate(lending.free):
            capacity[lending.pool_of[node]] += mask.bit_count()
        if not (worth > 0.0).any():
            chosen = present
        elif shift:
            # A little faster is not worth what others lose; on GPUs that are free it is.
            fresh = np.array([job in lending.run for job in jobs])[:, None]
            firm = np.where((ratio > 1.0) & (ratio < self._least) & ~fresh, -np.inf, worth)
            firm[np.arange(len(jobs)), present] = 0.0
            chosen = choose(options, firm, capacity, present, worth)
        else:
            chosen = improve(options, worth, capacity, present)
        if (chosen != present).any() and not self._carry_out(snapshot, jobs, present, chosen, worth, quiet_s):
            chosen = present
        if shift:
            self._gather_all(snapshot, jobs, quiet_s)
        left = capacity - options.used(chosen)
        same = options.model[None, :] == options.model[chosen][:, None]
        more = options.gpus[None, :] - np.where(same, options.gpus[chosen][:, None], 0.0)
        self.look_s = snapshot.now_s + pays_s(more <= left[options.model][None, :]) + AFTER_S
        return not shift or bool(lending.reclaimed)

    def _settled(self, jobs: list[int], *, shift: bool) -> bool:
        """Whether it is plain that nobody can get other GPUs, nor ever will while all have what they have: there is one
        model, nothing is free (so that nobody can come together on fewer nodes, either), nobody who may shrink does
        not, and nobody is faster on as few GPUs or fewer."""
        lending = self.lending
        if self._options.models > 1 or any(lending.free):
            return False
        for job in jobs:
            gpus, nodes, sizes = lending.gpus[job], len(lending.held[job]), lending.sizes.of[job]
            if shift and gpus > sizes[0]:
                return False
            if self._fastest_within(job, gpus) > self.speed(job, gpus, nodes, 0):
                return False
        return True

    def _fastest_within(self, job: int, gpus: int) -> float:
        """Its largest speed on at most so many GPUs of the one model, on the fewest nodes."""
        key = (self._kind(job), gpus)
        found = self._fastest.get(key)
        if found is None:
            node = self._node_gpus[0]
            sizes = [size for size in self.lending.sizes.of[job] if size <= gpus]
            found = self._fastest[key] = max([self._speed_of(job, size, math.ceil(size / node), 0) for size in sizes])
        return found

    def _gather_all(self, snapshot: Snapshot, jobs: list[int], quiet_s: float) -> None:
        lending = self.lending
        for job in jobs:
            if len(lending.held[job]) > 1 and job not in lending.reclaimed:
                self._gather(snapshot, job, quiet_s)

    def move(self, snapshot: Snapshot, *, quiet_s: float, larger: bool, among: Collection[int] | None = None) -> None:
        """Move jobs to free GPUs of other models where that pays; nobody grows or shrinks where it is.

        Args:
            larger: to larger sizes, too. among: None: all of them.
        """
        jobs = sorted(self.lending.held)
        options, present = self._options, self._present(jobs)
        worth, _, _ = self._worth(snapshot, jobs, quiet_s)
        barred = options.model[None, :] == options.model[present][:, None]
        if not larger:
            barred |= options.gpus[None, :] > options.gpus[present][:, None]
        if among is not None:
            barred[[row for row, job in enumerate(jobs) if job not in among]] = True
        barred[np.arange(len(jobs)), present] = False
        worth[barred] = -np.inf
        capacity = options.used(present)
        for node, mask in enumerate(self.lending.free):
            capacity[self.lending.pool_of[node]] += mask.bit_count()
        chosen = improve(options, worth, capacity, present)
        if (chosen != present).any():
            self._carry_out(snapshot, jobs, present, chosen, worth, quiet_s)

    def _carry_out(
        self, snapshot: Snapshot, jobs: list[int], present: Chosen, chosen: Chosen, worth: F8, quiet_s: float
    ) -> bool:
        """Give the jobs what was chosen. False, and nothing changes, if on the nodes where it lies it does not pay."""
        lending, options = self.lending, self._options
        rows = np.flatnonzero(chosen != present).tolist()
        before: dict[int, Pieces] = {jobs[row]: lending.held[jobs[row]] for row in rows}
        size = {row: int(options.gpus[chosen[row]]) for row in rows}
        model = {row: int(options.model[chosen[row]]) for row in rows}
        stays = {row for row in rows if options.model[present[row]] == model[row]}
        for row in rows:
            job = jobs[row]
            if row not in stays:
                lending.put(job, {})
            elif size[row] < lending.gpus[job]:
                lending.shrink(job, size[row])
        total = 0.0
        # The largest first; those that stay on their model before those that come.
        for row in sorted(rows, key=lambda row: (row not in stays, -size[row], row)):
            job = jobs[row]
            if row not in stays:
                lending.put(job, lending.gathered(job, size[row], model[row]) or {})
            elif size[row] > lending.gpus[job]:
                lending.put(job, self._larger(job, size[row], model[row]))
            gain = self._as_placed(job, float(worth[row, chosen[row]]), size[row], model[row])
            if gain <= 0.0 < worth[row, chosen[row]] and row in stays and self._has(job, before[job]):
                # On the nodes where these GPUs lie it does not pay.
                lending.put(job, before[job])
                size[row], chosen[row], gain = lending.gpus[job], present[row], 0.0
            total += gain
        if total <= 0.0 or any(lending.gpus[jobs[row]] != size[row] for row in rows):
            for job in before:
                lending.put(job, {})
            for job, pieces in before.items():
                lending.put(job, pieces)
            return False
        for row in rows:
            larger = size[row] > sum_ints(mask.bit_count() for mask in before[jobs[row]].values())
            (self.grown if larger else self.shrunk).append(jobs[row])
        return True

    def _has(self, job: int, pieces: Pieces) -> bool:
        """Whether all of these GPUs are the job's, or free."""
        free, held = self.lending.free, self.lending.held[job]
        return not any(mask & ~(free[node] | held.get(node, 0)) for node, mask in pieces.items())

    def _larger(self, job: int, size: int, model: int) -> Pieces:
        """GPUs to grow to: on its own nodes, or together elsewhere if that is faster."""
        lending = self.lending
        pieces = lending.extended(job, size)
        if pieces is None:
            return {}
        if len(pieces) > 1:
            together = lending.gathered(job, size)
            if together is not None and (
                self.speed(job, size, len(together), model) > self.speed(job, size, len(pieces), model)
            ):
                return together
        return pieces

    def _as_placed(self, job: int, worth: float, size: int, model: int) -> float:
        """The worth of a choice, on as many nodes as it has come to lie."""
        nodes, fewest = len(self.lending.held[job]), math.ceil(size / self._node_gpus[model])
        if nodes <= fewest:
            return worth
        spread, close = (self.speed(job, size, count, model) for count in (nodes, fewest))
        if spread == close:
            return worth
        utility = self._utility(np.array([spread, close]))
        return worth - self._weight(job) * float(utility[1] - utility[0])

    def _gather(self, snapshot: Snapshot, job: int, quiet_s: float) -> None:
        """A job that is spread over more nodes than need be comes together, where that pays."""
        lending, model = self.lending, self._model(job)
        gpus, nodes = lending.gpus[job], len(lending.held[job])
        fewest = math.ceil(gpus / self._node_gpus[model])
        now = self.speed(job, gpus, nodes, model)
        if self.speed(job, gpus, fewest, model) <= now:
            return
        together = lending.gathered(job, gpus)
        if together is None or len(together) >= nodes:
            return
        then = self.speed(job, gpus, len(together), model)
        left_s = snapshot.predicted_end_s(job) - snapshot.now_s if self._known else snapshot.held_s(job) + self._floor_s
        lasts_s = min(left_s, max(self._horizon_s, quiet_s))
        if job in lending.run or (then - now) * (lasts_s - snapshot.resize_overhead_s[job]) > (
            now * snapshot.resize_overhead_s[job]
        ):
            lending.put(job, together)
