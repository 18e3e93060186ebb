"""What a rule of this simulation is, and how Pollux' artifact puts GPUs on nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from gpuloom.core.errors import InputError
from gpuloom.goodput.applications import MOST_NODES, Placement
from gpuloom.goodput.job import Batch, Job, split

MOST_GPUS = 4
"""GPUs of a node on which was measured."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A cluster of equal nodes, no larger than what was measured."""

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
        """A number of GPUs on as few nodes as possible, full ones first."""
        whole, rest = divmod(gpus, self.gpus)
        return (self.gpus,) * whole + ((rest,) if rest else ())


Held = Mapping[str, tuple[int, ...]]
"""By job: the node of each of its GPUs, those of a node together."""


class Rule(Protocol):
    """A policy of this simulation. It keeps state: one object serves one run."""

    gives_submitted_gpus: ClassVar[bool]
    """Each job gets the number of GPUs it was submitted with, or none."""

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Nodes) -> Held:
        """The GPUs of each of the jobs, which are those submitted and unfinished, in the workload's order.

        Jobs that are not named get none. What differs from before costs the job a restart.
        """
        ...

    def batch(self, job: Job) -> Batch:
        """The batch for a job's present placement and epoch."""
        ...


def as_submitted(job: Job) -> Batch:
    """The batch size that its user chose, on the GPUs that it has now."""
    return split(job.app, job.batch_size, len(job.nodes))


def place(wants: Sequence[tuple[str, int]], kept: Held, nodes: Nodes) -> dict[str, tuple[int, ...]]:
    """Keep what is kept, and give each job in turn its GPUs from the nodes with the most free ones (first: lowest).

    They must fit: `wants` and `kept` together hold at most the cluster's GPUs.
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
