"""The simulator's model of jobs that are suspended with all they have on their GPUs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import floats
from gpuloom.core.decision import Placement
from gpuloom.core.errors import InputError
from gpuloom.core.units import parse_memory_mib
from gpuloom.core.words import plural
from gpuloom.core.workload import F8, Workload

OUT_GB_PER_S, IN_GB_PER_S = 1.7, 4.0
LEAST_OUT_S, LEAST_IN_S = 1.0, 0.5
"""Seen on an H200 with driver 580, the slowest of each: docs/results/suspending.md."""
_GB_PER_MIB = 1024 * 1024 / 1e9
KEPT_MIB = 1024
"""Of a node's memory left to others, as the live runner does."""
RESTART, KILL, SUSPEND = "restart", "kill", "suspend"
"""How jobs make way: they save and begin anew later; they are killed, and begin anew from their last checkpoint; they
are suspended."""
_FORM = "suspend, or suspend:out=1.7,in=4 (GB/s out of the GPU and back), also with gpus=8, memory=512GiB, on=node"


@dataclass(frozen=True, slots=True)
class Suspend:
    """Jobs that make way are suspended.

    out_gb_per_s, in_gb_per_s: at which GPU memory moves to the node's memory, and back. most_gpus: jobs of more GPUs
    (or on several nodes) make way as with `restart`; the live scheduler suspends jobs of one process with CUDA alone.
    memory_mib: for copies on each node of which the cluster does not say how much memory it has; None: enough.
    on_node: jobs go on on any GPUs of their node, and not just on those that they had.
    """

    out_gb_per_s: float = OUT_GB_PER_S
    in_gb_per_s: float = IN_GB_PER_S
    most_gpus: int = 1
    memory_mib: int | None = None
    on_node: bool = False

    def __str__(self) -> str:
        text = f"suspend:out={self.out_gb_per_s:g},in={self.in_gb_per_s:g}"
        text += f",gpus={self.most_gpus}" if self.most_gpus != 1 else ""
        text += f",memory={self.memory_mib}MiB" if self.memory_mib is not None else ""
        return text + (",on=node" if self.on_node else "")


@dataclass(frozen=True, slots=True)
class Restart:
    """Jobs that make way begin anew. saves: where they stopped; False: from their last checkpoint."""

    saves: bool = True

    def __str__(self) -> str:
        return RESTART if self.saves else KILL


def parse_preempt(text: str) -> Restart | Suspend:
    """How jobs make way: 'restart', 'kill', or 'suspend' with its figures.

    Raises:
        InputError: it is none of them, or a figure is none.
    """
    way, _, rest = text.strip().partition(":")
    if way in (RESTART, KILL) and not rest:
        return Restart(saves=way == RESTART)
    if way != SUSPEND:
        raise InputError(f"jobs make way by restart, kill or suspend, not by {text!r}: say for instance {_FORM}")
    read: dict[str, tuple[str, Callable[[str], float | int | bool]]] = {
        "out": ("out_gb_per_s", _rate),
        "in": ("in_gb_per_s", _rate),
        "gpus": ("most_gpus", _gpus),
        "memory": ("memory_mib", parse_memory_mib),
        "on": ("on_node", _on),
    }
    found: dict[str, float | int | bool] = {}
    for part in filter(None, re.split(r"[,;]", rest)):
        name, has, value = part.strip().partition("=")
        if name not in read or not has:
            known = ", ".join([f"{name}=" for name in read])
            raise InputError(f"{part.strip()!r} in {text!r} is none of {known}: say for instance {_FORM}")
        field, reader = read[name]
        if field in found:
            raise InputError(f"{name}= stands twice in {text!r}")
        try:
            found[field] = reader(value)
        except (InputError, ValueError) as error:
            raise InputError(f"{part.strip()!r} in {text!r}: {error}") from None
    return Suspend(**found)  # type: ignore[arg-type]


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(f"{text!r} is no rate: give GB/s, above 0")
    return value


def _gpus(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text, re.ASCII):
        raise InputError(f"{text!r} is no number of GPUs, 1 or more")
    return int(text)


def _on(text: str) -> bool:
    if text not in {"gpu", "node"}:
        raise InputError(f"{text!r} is neither 'gpu' (jobs go on on their own GPUs) nor 'node' (on any of their node)")
    return text == "node"


class Suspended:
    """What lies in the nodes' memory, and what moves (`engine.suspending.Suspending`)."""

    def __init__(self, workload: Workload, cluster: Cluster, model: Suspend) -> None:
        known = workload.gpu_memory_mib
        self._model, self._cluster, self._gpus = model, cluster, workload.gpus
        self._mib = floats(np.full(len(workload), np.nan) if known is None else known)
        self._room = [
            math.inf if mib is None else float(max(mib - KEPT_MIB, 0))
            for mib in (node.memory_mib or model.memory_mib for node in cluster.nodes)
        ]
        self.moves: Collection[int] = frozenset(range(len(cluster.nodes))) if model.on_node else frozenset[int]()
        self._out_s: dict[tuple[int, int], float] = {}
        """When what was on a GPU (node, its number) is out, where that is not over."""
        self.times = 0
        """Jobs suspended so far."""
        self.no_room = 0
        """Jobs that began anew because the node's memory was full."""

    def mib(self, job: int, placement: Placement) -> float:
        """What a job has on its GPUs, MiB; where that is not known all that they have; NaN: not known either."""
        own = self._mib[job]
        if own != own:
            own = self._cluster.nodes[placement.nodes[0]].gpu_memory_mib or math.nan
        return own * placement.gpus

    def may(self, job: int, placement: Placement) -> bool:
        if len(placement.nodes) > 1 or placement.gpus > self._model.most_gpus:
            return False
        mib = self.mib(job, placement)
        if mib != mib:
            return False
        if mib > self._room[placement.nodes[0]]:
            self.no_room += 1
            return False
        return True

    def leaves(self, job: int, placement: Placement, now_s: float) -> None:
        mib, (node,) = self.mib(job, placement), placement.nodes
        self._room[node] -= mib
        self.times += 1
        begins_s = max(self.free_from_s(placement), now_s)
        until_s = begins_s + float(self._out(mib))
        for gpu in placement.slots():
            self._out_s[gpu] = until_s

    def dropped(self, job: int, placement: Placement) -> None:
        self._room[placement.nodes[0]] += self.mib(job, placement)

    def back_s(self, job: int, placement: Placement) -> float:
        return float(self._back(self.mib(job, placement)))

    def free_from_s(self, placement: Placement) -> float:
        return max([self._out_s.get(gpu, -math.inf) for gpu in placement.slots()])

    def again_s(self, start_s: F8) -> F8:
        known = [node.gpu_memory_mib for node in self._cluster.nodes if node.gpu_memory_mib is not None]
        mib = np.array(self._mib)
        mib[np.isnan(mib)] = max(known, default=math.nan)
        mib *= self._gpus
        may = ~np.isnan(mib) & (self._gpus <= self._model.most_gpus)
        return np.where(may, self._out(mib) + self._back(mib), start_s)

    def _out(self, mib: float | F8) -> F8:
        """Seconds for so much memory on its way out of the GPUs."""
        return np.maximum(mib * _GB_PER_MIB / self._model.out_gb_per_s, LEAST_OUT_S)

    def _back(self, mib: float | F8) -> F8:
        """Seconds for its way back."""
        return np.maximum(mib * _GB_PER_MIB / self._model.in_gb_per_s, LEAST_IN_S)

    def notes(self, workload: Workload) -> list[str]:
        """What readers of the figures should know."""
        unknown = len(workload) if workload.gpu_memory_mib is None else int(np.isnan(workload.gpu_memory_mib).sum())
        found = []
        if unknown and all(node.gpu_memory_mib is None for node in self._cluster.nodes):
            of = f"{plural(unknown, 'job')} of {len(workload):,}"
            found.append(f"nobody knows what {of} have on their GPUs, nor the GPUs' memory: those are not suspended")
        elif unknown:
            found.append(f"{plural(unknown, 'job')} of {len(workload):,} count as filling their GPUs' memory")
        if self._model.memory_mib is None and all(node.memory_mib is None for node in self._cluster.nodes):
            found.append("the nodes' memory is not known: there is room for all suspended jobs (memory= sets a bound)")
        if self.no_room:
            times = plural(self.no_room, "time")
            found.append(f"{times} a job began anew as its node had no memory left to suspend it")
        return found
