"""Sia's policy (Jayaram Subramanya et al., SOSP '23): GPUs and their model by an integer program over goodputs.

Each round every job has one row of values: its goodput on 1, 2, 4, ... GPUs of each model, over the least of the row;
all but what it holds times what a restart would leave, (age - restarts · cost) / (age + cost). Chosen is, for p < 0,

    min Σ value_jc^p · x_jc + λ Σ (1 - Σ_c x_jc),   Σ_c x_jc ≤ 1,   GPUs of each model,   x in {0, 1}

for p > 0 the largest Σ value^p · x - λ (...). Jobs that are just starting keep what they have.
Source: github.com/siasosp23/artifacts, `sia-simulator/sia.py`, called as in its `run_experiment.sh`: p = -0.5, λ = 1.1.
Powers are rounded to two digits, and goodputs are counted on up to the batch size of the submission, as there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from gpuloom.core.errors import PolicyError
from gpuloom.goodput.base import Cluster, Held, pool_of_nodes
from gpuloom.goodput.job import Batch, Job
from gpuloom.goodput.knowledge import KNOW, Knowledge, Learnt, Told, restart_kept
from gpuloom.goodput.packing import STAYS, best_choices
from gpuloom.solvers.sized_choices import Choice

P = -0.5
LAMBDA = 1.1
_MOST = 3000.0


class Sia:
    """See the module. One object serves one run."""

    gives_submitted_gpus: ClassVar[bool] = False

    def __init__(self, cluster: Cluster, know: str = "learnt", p: float = P, unplaced: float = LAMBDA) -> None:
        if know not in KNOW:
            raise PolicyError(f"sia: know={know!r} must be one of {', '.join(KNOW)}")
        if p == 0 or not math.isfinite(p):
            raise PolicyError(f"sia: p={p:g} must be a number other than 0")
        self.knowledge: Knowledge = Learnt(cluster, user_batch=True) if know == "learnt" else Told(cluster)
        self.cluster, self.p, self.unplaced = cluster, p, unplaced
        self.pool_of = pool_of_nodes(cluster)

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Cluster) -> Held:
        return best_choices(jobs, [self._row(job, now_s) for job in jobs], self.cluster)

    def _row(self, job: Job, now_s: int) -> list[Choice]:
        holds = (self.pool_of[job.nodes[0]], len(job.nodes)) if job.nodes else None
        if holds and job.wait_s > 0:
            return [Choice(*holds, STAYS)]
        options = self.knowledge.options(job)
        least = min(one.goodput for one in options)
        kept = restart_kept(job, now_s) if holds and now_s - job.submit_s >= job.app.restart_s else 1.0
        found = []
        for one in options:
            value = one.goodput / least * (1.0 if (one.pool, one.gpus) == holds else kept)
            power = min(round(value**self.p, 2), _MOST) if value > 1e-4 else _MOST
            found.append(Choice(one.pool, one.gpus, self.unplaced - power if self.p < 0 else power + self.unplaced))
        return found

    def batch(self, job: Job) -> Batch:
        return self.knowledge.batch(job)
