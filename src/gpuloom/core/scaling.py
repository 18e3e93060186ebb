"""How many GPUs a job can use, and how fast it runs on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import InputError

F8 = NDArray[np.float64]
I4 = NDArray[np.int32]

NO_CURVE = -1
"""`Scaling.curve` of a job for which only its present size is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaling:
    """Sizes of each job, and throughput curves by GPUs and nodes.

    One entry per job:
        replica_gpus: GPUs of one replica.
        min_replicas, max_replicas: the job runs with any number between them; equal for a rigid job.
        curve: index into `curves`, or `NO_CURVE` for a rigid job whose speed does not depend on its nodes.
        reference: value of the curve at which the job's `duration_s` was measured (1 without a curve).
    A curve has shape (G + 1, W): `curve[g, w - 1]` is the throughput on g GPUs on w nodes, in any unit that its jobs
    share (iterations per second, as a rule). A row of zeros: it can't run on so many GPUs. On more than W nodes it runs
    as on W.
    """

    replica_gpus: I4
    min_replicas: I4
    max_replicas: I4
    curve: I4
    reference: F8
    curves: tuple[F8, ...]

    def __post_init__(self) -> None:
        n = len(self.replica_gpus)
        for name in ("min_replicas", "max_replicas", "curve", "reference"):
            if len(getattr(self, name)) != n:
                raise InputError(f"scaling: {name} has {len(getattr(self, name))} rows, replica_gpus has {n}")
        for index, curve in enumerate(self.curves):
            if curve.ndim != 2 or min(curve.shape) < 1 or not (np.isfinite(curve) & (curve >= 0)).all():
                raise InputError(
                    f"scaling: curve {index} must have a row per number of GPUs from 0 and a column per number of "
                    "nodes from 1, all numbers of at least 0"
                )
            if ((curve > 0).any(axis=1) & ~(curve > 0).all(axis=1)).any():
                raise InputError(f"scaling: curve {index} has a number of GPUs with throughput 0 on some nodes only")
        bad = (self.replica_gpus < 1) | (self.min_replicas < 1) | (self.max_replicas < self.min_replicas)
        bad |= ~(np.isfinite(self.reference) & (self.reference > 0))
        bad |= (self.curve < NO_CURVE) | (self.curve >= len(self.curves))
        bad |= (self.curve == NO_CURVE) & (self.max_replicas > self.min_replicas)
        longest = np.array([len(curve) - 1 for curve in self.curves] or [0])[np.maximum(self.curve, 0)]
        bad |= (self.curve >= 0) & (self.max_replicas.astype(np.int64) * self.replica_gpus > longest)
        if bad.any():
            job = int(bad.argmax())
            raise InputError(
                f"scaling of job {job}: {self.replica_gpus[job]} GPUs a replica, {self.min_replicas[job]} to "
                f"{self.max_replicas[job]} replicas, curve {self.curve[job]}, reference {self.reference[job]}: "
                "replicas must be 1 or more, the most not below the least, sizes that differ need a curve that "
                "reaches as far, and its reference must be above 0"
            )

    def __len__(self) -> int:
        return len(self.replica_gpus)

    def take(self, rows: NDArray[np.intp]) -> Scaling:
        """The same for these jobs."""
        return Scaling(
            self.replica_gpus[rows],
            self.min_replicas[rows],
            self.max_replicas[rows],
            self.curve[rows],
            self.reference[rows],
            self.curves,
        )

    @property
    def min_gpus(self) -> I4:
        """Fewest GPUs on which each job runs."""
        return self.replica_gpus * self.min_replicas

    @property
    def max_gpus(self) -> I4:
        """Most GPUs that each job can use."""
        return self.replica_gpus * self.max_replicas

    def allows(self, job: int, gpus: int) -> bool:
        """Whether the job may run on this many GPUs."""
        replicas, rest = divmod(gpus, int(self.replica_gpus[job]))
        if rest or not self.min_replicas[job] <= replicas <= self.max_replicas[job]:
            return False
        return self.curve[job] == NO_CURVE or bool(self.curves[self.curve[job]][gpus, 0] > 0)

    def speed(self, job: int, gpus: int, nodes: int) -> float:
        """Speed on so many GPUs and nodes, relative to that at which `duration_s` was measured."""
        index = self.curve[job]
        if index == NO_CURVE:
            return 1.0
        curve = self.curves[index]
        return float(curve[gpus, min(nodes, curve.shape[1]) - 1] / self.reference[job])
