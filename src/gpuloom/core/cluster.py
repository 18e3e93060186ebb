"""Nodes, GPUs and GPU models, and how a user writes them down."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from gpuloom.core.errors import ClusterError, InputError
from gpuloom.core.links import WORDS, Links, links_of
from gpuloom.core.sums import sum_ints
from gpuloom.core.units import parse_memory_mib

ANY_MODEL = "GPU"
"""Model name of GPUs whose model was not said."""

MAX_NODES = 1_000_000


def plain_model(name: str) -> str:
    """A GPU model's name in the form in which names are compared: 'Tesla V100' and 'tesla-v100' are the same."""
    return "".join(c for c in name.lower() if c.isalnum())


MODEL = r"[A-Za-z0-9][\w.+-]*"
"""The pattern of a GPU model's name."""


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. Memory in MiB, network in Gbit/s; None where not said. links: between its GPUs."""

    name: str
    gpus: int
    gpu_model: str = ANY_MODEL
    gpu_memory_mib: int | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    network_gbps: float | None = None
    links: Links = ()


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
            seen: set[str] = set()
            twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            raise ClusterError(f"two nodes are named {twice!r}: names must differ")
        for node in self.nodes:
            if node.gpus < 1:
                raise ClusterError(f"node {node.name!r} has {node.gpus} GPUs: a node needs at least one")

    @cached_property
    def gpus(self) -> int:
        """GPUs of all nodes together."""
        return sum_ints(node.gpus for node in self.nodes)

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
        match = re.fullmatch(r"\s*(\d+)[xX](\d+)(?::(" + MODEL + r"))?\s*", part, re.ASCII)
        if match is None:
            raise ClusterError(
                f"{part.strip()!r} in cluster {text!r} is not NODESxGPUS or NODESxGPUS:MODEL "
                "(8x8, 4x8:V100,16x4:K80), nor is it an existing YAML file"
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


_NODE_KEYS = {"name", "count", "gpus", "gpu_model", "gpu_memory", "cpus", "memory", "network_gbps", "links"}


def cluster_from_mapping(data: object, *, source: str) -> Cluster:
    """A cluster from the content of a YAML file: {name, nodes: [{count, gpus, gpu_model, gpu_memory, …}]}.

    Raises:
        ClusterError: names the file, the entry and the key that is wrong.
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("nodes"), list):
        raise ClusterError(f"{source}: must hold a list under the key 'nodes' (see docs/reference/clusters.md)")
    if unknown := set(data) - {"name", "nodes"}:
        raise ClusterError(f"{source}: unknown key {sorted(map(str, unknown))[0]!r}; known: name, nodes")
    nodes: list[tuple[str | None, Node]] = []
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
        nodes.extend(_nodes_of(entry, where))
    # Numbered names must not collide with given ones.
    given = {name for name, _ in nodes if name is not None}
    free = (name for name in (f"n{i}" for i in itertools.count()) if name not in given)
    made = tuple(node if name is not None else replace(node, name=next(free)) for name, node in nodes)
    try:
        return Cluster(made, name=str(data.get("name", source)))
    except ClusterError as error:
        raise ClusterError(f"{source}: {error}") from error


def _nodes_of(entry: Mapping[str, object], where: str) -> list[tuple[str | None, Node]]:
    """Nodes of one entry, each with the name that was given for it."""
    count = _whole(entry.get("count", 1), f"{where}.count", MAX_NODES)
    network = entry.get("network_gbps")
    if network is not None and (
        isinstance(network, bool) or not isinstance(network, int | float) or not 0 < network < math.inf
    ):
        raise ClusterError(f"{where}.network_gbps is {network!r}, must be a number above 0")
    model = entry.get("gpu_model", ANY_MODEL)
    if isinstance(model, int) and not isinstance(model, bool):
        model = str(model)  # 3090
    if not isinstance(model, str) or re.fullmatch(MODEL, model) is None:
        raise ClusterError(f"{where}.gpu_model is {model!r}, must be a word such as V100 or A100-80GB")
    gpus = _whole(entry.get("gpus"), f"{where}.gpus", None)
    node = Node(
        name="",
        gpus=gpus,
        gpu_model=model,
        gpu_memory_mib=_memory(entry, "gpu_memory", where),
        cpus=_whole(entry["cpus"], f"{where}.cpus", None) if "cpus" in entry else None,
        memory_mib=_memory(entry, "memory", where),
        network_gbps=None if network is None else float(network),
        links=_links(entry.get("links", []), gpus, f"{where}.links"),
    )
    if "name" not in entry:
        return [(None, node)] * count
    base = str(entry["name"])
    names = [base] if count == 1 else [f"{base}{i}" for i in range(count)]
    return [(name, replace(node, name=name)) for name in names]


def _links(given: object, gpus: int, where: str) -> Links:
    pairs: list[tuple[int, int, str]] = []
    for place, pair in enumerate(given if isinstance(given, list) else [given], 1):
        match pair:
            case [int(first), int(second), str(word)] if (
                word in WORDS and first != second and min(first, second) >= 0 and max(first, second) < gpus
            ):
                pairs.append((first, second, word))
            case _:
                raise ClusterError(
                    f"{where}[{place}] is {pair!r}, must be two GPUs of the node (0 to {gpus - 1}) and how they are "
                    f"connected ({', '.join(WORDS)}), such as [0, 1, NVLINK]"
                )
    return links_of(gpus, pairs)


def _memory(entry: Mapping[str, object], key: str, where: str) -> int | None:
    if key not in entry:
        return None
    try:
        return parse_memory_mib(str(entry[key]))
    except InputError as error:
        raise ClusterError(f"{where}.{key}: {error}") from error


def _whole(value: object, where: str, most: int | None) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
        limit = f"1 to {most:,}" if most is not None else "1 or more"
        raise ClusterError(f"{where} is {value!r}, must be a whole number, {limit}")
    return value
