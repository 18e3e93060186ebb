"""Muri: jobs that are slow on different resources share GPUs, stage by stage.

Zhao et al., "Multi-Resource Interleaving for Deep Learning Training" (SIGCOMM'22), section 4:
    1. Order: Muri-S by remaining solo time × GPUs (SRSF), Muri-L by attained service, time held × GPUs (2D-LAS); both
       over the job's weight.
    2. Buckets by GPU count. Down the order, every job that still fits the cluster brings the next jobs of its bucket
       along, up to `group_size` of them: as many jobs as can fill the cluster when all groups are full.
    3. Rounds of maximum weight matching within each bucket merge them until all groups fit (`interleave/rounds.py`);
       or the exact grouping (`interleave/exactly.py`), or greedily in order.
    4. Groups go in the order of their first members; those that fit run.
Beyond the paper: a group that the GPUs' memory can't hold is not formed, nor one that is slower than its jobs one
after another; groups keep their GPUs; only jobs whose group gains a member or whose place changes are restarted.
Between two scheduling intervals new groups start on free GPUs, and nothing else changes.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapify, heappop, heapreplace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import Rows
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import Workload
from gpuloom.interleave.efficiency import MAX_GROUP
from gpuloom.interleave.exactly import ExactGroups
from gpuloom.interleave.groups import GroupTimes, Profiles
from gpuloom.interleave.rounds import MATCHERS, Bucket, Limits, Node, Rounds
from gpuloom.interleave.worth import GroupWorth
from gpuloom.placement.pool import pool_of_node
from gpuloom.placement.queues import Entry, ShapeQueues
from gpuloom.placement.shared import Room, SharedPlacer
from gpuloom.policies.base import Parameter, Preemptive, Traits, one_of, yes_or_no
from gpuloom.policies.upgrading import UPGRADE, Upgrading
from gpuloom.policies.weaving import WEAVING, Weaving, group_times, partners_restart, smallest_memory_mib

Groups = list[tuple[Node, int]]
"""(jobs, shape)"""
_MANY = 256
"""From this many jobs on that leave or join a queue, filtering and sorting it costs less than going job by job."""
_TRIES = 4
"""How often groups are formed again, fewer each time, when some find no place."""


class Muri(Upgrading, Weaving):
    """What Muri-S and Muri-L share: everything but the order."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        *WEAVING,
        Parameter("first_fit", False, yes_or_no, "nodes are filled first-fit (Muri's artifact), not by best fit", "no"),
        Parameter(
            "grouping",
            "multiround",
            one_of("multiround", "exact", "greedy"),
            "multiround: rounds of maximum weight matching; exact: the best of all groupings; greedy: in order",
        ),
        Parameter(
            "matcher",
            "exact",
            one_of(*MATCHERS),
            "who is paired in a round: exact: the best pairs; released: what the matcher of Muri's artifact takes",
        ),
        Parameter(
            "slow_groups",
            "avoid",
            one_of("avoid", "split", "keep"),
            "groups that are slower than running one after another: avoid: never matched; split: matched, then split "
            "(Muri's artifact); "
            "keep: formed like others",
        ),
        UPGRADE,
    )
    cache: _Planner | None

    def new_memory(self, workload: Workload, cluster: Cluster) -> list[int] | None:
        """Jobs in the order of the last plan, which settles ties in the next one as the artifact does; or nothing."""
        return [] if self.values["matcher"] == "released" else None

    def carried(self, memory: Any, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Any:
        if memory is None:
            return None
        new_row = {old: new for new, old in enumerate(rows.tolist())}
        return [new_row[job] for job in memory if job in new_row]

    @abstractmethod
    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        """Priority of a job that begins to wait, small first."""

    @abstractmethod
    def running_keys(self, snapshot: Snapshot, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        """Present priorities of running jobs."""

    def _weight(self, snapshot: Snapshot, job: int) -> float:
        weights = snapshot.workload.weight
        return 1.0 if weights is None else weights.item(job)

    def _weighed(self, snapshot: Snapshot, jobs: NDArray[np.intp], keys: NDArray[np.float64]) -> NDArray[np.float64]:
        """Keys of these jobs over their weights."""
        weights = snapshot.workload.weight
        return keys if weights is None else keys / weights[jobs]

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = _Planner(snapshot, self)
        return self.upgraded(snapshot, self.cache.plan(snapshot, memory)), memory


class MuriS(Muri):
    """See the module."""

    id = "muri-s"
    traits = Traits(
        summary="weaves jobs, shortest remaining GPU-time first",
        knows="durations",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=True,
        paper="Zhao et al., SIGCOMM'22",
        weights="remaining GPU-time over weight",
    )
    knows_ends = True
    parameters: ClassVar[tuple[Parameter, ...]] = (
        *Muri.parameters,
        Parameter(
            "first_estimate",
            False,
            yes_or_no,
            "until it first runs, a job is ordered by the trace's estimate of its duration (Muri's artifact)",
            "no",
        ),
    )

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        gpus = snapshot.workload.gpus.item(job) / self._weight(snapshot, job)
        estimate = snapshot.workload.estimate_s
        if self.values["first_estimate"] and estimate is not None and snapshot.starts(job) == 0:
            known = estimate.item(job)
            if known == known:
                return known * gpus
        return snapshot.remaining_s(job) * gpus

    def running_keys(self, snapshot: Snapshot, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        return self._weighed(snapshot, jobs, snapshot.remaining_of(jobs) * snapshot.workload.gpus[jobs])


class MuriL(Muri):
    """See the module."""

    id = "muri-l"
    traits = Traits(
        summary="weaves jobs, least attained GPU-time first",
        knows="nothing",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=True,
        paper="Zhao et al., SIGCOMM'22",
        weights="attained service over weight",
    )

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        return snapshot.attained_gpu_s(job) / self._weight(snapshot, job)

    def running_keys(self, snapshot: Snapshot, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        return self._weighed(snapshot, jobs, snapshot.held_of(jobs) * snapshot.workload.gpus[jobs])


class _Queues(ShapeQueues):
    """Queues of which many jobs leave at once, and join."""

    def exchange(self, snapshot: Snapshot, gone: Sequence[int], come: Sequence[int]) -> None:
        """Some jobs wait no longer, others begin to."""
        if len(gone) + len(come) < _MANY:
            for job in gone:
                self.remove(job)
            for job in come:
                self.add(snapshot, job)
            return
        stored, shape_of = self._stored, self.shape_of
        for job in gone:
            del stored[job]
        for shape in {shape_of[job] for job in gone}:
            self.waiting[shape] = [entry for entry in self.waiting[shape] if entry[1] in stored]
        for job in come:
            stored[job] = key = self._key(snapshot, job)
            self.waiting[shape_of[job]].append((key, job))
        for shape in {shape_of[job] for job in come}:
            self.waiting[shape].sort()


class _Planner:
    """Queues, what was solved before, and the steps of a plan."""

    def __init__(self, snapshot: Snapshot, policy: Muri) -> None:
        values = policy.values
        self._policy = policy
        self._size: int = values["group_size"]
        self._grouping: str = values["grouping"]
        self._times: GroupTimes = policy.times(snapshot.workload)
        self._memory_mib = smallest_memory_mib(snapshot.cluster)
        self._slow: str = values["slow_groups"]
        self._released: bool = values["matcher"] == "released"
        self._best = self._times
        if self._released and values["ordering"] != "best":
            # Whatever the order it runs in, the artifact splits a group by the best one.
            self._best = group_times(snapshot.workload, {**values, "ordering": "best"})
        self._order: list[int] = []
        # Who shares GPUs is settled before it is known on which: a group must be good on any GPU model.
        self._worth = GroupWorth(self._times, snapshot.cluster.models)
        self._best_worth = GroupWorth(self._best, snapshot.cluster.models)
        self._rounds = Rounds(self._times, self._size, self._allowed, matcher=values["matcher"], worth=self._worth)
        self._exact = ExactGroups(self._times, self._size, self._memory_mib, self._worth)
        self._queues = _Queues(snapshot, policy.waiting_key)
        self._pool_of_node = pool_of_node(snapshot.cluster)
        sets = {frozenset(shape.pools) for shape in self._queues.shapes.shapes}
        every = frozenset(self._pool_of_node.values())
        self._pool_sets = [every, *sorted(sets - {every}, key=sorted)]
        self._placer = SharedPlacer(
            snapshot,
            layers=MAX_GROUP,
            first_fit=values["first_fit"],
            restart_partners=partners_restart(values),
        )

    def plan(self, snapshot: Snapshot, order: list[int] | None) -> Decision:
        """What shall change now.

        Args:
            order: the memory.
        """
        self._queues.observe(snapshot)
        if order is not None:
            self._line_up(snapshot, order)
        if not snapshot.may_preempt:
            return self._fill(snapshot)
        running = list(snapshot.placements)
        if not running and not self._queues:
            return NOTHING
        keys: dict[int, float] = {}
        by_shape: dict[int, list[Entry]] = {}
        if running:
            present = self._policy.running_keys(snapshot, np.array(running, dtype=np.intp))
            entries = list(zip(present.tolist(), running, strict=True))
            keys = {job: key for key, job in entries}
            for shape, entry in zip(map(self._queues.shape_of.__getitem__, running), entries, strict=True):
                by_shape.setdefault(shape, []).append(entry)
            for listed in by_shape.values():
                listed.sort()
        together = self._placer.together(snapshot)
        group_of = {job: index for index, jobs in enumerate(together.values()) for job in jobs}
        nodes, out = snapshot.cluster.nodes, snapshot.nodes_out
        gpus = [0 if index in out else node.gpus for index, node in enumerate(nodes)]
        room = partial(self._placer.emptied, snapshot)
        chosen, fitted = self._groups_that_fit(snapshot, room, self._limits(gpus), by_shape, keys, group_of)
        decision = self._placer.settle(snapshot, chosen, fitted, together)
        self._queues.exchange(snapshot, [job for job in decision.run if job not in group_of], decision.wait)
        return decision if decision.run or decision.wait else NOTHING

    def _fill(self, snapshot: Snapshot) -> Decision:
        """New groups on free GPUs; what runs is left alone."""
        shared = len(snapshot.placements) > 0
        # Free GPUs that nobody waits for are for members of groups: at the next interval.
        wake = snapshot.now_s if shared and snapshot.free_gpus else float("inf")
        if not self._queues or not snapshot.free_gpus:
            return Decision(wake_at_s=wake) if wake == snapshot.now_s else NOTHING
        limits = self._limits([mask.bit_count() for mask in snapshot.idle_masks])
        room = partial(self._placer.free, snapshot)
        chosen, fitted = self._groups_that_fit(snapshot, room, limits, {}, {}, {})
        run = self._placer.start(chosen, fitted)
        self._queues.exchange(snapshot, list(run), ())
        return Decision(run, wake_at_s=wake)

    def _line_up(self, snapshot: Snapshot, order: list[int]) -> None:
        """Bring the memory up to date: those that came are last."""
        if self._order is not order:
            self._order = order
            present = {*snapshot.waiting(), *snapshot.placements}
            order[:] = [job for job in order if job in present]
            order += sorted(present - set(order))
        else:
            order += snapshot.arrived
        if snapshot.finished:
            gone = set(snapshot.finished)
            order[:] = [job for job in order if job not in gone]

    # -- steps ----------------------------------------------------------------------------------------------

    def _limits(self, gpus: Sequence[int]) -> Limits:
        """GPUs by sets of pools that jobs are bound to, from the GPUs of each node; all pools first."""
        by_pool = dict.fromkeys(self._pool_of_node.values(), 0)
        for node, count in enumerate(gpus):
            by_pool[self._pool_of_node[node]] += count
        return [(pools, sum_ints([by_pool[pool] for pool in pools])) for pools in self._pool_sets]

    def _groups_that_fit(
        self,
        snapshot: Snapshot,
        room: Callable[[], Room],
        limits: Limits,
        running: dict[int, list[Entry]],
        keys: dict[int, float],
        group_of: dict[int, int],
    ) -> tuple[list[Node], list[Placement]]:
        """Steps 1 to 4. Where GPUs lie so that some groups find no place, fewer groups are formed of the same jobs."""
        best: tuple[list[Node], list[Placement]] = ([], [])
        most, total = -1, limits[0][1]
        if self._released and snapshot.may_preempt:
            buckets, passes = self._walk(room(), total, keys)
        else:
            buckets, passes = self._select(snapshot, room(), total, running, keys)
        for _ in range(1 if self._released or self._grouping != "multiround" else _TRIES):
            groups = self._groups(buckets, passes, total, limits, keys, group_of)
            chosen, fitted, left = self._fit(room, total, groups)
            jobs = sum_ints([len(node) for node in chosen])
            if jobs > most:
                best, most = (chosen, fitted), jobs
            if not left or self._rounds.exhausted:
                break
            shapes = self._queues.shapes.shapes
            limits = [
                (
                    pools,
                    gpus - sum_ints(shapes[shape].gpus for shape in left if pools.issuperset(shapes[shape].pools)),
                )
                for pools, gpus in limits
            ]
        return best

    def _groups(
        self,
        buckets: list[tuple[int, list[int]]],
        passes: list[int],
        capacity: int,
        limits: Limits,
        keys: dict[int, float],
        group_of: dict[int, int],
    ) -> Groups:
        """Step 3: the groups to run, in order."""
        pools = [frozenset(shape.pools) for shape in self._queues.shapes.shapes]
        sizes = [Bucket(self._queues.gpus[shape], pools[shape], jobs) for shape, jobs in buckets]
        if self._grouping == "greedy":
            formed = self._greedy(sizes, passes, capacity)
        elif self._grouping == "exact":
            formed = self._exact.form(sizes, passes, capacity)
        else:
            formed = self._rounds.form(sizes, limits, group_of.get)
        groups = [(node, shape) for (shape, _), nodes in zip(buckets, formed, strict=True) for node in nodes]
        if self._slow == "split":
            groups = [(part, shape) for node, shape in groups for part in self._split(node)]
        key_of = keys.__getitem__
        groups.sort(key=lambda group: min(map(key_of, group[0])))
        return groups

    def _select(
        self,
        snapshot: Snapshot,
        room: Room,
        capacity: int,
        running: dict[int, list[Entry]],
        keys: dict[int, float],
    ) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """The jobs that can fill the cluster when grouped fully, by shape, and how many full groups that makes.

        Equal keys: jobs that have just arrived come last, then many GPUs first (the released code's order).
        """
        queues, size = self._queues, self._size
        fresh = set(snapshot.arrived)
        listed: list[list[Entry]] = []
        heap: list[tuple[float, bool, int, int, int]] = []
        shapes: list[int] = []
        for shape, gpus in enumerate(queues.gpus):
            if gpus > capacity:
                continue
            most = size * (capacity // gpus)
            entries = queues.first(shape, (), most)
            if shape in running:
                entries = sorted(entries + running[shape])[:most]  # mostly two sorted runs: faster than heapq.merge
            if entries:
                key, job = entries[0]
                heap.append((key, job in fresh, -gpus, job, len(listed)))
                listed.append(entries)
                shapes.append(shape)
        in_order = [entry[-1] for entry in sorted(heap)]
        heapify(heap)
        claimed = [0] * len(listed)
        passes = [0] * len(listed)
        while heap:
            index = heap[0][-1]
            entries = listed[index]
            if room.take(queues.shapes.shapes[shapes[index]]) is None:
                heappop(heap)  # nor will any later job of this shape fit
                continue
            passes[index] += 1
            claimed[index] = min(claimed[index] + size, len(entries))
            if claimed[index] == len(entries):
                heappop(heap)
            else:
                key, job = entries[claimed[index]]
                heapreplace(heap, (key, job in fresh, heap[0][2], job, index))
        for index, entries in enumerate(listed):
            keys.update([(job, key) for key, job in entries[: claimed[index]]])
        return (
            [(shapes[index], [job for _, job in listed[index][: claimed[index]]]) for index in in_order],
            [passes[index] for index in in_order],
        )

    def _walk(self, room: Room, capacity: int, keys: dict[int, float]) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """The same as the artifact does it.

        It keeps one list of all jobs, sorts it stably by their keys, and after every plan by GPUs, many first. So
        equal keys stand as they stood before, and that may depend on keys long gone.
        """
        order, shape_of, gpus_of = self._order, self._queues.shape_of, self._queues.gpus
        for queue in self._queues.waiting:
            keys.update([(job, key) for key, job in queue])
        order.sort(key=keys.__getitem__)
        listed: dict[int, list[int]] = {}
        for job in order:
            listed.setdefault(shape_of[job], []).append(job)
        for shape in [shape for shape in listed if gpus_of[shape] > capacity]:
            del listed[shape]
        claimed = dict.fromkeys(listed, 0)
        passes = dict.fromkeys(listed, 0)
        place = dict.fromkeys(listed, 0)
        closed = 0
        for job in order:
            shape = shape_of[job]
            if shape not in claimed or (at := place[shape]) < 0:
                continue
            place[shape] = at + 1
            if at < claimed[shape]:
                continue
            if room.take(self._queues.shapes.shapes[shape]) is None:
                place[shape] = -1  # nor will any later job of this shape fit
                closed += 1
                if closed == len(listed):
                    break
                continue
            passes[shape] += 1
            claimed[shape] = min(claimed[shape] + self._size, len(listed[shape]))
        order.sort(key=lambda job: -gpus_of[shape_of[job]])
        return [(shape, jobs[: claimed[shape]]) for shape, jobs in listed.items()], list(passes.values())

    def _greedy(self, buckets: Sequence[Bucket], passes: list[int], capacity: int) -> list[list[Node]]:
        """Each job that claimed others takes the next ones in, while all together need more GPUs than there are."""
        required = sum_ints(bucket.gpus * len(bucket.jobs) for bucket in buckets)
        formed: list[list[Node]] = []
        for bucket, groups in zip(buckets, passes, strict=True):
            gpus, jobs = bucket.gpus, bucket.jobs
            done: list[Node] = []
            for first in range(0, groups * self._size, self._size):
                head: Node = (jobs[first],)
                for other in jobs[first + 1 : first + self._size]:
                    if required > capacity and self._allowed(self._times.profiles_of((*head, other))):
                        head += (other,)
                        required -= gpus
                    else:
                        done.append((other,))
                done.append(head)
            formed.append(done)
        return formed

    def _split(self, node: Node) -> list[Node]:
        profiles = self._best.profiles_of(node)
        if len(node) == 1 or self._best_worth.pays(profiles):
            return [node]
        return [(job,) for job in node]

    def _fit(
        self, room: Callable[[], Room], total: int, groups: Groups
    ) -> tuple[list[Node], list[Placement], list[int]]:
        """Step 4: the groups that fit into a room of `total` GPUs, where, and the shapes of those that don't."""
        shapes = self._queues.shapes.shapes
        asked = sum_ints([shapes[shape].gpus for _, shape in groups])
        if not self._policy.values["first_fit"] and asked <= total:
            # Large ones first leaves the fewest gaps: if all fit so, all run.
            trial = room()
            places: dict[int, Placement] = {}
            for index in sorted(range(len(groups)), key=lambda n: -shapes[groups[n][1]].gpus):
                placement = trial.take(shapes[groups[index][1]])
                if placement is None:
                    break
                places[index] = placement
            else:
                return [node for node, _ in groups], [places[n] for n in range(len(groups))], []
        chosen: list[Node] = []
        fitted: list[Placement] = []
        left: list[int] = []
        ordered = room()
        for node, shape in groups:
            placement = ordered.take(shapes[shape])
            if placement is None:
                left.append(shape)
            else:
                chosen.append(node)
                fitted.append(placement)
        return chosen, fitted, left

    def _allowed(self, profiles: Profiles) -> bool:
        if profiles[0] < 0 or not self._times.fits(profiles, self._memory_mib) or not self._worth.known(profiles):
            return False
        return self._slow != "avoid" or self._worth.pays(profiles)
