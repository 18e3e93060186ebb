"""A world in which elastic jobs have their smallest size, for a base policy that knows of no sizes.

In the view every job has so many GPUs as it needs at least (its *base size*) and GPUs beyond that are free: they are
borrowed. Who runs is thus the base policy's choice alone, and borrowed GPUs never keep a job waiting. Durations and
work left are those at the base size, so that the view is a workload of its own; the end of a running job is the
true one, at the size that it has. `Lending` keeps the view and the true cluster together: a job that the base starts
gets its base GPUs, if need be borrowed ones, which are given back; a job that the base stops gives up everything.

The two worlds agree on how many GPUs of each node a job's base part holds, not on which: where the base takes a GPU
that is borrowed and another one of the node is free, it gets that one, and nobody shrinks for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Placement, Reason
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.pool import lowest_bits, pool_of_node
from gpuloom.placement.shapes import impossible_jobs, shapes_of

Pieces = dict[int, int]
"""{node: mask of GPUs, or their number}."""
Place = tuple[tuple[int, ...], tuple[int, ...]]
"""(nodes, masks) of a placement, whatever its layer."""


def _place(placement: Placement) -> Place:
    return placement.nodes, placement.masks


class Sizes:
    """The sizes of every job, GPUs, smallest first; one for a rigid job.

    A job whose smallest size can't be placed on the cluster is taken as rigid.

    Args:
        woven: jobs whose stage times are known keep at least the size that they ask for, at which these were measured.
    """

    def __init__(self, workload: Workload, cluster: Cluster, *, woven: bool = False) -> None:
        scaling = workload.scaling
        self.of: list[tuple[int, ...]] = [(gpus,) for gpus in workload.gpus.tolist()]
        self.base_speed: F8 = np.ones(len(workload))
        """Speed at the smallest size on the fewest nodes, relative to that at which `duration_s` was measured."""
        if scaling is None:
            return
        known: dict[tuple[int, int, int, int], tuple[int, ...]] = {}
        columns = (scaling.curve, scaling.replica_gpus, scaling.min_replicas, scaling.max_replicas)
        for job, key in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            curve, step, low, high = key
            if curve == NO_CURVE or low == high:
                continue
            if key not in known:
                able = scaling.curves[curve][:, 0] > 0
                known[key] = tuple(size for size in range(low * step, high * step + 1, step) if able[size])
            self.of[job] = known[key]
        if woven and workload.stage_s is not None:
            for job in np.flatnonzero(np.isfinite(workload.stage_s).all(axis=1)).tolist():
                asked = int(workload.gpus[job])
                self.of[job] = tuple(size for size in self.of[job] if size >= asked)
        base = np.array([sizes[0] for sizes in self.of], dtype=np.int32)
        smallest = replace(workload, gpus=base, scaling=None)
        for job in impossible_jobs(shapes_of(smallest, cluster), cluster).tolist():
            self.of[job] = (int(workload.gpus[job]),)
        largest_node = max(node.gpus for node in cluster.nodes)
        for job, sizes in enumerate(self.of):
            if len(sizes) > 1:
                self.base_speed[job] = scaling.speed(job, sizes[0], math.ceil(sizes[0] / largest_node))

    @property
    def base_gpus(self) -> NDArray[np.int32]:
        """The smallest size of every job."""
        return np.array([sizes[0] for sizes in self.of], dtype=np.int32)

    @property
    def any_elastic(self) -> bool:
        return any(len(sizes) > 1 for sizes in self.of)


class BaseView(Snapshot):
    """What the base policy sees. `sync` before every call of `decide`. A GPU is free in it if no job has it."""

    __slots__ = ("_base_placements", "_elastic", "_free", "_gpus", "_remaining", "_slow", "_users", "homeless", "real")

    def __init__(self, real: Snapshot, sizes: Sizes) -> None:
        self.real = real
        self.cluster = real.cluster
        self._gpus = sizes.base_gpus
        self._slow: list[float] = sizes.base_speed.tolist()
        self._elastic = [len(own) > 1 for own in sizes.of]
        self.workload = base_workload(real.workload, sizes)
        self._base_placements: dict[int, Placement] = {}
        self.placements = MappingProxyType(self._base_placements)
        self._free: list[int] = []
        self._users: list[dict[int, int]] = []
        """Of each node {job: GPUs}."""
        self.homeless: list[int] = []
        """Jobs that run elsewhere and whose home was lost: here they wait."""
        self.restart_overhead_s = real.restart_overhead_s
        self.resize_overhead_s = real.resize_overhead_s
        self._remaining = sizes.base_speed

    def sync(self, real: Snapshot) -> None:
        """Take over the time and the events."""
        self.real = real
        self.now_s, self.may_preempt = real.now_s, real.may_preempt
        self.arrived, self.finished, self.evicted = real.arrived, real.finished, real.evicted
        self.nodes_down, self.nodes_up, self.resized = real.nodes_down, real.nodes_up, real.resized

    # -- what Lending writes --------------------------------------------------------------------------------

    def rebuild(self, placements: dict[int, Placement], free: Sequence[int]) -> None:
        self._base_placements.clear()
        self._base_placements.update(placements)
        self._free = list(free)
        self._users = [{} for _ in free]
        for job, placement in placements.items():
            self.put(job, placement)

    def put(self, job: int, placement: Placement) -> None:
        self._base_placements[job] = placement
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            self._free[node] &= ~mask
            self._users[node][job] = mask

    def remove(self, job: int) -> None:
        placement = self._base_placements.pop(job)
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            users = self._users[node]
            del users[job]
            for other in users.values():
                mask &= ~other
            self._free[node] |= mask

    def who_has(self, place: Placement) -> int | None:
        """A running job that has this very place."""
        for job in self._users[place.nodes[0]]:
            if _place(self._base_placements[job]) == _place(place):
                return job
        return None

    def alone(self, job: int) -> bool:
        """Whether a running job shares its GPUs with nobody."""
        placement = self._base_placements.get(job)
        if placement is None:
            return True
        node, mask = placement.nodes[0], placement.masks[0]
        return not any(other & mask for one, other in self._users[node].items() if one != job)

    def set_node(self, node: int, mask: int) -> None:
        self._free[node] = mask

    # -- Snapshot -------------------------------------------------------------------------------------------

    def remaining_s(self, job: int) -> float:
        return self.real.remaining_s(job) / self._slow[job]

    def predicted_end_s(self, job: int) -> float:
        """The true end; of a job that its borrowed GPUs slow down, the end that it would have without them."""
        end = self.real.predicted_end_s(job)
        rate = self.real.rate(job)
        if not self._elastic[job] or rate >= self._slow[job] or self.real.gpus_of(job) == self._gpus[job]:
            return end
        left = self.real.remaining_s(job)
        if rate <= 0.0:
            return self.now_s + left / self._slow[job]
        return end - left * (1.0 / rate - 1.0 / self._slow[job])

    def rate(self, job: int) -> float:
        return self.real.rate(job) / self._slow[job]

    def remaining_of(self, jobs: NDArray[np.intp]) -> F8:
        return self.real.remaining_of(jobs) / self._remaining[jobs]

    def held_of(self, jobs: NDArray[np.intp]) -> F8:
        return self.real.held_of(jobs)

    def held_s(self, job: int) -> float:
        return self.real.held_s(job)

    def attained_gpu_s(self, job: int) -> float:
        """GPUs of the base size times seconds held."""
        return self.real.held_s(job) * float(self._gpus[job])

    def gpus_of(self, job: int) -> int:
        return int(self._gpus[job]) if job in self._base_placements else 0

    def starts(self, job: int) -> int:
        return self.real.starts(job)

    def first_start_s(self, job: int) -> float:
        return self.real.first_start_s(job)

    def is_running(self, job: int) -> bool:
        return self.real.is_running(job) and job not in self.homeless

    def is_waiting(self, job: int) -> bool:
        return self.real.is_waiting(job) or job in self.homeless

    def waiting(self) -> list[int]:
        return sorted([*self.real.waiting(), *self.homeless])

    def free_masks(self, layer: int = 0) -> Sequence[int]:
        return self._free

    @property
    def idle_masks(self) -> Sequence[int]:
        return self._free

    def remaining_column(self) -> F8:
        left: F8 = self.real.remaining_column() / self._remaining
        left.flags.writeable = False
        return left

    @property
    def nodes_out(self) -> frozenset[int]:
        return self.real.nodes_out

    @property
    def waiting_count(self) -> int:
        return self.real.waiting_count + len(self.homeless)

    @property
    def free_gpus(self) -> int:
        return sum(mask.bit_count() for mask in self._free)


def base_workload(workload: Workload, sizes: Sizes) -> Workload:
    """The jobs at their smallest sizes: rigid, and as slow as they are there."""
    return replace(
        workload,
        gpus=sizes.base_gpus,
        duration_s=workload.duration_s / sizes.base_speed,
        estimate_s=None if workload.estimate_s is None else workload.estimate_s / sizes.base_speed,
        scaling=None,
    )


class Lending:
    """Who has which GPUs, who borrows how many of each node, and the plan of one call.

    A call goes: `take_in` what happened; `apply` the base's decision; give jobs other GPUs with `put`; `decision`.

    A job's *home* is where it lives in the base's world: so many GPUs of these nodes are its own. On every node what
    it holds beyond that is borrowed, also if it lives elsewhere altogether; its own GPUs at home may then be lent to
    others. Where the base needs GPUs, borrowers give them back: they shrink, or, when they would fall below their base
    size, go home, for which others may have to give GPUs back in turn. This ends, as the base's world has room for
    all homes. Jobs that share GPUs in the base's world share them in the true one, at their base sizes.

    Args:
        home: of every running job that is not rigid, its place in the base's world. Belongs to the policy's memory and
            is written here.
        woven: see `Sizes`.
    """

    def __init__(self, snapshot: Snapshot, home: dict[int, Placement], *, woven: bool = False) -> None:
        cluster = snapshot.cluster
        self.sizes = Sizes(snapshot.workload, cluster, woven=woven)
        self._woven = woven
        self.view = BaseView(snapshot, self.sizes)
        self.home = home
        self.held: dict[int, Pieces] = {}
        """GPUs of every running job that is not rigid."""
        self.gpus: dict[int, int] = {}
        """Their number."""
        self.own: dict[int, Pieces] = {}
        """GPUs that are its own: {node: number}."""
        self._borrowers: list[set[int]] = [set() for _ in cluster.nodes]
        self.pool_of = pool_of_node(cluster)
        self.nodes_of: list[list[int]] = [[] for _ in cluster.models]
        """Nodes of each GPU model."""
        for node, pool in self.pool_of.items():
            self.nodes_of[pool].append(node)
        self._full = [(1 << node.gpus) - 1 for node in cluster.nodes]
        self.free: list[int] = []
        """Truly free GPUs of each node as the plan goes."""
        self._before = snapshot.placements
        self.run: dict[int, Placement] = {}
        """Jobs that the base starts or moves in this call."""
        self._touched: dict[int, None] = {}
        self._wait: list[int] = []
        self.reclaimed: list[int] = []
        """Jobs that had to give GPUs back in this call."""
        self.attached: Any = None
        """What the policy keeps beside it; it lives as long."""
        self._rebuild(snapshot)
        self._built = True

    def _rebuild(self, snapshot: Snapshot) -> None:
        """From true placements. `home` may still name jobs that have ended or lost their node."""
        free = [0 if node in snapshot.nodes_out else full for node, full in enumerate(self._full)]
        base: dict[int, Placement] = {}
        shared: dict[Place, tuple[int, ...]] = {}
        known = {job: home for job, home in self.home.items() if job in snapshot.placements}
        self.home.clear()
        for job, placement in snapshot.placements.items():
            place = placement
            if len(self.sizes.of[job]) > 1:
                place = known.get(job) or _part(placement, self.sizes.of[job][0])
                if any(node in snapshot.nodes_out for node in place.nodes):
                    self._lose_home(job, dict(zip(placement.nodes, placement.masks, strict=True)))
                    continue
            masks = shared.get(_place(placement))
            if masks is None:
                taken = []
                for node, mask in zip(place.nodes, place.masks, strict=True):
                    taken.append(lowest_bits(free[node], mask.bit_count()))
                    free[node] &= ~taken[-1]
                masks = shared[_place(placement)] = tuple(taken)
            base[job] = Placement(place.nodes, masks, placement.layer)
            if len(self.sizes.of[job]) > 1:
                self._settle(job, base[job])
                self._enter(job, dict(zip(placement.nodes, placement.masks, strict=True)))
        self.view.rebuild(base, free)

    def _lose_home(self, job: int, pieces: Pieces) -> None:
        self.view.homeless.append(job)
        self.home.pop(job, None)
        self.own[job] = {}
        self._enter(job, pieces)

    def _settle(self, job: int, home: Placement) -> None:
        self.home[job] = home
        self.own[job] = {node: mask.bit_count() for node, mask in zip(home.nodes, home.masks, strict=True)}

    # -- what happened --------------------------------------------------------------------------------------

    def take_in(self, snapshot: Snapshot) -> None:
        """Events since the last call (nothing, if this was just built from this snapshot)."""
        self.view.sync(snapshot)
        self._before = snapshot.placements
        self.free = list(snapshot.idle_masks)
        self.run, self._touched, self._wait = {}, {}, []
        self.reclaimed = []
        if self._built:
            self._built = False
            return
        for job in (*snapshot.finished, *snapshot.evicted):
            self.view.remove(job)
            self._forget(job)
        for node in (*snapshot.nodes_down, *snapshot.nodes_up):  # those that are back were lost in between
            for job in [job for job, own in self.own.items() if node in own]:
                self.view.remove(job)
                self._lose_home(job, self.held[job])
        for node in snapshot.nodes_down:
            self.view.set_node(node, 0)
        if self.view.homeless:
            self.view.evicted = [*snapshot.evicted, *self.view.homeless]
        for node in snapshot.nodes_up:
            self.view.set_node(node, self._full[node])

    def _forget(self, job: int) -> None:
        self.home.pop(job, None)
        if job in self.own:
            del self.own[job], self.gpus[job]
            for node in self.held.pop(job):
                self._borrowers[node].discard(job)

    def _enter(self, job: int, pieces: Pieces) -> None:
        """The job holds these GPUs; `free` is the caller's."""
        own = self.own[job]
        for node in self.held.get(job, ()):
            self._borrowers[node].discard(job)
        for node, mask in pieces.items():
            if mask.bit_count() > own.get(node, 0):
                self._borrowers[node].add(job)
        self.held[job] = pieces
        self.gpus[job] = sum([mask.bit_count() for mask in pieces.values()])

    # -- the base's decision --------------------------------------------------------------------------------

    def apply(self, decision: Decision, first_to_shrink: Callable[[int], Any]) -> None:
        """Carry the base's decision over to the true cluster.

        Args:
            first_to_shrink: key of a job that borrows; small ones give GPUs back first.
        """
        self._wait = list(decision.wait)
        homeless, self.view.homeless = self.view.homeless, []
        for job in homeless[:]:
            if job in decision.run and self._woven:
                # It may share its new home with others: it moves there.
                homeless.remove(job)
                for node, mask in self.held[job].items():
                    self.free[node] |= mask
                self._forget(job)
            elif job in decision.run:
                # It has a home again, and stays where it is.
                self.view.put(job, decision.run[job])
                self._settle(job, decision.run[job])
                self._enter(job, self.held[job])
            else:
                for node, mask in self.held[job].items():
                    self.free[node] |= mask
                self._forget(job)
                self._wait.append(job)
        leaving = [
            job for job in (*decision.wait, *decision.run) if job in self.view.placements and job not in homeless
        ]
        gone = set(leaving)
        for job in leaving:
            shares = not self.view.alone(job)
            for node, mask in zip(self._before[job].nodes, self._before[job].masks, strict=True):
                self.free[node] |= mask & ~self._kept(node, gone) if shares else mask
            self.view.remove(job)
            self._forget(job)
        # Where members of groups go that join others, or each other.
        true: dict[Place, tuple[int, ...]] = {}
        for job, wanted in decision.run.items():
            if job in homeless:
                continue
            masks = true.get(_place(wanted))
            if masks is None:
                masks = true[_place(wanted)] = self._masks(wanted, first_to_shrink)
            self.view.put(job, wanted)
            self.run[job] = Placement(wanted.nodes, masks, wanted.layer)
            if len(self.sizes.of[job]) > 1:
                self._settle(job, wanted)
                self._enter(job, dict(zip(wanted.nodes, masks, strict=True)))

    def _kept(self, node: int, leaving: set[int]) -> int:
        """True GPUs of a node that jobs hold which stay."""
        kept = 0
        for job, placement in self._before.items():
            if job not in leaving and node in placement.nodes:
                kept |= placement.masks[placement.nodes.index(node)]
        return kept

    def _masks(self, wanted: Placement, first_to_shrink: Callable[[int], Any]) -> tuple[int, ...]:
        """True GPUs for a place of the base's world: those of a job that has it and stays, or free ones."""
        host = self.view.who_has(wanted)
        if host is not None and host in self.own:
            if self.held[host].keys() != self.own[host].keys() or self.gpus[host] > self.sizes.of[host][0]:
                self._go_home(host, first_to_shrink)
                self.reclaimed.append(host)
            return tuple([self.held[host][node] for node in wanted.nodes])
        if host is not None:
            before = self.run.get(host, self._before.get(host))
            if before is not None:
                pieces = dict(zip(before.nodes, before.masks, strict=True))
                return tuple([pieces[node] for node in wanted.nodes])
        masks = []
        for node, mask in zip(wanted.nodes, wanted.masks, strict=True):
            count = mask.bit_count()
            self._reclaim(node, count, first_to_shrink)
            taken = mask if not mask & ~self.free[node] else lowest_bits(self.free[node], count)
            self.free[node] &= ~taken
            masks.append(taken)
        return tuple(masks)

    def _reclaim(self, node: int, count: int, first_to_shrink: Callable[[int], Any]) -> None:
        """Have borrowers on the node give GPUs back until `count` of its GPUs are free."""
        while (missing := count - self.free[node].bit_count()) > 0:
            job = min(self._borrowers[node], key=lambda j: (first_to_shrink(j), j))
            lent = self.held[job][node].bit_count() - self.own[job].get(node, 0)
            left = self.gpus[job] - min(missing, lent)
            self.reclaimed.append(job)
            if left >= self.sizes.of[job][0]:
                self.shrink(job, max(size for size in self.sizes.of[job] if size <= left), first=node)
            else:
                self._go_home(job, first_to_shrink)

    def _go_home(self, job: int, first_to_shrink: Callable[[int], Any]) -> None:
        own, before = self.own[job], self.held[job]
        kept = {}
        for node, count in own.items():
            mask = before.get(node, 0)
            if mask:
                kept[node] = lowest_bits(mask, min(count, mask.bit_count()))
        self.put(job, kept)
        for node, count in own.items():
            missing = count - kept.get(node, 0).bit_count()
            if missing:
                self._reclaim(node, missing, first_to_shrink)
                kept = {**kept, node: kept.get(node, 0) | lowest_bits(self.free[node], missing)}
                self.put(job, kept)

    # -- who holds what -------------------------------------------------------------------------------------

    def put(self, job: int, pieces: Pieces) -> None:
        """A running job that is not rigid has these GPUs from now on; they must be its own now, or free."""
        for node, mask in self.held[job].items():
            self.free[node] |= mask
        for node, mask in pieces.items():
            self.free[node] &= ~mask
        self._enter(job, pieces)
        self._touched[job] = None

    def shrink(self, job: int, gpus: int, *, first: int | None = None) -> None:
        """A job gives borrowed GPUs back, down to `gpus`: those on node `first` before others, then those on nodes
        of which it holds fewest."""
        pieces, own = dict(self.held[job]), self.own[job]
        left = self.gpus[job] - gpus
        for node in sorted(pieces, key=lambda n: (n != first, pieces[n].bit_count(), n)):
            held = pieces[node].bit_count()
            count = min(left, held - own.get(node, 0))
            if count > 0:
                pieces[node] = lowest_bits(pieces[node], held - count)
                if not pieces[node]:
                    del pieces[node]
                left -= count
        self.put(job, pieces)

    def extended(self, job: int, gpus: int) -> Pieces | None:
        """GPUs for a running job to grow to `gpus`: those it has and free ones, on its own nodes first, then on as
        few others as can be. None if there are not enough."""
        free = self.free
        pieces = dict(self.held[job])
        left = gpus - self.gpus[job]
        for node in sorted(pieces, key=lambda n: (-free[n].bit_count(), n)):
            count = min(left, free[node].bit_count())
            if count:
                pieces[node] |= lowest_bits(free[node], count)
                left -= count
        if left:
            others = [n for n in self._alike(job) if free[n] and n not in pieces]
            more = _fewest_nodes([(free[n].bit_count(), n) for n in others], left)
            if more is None:
                return None
            for node, count in more:
                pieces[node] = lowest_bits(free[node], count)
        return pieces

    def gathered(self, job: int, gpus: int) -> Pieces | None:
        """GPUs for a running job to have `gpus` on as few nodes as can be, wherever that is."""
        held, free = self.held[job], self.free
        there = [(free[n].bit_count() + held.get(n, 0).bit_count(), n) for n in self._alike(job)]
        chosen = _fewest_nodes([(count, n) for count, n in there if count], gpus)
        if chosen is None:
            return None
        pieces = {}
        for node, count in chosen:
            mine = held.get(node, 0)
            kept = lowest_bits(mine, min(count, mine.bit_count()))
            pieces[node] = kept | lowest_bits(free[node], count - kept.bit_count())
        return pieces

    def _alike(self, job: int) -> list[int]:
        """Nodes of the job's GPU model."""
        return self.nodes_of[self.pool_of[next(iter(self.held[job]))]]

    def decision(self, wake_at_s: float, why: Mapping[int, Reason]) -> Decision:
        """The plan of this call."""
        run = self.run
        for job in self._touched:
            pieces = self.held[job]
            before = self._before.get(job)
            layer = run[job].layer if job in run else 0 if before is None else before.layer
            if job in run or before is None or pieces != dict(zip(before.nodes, before.masks, strict=True)):
                run[job] = Placement(tuple(pieces), tuple(pieces.values()), layer)
        if not run and not self._wait and wake_at_s == math.inf:
            return NOTHING
        return Decision(run, self._wait, wake_at_s, why)


def _fewest_nodes(room: list[tuple[int, int]], gpus: int) -> list[tuple[int, int]] | None:
    """(node, number) for so many GPUs on few nodes, of (free GPUs, node): the fullest node that holds all that is left,
    else the emptiest. None if there are not enough."""
    room = sorted(room)
    if sum([count for count, _ in room]) < gpus:
        return None
    chosen = []
    while gpus:
        place = next((i for i, (count, _) in enumerate(room) if count >= gpus), len(room) - 1)
        count, node = room.pop(place)
        chosen.append((node, min(count, gpus)))
        gpus -= min(count, gpus)
    return chosen


def _part(placement: Placement, gpus: int) -> Placement:
    """So many GPUs of a placement, on the nodes where it has most (all, if it has fewer)."""
    pieces: Pieces = {}
    left = gpus
    for mask, node in sorted(zip(placement.masks, placement.nodes, strict=True), key=lambda p: (-p[0].bit_count(), p)):
        count = min(left, mask.bit_count())
        if count:
            pieces[node] = lowest_bits(mask, count)
            left -= count
    return Placement(tuple(pieces), tuple(pieces.values()))


def replicas_of(sizes: Iterable[int], replica_gpus: int) -> tuple[int, ...]:
    """Sizes as numbers of replicas."""
    return tuple(size // replica_gpus for size in sizes)
