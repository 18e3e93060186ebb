"""Facts of GPU models: memory, rates, price. They ship as data/gpus.csv, with a source in each row."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from types import MappingProxyType

import numpy as np

from gpuloom.core.cluster import Cluster, plain_model
from gpuloom.core.workload import F8
from gpuloom.policies.base import Policy

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU model, per GPU as the operating system shows it. `price_usd_per_hour` is None where none was found."""

    model: str
    aliases: tuple[str, ...]
    memory_mib: int
    fp16_tflops: float
    """Dense FP16 matrix rate (tensor cores, where the model has them); the FP32 rate where FP16 is no faster."""
    fp32_tflops: float
    memory_gbps: float
    price_usd_per_hour: float | None
    price_source: str
    price_date: str
    source: str

    @property
    def typical(self) -> float:
        """Geometric mean of FP32 rate and memory bandwidth, for estimates (docs/explanation/heterogeneity.md)."""
        return math.sqrt(self.fp32_tflops * self.memory_gbps)


MEASURES = ("fp16", "fp32", "bandwidth", "typical")
"""Ways to say by one number how fast a GPU model is."""


@cache
def all_gpus() -> tuple[GpuFacts, ...]:
    """Every model of data/gpus.csv, in its order."""
    text = resources.files("gpuloom").joinpath("data/gpus.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(
        GpuFacts(
            row["model"],
            tuple(filter(None, row["aliases"].split("|"))),
            round(float(row["memory_gib"]) * 1024),
            float(row["fp16_tflops"]),
            float(row["fp32_tflops"]),
            float(row["memory_gbps"]),
            float(row["price_usd_per_hour"]) if row["price_usd_per_hour"] else None,
            row["price_source"],
            row["price_date"],
            row["source"],
        )
        for row in rows
    )


@cache
def _by_name() -> Mapping[str, tuple[GpuFacts, ...]]:
    found: dict[str, tuple[GpuFacts, ...]] = {}
    for gpu in all_gpus():
        for name in dict.fromkeys(map(plain_model, (gpu.model, *gpu.aliases))):
            found[name] = (*found.get(name, ()), gpu)
    return found


def gpus_named(name: str) -> tuple[GpuFacts, ...]:
    """All models that the name may mean, the one usually meant first ('V100': 16 GB, then 32 GB); () if unknown."""
    return _by_name().get(plain_model(name), ())


def find_gpu(name: str) -> GpuFacts | None:
    """The model that the name usually means, whatever its case and hyphens; None if it is unknown."""
    named = gpus_named(name)
    return named[0] if named else None


def measure_of(gpu: GpuFacts, measure: str) -> float:
    """One of `MEASURES` of a GPU model."""
    values = {
        "fp16": gpu.fp16_tflops,
        "fp32": gpu.fp32_tflops,
        "bandwidth": gpu.memory_gbps,
        "typical": gpu.typical,
    }
    return values[measure]


@cache
def measures(measure: str) -> Mapping[str, float]:
    """One of `MEASURES`, or the `price` (dollars per GPU and hour), by plain name and alias of every model for which it
    is known. A name stands for the model that it usually means."""
    found: dict[str, float] = {}
    for gpu in all_gpus():
        for name in (gpu.model, *gpu.aliases):
            meant = find_gpu(name) or gpu
            value = meant.price_usd_per_hour if measure == "price" else measure_of(meant, measure)
            if value is not None:
                found.setdefault(plain_model(name), value)
    return MappingProxyType(found)


def hand_in_facts(policy: Policy) -> None:
    """Replace values of parameters that name a measure of GPU models by its numbers: policies do no I/O."""
    for parameter in policy.parameters:
        value = policy.values[parameter.name]
        if parameter.names_measure and isinstance(value, str):
            policy.values[parameter.name] = measures(value)
    if policy.inner is not None:
        hand_in_facts(policy.inner)


def known_memory_mib(model: str) -> int | None:
    """The memory of a GPU model, MiB; None: nothing is known of it.

    Where a name may mean several models, the largest memory is taken: no job is refused that might fit.
    """
    return max((gpu.memory_mib for gpu in gpus_named(model)), default=None)


def with_known_memory(cluster: Cluster) -> Cluster:
    """The cluster, with the memory of the GPU model for nodes whose GPU memory is not given."""
    known = {node.gpu_model: known_memory_mib(node.gpu_model) for node in cluster.nodes if node.gpu_memory_mib is None}
    if not any(known.values()):
        return cluster
    nodes = [
        node if node.gpu_memory_mib is not None else replace(node, gpu_memory_mib=known[node.gpu_model])
        for node in cluster.nodes
    ]
    return replace(cluster, nodes=tuple(nodes))


def price_usd_per_hour(model: str) -> float | None:
    """On-demand price of one GPU of a model, US dollars per hour; None: not known."""
    found = find_gpu(model)
    return None if found is None else found.price_usd_per_hour


def prices_usd_per_s(models: Sequence[str]) -> F8 | None:
    """On-demand price of one GPU of each model, US dollars per second; None unless all are known."""
    prices = [price for price in map(price_usd_per_hour, models) if price is not None]
    return np.array(prices) / HOUR_S if len(prices) == len(models) else None
