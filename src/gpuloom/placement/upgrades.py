"""Running jobs move to faster GPUs that stand idle.

A policy that doesn't know GPU models starts a job wherever there is room, and the job stays there, however slow that
is. This is the piece that it lacks: once it has decided, jobs that it starts go to the fastest model of which enough
GPUs stand idle, and running jobs that it leaves alone move there if they end sooner so; those that gain most come
first. A move is a restart: no work is done for `restart_overhead_s`. With
r the ratio of the two speeds a job with time t left at its present speed gains if

    restart + t / r < t,   that is   t > restart / (1 - 1 / r).

Where ends are known t is known; else a job is expected to go on for as long as it has run so far. A job that is still
starting has nothing to gain yet. Jobs that share their GPUs move together, if all of them gain, by what each keeps of
its speed beside the others there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision, Place, Placement, Reason, place_of
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import Workload
from gpuloom.placement.pool import Pool, pool_of_node, pools_of
from gpuloom.placement.shapes import shapes_of, speeds_by_pool

TOLERANCE_S = 1e-6
"""A job that is looked at when its move begins to pay is not looked at in vain."""


@dataclass(slots=True)
class Moves:
    """Where jobs move, when to look again (infinity: at the next event), and why, of jobs to be explained."""

    to: dict[int, Placement] = field(default_factory=dict)
    look_s: float = math.inf
    why: dict[int, Reason] = field(default_factory=dict)


@dataclass(slots=True)
class _Mover:
    """Jobs on one place with their layers, their GPUs in all, its GPU model, the models that they want (a bit mask),
    what a restart of all costs, the time each has left, whether all work, and whether they only start now."""

    jobs: list[int]
    layers: list[int]
    place: Placement
    gpus: int
    pool: int
    wants: int
    restart_s: float
    left_s: list[float]
    ready: bool
    starts: bool


@dataclass(slots=True)
class _Offers:
    """One model to all movers of one size that want it. pays: (-gain, mover, model, ratio of speeds) of the moves that
    pay now, best first; None until there is room for one."""

    pool: int
    gpus: int
    movers: list[int] = field(default_factory=list)
    pays: list[tuple[float, int, int, float]] | None = None


class Upgrades:
    """What there is to know of jobs and GPU models beforehand. Holds no state: it may serve any snapshot.

    Args:
        known: the policy may know when jobs end.
        sharing: how jobs slow each other down, of a policy that shares GPUs.
    """

    def __init__(self, workload: Workload, cluster: Cluster, *, known: bool, sharing: Sharing | None = None) -> None:
        self.workload, self.cluster, self._known, self._sharing = workload, cluster, known, sharing
        self._models = cluster.models
        self.possible = False
        """Some job is faster on one model of the cluster than on another."""
        if workload.speeds is None or len(cluster.models) < 2:
            return
        self._speed = speeds_by_pool(workload, cluster, shapes_of(workload, cluster))
        self._pool_of = pool_of_node(cluster)
        self._pools = pools_of(cluster)
        faster = self._speed[:, None, :] > self._speed[:, :, None]
        self._faster = faster @ (1 << np.arange(len(cluster.models), dtype=np.int64))
        """By job and model, the models on which it is faster, as a bit mask."""
        self.possible = bool(self._faster.any())

    def plan(
        self, snapshot: Snapshot, decision: Decision, about: Collection[int] = (), *, starts_only: bool = False
    ) -> Moves:
        """Moves of running jobs that the decision leaves where they are, and of those that it starts.

        Args:
            about: jobs of which the reason is wanted.
            starts_only: where running jobs must stay, and when it is looked again is known already.
        """
        moves = Moves()
        idle = self._idle(snapshot, decision)
        here = 0
        for node, mask in enumerate(idle):
            if mask:
                here |= 1 << self._pool_of[node]
        if not here:
            return moves
        if not snapshot.may_preempt and all(job in snapshot.placements for job in decision.run):
            moves.look_s = self._look_s(snapshot, decision, [pool.with_free(idle) for pool in self._pools], here)
            return moves
        movers = self._movers(snapshot, decision, here, starts_only)
        if not movers:
            return moves
        pools = [pool.with_free(idle) for pool in self._pools]
        offers, gone = self._offers(movers), [False] * len(movers)
        while True:
            chosen = self._best(snapshot, movers, gone, offers, pools, moves)
            if chosen is None:
                return moves
            number, place, pool, ratio = chosen
            mover = movers[number]
            if not (snapshot.may_preempt or mover.starts):
                # At the next interval; who else would move then plays no part now.
                pools[pool].release(place)
                moves.look_s = snapshot.now_s
                gone = [off or not other.starts for off, other in zip(gone, movers, strict=True)]
                continue
            gone[number] = True
            pools[mover.pool].release(mover.place)
            for job, layer in zip(mover.jobs, mover.layers, strict=True):
                moves.to[job] = Placement(place.nodes, place.masks, layer)
                if job in about:
                    moves.why[job] = self._reason(mover, pool, ratio, job)

    def _idle(self, snapshot: Snapshot, decision: Decision) -> list[int]:
        """GPUs that nobody uses once the decision is carried out."""
        idle, placements, freed = list(snapshot.idle_masks), snapshot.placements, False
        for job in (*decision.wait, *decision.run):
            before = placements.get(job)
            if before is not None:
                freed = True
                for node, mask in zip(before.nodes, before.masks, strict=True):
                    idle[node] |= mask
        for placement in decision.run.values():
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                idle[node] &= ~mask
        if freed:
            # Those who shared GPUs with them may be there still.
            changed = {*decision.wait, *decision.run}
            for job, placement in placements.items():
                if job not in changed:
                    for node, mask in zip(placement.nodes, placement.masks, strict=True):
                        idle[node] &= ~mask
        return idle

    def _movers(self, snapshot: Snapshot, decision: Decision, idle: int, starts_only: bool) -> list[_Mover]:
        """Running jobs that the decision leaves alone and those that it starts, by place, that are faster on models of
        which GPUs stand idle (a bit mask), or will once others have moved."""
        found = list(self._candidates(snapshot, decision, starts_only))
        before = 0
        while idle != before:
            before = idle
            for _, _, pool, wants, _ in found:
                if wants & before:
                    idle |= 1 << pool
        return [
            self._mover(snapshot, decision, jobs, place, wants & idle, starts)
            for jobs, place, _, wants, starts in found
            if wants & idle
        ]

    def _look_s(self, snapshot: Snapshot, decision: Decision, pools: list[Pool], idle: int) -> float:
        """When to look again where nobody moves now, as nobody starts and running jobs must stay."""
        look_s = math.inf
        rooms = list(enumerate(pools))
        for jobs, place, _, wanted, _ in self._candidates(snapshot, decision):
            wants, gpus = wanted & idle, place.gpus
            fitting = [(pool, room) for pool, room in rooms if wants >> pool & 1 and room.fits(gpus)] if wants else ()
            if not fitting:
                continue
            mover = self._mover(snapshot, decision, jobs, place, wants, starts=False)
            for pool, room in fitting:
                ratio = self._ratio(snapshot, mover, pool)
                if ratio <= 1.0:
                    continue
                later_s = self._pays_in_s(snapshot, mover, ratio)
                if later_s > 0.0:
                    look_s = min(look_s, snapshot.now_s + later_s)
                elif (there := room.take(mover.gpus)) is not None:
                    room.release(there)
                    if self._pays_there(snapshot, mover, there, ratio) is not None:
                        return snapshot.now_s
        return look_s

    def _candidates(
        self, snapshot: Snapshot, decision: Decision, starts_only: bool = False
    ) -> Iterator[tuple[list[int], Placement, int, int, bool]]:
        """Those who are faster on other models and may move there: jobs on one place, its GPU model, the models that
        they want, whether they start now. First those that run and are left alone."""
        if self._sharing is not None:
            for jobs, place, starts in self._places(snapshot, decision):
                pool = self._pool_of[place.nodes[0]]
                wants = self._wanted(jobs, pool)
                if wants and (starts or not starts_only) and all(snapshot.may_move(job) for job in jobs):
                    yield jobs, place, pool, wants, starts
            return
        run, placements, pool_of, wanted = decision.run, snapshot.placements, self._pool_of, self._faster.item
        stays = {*run, *decision.wait}
        for job, placement in () if starts_only else placements.items():
            pool = pool_of[placement.nodes[0]]
            wants = wanted(job, pool)
            if wants and job not in stays and snapshot.may_move(job):
                yield [job], placement, pool, wants, False
        for job, placement in run.items():
            if job not in placements:
                pool = pool_of[placement.nodes[0]]
                wants = wanted(job, pool)
                if wants and snapshot.may_move(job):
                    yield [job], placement, pool, wants, True

    def _places(self, snapshot: Snapshot, decision: Decision) -> Iterator[tuple[list[int], Placement, bool]]:
        """Jobs that share GPUs by place: those that run and are left alone, then those that start (True)."""
        run, wait, placements = decision.run, set(decision.wait), snapshot.placements
        together: dict[Place, list[int]] = {}
        begun: dict[Place, list[int]] = {}
        changed = {place_of(placement) for placement in run.values()}
        for job, placement in placements.items():
            together.setdefault(place_of(placement), []).append(job)
            if job in run or job in wait:
                changed.add(place_of(placement))
        for job, placement in run.items():
            begun.setdefault(place_of(placement), []).append(job)
        for place, jobs in together.items():
            if place not in changed:
                yield jobs, placements[jobs[0]], False
        for place, jobs in begun.items():
            if place not in together and not any(job in placements for job in jobs):
                yield jobs, run[jobs[0]], True

    def _mover(
        self, snapshot: Snapshot, decision: Decision, jobs: list[int], place: Placement, wants: int, starts: bool
    ) -> _Mover:
        pool, now_s, gpus = self._pool_of[place.nodes[0]], snapshot.now_s, place.gpus
        if starts:
            layers = [decision.run[job].layer for job in jobs]
            left_s = [0.0] * len(jobs)
            return _Mover(jobs, layers, place, gpus, pool, wants, 0.0, left_s, ready=True, starts=True)
        placements, overhead_s = snapshot.placements, snapshot.again_s
        lasts_s = [snapshot.predicted_end_s(job) - now_s if self._known else snapshot.held_s(job) for job in jobs]
        if len(jobs) == 1:
            job = jobs[0]
            layers, restart_s, ready = [placements[job].layer], overhead_s[job], snapshot.works_from_s(job) <= now_s
            return _Mover(jobs, layers, place, gpus, pool, wants, restart_s, lasts_s, ready, starts=False)
        restart_s = sum_floats([overhead_s[job] for job in jobs])
        ready = all(snapshot.works_from_s(job) <= now_s for job in jobs)
        layers = [placements[job].layer for job in jobs]
        return _Mover(jobs, layers, place, gpus, pool, wants, restart_s, lasts_s, ready, starts=False)

    def _wanted(self, jobs: list[int], pool: int) -> int:
        """The models on which all of these jobs are faster than on this one, as a bit mask."""
        wants: int = self._faster.item(jobs[0], pool)
        for job in jobs[1:]:
            wants &= self._faster.item(job, pool)
        return wants

    def _offers(self, movers: list[_Mover]) -> list[_Offers]:
        """All models that movers want, by size."""
        found: dict[tuple[int, int], _Offers] = {}
        for number, mover in enumerate(movers):
            for pool in range(len(self._models)):
                if mover.wants >> pool & 1:
                    offers = found.get((pool, mover.gpus))
                    if offers is None:
                        offers = found[pool, mover.gpus] = _Offers(pool, mover.gpus)
                    offers.movers.append(number)
        return list(found.values())

    def _best(
        self,
        snapshot: Snapshot,
        movers: list[_Mover],
        gone: list[bool],
        offers: list[_Offers],
        pools: list[Pool],
        moves: Moves,
    ) -> tuple[int, Placement, int, float] | None:
        """The move that gains most: who, its GPUs, which are taken, their model, and the ratio of speeds. Notes in
        `moves` when others may pay."""
        heads: list[list[tuple[float, int, int, float]]] = []
        for offer in offers:
            if not pools[offer.pool].fits(offer.gpus):
                continue
            if offer.pays is None:
                offer.pays = self._pays(snapshot, movers, gone, offer, moves)
            if offer.pays:
                heads.append(offer.pays)
        for _, number, pool, ratio in merge(*heads) if len(heads) > 1 else heads[0] if heads else ():
            if gone[number]:
                continue
            mover = movers[number]
            place = pools[pool].take(mover.gpus)
            if place is None:
                continue
            in_all = self._pays_there(snapshot, mover, place, ratio)
            if in_all is not None:
                return number, place, pool, in_all
            pools[pool].release(place)
        return None

    def _pays_there(self, snapshot: Snapshot, mover: _Mover, place: Placement, ratio: float) -> float | None:
        """The ratio of speeds with what it changes that the GPUs lie on more or fewer nodes; None: it does not pay."""
        spread = min([self._spread_ratio(job, mover.place, place) for job in mover.jobs])
        if spread == 1.0 or (ratio * spread > 1.0 and self._pays_in_s(snapshot, mover, ratio * spread) == 0.0):
            return ratio * spread
        return None

    def _pays(
        self, snapshot: Snapshot, movers: list[_Mover], gone: list[bool], offers: _Offers, moves: Moves
    ) -> list[tuple[float, int, int, float]]:
        """The moves that pay, best first. They stay so: what changes while moves are chosen is only where there is
        room."""
        found: list[tuple[float, int, int, float]] = []
        speed, there = self._speed, offers.pool
        for number in offers.movers:
            if gone[number]:
                continue
            mover = movers[number]
            ratio = self._ratio(snapshot, mover, there)
            if ratio <= 1.0:
                continue
            later_s = self._pays_in_s(snapshot, mover, ratio)
            if later_s == 0.0:
                gain = sum_floats([speed.item(job, there) - speed.item(job, mover.pool) for job in mover.jobs])
                found.append((-gain * offers.gpus, number, there, ratio))
            else:
                moves.look_s = min(moves.look_s, snapshot.now_s + later_s)
        found.sort()
        return found

    def _ratio(self, snapshot: Snapshot, mover: _Mover, pool: int) -> float:
        """How many times as fast the mover is on a model."""
        if len(mover.jobs) > 1:
            return self._ratio_together(snapshot, mover, pool)
        job = mover.jobs[0]
        return self._speed.item(job, pool) / self._speed.item(job, mover.pool)

    def _ratio_together(self, snapshot: Snapshot, mover: _Mover, pool: int) -> float:
        """How many times as fast jobs that share GPUs are on a model, the one that gains least of them; 0: they do not
        fit on it together."""
        on = sorted(zip(mover.layers, mover.jobs, strict=True))
        ratios = []
        for layer, job in on:
            there, here = self._speed.item(job, pool), self._speed.item(job, mover.pool)
            if self._sharing is not None:
                others = [entry for entry in on if entry[1] != job]
                there *= self._sharing.rate(job, layer, others, self._models[pool])
                here *= self._sharing.rate(job, layer, others, self._models[mover.pool])
            ratios.append(there / here if here > 0 else 0.0)
        return min(ratios)

    def _pays_in_s(self, snapshot: Snapshot, mover: _Mover, ratio: float) -> float:
        """Seconds until the move pays if nothing changes: 0 if it does now, infinity: never."""
        if mover.starts:
            return 0.0
        need_s = mover.restart_s / (1.0 - 1.0 / ratio) if math.isfinite(ratio) else mover.restart_s
        short_s = max([need_s - left_s for left_s in mover.left_s])
        if self._known:
            if short_s >= 0.0:
                return math.inf
        elif short_s > TOLERANCE_S:
            return short_s
        if mover.ready:
            return 0.0
        return max(max([snapshot.works_from_s(job) for job in mover.jobs]) - snapshot.now_s, TOLERANCE_S)

    def _spread_ratio(self, job: int, before: Placement, after: Placement) -> float:
        """What it changes that the GPUs lie on more or fewer nodes."""
        scaling = self.workload.scaling
        if scaling is None or len(before.nodes) == len(after.nodes):
            return 1.0
        gpus = before.gpus
        return scaling.speed(job, gpus, len(after.nodes)) / scaling.speed(job, gpus, len(before.nodes))

    def _reason(self, mover: _Mover, pool: int, ratio: float, job: int) -> Reason:
        there, here = self._models[pool], self._models[mover.pool]
        if mover.starts:
            text = f"It starts on {there}, where it is {ratio:.3g} times as fast as on {here}."
            return Reason("upgraded", text, {"ratio": ratio, "left_s": 0.0, "restart_s": 0.0})
        left_s = mover.left_s[mover.jobs.index(job)]
        expected = "it has" if self._known else "it is expected to have (as long as it has run)"
        text = (
            f"{there} GPUs stood idle, on which it is {ratio:.3g} times as fast as on {here}: of the {left_s:.0f} s "
            f"that {expected} left there it saves {left_s * (1.0 - 1.0 / ratio):.0f} s, and its restart takes "
            f"{mover.restart_s:.0f} s."
        )
        return Reason("upgraded", text, {"ratio": ratio, "left_s": left_s, "restart_s": mover.restart_s})


def merged(decision: Decision, moves: Moves) -> Decision:
    """The decision with these moves."""
    run: Mapping[int, Placement] = {**decision.run, **moves.to}
    why = {**decision.why, **moves.why} if moves.why else decision.why
    return Decision(run, decision.wait, min(decision.wake_at_s, moves.look_s), why)
