"""The sizes of jobs, and the world that a base policy sees: every job at its smallest size (see `lending.py`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import floats
from gpuloom.core.decision import Placement, place_of
from gpuloom.core.pairs import NO_KIND
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import F8, Workload
from gpuloom.placement.pool import pool_of_node
from gpuloom.placement.shapes import impossible_jobs, shapes_of, speeds_on


class Sizes:
    """The sizes of every job in GPUs, smallest first; a rigid job has one.

    A job whose smallest size can't be placed on the cluster is treated as rigid.

    Args:
        woven: jobs may share GPUs in the base's world. Stage times and pairs were measured at the size that a job asks
            for: one whose smallest size is another has GPUs of its own.
    """

    def __init__(self, workload: Workload, cluster: Cluster, *, woven: bool = False) -> None:
        scaling = workload.scaling
        self.of: list[tuple[int, ...]] = [(gpus,) for gpus in workload.gpus.tolist()]
        self.base_speed: F8 = np.ones(len(workload))
        """Speed at the smallest size on the fewest nodes, relative to the speed for which `duration_s` holds."""
        self.unlike: NDArray[np.bool_] = np.zeros(len(workload), dtype=bool)
        """Jobs whose stage times and pairs don't hold at their smallest size."""
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
        base = np.array([sizes[0] for sizes in self.of], dtype=np.int32)
        smallest = replace(workload, gpus=base, scaling=None)
        for job in impossible_jobs(shapes_of(smallest, cluster), cluster).tolist():
            self.of[job] = (int(workload.gpus[job]),)
        largest_node = max(node.gpus for node in cluster.nodes)
        for job, sizes in enumerate(self.of):
            if len(sizes) > 1:
                self.base_speed[job] = scaling.speed(job, sizes[0], math.ceil(sizes[0] / largest_node))
        if woven:
            self.unlike = self.base_gpus != workload.gpus

    @property
    def base_gpus(self) -> NDArray[np.int32]:
        """The smallest size of every job."""
        return np.array([sizes[0] for sizes in self.of], dtype=np.int32)

    @property
    def any_elastic(self) -> bool:
        return any(len(sizes) > 1 for sizes in self.of)


class BaseView(Snapshot):
    """What the base policy sees. Call `sync` before every `decide`. A GPU is free in it if no job has it."""

    __slots__ = (
        "_again_s",
        "_base_placements",
        "_elastic",
        "_free",
        "_gpus",
        "_pool_of",
        "_remaining",
        "_restart_s",
        "_slow",
        "_speeds",
        "_users",
        "homeless",
        "real",
    )

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
        """Jobs that run elsewhere but lost their home: in this view they wait."""
        self._restart_s = np.array(real.restart_overhead_s, dtype=np.float64)
        self.restart_overhead_s = floats(self._restart_s).toreadonly()
        self._again_s = np.array(real.again_s, dtype=np.float64)
        self.again_s = floats(self._again_s).toreadonly()
        self.resize_overhead_s = real.resize_overhead_s
        self._remaining = sizes.base_speed
        self._pool_of = pool_of_node(real.cluster)
        self._speeds = None if real.workload.speeds is None else speeds_on(real.workload, real.cluster.models)
        """Of each job by GPU model."""

    def sync(self, real: Snapshot) -> None:
        """Take over the time and the events."""
        self.real = real
        self.now_s, self.may_preempt = real.now_s, real.may_preempt
        self.arrived, self.finished, self.evicted = real.arrived, real.finished, real.evicted
        self.nodes_down, self.nodes_up, self.resized = real.nodes_down, real.nodes_up, real.resized
        self.measured = real.measured
        self._charge_restarts()

    def _charge_restarts(self) -> None:
        """A job loses by a restart what it does meanwhile: told in seconds of its speed at home, that is the more the
        more GPUs it has borrowed."""
        np.copyto(self._restart_s, np.asarray(self.real.restart_overhead_s))
        np.copyto(self._again_s, np.asarray(self.real.again_s))
        for job in self._base_placements:
            home = self._home_rate(job) if self._elastic[job] else 0.0
            if home > 0.0:
                faster = max(self.real.rate(job) / home, 1.0)
                self._restart_s[job] *= faster
                self._again_s[job] *= faster

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
        """A running job that has exactly this place."""
        for job in self._users[place.nodes[0]]:
            if place_of(self._base_placements[job]) == place_of(place):
                return job
        return None

    def alone(self, job: int) -> bool:
        """Whether a running job has its GPUs to itself."""
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
        """The true end. For a job that runs slower with its borrowed GPUs, the end that it would have without them."""
        end = self.real.predicted_end_s(job)
        rate = self.real.rate(job)
        if not self._elastic[job]:
            return end
        slow = self._home_rate(job)
        if rate >= slow or self.real.gpus_of(job) == self._gpus[job]:
            return end
        left = self.real.remaining_s(job)
        if rate <= 0.0:
            return self.now_s + left / slow
        return end - left * (1.0 / rate - 1.0 / slow)

    def _home_rate(self, job: int) -> float:
        """Its speed at its smallest size, at home."""
        home = self._base_placements.get(job)
        if self._speeds is None or home is None:
            return self._slow[job]
        return self._slow[job] * float(self._speeds[job, self._pool_of[home.nodes[0]]])

    def rate(self, job: int) -> float:
        return self.real.rate(job) / self._slow[job]

    def remaining_of(self, jobs: NDArray[np.intp]) -> F8:
        return self.real.remaining_of(jobs) / self._remaining[jobs]

    def spare_s(self, job: int) -> float:
        return self.real.spare_s(job) / float(self._remaining[job])

    def held_of(self, jobs: NDArray[np.intp]) -> F8:
        return self.real.held_of(jobs)

    def held_s(self, job: int) -> float:
        return self.real.held_s(job)

    def attained_gpu_s(self, job: int) -> float:
        """GPUs of the base size times seconds held."""
        return self.real.held_s(job) * float(self._gpus[job])

    def may_move(self, job: int) -> bool:
        return not self._elastic[job]

    def gpus_of(self, job: int) -> int:
        return int(self._gpus[job]) if job in self._base_placements else 0

    def works_from_s(self, job: int) -> float:
        return self.real.works_from_s(job)

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
        return sum_ints(mask.bit_count() for mask in self._free)


def base_workload(workload: Workload, sizes: Sizes) -> Workload:
    """The jobs at their smallest sizes: rigid, with the durations that they have there."""
    stage_s, pairs = workload.stage_s, workload.pairs
    if sizes.unlike.any():
        stage_s = None if stage_s is None else np.where(sizes.unlike[:, None], np.nan, stage_s)
        pairs = (
            None if pairs is None else replace(pairs, of_job=np.where(sizes.unlike, np.int32(NO_KIND), pairs.of_job))
        )
    return replace(
        workload,
        stage_s=stage_s,
        pairs=pairs,
        gpus=sizes.base_gpus,
        duration_s=workload.duration_s / sizes.base_speed,
        estimate_s=None if workload.estimate_s is None else workload.estimate_s / sizes.base_speed,
        scaling=None,
    )


def replicas_of(sizes: Iterable[int], replica_gpus: int) -> tuple[int, ...]:
    """Sizes as numbers of replicas."""
    return tuple(size // replica_gpus for size in sizes)
