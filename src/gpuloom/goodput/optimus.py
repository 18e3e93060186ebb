"""Optimus as in Pollux' artifact (branch osdi21-artifact, `simulator/optimus.py`): GPUs by the time they save.

It knows each job's submitted batch size, the iterations left, and the measured iteration times
("Optimus+Oracle+TunedJobs").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gpuloom.core.errors import InputError
from gpuloom.goodput.base import Cluster, Held, Nodes, as_submitted, one_model, place
from gpuloom.goodput.job import Batch, Job, iteration_s, split

ON_ONE_GPU = "ncf"
"""This application never gets a second GPU."""


class Optimus:
    """One GPU for every job, in the workload's order; the rest one by one to the job whose time they shorten most.

    A further GPU saves the difference of the iteration times on packed placements, times the iterations left.
    """

    gives_submitted_gpus: ClassVar[bool] = False

    def __init__(self) -> None:
        self.running: dict[str, tuple[int, ...]] = {}
        self._seconds: dict[tuple[str, int, int, int], float | None] = {}

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Cluster) -> Held:
        nodes = one_model("optimus", nodes)
        # 1. One GPU each.
        left = nodes.total
        gpus: list[int] = []
        saved_s: list[float] = []
        for job in jobs:
            gpus.append(1 if left else 0)
            left -= gpus[-1]
            saved_s.append(self._saving_s(job, gpus[-1], nodes) if left and gpus[-1] else 0.0)
        # 2. The next GPU to the job to which it saves most (of equals the earlier), until none saves anything.
        while left:
            best = max(range(len(jobs)), key=saved_s.__getitem__)
            if saved_s[best] <= 0:
                break
            gpus[best] += 1
            left -= 1
            saved_s[best] = self._saving_s(jobs[best], gpus[best], nodes) if left else 0.0
        # 3. Jobs with as many GPUs as before stay; the others are placed, smaller ones first.
        wanted = {job.name: count for job, count in zip(jobs, gpus, strict=True)}
        kept = {name: held for name, held in self.running.items() if wanted.get(name) == len(held)}
        others = [(name, count) for name, count in wanted.items() if count and name not in kept]
        self.running = place(sorted(others, key=lambda want: want[1]), kept, nodes)
        return self.running

    def batch(self, job: Job) -> Batch:
        return as_submitted(job)

    def _saving_s(self, job: Job, gpus: int, nodes: Nodes) -> float:
        """Seconds that one GPU more would save."""
        if gpus + 1 > most_gpus(job):
            return 0.0
        now_s, then_s = self._iteration_s(job, gpus, nodes), self._iteration_s(job, gpus + 1, nodes)
        return 0.0 if now_s is None or then_s is None else (now_s - then_s) * iterations_left(job)

    def _iteration_s(self, job: Job, gpus: int, nodes: Nodes) -> float | None:
        """None where nothing was measured. One GPU always counts two passes, even if a job would run in one."""
        key = job.app.name, job.batch_size, gpus, nodes.gpus
        if key not in self._seconds:
            batch = split(job.app, job.batch_size, gpus, accumulate_alone=True)
            try:
                self._seconds[key] = iteration_s(job.app, nodes.packed(gpus), batch)
            except InputError:
                self._seconds[key] = None
        return self._seconds[key]


def most_gpus(job: Job) -> int:
    """GPUs among which a batch can be shared without falling below the smallest local batch."""
    return 1 if job.app.name == ON_ONE_GPU else job.batch_size // job.app.least_local


def iterations_left(job: Job) -> float:
    """As the artifact counts them: between the ends of the present and of the last epoch; 1 in the last."""
    last = job.app.epochs - 1
    if job.epoch >= last:
        return 1.0
    return job.app.iterations_after(job.batch_size, last) - job.app.iterations_after(job.batch_size, job.epoch)
