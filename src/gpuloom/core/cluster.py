"""Nodes, GPUs and GPU models, and how a user writes them down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from gpuloom.core.errors import ClusterError
from gpuloom.core.units import parse_memory_mib

ANY_MODEL = "GPU"
"""Model name of GPUs whose model was not said."""

MAX_NODES = 1_000_000


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. Memory in MiB, network in Gbit/s; None where not said."""

    name: str
    gpus: int
    gpu_model: str = ANY_MODEL
    gpu_memory_mib: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    network_gbps: float | None = None


@dataclass(frozen=True)
class Cluster:
    """Nodes in the order in which they were described."""

    nodes: tuple[Node, ...]
    name: str = ""

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ClusterError("a cluster needs at least one node")
        names = [node.name for node in self.nodes]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ClusterError(f"two nodes are named {twice!r}: names must differ")
        for node in self.nodes:
            if node.gpus < 1:
                raise ClusterError(f"node {node.name!r} has {node.gpus} GPUs: a node needs at least one")

    @cached_property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return sum(node.gpus for node in self.nodes)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """GPU models, in order of first appearance."""
        return tuple(dict.fromkeys(node.gpu_model for node in self.nodes))

    def __str__(self) -> str:
        """The short form (`4x8:V100,16x4:K80`)."""
        parts: list[tuple[int, int, str]] = []
        for node in self.nodes:
            if parts and parts[-1][1:] == (node.gpus, node.gpu_model):
                parts[-1] = (parts[-1][0] + 1, node.gpus, node.gpu_model)
            else:
                parts.append((1, node.gpus, node.gpu_model))
        return ",".join(f"{n}x{g}" + (f":{m}" if m != ANY_MODEL else "") for n, g, m in parts)


def parse_cluster(text: str) -> Cluster:
    """A cluster from its short form: NODESxGPUS[:MODEL], several separated by commas.

    Raises:
        ClusterError: names the part that can't be read and shows a right one.
    """
    nodes: list[Node] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)x(\d+)(?::([A-Za-z0-9][\w.+-]*))?\s*", part)
        if match is None:
            raise ClusterError(
                f"{part.strip()!r} in cluster {text!r} is not NODESxGPUS or NODESxGPUS:MODEL "
                "(8x8, 4x8:V100,16x4:K80), nor is it the name of a YAML file that exists"
            )
        count, gpus = int(match.group(1)), int(match.group(2))
        if not 1 <= count <= MAX_NODES or gpus < 1:
            raise ClusterError(
                f"{part.strip()!r} in cluster {text!r}: nodes must be 1 to {MAX_NODES:,}, GPUs 1 or more"
            )
        model = match.group(3) or ANY_MODEL
        first = len(nodes)
        nodes.extend(Node(f"n{first + i}", gpus, model) for i in range(count))
    return Cluster(tuple(nodes), name=text)


_NODE_KEYS = {"name", "count", "gpus", "gpu_model", "gpu_memory", "cpus", "memory", "network_gbps"}


def cluster_from_mapping(data: object, *, source: str) -> Cluster:
    """A cluster from the content of a YAML file: {name, nodes: [{count, gpus, gpu_model, gpu_memory, …}]}.

    Raises:
        ClusterError: names the file, the entry and the key that is wrong.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list):
        raise ClusterError(f"{source}: must hold a list under the key 'nodes' (see docs/clusters.md)")
    if unknown := set(data) - {"name", "nodes"}:
        raise ClusterError(f"{source}: unknown key {sorted(map(str, unknown))[0]!r}; known: name, nodes")
    nodes: list[Node] = []
    for number, entry in enumerate(data["nodes"], start=1):
        where = f"{source}: nodes[{number}]"
        if not isinstance(entry, Mapping):
            raise ClusterError(
                f"{where} is {entry!r}, must be a mapping such as {{count: 4, gpus: 8, gpu_model: V100}}"
            )
        if unknown := set(entry) - _NODE_KEYS:
            raise ClusterError(
                f"{where}: unknown key {min(map(str, unknown))!r}; known: {', '.join(sorted(_NODE_KEYS))}"
            )
        count = _whole(entry.get("count", 1), f"{where}.count", MAX_NODES)
        gpus = _whole(entry.get("gpus"), f"{where}.gpus", None)
        network = entry.get("network_gbps")
        if network is not None and (isinstance(network, bool) or not isinstance(network, int | float) or network <= 0):
            raise ClusterError(f"{where}.network_gbps is {network!r}, must be a number above 0")
        for i in range(count):
            base = str(entry["name"]) if "name" in entry else None
            name = f"n{len(nodes)}" if base is None else base if count == 1 else f"{base}{i}"
            nodes.append(
                Node(
                    name=name,
                    gpus=gpus,
                    gpu_model=str(entry.get("gpu_model", ANY_MODEL)),
                    gpu_memory_mib=parse_memory_mib(entry["gpu_memory"]) if "gpu_memory" in entry else None,
                    cpus=_whole(entry["cpus"], f"{where}.cpus", None) if "cpus" in entry else None,
                    memory_mib=parse_memory_mib(entry["memory"]) if "memory" in entry else None,
                    network_gbps=None if network is None else float(network),
                )
            )
    return Cluster(tuple(nodes), name=str(data.get("name", source)))


def _whole(value: object, where: str, most: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        limit = f"1 to {most:,}" if most is not None else "1 or more"
        raise ClusterError(f"{where} is {value!r}, must be a whole number, {limit}")
    return value
