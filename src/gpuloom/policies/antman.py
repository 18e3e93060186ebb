"""AntMan: guaranteed jobs own their GPUs, opportunistic ones run on what these leave.

Xiao et al., "AntMan: Dynamic Scaling on GPU Clusters for Deep Learning" (OSDI'20), section 3. Order: guaranteed
before opportunistic, then submission. Nobody is stopped; sharing takes the place of preemption.
    - A guaranteed job takes GPUs without another guaranteed job, all on one node if it fits one, else whole nodes
      and a remainder. If there are not enough, it keeps those it found and waits for the rest; opportunistic jobs
      use them meanwhile (section 5.1).
    - An opportunistic job takes the least loaded GPUs without another opportunistic job, wherever they are.
Its speed beside others: `interleave/opportunistic.py`. Classes come from the trace's priorities; without them a
share `opportunistic` of the jobs is drawn; those that come later, while it runs, by their names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from types import MappingProxyType
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import MASKS_BY_JOB, NODES, PER_JOB, PLACES_BY_JOB, Rows
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Placement, Reason
from gpuloom.core.share_class import BEST_EFFORT
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8, Workload
from gpuloom.interleave.opportunistic import GUARANTEED_LAYER, OPPORTUNISTIC_LAYER, OpportunisticSharing
from gpuloom.learning.q_learning import uniform
from gpuloom.placement.shapes import shapes_of
from gpuloom.policies.base import Parameter, Policy, Preemptive, Traits, fraction, seed, share
from gpuloom.policies.gpu_room import GpuRoom, first_gpus, limits_memory

RESERVED, GUARANTEED, OPPORTUNISTIC = 0.1 - 0.01, 0.1, 0.9
"""Load that a job puts on a GPU: one that waits for more GPUs, a guaranteed and an opportunistic one."""
NONE: Mapping[int, int] = MappingProxyType({})
FULL = 0.8
"""From this load on a GPU takes no further opportunistic job (one already puts more on it)."""


@dataclass(slots=True)
class Memory:
    """Per job: True for opportunistic. Of guaranteed jobs that wait for more GPUs, those they hold: {node: mask}.

    As of the last call: load by GPU, with the rounding of all that came and went, as it settles ties; who ran where;
    nodes out of service.
    """

    opportunistic: NDArray[np.bool_] = field(metadata=PER_JOB)
    reserved: dict[int, dict[int, int]] = field(default_factory=dict, metadata=MASKS_BY_JOB)
    load: F8 = field(default_factory=lambda: np.zeros(0))
    where: dict[int, Placement] = field(default_factory=dict, metadata=PLACES_BY_JOB)
    out: list[int] = field(default_factory=list, metadata=NODES)


class Antman(Policy):
    """See the module."""

    id = "antman"
    traits = Traits(
        summary="guaranteed jobs own GPUs, opportunistic ones share them",
        knows="job classes",
        preemptive=Preemptive.NO,
        heterogeneity=False,
        sharing=True,
        paper="Xiao et al., OSDI'20",
        weights="",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("opportunistic", 0.5, fraction, "share of opportunistic jobs where the trace has no priorities"),
        Parameter("share", 0.5, share, "speed beside a guaranteed job of unknown stages, relative to running alone"),
        Parameter("seed", 0, seed, "seed for drawing the classes"),
    )
    uses_stages = True
    own_priorities = True
    spills_memory = True  # section 4.2: memory scales down to the host's (where it does not: Snapshot.memory_stays)
    max_jobs_per_gpu = 2

    remembers = (Memory,)
    cache: _Books | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        given = _given(workload)
        if given is not None:
            return Memory(given)
        draw = np.random.default_rng(self.values["seed"]).random(len(workload))
        return Memory(draw < self.values["opportunistic"])

    def carried(self, memory: Memory, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Memory:
        found: Memory = super().carried(memory, rows, nodes, workload, cluster)
        given = _given(workload)
        if given is not None:
            found.opportunistic = given
        else:
            for job in np.flatnonzero(rows < 0).tolist():
                # By its row it would get the same class as any job that comes to as full a cluster.
                name = crc32(workload.job_id(job).encode())
                found.opportunistic[job] = uniform(self.values["seed"], name) < self.values["opportunistic"]
        # A job that was guaranteed no longer keeps nothing.
        found.reserved = {job: held for job, held in found.reserved.items() if not found.opportunistic[job]}
        return found

    def sharing(self, workload: Workload) -> Sharing:
        return OpportunisticSharing(workload, self.values["share"])

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if self.cache is None:
            self.cache = _Books(snapshot, memory)
        books = self.cache
        books.observe(snapshot)
        run: dict[int, Placement] = {}
        books.start_guaranteed(run)
        books.start_opportunistic(run)
        return (Decision(run) if run else NOTHING), memory

    def reason(self, snapshot: Snapshot, job: int) -> Reason:
        found = super().reason(snapshot, job)
        known = snapshot.workload.gpu_memory_mib
        if not snapshot.memory_stays or not limits_memory(snapshot.cluster):
            return found
        if known is None or np.isnan(known[job]):
            text = "How much GPU memory it needs is unknown, so it shares no GPU."
        else:
            text = "It shares a GPU only with a job of known GPU memory, if there is enough for both."
        return Reason(found.code, f"{found.text} {text}", found.numbers)


def _given(workload: Workload) -> NDArray[np.bool_] | None:
    """Who is opportunistic, where the trace says: by priority, or as best-effort jobs of kernel-level sharing."""
    labels, priority = workload.share_class, workload.priority
    if labels is None or BEST_EFFORT not in labels.names:
        return None if priority is None else np.asarray(priority) > 0
    guests: NDArray[np.bool_] = np.array([name == BEST_EFFORT for name in labels.names])[labels.codes]
    return guests if priority is None else guests | (np.asarray(priority) > 0)


class _Books:
    """Caches: who holds which GPU, who waits, what is reserved."""

    def __init__(self, snapshot: Snapshot, memory: Memory) -> None:
        cluster = snapshot.cluster
        self._memory = memory
        self._opportunistic = memory.opportunistic
        self._reserved = memory.reserved
        self._shapes = shapes_of(snapshot.workload, cluster)
        self._sizes = [node.gpus for node in cluster.nodes]
        self._first = first_gpus(cluster)
        self._node_of = np.repeat(np.arange(len(self._sizes)), self._sizes)
        models = cluster.models
        self._pool_nodes = [[i for i, node in enumerate(cluster.nodes) if node.gpu_model == m] for m in models]
        self._pool_size = [max(self._sizes[i] for i in nodes) for nodes in self._pool_nodes]
        self._pool_gpus = np.array([models.index(cluster.nodes[i].gpu_model) for i in self._node_of])
        self._open = [(1 << size) - 1 for size in self._sizes]
        """Per node: GPUs without a guaranteed job, reserved or running."""
        self._open_gpus = sum_ints(self._sizes)
        self._load = np.zeros(len(self._node_of))
        self._where: dict[int, Placement] = {}
        self._waiting: dict[int, None] = {}
        self._room = GpuRoom(snapshot) if snapshot.memory_stays and limits_memory(cluster) else None
        """None: memory is not looked at."""
        self._kinds = self._shapes.of_job if self._room is None else self._room.kinds(self._shapes.of_job)
        """By job: jobs of one kind ask for the same GPUs, and for as much memory where it is looked at."""
        self._hopeless: set[int] = set()
        """Kinds for which no GPU is left in this call."""
        self._queues: list[list[int]] = self._no_queues()
        self._out: set[int] = set()
        gone = {*snapshot.finished, *snapshot.evicted}
        going_on = {job: place for job, place in memory.where.items() if job not in gone}
        waiting = snapshot.waiting()
        self._built = True
        self._keep_what_holds(snapshot)
        if going_on == snapshot.placements and gone <= memory.where.keys():
            # As it was before the events of this snapshot, which `observe` takes in.
            came = {*snapshot.evicted, *snapshot.arrived}
            self._fill(memory.where, memory.out)
            self._enqueue([job for job in waiting if job not in came])
            if len(self._load) == len(memory.load) and np.allclose(self._load, memory.load, atol=1e-6):
                self._load, self._built = memory.load, False
        if self._built:
            self._waiting, self._queues = {}, self._no_queues()
            self._open = [(1 << size) - 1 for size in self._sizes]
            self._open_gpus, self._load = sum_ints(self._sizes), np.zeros(len(self._node_of))
            for node in snapshot.nodes_out:
                self._give_up(node)
            self._fill(snapshot.placements, snapshot.nodes_out)
            self._enqueue(waiting)
        memory.load, memory.where, memory.out = self._load, self._where, sorted(self._out)

    def _keep_what_holds(self, snapshot: Snapshot) -> None:
        """Give up what is held by jobs that don't wait any more (held back, cancelled), or that asks for other GPUs
        than before, and what others run on: live, a memory may be of another time."""
        closed: dict[int, int] = {}
        for placement in snapshot.placements.values():
            if placement.layer == GUARANTEED_LAYER:
                for node, mask in zip(placement.nodes, placement.masks, strict=True):
                    closed[node] = closed.get(node, 0) | mask
        for job, held in list(self._reserved.items()):
            waits = snapshot.is_waiting(job) and not self._opportunistic[job]
            if not waits or not self._may_wait_on(job, held) or any(closed.get(n, 0) & m for n, m in held.items()):
                del self._reserved[job]

    def _no_queues(self) -> list[list[int]]:
        return [[] for _ in range(int(self._kinds.max(initial=-1)) + 1)]

    def _may_wait_on(self, job: int, held: Mapping[int, int]) -> bool:
        """Whether these GPUs can be a part of what the job asks for."""
        shape = self._shapes.shapes[self._shapes.of_job[job]]
        pools = {int(self._pool_gpus[self._first[node]]) for node in held}
        if len(pools) != 1 or not pools.issubset(shape.pools):
            return False
        if shape.gpus > self._pool_size[min(pools)]:
            parts = sum_ints(mask.bit_count() < self._sizes[node] for node, mask in held.items())
            # It may have all, and wait for jobs on them that leave it no memory.
            most = shape.gpus - (self._room is None)
            return parts <= 1 and sum_ints(mask.bit_count() for mask in held.values()) <= most
        return len(held) == 1 and all(m.bit_count() < shape.gpus <= self._sizes[n] for n, m in held.items())

    def _fill(self, placements: Mapping[int, Placement], out: Collection[int]) -> None:
        """Book who runs where, and what jobs hold that wait."""
        self._where, self._out = dict(placements), set(out)
        for placement in placements.values():
            if placement.layer == GUARANTEED_LAYER:
                for node, mask in zip(placement.nodes, placement.masks, strict=True):
                    self._close(node, mask, GUARANTEED)
            else:
                self._occupy(placement, 1)
        for node in out:
            self._close(node, self._open[node], 2 * FULL)
        for held in self._reserved.values():
            for node, mask in held.items():
                self._close(node, mask, RESERVED)

    def _enqueue(self, jobs: Any) -> None:
        for job in jobs:
            if self._opportunistic[job]:
                heappush(self._queues[self._kinds[job]], job)
            else:
                self._waiting[job] = None

    # -- book-keeping ---------------------------------------------------------------------------------------

    def _add_load(self, node: int, mask: int, load: float) -> None:
        base = int(self._first[node])
        for gpu in range(mask.bit_length()):
            if mask >> gpu & 1:
                self._load[base + gpu] += load

    def _close(self, node: int, mask: int, load: float) -> None:
        self._open[node] &= ~mask
        self._open_gpus -= mask.bit_count()
        self._add_load(node, mask, load)

    def _reopen(self, node: int, mask: int, load: float) -> None:
        self._open[node] |= mask
        self._open_gpus += mask.bit_count()
        self._add_load(node, mask, -load)

    def _occupy(self, placement: Placement, sign: int) -> None:
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            self._add_load(node, mask, sign * OPPORTUNISTIC)

    def _give_up(self, node: int) -> list[dict[int, int]]:
        """Jobs that hold GPUs of the node while they wait give all theirs up."""
        return [self._reserved.pop(job) for job in [job for job, held in self._reserved.items() if node in held]]

    def observe(self, snapshot: Snapshot) -> None:
        """Take in what happened since the last call (nothing, if this cache was just built from this snapshot)."""
        if self._built:
            self._built = False
            return
        for job in (*snapshot.finished, *snapshot.evicted):
            placement = self._where.pop(job)
            if placement.layer == GUARANTEED_LAYER:
                for node, mask in zip(placement.nodes, placement.masks, strict=True):
                    self._reopen(node, mask, GUARANTEED)
            else:
                self._occupy(placement, -1)
        for node in snapshot.nodes_down:
            if node in self._out:
                continue
            self._out.add(node)
            for held in self._give_up(node):
                for other, mask in held.items():
                    self._reopen(other, mask, RESERVED)
            self._close(node, self._open[node], 2 * FULL)
        for node in snapshot.nodes_up:
            if node not in self._out:
                continue
            self._out.discard(node)
            self._reopen(node, (1 << self._sizes[node]) - 1, 2 * FULL)
        if snapshot.nodes_down or snapshot.nodes_up:
            self._memory.out = sorted(self._out)
        if snapshot.evicted:
            self._enqueue(snapshot.evicted)
            self._waiting = dict.fromkeys(sorted(self._waiting))
        self._enqueue(snapshot.arrived)

    # -- guaranteed jobs ------------------------------------------------------------------------------------

    def start_guaranteed(self, run: dict[int, Placement]) -> None:
        """In order of submission, each takes or reserves what it can get."""
        if self._room is not None:
            self._room.guests_are(self._on_layer(OPPORTUNISTIC_LAYER))
        self._acquire_in_order(run)
        if self._reserved and not any(p.layer == GUARANTEED_LAYER for p in self._where.values()):
            # No guaranteed job runs that could give GPUs back, so jobs that hold some and wait for the rest would
            # wait for each other for ever: all but the first give up what they hold.
            first = next(job for job in self._waiting if job in self._reserved)
            for job in [job for job in self._reserved if job != first]:
                for node, mask in self._reserved.pop(job).items():
                    self._reopen(node, mask, RESERVED)
            self._acquire_in_order(run)

    def _acquire_in_order(self, run: dict[int, Placement]) -> None:
        started = []
        self._hopeless.clear()
        for job in self._waiting:
            if self._open_gpus == 0:
                if self._room is None:
                    break
                if job not in self._reserved:
                    continue
            placement = self._acquire(job)
            if placement is not None:
                run[job] = self._where[job] = placement
                started.append(job)
        for job in started:
            del self._waiting[job]

    def _acquire(self, job: int) -> Placement | None:
        shape = self._shapes.shapes[self._shapes.of_job[job]]
        held = self._reserved.get(job, {})
        closed, kind = self._without_room(job), int(self._kinds[job])
        if not held and kind in self._hopeless:
            return None
        pool = self._pool_of(held, shape.pools, shape.gpus, closed)
        size = self._pool_size[pool]
        missing = shape.gpus - sum_ints(mask.bit_count() for mask in held.values())
        if shape.gpus <= size:
            self._on_one_node(held, pool, missing, closed)
        else:
            self._on_many_nodes(held, pool, shape.gpus)
        have = sum_ints(mask.bit_count() for mask in held.values())
        if have > shape.gpus:  # it asked for more when it took the first of them
            for node, mask in held.items():
                self._reopen(node, mask, RESERVED)
            self._reserved.pop(job, None)
            return self._acquire(job)
        if have < shape.gpus or any(mask & closed.get(node, 0) for node, mask in held.items()):
            if held:
                self._reserved[job] = held
            elif self._room is not None:
                self._hopeless.add(kind)
            return None
        self._reserved.pop(job, None)
        for node, mask in held.items():
            self._add_load(node, mask, 0.01)
        return Placement(tuple(held), tuple(held.values()), GUARANTEED_LAYER)

    def _without_room(self, job: int) -> Mapping[int, int]:
        """GPUs with an opportunistic job that leaves no memory for this one, by node."""
        return {} if self._room is None else self._room.closed_to(job)

    def _pool_of(self, held: dict[int, int], pools: tuple[int, ...], gpus: int, closed: Mapping[int, int]) -> int:
        if held:
            return int(self._pool_gpus[self._first[next(iter(held))]])
        if len(pools) == 1:
            return pools[0]
        able = [p for p in pools if sum_ints(self._sizes[node] for node in self._pool_nodes[p]) >= gpus]
        return max(able, key=lambda p: (sum_ints(self._can_have(n, closed) for n in self._pool_nodes[p]), -p))

    def _can_have(self, node: int, closed: Mapping[int, int]) -> int:
        return (self._open[node] & ~closed.get(node, 0)).bit_count()

    def _hold(self, held: dict[int, int], node: int, count: int, closed: Mapping[int, int] = NONE) -> None:
        mask = _lowest(self._open[node] & ~closed.get(node, 0), count)
        if mask:
            held[node] = held.get(node, 0) | mask
            self._close(node, mask, RESERVED)

    def _on_one_node(self, held: dict[int, int], pool: int, missing: int, closed: Mapping[int, int]) -> None:
        if held:
            self._hold(held, next(iter(held)), missing, closed)
            return
        most, best = 0, -1
        need = missing
        for node in self._pool_nodes[pool]:
            count = self._can_have(node, closed)
            if count >= need:
                most, best = count, node
                break
            # Only a node that is large enough may be waited for.
            if count > most and self._sizes[node] >= need:
                most, best = count, node
        if best >= 0:
            self._hold(held, best, min(most, need), closed)

    def _on_many_nodes(self, held: dict[int, int], pool: int, gpus: int) -> None:
        """Whole nodes, largest first as on an empty cluster, and a remainder. Also such as have no memory left: while
        the job waits on them, no other one starts there that leaves it none."""
        nodes = [node for node in self._pool_nodes[pool] if node not in self._out]
        left = gpus
        spare: set[int] = set()
        """Nodes of sizes of which not all are needed as a whole: the remainder may go there."""
        for size in sorted({self._sizes[node] for node in nodes}, reverse=True):
            of_size = [node for node in nodes if self._sizes[node] == size]
            wanted = min(left // size, len(of_size))
            left -= wanted * size
            if wanted < len(of_size):
                spare.update(of_size)
            full = (1 << size) - 1
            wanted -= sum_ints(held.get(node) == full for node in of_size)
            for node in of_size:
                if wanted > 0 and node not in held and self._open[node] == full:
                    self._hold(held, node, size)
                    wanted -= 1
        if left == 0:
            return
        partial = next((node for node, mask in held.items() if mask.bit_count() < self._sizes[node]), -1)
        if partial >= 0:
            self._hold(held, partial, left - held[partial].bit_count())
            return
        if sum_ints(mask.bit_count() for mask in held.values()) == gpus:
            return
        free = [node for node in nodes if node in spare and node not in held and self._sizes[node] >= left]
        node = next((n for n in free if self._open[n].bit_count() >= left), -1)
        if node < 0 and free:
            node = max(free, key=lambda n: self._open[n].bit_count())
        if node >= 0:
            self._hold(held, node, min(left, self._open[node].bit_count()))

    # -- opportunistic jobs ---------------------------------------------------------------------------------

    def start_opportunistic(self, run: dict[int, Placement]) -> None:
        """In order of submission, each on the least loaded GPUs; a job that does not fit is passed."""
        heads = [queue[0] for queue in self._queues if queue]
        if not heads:
            return
        heads.sort(reverse=True)
        if self._room is not None:
            self._room.hosts_are([*self._on_layer(GUARANTEED_LAYER), *self._reserved.items()])
        while heads:
            job = heads.pop()
            placement = self._least_loaded(job)
            if placement is None:
                continue
            queue = self._queues[self._kinds[job]]
            heappop(queue)
            run[job] = self._where[job] = placement
            self._occupy(placement, 1)
            if queue:
                heads.append(queue[0])
                heads.sort(reverse=True)

    def _on_layer(self, layer: int) -> list[tuple[int, Mapping[int, int]]]:
        """Jobs that run on a layer, with their masks by node."""
        found = [(job, place) for job, place in self._where.items() if place.layer == layer]
        return [(job, dict(zip(place.nodes, place.masks, strict=True))) for job, place in found]

    def _least_loaded(self, job: int) -> Placement | None:
        shape = self._shapes.shapes[self._shapes.of_job[job]]
        able = self._load < FULL
        if self._room is not None:
            able &= self._room.beside_hosts(job)
        for pool in shape.pools:
            candidates = np.flatnonzero(able & (self._pool_gpus == pool))
            if len(candidates) < shape.gpus:
                continue
            order = np.argsort(self._load[candidates], kind="stable")[: shape.gpus]
            masks: dict[int, int] = {}
            for gpu in candidates[order].tolist():
                node = int(self._node_of[gpu])
                masks[node] = masks.get(node, 0) | 1 << (gpu - int(self._first[node]))
            return Placement(tuple(masks), tuple(masks.values()), OPPORTUNISTIC_LAYER)
        return None


def _lowest(mask: int, count: int) -> int:
    """The `count` lowest set bits of the mask, or all if it has fewer."""
    taken = 0
    for _ in range(min(count, mask.bit_count())):
        low = mask & -mask
        taken |= low
        mask ^= low
    return taken
