"""Which GPUs have memory for one more job beside those on them, where jobs' memory is what it is
(`Snapshot.memory_stays`): unknown memory fits beside nobody."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8

UNKNOWN = -1.0
Held = Iterable[tuple[int, Mapping[int, int]]]
"""Jobs, each with its masks by node."""


class GpuRoom:
    """Guests share with hosts, at most one of each on a GPU. GPUs are numbered over all nodes, in order.

    need_mib: of each job on each of its GPUs, or UNKNOWN.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        nodes, known = snapshot.cluster.nodes, snapshot.workload.gpu_memory_mib
        self._need_mib: F8 = (
            np.full(len(snapshot.workload), UNKNOWN) if known is None else np.nan_to_num(known, nan=UNKNOWN)
        )
        limits = [np.inf if node.gpu_memory_mib is None else float(node.gpu_memory_mib) for node in nodes]
        self._limit_mib: F8 = np.repeat(limits, [node.gpus for node in nodes])
        self._first = first_gpus(snapshot.cluster)
        self._guests = self._hosts = np.full(len(self._limit_mib), np.nan)
        """By GPU, what the job there needs; NaN: there is none."""
        self._closed_to: dict[float, Mapping[int, int]] = {}
        self._beside: dict[float, NDArray[np.bool_]] = {}

    def kinds(self, shapes: NDArray[np.generic]) -> NDArray[np.intp]:
        """A number for each shape and need, by job."""
        pairs = np.stack([np.asarray(shapes, dtype=np.float64), self._need_mib])
        return np.unique(pairs, axis=1, return_inverse=True)[1].reshape(-1).astype(np.intp)

    def guests_are(self, jobs: Held) -> None:
        self._guests = self._needs(jobs)
        self._closed_to.clear()

    def hosts_are(self, jobs: Held) -> None:
        self._hosts = self._needs(jobs)
        self._beside.clear()

    def closed_to(self, job: int) -> Mapping[int, int]:
        """GPUs whose guest leaves this job no memory: masks by node."""
        need = self._need_mib.item(job)
        if need not in self._closed_to:
            masks: dict[int, int] = {}
            for gpu in np.flatnonzero(~self._fits(need, self._guests)).tolist():
                node = int(np.searchsorted(self._first, gpu, side="right")) - 1
                masks[node] = masks.get(node, 0) | 1 << (gpu - int(self._first[node]))
            self._closed_to[need] = masks
        return self._closed_to[need]

    def beside_hosts(self, job: int) -> NDArray[np.bool_]:
        """By GPU, whether its host leaves this job the memory that it needs."""
        need = self._need_mib.item(job)
        if need not in self._beside:
            self._beside[need] = self._fits(need, self._hosts)
        return self._beside[need]

    def _needs(self, jobs: Held) -> F8:
        found: F8 = np.full(len(self._limit_mib), np.nan)
        for job, masks in jobs:
            for node, mask in masks.items():
                base = int(self._first[node])
                for gpu in range(mask.bit_length()):
                    if mask >> gpu & 1:
                        found[base + gpu] = self._need_mib[job]
        return found

    def _fits(self, need_mib: float, there: F8) -> NDArray[np.bool_]:
        free: NDArray[np.bool_] = np.isnan(there) | np.isinf(self._limit_mib)
        if need_mib == UNKNOWN:
            return free
        free |= (there != UNKNOWN) & (there + need_mib <= self._limit_mib)
        return free


def first_gpus(cluster: Cluster) -> NDArray[np.int64]:
    """By node, the number of its first GPU; after the last node, how many there are."""
    return np.concatenate([[0], np.cumsum([node.gpus for node in cluster.nodes])]).astype(np.int64)


def limits_memory(cluster: Cluster) -> bool:
    """Whether any node has GPUs with a memory to run out of; CPU slots have none."""
    return any(node.gpu_memory_mib is not None for node in cluster.nodes)
