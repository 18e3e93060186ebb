"""gpuloom's own rule where nothing is told, or where GPU models differ: size and model of every job decided together.

At each step every job gets one (model, GPUs), or none, so that

    Σ (f_j · goodput_j(model, GPUs) / goodput_j(1 GPU of the model that is worst for it))^0.4

is largest, exactly (`solvers/sized_choices.py`). The power is alpha-fairness between throughput (1) and proportional
fairness (0), Mo and Walrand, 2000. f_j is 1 for what the job holds, else (age - restarts · cost) / (age + cost), as in
Pollux and Sia. Jobs that are just starting keep what they have.

know=learnt: what Sia's jobs know, no more (`knowledge.py`). A job that has not trained yet counts, on each model, as
    much as the others have found on one GPU of it, in the geometric mean; as nothing is known of it, that is the best
    guess.
know=told: the measured curves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from gpuloom.core.errors import PolicyError
from gpuloom.goodput.base import Cluster, Held, pool_of_nodes
from gpuloom.goodput.job import Batch, Job
from gpuloom.goodput.knowledge import KNOW, Expected, Knowledge, Learnt, Told, restart_kept
from gpuloom.goodput.packing import STAYS, best_choices
from gpuloom.solvers.sized_choices import Choice

POWER = 0.4


class Gains:
    """See the module. One object serves one run."""

    gives_submitted_gpus: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, know: str = "learnt", explore: str = "at-once") -> None:
        if know not in KNOW:
            raise PolicyError(f"goodput: know={know!r} must be one of {', '.join(KNOW)}")
        if explore not in ("at-once", "doubling"):
            raise PolicyError(f"goodput: explore={explore!r} must be one of at-once, doubling")
        doubling = explore == "doubling"
        self.knowledge: Knowledge = Learnt(cluster) if know == "learnt" else Told(cluster, doubling=doubling)
        self.cluster = cluster
        self.pool_of = pool_of_nodes(cluster)
        self.ratios: dict[str, tuple[float, ...]] = {}
        """By job that has trained: the goodput of one GPU of each pool over the least of them."""

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Cluster) -> Held:
        usual = self._usual()
        return best_choices(jobs, [self._row(job, now_s, usual) for job in jobs], self.cluster)

    def _row(self, job: Job, now_s: int, usual: Sequence[float]) -> list[Choice]:
        holds = (self.pool_of[job.nodes[0]], len(job.nodes)) if job.nodes else None
        if holds and job.wait_s > 0:
            return [Choice(*holds, STAYS)]
        options = self.knowledge.options(job)
        if isinstance(self.knowledge, Learnt) and job.noise is None:
            return [Choice(one.pool, 1, math.pow(usual[one.pool], POWER)) for one in options]
        alone = {one.pool: one.goodput for one in options if one.gpus == 1}
        base = min(alone.values()) if alone else min(one.goodput for one in options)
        if len(alone) == len(self.cluster.pools):
            self.ratios[job.name] = tuple(alone[at] / base for at in range(len(alone)))
        kept = restart_kept(job, now_s) if holds else 1.0
        return [Choice(one.pool, one.gpus, _worth(one, base, holds, kept)) for one in options]

    def _usual(self) -> list[float]:
        """How much a job usually gets out of one GPU of each pool, as far as others have found out."""
        if not self.ratios:
            return [1.0] * len(self.cluster.pools)
        logs = [[math.log(ratio) for ratio in ratios] for ratios in self.ratios.values()]
        return [math.exp(math.fsum(column) / len(logs)) for column in zip(*logs, strict=True)]

    def batch(self, job: Job) -> Batch:
        return self.knowledge.batch(job)


def _worth(one: Expected, base: float, holds: tuple[int, int] | None, kept: float) -> float:
    return math.pow(one.goodput / base * (1.0 if (one.pool, one.gpus) == holds else kept), POWER)
