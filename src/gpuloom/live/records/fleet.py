"""From nodes as they are to the cluster that a policy sees, and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuloom.core.cluster import ANY_MODEL, Cluster, Node
from gpuloom.core.decision import Placement
from gpuloom.core.job import Allocation, DeviceKind, GpuState, NodeRecord, NodeSource, NodeState
from gpuloom.core.links import Links, links_of
from gpuloom.core.spec import Spec
from gpuloom.core.sums import sum_ints
from gpuloom.core.words import plural
from gpuloom.core.workload import Labels, Workload
from gpuloom.facts.gpus import known_memory_mib
from gpuloom.placement.shapes import asks_too_much, impossible_jobs, shapes_of

Slot = tuple[str, int]
"""A GPU: (node's name, index)."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """A cluster made of the GPUs that may be given away, and which ones these are.

    GPU number i of the cluster's node n is GPU `slots[n][i]` of the machine `names[n]`. A machine with several GPU
    models is one node for each, as a gang stays on one model. shares: several jobs may have one of its GPUs.
    """

    cluster: Cluster
    names: tuple[str, ...]
    slots: tuple[tuple[int, ...], ...]
    at: Mapping[Slot, tuple[int, int]]
    shares: bool = True

    def allocation(self, placement: Placement) -> Allocation:
        """The GPUs of a placement by their real names."""
        found: dict[str, list[int]] = {}
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            slots = self.slots[node]
            found.setdefault(self.names[node], []).extend(
                slots[bit] for bit in range(mask.bit_length()) if mask >> bit & 1
            )
        return tuple((name, tuple(sorted(gpus))) for name, gpus in found.items())

    def placement(self, allocation: Allocation, layer: int = 0, *, in_order: bool = False) -> Placement | None:
        """The placement that stands for these GPUs; None if one of them is not in this fleet. in_order: its nodes come
        as those of the allocation do."""
        masks: dict[int, int] = {}
        for name, gpus in allocation:
            for gpu in gpus:
                at = self.at.get((name, gpu))
                if at is None:
                    return None
                masks[at[0]] = masks.get(at[0], 0) | 1 << at[1]
        nodes = tuple(masks if in_order else sorted(masks))
        return Placement(nodes, tuple(masks[node] for node in nodes), layer)


def model_of(nodes: Mapping[str, NodeRecord], allocation: Allocation) -> str:
    """The model of these GPUs, as `Fleet` names it; '' where they are of several, or not known."""
    found: set[str] = set()
    for name, gpus in allocation:
        node = nodes.get(name)
        models = {} if node is None else {gpu.index: gpu.model for gpu in node.gpus}
        found.update(models.get(gpu, "") for gpu in gpus)
    return _word(found.pop()) if len(found) == 1 and "" not in found else ""


def gpu_memory_of(nodes: Mapping[str, NodeRecord], allocation: Allocation) -> int | None:
    """MiB of the smallest of these GPUs; None: that of one is not known."""
    found: list[int | None] = []
    for name, gpus in allocation:
        if (record := nodes.get(name)) is None:
            return None
        there = {gpu.index: gpu for gpu in record.gpus}
        for index in gpus:
            if (gpu := there.get(index)) is None:
                return None
            found.append(_memory_mib(record, _word(gpu.model)) if gpu.memory_mib is None else gpu.memory_mib)
    known = [mib for mib in found if mib is not None]
    return min(known) if known and len(known) == len(found) else None


def models_of(nodes: Iterable[NodeRecord]) -> set[str]:
    """The models of all GPUs, in service or not, as `Fleet` names them."""
    return {_word(model) for model in {gpu.model for node in nodes for gpu in node.gpus}}


def slots_of(allocation: Allocation) -> list[Slot]:
    """Every GPU of an allocation."""
    return [(name, gpu) for name, gpus in allocation for gpu in gpus]


def open_slots(nodes: Iterable[NodeRecord]) -> set[Slot]:
    """GPUs that may be given away or are: in service, on machines that are open to new jobs."""
    return {
        (node.name, gpu.index)
        for node in nodes
        for gpu in node.gpus
        if node.state == NodeState.UP and gpu.state == GpuState.OK
    }


def fleet_of(nodes: Iterable[NodeRecord], *, without: Collection[Slot] = (), everything: bool = False) -> Fleet | None:
    """The GPUs in service that are not in `without`; None if there is none.

    Args:
        everything: GPUs and nodes that are out of service as well (can a job ever be placed?).
    """
    nodes = list(nodes)
    made: list[Node] = []
    names: list[str] = []
    slots: list[tuple[int, ...]] = []
    for record in nodes:
        if record.state != NodeState.UP and not everything:
            continue
        by_model: dict[str, list[int]] = {}
        memory: dict[str, list[int | None]] = {}
        for gpu in record.gpus:
            if everything or (gpu.state == GpuState.OK and (record.name, gpu.index) not in without):
                model = _word(gpu.model)
                by_model.setdefault(model, []).append(gpu.index)
                memory.setdefault(model, []).append(gpu.memory_mib)
        for number, (model, indices) in enumerate(by_model.items()):
            known = [mib for mib in memory[model] if mib is not None]
            made.append(
                Node(
                    name=record.name if number == 0 else f"{record.name}#{model}",
                    gpus=len(indices),
                    gpu_model=model,
                    gpu_memory_mib=min(known) if known else _memory_mib(record, model),
                    cpus=record.cpus,
                    memory_mib=record.memory_mib,
                    links=_links(record, indices),
                )
            )
            names.append(record.name)
            slots.append(tuple(indices))
    if not made:
        return None
    at = {(names[n], gpu): (n, bit) for n, gpus in enumerate(slots) for bit, gpu in enumerate(gpus)}
    return Fleet(Cluster(tuple(made), name="live"), tuple(names), tuple(slots), at, shares_gpus(nodes))


def shares_gpus(nodes: Iterable[NodeRecord]) -> bool:
    """Whether several jobs may have one GPU. A device plugin of Kubernetes gives each GPU to one pod."""
    return not any(node.source is NodeSource.KUBERNETES for node in nodes)


def _memory_mib(record: NodeRecord, model: str) -> int | None:
    """Of GPUs that don't tell. A CPU slot that pretends to be a model has none to run out of."""
    return None if record.kind == DeviceKind.CPU else known_memory_mib(model)


def _links(record: NodeRecord, gpus: Sequence[int]) -> Links:
    """Between these GPUs of a machine, as the fleet's node counts them."""
    at = {gpu: place for place, gpu in enumerate(gpus)}
    return links_of(len(gpus), [(at[a], at[b], word) for a, b, word in record.topology if a in at and b in at])


def _word(model: str) -> str:
    return "".join(c if c.isalnum() or c in "._+-" else "-" for c in model).strip("-._+") or ANY_MODEL


class Needs(NamedTuple):
    """What a job needs of a machine, as its spec says it."""

    gpus: int
    gpu_types: tuple[str, ...]
    gpu_memory: int | None
    memory: int | None
    cpus: float | None


def wanted_types(spec: Spec | Needs) -> str:
    """GPU models of a spec as `Workload.gpu_type` writes them ('' for any)."""
    return "|".join(spec.gpu_types)


def _all_have(nodes: Sequence[NodeRecord]) -> str:
    if len(nodes) > 1:
        return f"all {len(nodes)} machines together have"
    return "this machine has" if nodes[0].source == NodeSource.HERE else f"{nodes[0].name} has"


def why_never(nodes: Iterable[NodeRecord], needs: Needs) -> str:
    """Why a job can never be placed on these machines, even if they were empty; '' if it can."""
    nodes = list(nodes)
    fleet = fleet_of(nodes, everything=True)
    if fleet is None:
        return "no machine has a GPU or a CPU slot"
    one = Workload(
        "submission",
        np.zeros(1),
        np.ones(1),
        np.array([needs.gpus], dtype=np.int32),
        job_ids=("",),
        gpu_type=Labels.of([wanted_types(needs)]),
        gpu_memory_mib=None if needs.gpu_memory is None else np.array([float(needs.gpu_memory)]),
    )
    if len(impossible_jobs(shapes_of(one, fleet.cluster), fleet.cluster)):
        if all(node.kind == DeviceKind.CPU for node in nodes):
            if types := wanted_types(needs):
                return f"it asks for GPUs of model {types.replace('|', ' or ')}, and this cluster has only CPU slots"
            has = plural(sum_ints(len(node.gpus) for node in nodes), "CPU slot")
            return f"it asks for {plural(needs.gpus, 'GPU')}; {_all_have(nodes)} only {has} in their place"
        return f"it {asks_too_much(one, fleet.cluster, 0)}"
    for asked, there, unit in (
        (needs.memory, [node.memory_mib for node in nodes], "MiB of main memory"),
        (needs.cpus, [node.cpus for node in nodes], "CPU cores"),
    ):
        most = max((has or 0 for has in there), default=0)
        if asked is not None and most and asked > most:
            return f"it asks for {asked} {unit}, and the largest machine has {most}"
    return ""
