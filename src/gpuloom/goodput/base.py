"""What a rule of this simulation is, and on which nodes Pollux' artifact places jobs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from gpuloom.core.errors import InputError
from gpuloom.goodput.applications import MOST_NODES, Placement
from gpuloom.goodput.job import Batch, Job, split

MOST_GPUS = 4
"""GPUs of each node that the measurements were made on."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster of equal nodes, at most as large as the measured one."""

    count: int
    gpus: int

    def __post_init__(self) -> None:
        if not (1 <= self.count <= MOST_NODES and 1 <= self.gpus <= MOST_GPUS):
            raise InputError(
                f"cluster {self.count}x{self.gpus}: Pollux' measurements are on 1 to {MOST_NODES} nodes of 1 to "
                f"{MOST_GPUS} GPUs"
            )

    @staticmethod
    def parse(text: str) -> Nodes:
        """'16x4': 16 nodes of 4 GPUs."""
        found = re.fullmatch(r"(\d{1,4})x(\d{1,4})", text.strip())
        if found is None:
            raise InputError(f"cluster {text!r}: must be NODESxGPUS, as 16x4")
        return Nodes(int(found[1]), int(found[2]))

    @property
    def total(self) -> int:
        return self.count * self.gpus

    def packed(self, gpus: int) -> Placement:
        """So many GPUs on as few nodes as possible, full nodes first."""
        whole, rest = divmod(gpus, self.gpus)
        return (self.gpus,) * whole + ((rest,) if rest else ())


Held = Mapping[str, tuple[int, ...]]
"""By job: the node of each of its GPUs; GPUs of one node stand together."""


class Rule(Protocol):
    """A policy of this simulation. It keeps state: one object serves one run."""

    gives_submitted_gpus: ClassVar[bool]
    """Each job gets the number of GPUs it was submitted with, or none."""

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Nodes) -> Held:
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
