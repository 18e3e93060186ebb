"""Muri: jobs that are slow on different resources share GPUs, stage by stage.

Zhao et al., "Multi-Resource Interleaving for Deep Learning Training" (SIGCOMM'22), section 4:
    1. Order: Muri-S by remaining solo time × GPUs (SRSF), Muri-L by attained service, time held × GPUs (2D-LAS).
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
from heapq import heapify, heappop, heapreplace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.decision import NOTHING, Decision, Placement
from gpuloom.core.sharing import Sharing
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.interleave.efficiency import MAX_GROUP
from gpuloom.interleave.exactly import ExactGroups
from gpuloom.interleave.groups import GroupSharing, GroupTimes, Profiles
from gpuloom.interleave.rounds import Node, Rounds
from gpuloom.placement.queues import Entry, ShapeQueues
from gpuloom.placement.shared import Room, SharedPlacer
from gpuloom.policies.base import Parameter, Policy, Traits, one_of, yes_or_no
from gpuloom.policies.weaving import WEAVING, group_times

Groups = list[tuple[Node, int]]
"""(jobs, shape)"""


class Muri(Policy):
    """What Muri-S and Muri-L share: everything but the order."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        *WEAVING,
        Parameter(
            "grouping",
            "multiround",
            one_of("multiround", "exact", "greedy"),
            "multiround: rounds of maximum weight matching; exact: the best of all groupings; greedy: in order",
        ),
        Parameter(
            "slow_groups",
            "avoid",
            one_of("avoid", "split", "keep"),
            "groups slower than one after another: avoid: never matched; split: matched, then split (Muri's artifact); "
            "keep: formed like others",
        ),
    )
    max_jobs_per_gpu = MAX_GROUP
    uses_stages = True
    preempts_at_intervals = True
    cache: _Planner | None

    def sharing(self, workload: Workload) -> Sharing | None:
        return GroupSharing(group_times(workload, self.values))

    @abstractmethod
    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        """Priority of a job that begins to wait, small first."""

    @abstractmethod
    def running_keys(self, snapshot: Snapshot, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        """Present priorities of running jobs."""

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        if self.cache is None:
            self.cache = _Planner(snapshot, self)
        return self.cache.plan(snapshot), memory


class MuriS(Muri):
    """See the module."""

    id = "muri-s"
    traits = Traits(
        summary="weaves jobs, shortest remaining GPU-time first",
        knows="durations",
        preemptive="yes",
        heterogeneity=False,
        sharing=True,
        paper="Zhao et al., SIGCOMM'22",
    )
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
        gpus = snapshot.workload.gpus.item(job)
        estimate = snapshot.workload.estimate_s
        if self.values["first_estimate"] and estimate is not None and snapshot.starts(job) == 0:
            known = estimate.item(job)
            if known == known:
                return known * gpus
        return snapshot.remaining_s(job) * gpus

    def running_keys(self, snapshot: Snapshot, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        keys: NDArray[np.float64] = snapshot.remaining_of(jobs) * snapshot.workload.gpus[jobs]
        return keys


class MuriL(Muri):
    """See the module."""

    id = "muri-l"
    traits = Traits(
        summary="weaves jobs, least attained GPU-time first",
        knows="nothing",
        preemptive="yes",
        heterogeneity=False,
        sharing=True,
        paper="Zhao et al., SIGCOMM'22",
    )

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        return snapshot.attained_gpu_s(job)

    def running_keys(self, snapshot: Snapshot, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        keys: NDArray[np.float64] = snapshot.held_of(jobs) * snapshot.workload.gpus[jobs]
        return keys


class _Planner:
    """Queues, what was solved before, and the steps of a plan."""

    def __init__(self, snapshot: Snapshot, policy: Muri) -> None:
        values = policy.values
        self._policy = policy
        self._size: int = values["group_size"]
        self._grouping: str = values["grouping"]
        self._times: GroupTimes = group_times(snapshot.workload, values)
        memory = [node.gpu_memory_mib for node in snapshot.cluster.nodes]
        self._memory_mib = min([m for m in memory if m is not None], default=float("inf"))
        self._slow: str = values["slow_groups"]
        self._rounds = Rounds(self._times, self._size, self._allowed)
        self._exact = ExactGroups(self._times, self._size, self._memory_mib)
        self._queues = ShapeQueues(snapshot, policy.waiting_key)
        self._placer = SharedPlacer(
            snapshot,
            layers=MAX_GROUP,
            first_fit=values["first_fit"],
            restart_partners=values["restart_partners"],
        )

    def plan(self, snapshot: Snapshot) -> Decision:
        self._queues.observe(snapshot)
        if not snapshot.may_preempt:
            return self._fill(snapshot)
        running = list(snapshot.placements)
        if not running and not self._queues:
            return NOTHING
        keys: dict[int, float] = {}
        by_shape: dict[int, list[Entry]] = {}
        if running:
            present = self._policy.running_keys(snapshot, np.array(running, dtype=np.intp))
            for job, key in zip(running, present.tolist(), strict=True):
                keys[job] = key
                by_shape.setdefault(self._queues.shape_of[job], []).append((key, job))
        together = self._placer.together(snapshot)
        group_of = {job: index for index, jobs in enumerate(together.values()) for job in jobs}
        in_service = sum(node.gpus for i, node in enumerate(snapshot.cluster.nodes) if i not in snapshot.nodes_out)
        groups = self._groups(snapshot, self._placer.emptied(snapshot), in_service, by_shape, keys, group_of)
        chosen, fitted = self._fit(self._placer.emptied(snapshot), groups)
        decision = self._placer.settle(snapshot, chosen, fitted, together)
        for job in decision.run:
            if job not in group_of:
                self._queues.remove(job)
        for job in decision.wait:
            self._queues.add(snapshot, job)
        return decision if decision.run or decision.wait else NOTHING

    def _fill(self, snapshot: Snapshot) -> Decision:
        """New groups on free GPUs; what runs is left alone."""
        shared = len(snapshot.placements) > 0
        # Free GPUs that nobody waits for are for members of groups: at the next interval.
        wake = snapshot.now_s if shared and snapshot.free_gpus else float("inf")
        if not self._queues or not snapshot.free_gpus:
            return Decision(wake_at_s=wake) if wake == snapshot.now_s else NOTHING
        groups = self._groups(snapshot, self._placer.free(snapshot), snapshot.free_gpus, {}, {}, {})
        chosen, fitted = self._fit(self._placer.free(snapshot), groups)
        run = self._placer.start(chosen, fitted)
        for job in run:
            self._queues.remove(job)
        return Decision(run, wake_at_s=wake)

    # -- steps ----------------------------------------------------------------------------------------------

    def _groups(
        self,
        snapshot: Snapshot,
        room: Room,
        capacity: int,
        running: dict[int, list[Entry]],
        keys: dict[int, float],
        group_of: dict[int, int],
    ) -> Groups:
        """Steps 1 to 3: the groups to run, in order."""
        buckets, passes = self._select(snapshot, room, capacity, running, keys)
        sizes = [(self._queues.gpus[shape], jobs) for shape, jobs in buckets]
        if self._grouping == "greedy":
            formed = self._greedy(sizes, passes, capacity)
        elif self._grouping == "exact":
            formed = self._exact.form(sizes, passes, capacity)
        else:
            formed = self._rounds.form(sizes, capacity, group_of.get)
        groups = [(node, shape) for (shape, _), nodes in zip(buckets, formed, strict=True) for node in nodes]
        if self._slow == "split":
            groups = [(part, shape) for node, shape in groups for part in self._split(node)]
        groups.sort(key=lambda group: min([keys[job] for job in group[0]]))
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
            entries = queues.first(shape, running.get(shape, ()), size * (capacity // gpus))
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
            keys.update((job, key) for key, job in entries[: claimed[index]])
        return (
            [(shapes[index], [job for _, job in listed[index][: claimed[index]]]) for index in in_order],
            [passes[index] for index in in_order],
        )

    def _greedy(self, buckets: list[tuple[int, list[int]]], passes: list[int], capacity: int) -> list[list[Node]]:
        """Each job that claimed others takes the next ones in, while all together need more GPUs than there are."""
        required = sum(gpus * len(jobs) for gpus, jobs in buckets)
        formed: list[list[Node]] = []
        for (gpus, jobs), groups in zip(buckets, passes, strict=True):
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
        profiles = self._times.profiles_of(node)
        if len(node) == 1 or self._times.gains([profiles])[0] >= 1.0:
            return [node]
        return [(job,) for job in node]

    def _fit(self, room: Room, groups: Groups) -> tuple[list[Node], list[Placement]]:
        """Step 4."""
        chosen: list[Node] = []
        fitted: list[Placement] = []
        shapes = self._queues.shapes.shapes
        for node, shape in groups:
            placement = room.take(shapes[shape])
            if placement is not None:
                chosen.append(node)
                fitted.append(placement)
        return chosen, fitted

    def _allowed(self, profiles: Profiles) -> bool:
        if profiles[0] < 0 or not self._times.fits(profiles, self._memory_mib):
            return False
        return self._slow != "avoid" or self._times.gains([profiles])[0] >= 1.0
