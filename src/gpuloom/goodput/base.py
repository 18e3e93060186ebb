"""What a rule of this simulation is, and on which nodes Pollux' artifact places jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from gpuloom.core.errors import InputError, PolicyError
from gpuloom.core.sums import sum_ints
from gpuloom.goodput.applications import MOST_NODES, Placement
from gpuloom.goodput.job import Batch, Job, split

MOST_GPUS = 4
"""GPUs of a node on which Pollux measured."""
MOST_MODEL_GPUS = 9
"""GPUs of a node that a digit of a measured placement can say."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster, or a part of one, of equal nodes. model: their GPU model; empty where only one is measured."""

    count: int
    gpus: int
    model: str = ""

    def __post_init__(self) -> None:
        if self.model:
            if self.count < 1 or not 1 <= self.gpus <= MOST_MODEL_GPUS:
                raise InputError(f"cluster {self}: must be at least 1 node of 1 to {MOST_MODEL_GPUS} GPUs")
        elif not (1 <= self.count <= MOST_NODES and 1 <= self.gpus <= MOST_GPUS):
            raise InputError(
                f"cluster {self}: Pollux' measurements are on 1 to {MOST_NODES} nodes of 1 to {MOST_GPUS} GPUs"
            )

    @staticmethod
    def parse(text: str) -> Nodes:
        """'16x4', '16x4:aws': 16 nodes of 4 GPUs."""
        found = re.fullmatch(r"(\d{1,4})x(\d{1,4})(?::([\w.+-]+))?", text.strip())
        if found is None:
            raise InputError(
                f"cluster {text!r}: must be NODESxGPUS or NODESxGPUS:MODEL, as 16x4 or 6x4:aws,2x8:dgx-ext"
            )
        return Nodes(int(found[1]), int(found[2]), found[3] or "")

    def __str__(self) -> str:
        return f"{self.count}x{self.gpus}:{self.model}".rstrip(":")

    @property
    def pools(self) -> tuple[Nodes, ...]:
        return (self,)

    @property
    def total(self) -> int:
        return self.count * self.gpus

    def packed(self, gpus: int) -> Placement:
        """So many GPUs on as few nodes as possible, full nodes first."""
        whole, rest = divmod(gpus, self.gpus)
        return (self.gpus,) * whole + ((rest,) if rest else ())


@dataclass(frozen=True, slots=True)
class Mixed:
    """A cluster of several GPU models. Nodes are numbered through all pools, in their order."""

    pools: tuple[Nodes, ...]

    def __post_init__(self) -> None:
        models = [pool.model for pool in self.pools]
        if not all(models) or len(set(models)) < len(models) or not models:
            raise InputError(
                f"cluster {','.join(map(str, self.pools))}: every part needs a GPU model of its own, as "
                "6x4:aws,2x8:dgx-ext"
            )

    @property
    def total(self) -> int:
        return sum_ints(pool.total for pool in self.pools)


Cluster = Nodes | Mixed


def parse_cluster(text: str) -> Cluster:
    """'16x4', or by GPU model, '6x4:aws,2x8:dgx-ext,3x8:rtx'.

    Raises:
        InputError: not so written.
    """
    parts = tuple(Nodes.parse(part) for part in text.split(","))
    return parts[0] if len(parts) == 1 else Mixed(parts)


def pool_of_nodes(cluster: Cluster) -> tuple[int, ...]:
    """The pool of each node."""
    return tuple(at for at, pool in enumerate(cluster.pools) for _ in range(pool.count))


def one_model(rule: str, cluster: Cluster) -> Nodes:
    """The only pool of a cluster.

    Raises:
        PolicyError: there are several, and the rule knows nothing of them.
    """
    if isinstance(cluster, Mixed):
        raise PolicyError(f"policy {rule!r} knows one GPU model only; on several: goodput, sia")
    return cluster


Held = Mapping[str, tuple[int, ...]]
"""By job: the node of each of its GPUs; GPUs of one node stand together."""


class Rule(Protocol):
    """A policy of this simulation. It keeps state: one object serves one run."""

    gives_submitted_gpus: ClassVar[bool]
    """Each job gets the number of GPUs it was submitted with, or none."""

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Cluster) -> Held:
        """The GPUs of each job.


        `jobs` are those submitted and not finished, in the workload's order. A job that is not in the answer gets no
        GPUs. A job whose GPUs differ from before pays for a restart.
        """
        ...

    def batch(self, job: Job) -> Batch:
        """The batch for a job's present placement and epoch."""
        ...


def as_submitted(job: Job) -> Batch:
    """The batch size that its user chose, on the GPUs that it has now."""
    return split(job.app, job.batch_size, len(job.nodes))


def place(wants: Sequence[tuple[str, int]], kept: Held, nodes: Nodes) -> dict[str, tuple[int, ...]]:
    """Leave the jobs in `kept` where they are, and give the others GPUs in turn, on the nodes with most free GPUs.

    Of equal nodes the first is taken. `wants` and `kept` together must not exceed the cluster's GPUs.
    """
    free = [nodes.gpus] * nodes.count
    for held in kept.values():
        for node in held:
            free[node] -= 1
    found = dict(kept)
    for name, gpus in wants:
        taken: list[int] = []
        while len(taken) < gpus:
            node = max(range(nodes.count), key=lambda n: (free[n], -n))
            count = min(free[node], gpus - len(taken))
            taken += [node] * count
            free[node] -= count
        found[name] = tuple(taken)
    return found
