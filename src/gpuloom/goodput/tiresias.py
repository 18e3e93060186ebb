"""Tiresias as in Pollux' artifact: two queues by attained service.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, `simulator/tiresias.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from gpuloom.goodput.base import Cluster, Held, as_submitted, one_model, place
from gpuloom.goodput.job import Batch, Job

DEMOTED_AT_GPU_S = 16 * 3600


@dataclass(slots=True)
class Tiresias:
    """Jobs sink from the first to the second queue after 16 GPU-hours and don't come back.

    Every job runs with the GPUs and the batch size that it was submitted with ("Tiresias+TunedJobs"). Jobs are looked
    at in the order of their queues; a job runs if the GPUs that are left suffice. GPUs are only counted, so a running
    job never moves.
    """

    gives_submitted_gpus: ClassVar[bool] = True
    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    executed_s: dict[str, int] = field(default_factory=dict)
    running: dict[str, tuple[int, ...]] = field(default_factory=dict)
    checked_s: int = 0

    def allocate(self, now_s: int, jobs: Sequence[Job], nodes: Cluster) -> Held:
        nodes = one_model("tiresias", nodes)
        gpus = {job.name: job.gpus for job in jobs}
        # 1. Finished jobs leave; new ones join the first queue.
        self.first = [name for name in self.first if name in gpus]
        self.second = [name for name in self.second if name in gpus]
        for name in gpus:
            if name not in self.executed_s:
                self.executed_s[name] = 0
                self.first.append(name)
        # 2. Jobs that ran since the last call have attained more, and may sink.
        for name, count in gpus.items():
            if name in self.running:
                self.executed_s[name] += now_s - self.checked_s
                if self.executed_s[name] * count >= DEMOTED_AT_GPU_S and name in self.first:
                    self.first.remove(name)
                    self.second.append(name)
        self.checked_s = now_s
        # 3. In the order of the queues, every job that still fits runs.
        left = nodes.total
        chosen = []
        for name in (*self.first, *self.second):
            if gpus[name] <= left:
                left -= gpus[name]
                chosen.append(name)
        # 4. Jobs that ran stay where they are.
        kept = {name: self.running[name] for name in chosen if name in self.running}
        self.running = place([(name, gpus[name]) for name in chosen if name not in kept], kept, nodes)
        return self.running

    def batch(self, job: Job) -> Batch:
        return as_submitted(job)
