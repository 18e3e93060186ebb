"""Which jobs of a base policy get more GPUs than their smallest size: see `policies/elastic_goodput.py`."""

from __future__ import annotations

import math
from typing import Any

from gpuloom.core.errors import PolicyError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import next_multiple
from gpuloom.policies.base import Parameter, duration, not_negative, number, one_of, yes_or_no
from gpuloom.policies.composed import Composed, Memory
from gpuloom.policies.growth_models import ModelAllocator
from gpuloom.scaling.allocate import Offer, allocate, greedy, offer
from gpuloom.scaling.lending import Lending

GOODPUT = (
    Parameter("weight", "asked", one_of("asked", "remaining"), "what jobs are weighted by"),
    Parameter(
        "alpha", -0.5, number, "how much more speed is worth to a job that is fast already; 1: as much as to any other"
    ),
    Parameter("power", 0.3, not_negative, "weight=remaining: how much short jobs are preferred; 0: not at all"),
    Parameter("floor", 300.0, duration, "least time a job is assumed to need", "5m"),
    Parameter("horizon", 1800.0, duration, "longest time a new size is expected to last", "30m"),
    Parameter("period", 120.0, duration, "time between two transfers of GPUs from job to job", "2m"),
    Parameter("least", 0.1, not_negative, "least relative speed-up for a resize"),
    Parameter("exact", False, yes_or_no, "by dynamic programming where curves are not concave", "no"),
)
"""Parameters of those who share GPUs out so."""


class Growing(Composed):
    """Lends GPUs where these bring most."""

    cache: Any

    def first_to_shrink(self, snapshot: Snapshot, memory: Memory, job: int) -> Any:
        """The job that loses least per GPU by going back to its smallest size."""
        return self._desk(snapshot).loss_per_gpu(snapshot, job)

    def lend(self, snapshot: Snapshot, memory: Memory, lending: Lending, *, stirred: bool) -> float:
        if stirred or snapshot.now_s >= memory.look_s:
            memory.dirty = True
        if not memory.dirty or not lending.gpus:
            return memory.look_s if lending.gpus else math.inf
        desk = self._desk(snapshot)
        shift = snapshot.now_s >= memory.check_at_s
        desk.grown, desk.shrunk = [], []
        owed = desk.share_out(snapshot, shift=shift, quiet_s=snapshot.now_s - memory.stirred_s)
        memory.look_s = desk.look_s
        for job in desk.grown:
            self.note_expansion(snapshot, memory, job)
        for job in desk.shrunk:
            self.note_shrink(snapshot, memory, job)
        if shift:
            memory.check_at_s = next_multiple(snapshot.now_s, self.lending_values()["period"])
        memory.dirty = owed
        return min(memory.check_at_s, memory.look_s) if owed else memory.look_s

    def lending_values(self) -> dict[str, Any]:
        """What `GOODPUT` names."""
        return self.values

    def _desk(self, snapshot: Snapshot) -> GpuAllocator | ModelAllocator:
        lending: Lending = self.cache
        if lending.attached is None:
            kind = globals().get("FORCE") or (GpuAllocator if len(lending.nodes_of) == 1 else ModelAllocator)
            lending.attached = kind(self.lending_values(), snapshot, lending)
        desk: GpuAllocator | ModelAllocator = lending.attached
        return desk


class GpuAllocator:
    """How many GPUs each job gets. A cache: values of sizes by curve and weight."""

    def __init__(self, values: dict[str, Any], snapshot: Snapshot, lending: Lending) -> None:
        self.lending = lending
        scaling = snapshot.workload.scaling
        if scaling is None:
            raise PolicyError("jobs are resized, but none has several sizes")
        self._curve, self._curves = scaling.curve.tolist(), scaling.curves
        self._node_gpus = [max(snapshot.cluster.nodes[node].gpus for node in nodes) for nodes in lending.nodes_of]
        self._by_nodes = [curve.shape[1] > 1 for curve in scaling.curves]
        self._alpha, self._floor_s, self._power = values["alpha"], values["floor"], values["power"]
        self._horizon_s, self._known = values["horizon"], values["weight"] == "remaining"
        self._least = 1.0 + values["least"]
        self._allocate = allocate if values["exact"] else greedy
        self._asked = lending.sizes.base_speed.tolist()
        self._offers: dict[tuple[int, int, tuple[int, ...], float], Offer] = {}
        self._offer_of: list[dict[int, Offer]] = [{} for _ in lending.nodes_of]
        """By pool the offers of jobs whose weight stands still."""
        self._best: list[tuple[list[int], int, list[int]]] = [([], 0, []) for _ in lending.nodes_of]
        """By pool the jobs, their GPUs and the answer of the last allocation, for as long as weights stand still."""
        self._speeds: dict[tuple[int, int, int, int, int], float] = {}
        self._steps: dict[tuple[float, float], tuple[float, float]] = {}
        self.grown: list[int] = []
        self.shrunk: list[int] = []
        self.look_s = math.inf
        """When a change that does not pay yet will."""

    # -- what sizes are worth -------------------------------------------------------------------------------

    def speed(self, job: int, gpus: int, nodes: int) -> float:
        """Relative to the smallest size on the fewest nodes of the job's GPU model; nodes 0: on the fewest."""
        least = self.lending.sizes.of[job][0]
        size = self._node_gpus[0 if len(self._node_gpus) == 1 else self._pool(job)]
        key = (self._curve[job], least, gpus, nodes, size)
        found = self._speeds.get(key)
        if found is None:
            curve = self._curves[key[0]]
            width = curve.shape[1]
            one = curve[least, min(math.ceil(least / size), width) - 1]
            found = float(curve[gpus, min(nodes or math.ceil(gpus / size), width) - 1] / one)
            self._speeds[key] = found
        return found

    def _pool(self, job: int) -> int:
        """The GPU model that the job runs on."""
        return self.lending.pool_of[next(iter(self.lending.held[job]))]

    def _present(self, job: int) -> float:
        """Speed on the GPUs that the job has."""
        return self.speed(job, self.lending.gpus[job], len(self.lending.held[job]))

    def _utility(self, speed: float) -> float:
        return math.log(speed) if self._alpha == 0 else speed**self._alpha / self._alpha

    def _weight(self, job: int) -> float:
        if self._known:
            weight: float = (self.lending.view.remaining_s(job) + self._floor_s) ** -self._power
            return weight
        asked: float = self._asked[job]
        return asked

    def loss_per_gpu(self, snapshot: Snapshot, job: int) -> float:
        """What the job loses per GPU by going back to its smallest size, per second."""
        gpus, least = self.lending.gpus[job], self.lending.sizes.of[job][0]
        lost = self._weight(job) * (self._utility(self.speed(job, gpus, 0)) - self._utility(1.0))
        return lost / max(gpus - least, 1)

    def _offer(self, job: int, pool: int) -> Offer:
        """Weighted utility of all sizes on the fewest nodes of the pool."""
        sizes = self.lending.sizes.of[job]
        weight = self._weight(job)
        key = (self._curve[job], pool, sizes, 1.0 if self._known else weight)
        found = self._offers.get(key)
        if found is None:
            node = self._node_gpus[pool]
            speeds = [self.speed(job, size, math.ceil(size / node)) for size in sizes]
            found = offer(sizes, tuple([key[3] * self._utility(speed) for speed in speeds]))
            self._offers[key] = found
        if self._known:
            return found.times(weight)
        self._offer_of[pool][job] = found
        return found

    def _lasts_s(self, snapshot: Snapshot, job: int) -> float:
        """For how long the job is expected to go on as it is, at most the horizon."""
        if not self._known:
            left_s = snapshot.held_s(job) + self._floor_s
        else:
            left_s = snapshot.predicted_end_s(job) - snapshot.now_s
        lasts_s: float = min(left_s, self._horizon_s)
        return lasts_s

    def _gain(self, snapshot: Snapshot, job: int, gpus: int, nodes: int) -> float:
        """Weighted utility, times seconds, of another size, less what the change costs."""
        after, before = self.speed(job, gpus, nodes), self._present(job)
        weight = self._weight(job)
        step = self._steps.get((after, before))
        if step is None:
            step = self._utility(after) - self._utility(before), self._slope(after, before)
            self._steps[after, before] = step
        worth = weight * step[0]
        if job in self.lending.run:  # it starts or moves anyway
            return worth * float(self._horizon_s)
        overhead_s: float = snapshot.resize_overhead_s[job]
        lasts_s = self._lasts_s(snapshot, job)
        # No work is done meanwhile; a second of it is worth what a second at the present speed is, at the margin.
        lost = weight * min(after, before) * step[1] * overhead_s
        gain: float = worth * max(lasts_s - overhead_s, 0.0) - lost
        return gain

    def _slope(self, after: float, before: float) -> float:
        """Utility per speed between two speeds."""
        if abs(after - before) < 1e-9:
            return float(before ** (self._alpha - 1.0))
        return (self._utility(after) - self._utility(before)) / (after - before)

    # -- who gets them --------------------------------------------------------------------------------------

    def share_out(self, snapshot: Snapshot, *, shift: bool, quiet_s: float) -> bool:
        """Grow and shrink jobs; whether GPUs ought to be taken from jobs, which was not allowed now.

        Args:
            quiet_s: for how long nothing has happened.
        """
        lending, pool = self.lending, 0
        free = sum_ints([lending.free[node].bit_count() for node in lending.nodes_of[pool]])
        if free == 0 and not shift:
            return True
        several = len(lending.nodes_of) > 1
        # In one order always: what a tie brings must not depend on who came first to this cache.
        jobs = sorted(lending.held)
        if several:
            jobs = [job for job in jobs if self._pool(job) == pool]
        if lending.woven:
            jobs = [job for job in jobs if lending.view.alone(job)]
        # 1. The sizes that would be best if changes were free.
        known = self._offer_of[pool]
        offers = [known.get(job) or self._offer(job, pool) for job in jobs]
        have = [lending.gpus[job] for job in jobs]
        total = sum_ints(have) + free
        last_jobs, last_total, best = self._best[pool]
        if self._known or last_total != total or last_jobs != jobs:
            best = self._allocate(offers, total)
            self._best[pool] = jobs, total, best
        growers: list[tuple[float, int, int]] = []
        givers: list[tuple[float, int, int]] = []
        stuck = lending.reclaimed
        for job, one, index, now in zip(jobs, offers, best, have, strict=True):
            want = one.sizes[index]
            if want > now and job not in stuck:
                # A little faster is not worth the trouble, and often the sign of a peak that is flat.
                if job not in lending.run and self.speed(job, want, 0) < self._least * self._present(job):
                    continue
                rise = one.values[index] - one.values[one.sizes.index(now)]
                growers.append((-rise / (want - now), job, want))
            elif want < now and job not in stuck:
                # What it loses matters only if it may have to give.
                loss = -self._gain(snapshot, job, want, 0) / (now - want) if shift else 0.0
                givers.append((loss, job, want))
        growers.sort()
        givers.sort()
        # 2. Those that gain most per GPU first, on free GPUs or, if it pays, on those of jobs that lose least.
        owed = False
        for _, job, want in growers:
            taken, price, room = self._collect(givers, want - lending.gpus[job], free) if shift else (0, 0.0, free)
            if room < want - lending.gpus[job]:
                owed = owed or bool(givers)
                taken, price = 0, 0.0
                want = max(size for size in lending.sizes.of[job] if size <= lending.gpus[job] + free)
            if want == lending.gpus[job] or (taken and self._gain(snapshot, job, want, 0) <= price):
                continue
            given = [(giver, lending.held[giver], lending.gpus[giver] - rest) for _, giver, rest in givers[:taken]]
            for _, giver, rest in givers[:taken]:
                lending.shrink(giver, rest)
            before = lending.gpus[job]
            if self._grow(snapshot, job, want, max(price, 0.0)):
                free += sum_ints([gpus for _, _, gpus in given]) - (want - before)
                self.shrunk += [giver for giver, _, _ in given]
                del givers[:taken]
            else:
                # On the nodes where these GPUs lie it would not pay.
                for giver, pieces, _ in given:
                    lending.put(giver, pieces)
        # 3. Those that are spread over more nodes than need be come together, where that pays.
        if shift:
            for job in jobs:
                if len(lending.held[job]) > 1 and self._by_nodes[self._curve[job]] and job not in stuck:
                    self._gather(snapshot, job)
        return owed

    def _collect(self, givers: list[tuple[float, int, int]], need: int, free: int) -> tuple[int, float, int]:
        """How many givers it takes until `need` GPUs are there, what they lose, and what is there then."""
        taken, price = 0, 0.0
        gpus = self.lending.gpus
        while free < need and taken < len(givers):
            each, giver, rest = givers[taken]
            free += gpus[giver] - rest
            price += each * (gpus[giver] - rest)
            taken += 1
        return taken, price, free

    def _grow(self, snapshot: Snapshot, job: int, want: int, price: float) -> bool:
        """Grow the job if it gains more than the price."""
        lending = self.lending
        pieces = lending.extended(job, want)
        if pieces is None:
            return False
        if len(pieces) > 1 and self._by_nodes[self._curve[job]]:
            together = lending.gathered(job, want)
            if together is not None and self.speed(job, want, len(together)) > self.speed(job, want, len(pieces)):
                pieces = together
        if self._gain(snapshot, job, want, len(pieces)) <= price:
            return False
        lending.put(job, pieces)
        self.grown.append(job)
        return True

    def _gather(self, snapshot: Snapshot, job: int) -> None:
        lending = self.lending
        gpus, nodes = lending.gpus[job], len(lending.held[job])
        if self.speed(job, gpus, 0) <= self.speed(job, gpus, nodes):
            return
        together = lending.gathered(job, gpus)
        if together is not None and len(together) < nodes and self._gain(snapshot, job, gpus, len(together)) > 0:
            lending.put(job, together)
