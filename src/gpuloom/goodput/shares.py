"""gpuloom's own rule: GPUs go where they raise goodput most; batch sizes change with GPUs and epochs.

At each step GPUs n_j are chosen so that

    Σ weight_j · √(f_j · goodput_j(n_j) / goodput_j(1)),   Σ n_j ≤ GPUs

is largest, exactly, by dynamic programming (`scaling/allocate.py`). √ is alpha-fairness with alpha ½ (Mo and Walrand,
2000): between throughput, which starves jobs that scale badly, and the harmonic mean that Pollux takes.
f_j is 1 for the present number of GPUs; else the fraction of time that is left after a restart.

ends=unknown: weight (GPU-seconds held + 1 h)^-½, as a job that has had little is likelier to end soon (Tiresias'
    reason). f is Pollux' (age - restarts · r) / (age + r) with r the time of a restart (OSDI '21, section 4.2: 30 s).
ends=known: weight (seconds left on one GPU + 300 s)^-0.6, more for shorter jobs (Berg, Vesilo, Harchol-Balter,
    "heSRPT", 2020). f counts the restart over the time that the job needs on its fair share, 300 s at most.

Form and constants are the best of 33 settings tried on workloads numbered 1, 4 and 6. docs/results/pollux.md reports
the workloads of the other numbers separately; they share no jobs with these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from gpuloom.core.errors import PolicyError
from gpuloom.goodput.base import Cluster, Held, Nodes, one_model
from gpuloom.goodput.job import Batch, Job
from gpuloom.goodput.packing import pack
from gpuloom.goodput.tables import Goodputs
from gpuloom.scaling.allocate import Offer, exact, offer

ENDS = ("unknown", "known")
EXPLORE = ("at-once", "doubling")
ATTAINED_FLOOR_GPU_S = 3600.0
ATTAINED_POWER = 0.5
LEFT_FLOOR_S = 300.0
LEFT_POWER = 0.6
HORIZON_S = 300.0
ALPHA = 0.5


class Shares:
    """See the module. explore=doubling: at most twice as many GPUs as a job has trained on, as Pollux does."""

    gives_submitted_gpus: ClassVar[bool] = False

    def __init__(self, nodes: Nodes, ends: str = "unknown", explore: str = "at-once") -> None:
        for name, value, known in (("ends", ends, ENDS), ("explore", explore, EXPLORE)):
            if value not in known:
                raise PolicyError(f"goodput: {name}={value!r} must be one of {', '.join(known)}")
        self.ends, self.explore = ends, explore
        self.tables = Goodputs(nodes)
        self.running: dict[str, tuple[int, ...]] = {}

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Cluster) -> Held:
        nodes = one_model("goodput", nodes)
        held = {job.name: self.running[job.name] for job in jobs if job.name in self.running}
        fair = max(1, nodes.total // len(jobs))
        offers = [self._offer(now_s, job, len(held.get(job.name, ())), fair) for job in jobs]
        chosen = exact(offers, nodes.total)
        wants = {job.name: one.sizes[at] for job, one, at in zip(jobs, offers, chosen, strict=True)}
        self.running = pack(wants, held, nodes)
        return self.running

    def batch(self, job: Job) -> Batch:
        return self.tables.best(job.app, len(job.nodes), job.epoch)[1]

    def _offer(self, now_s: int, job: Job, held: int, fair: int) -> Offer:
        """What each number of GPUs is worth to a job."""
        sizes = self.tables.sizes(job.app)
        if self.explore == "doubling":
            sizes = tuple(size for size in sizes if size in (sizes[0], held) or size <= 2 * job.most_gpus)
        rates = [self.tables.best(job.app, size, job.epoch)[0] for size in sizes]
        weight, kept = self._known(job, fair) if self.ends == "known" else _unknown(now_s, job)
        values = [
            weight * (rate / rates[0] * (kept if held and size != held else 1.0)) ** ALPHA
            for size, rate in zip(sizes, rates, strict=True)
        ]
        return offer((0, *sizes), (0.0, *values))

    def _known(self, job: Job, fair: int) -> tuple[float, float]:
        """Weight, and the fraction of time left after a restart, if ends are known."""
        left_s = self.tables.left_s(job.app, job.epoch, job.progress)
        lasts_s = min(left_s / fair, HORIZON_S)
        return (left_s + LEFT_FLOOR_S) ** -LEFT_POWER, max(0.0, 1 - job.app.restart_s / lasts_s) if lasts_s > 0 else 0.0


def _unknown(now_s: int, job: Job) -> tuple[float, float]:
    age_s, restart_s = now_s - job.submit_s, job.app.restart_s
    kept = max(0.0, age_s - job.restarts * restart_s) / (age_s + restart_s)
    return math.pow(job.gpu_s + ATTAINED_FLOOR_GPU_S, -ATTAINED_POWER), kept
