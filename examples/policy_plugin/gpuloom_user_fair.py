"""Fair sharing between users, by start-time fair queueing.

Goyal, Vin, Cheng, "Start-Time Fair Queueing" (SIGCOMM'96), sections 1.2 and 2, with users for flows and jobs for
packets. When user u submits job j,

    start(j) = max(v, finish of u's job before),   finish(j) = start(j) + cost(j) / weight(j)

and jobs go by their start tags, small first. v, the virtual time, is the largest start tag of the jobs that have
run. Who submits much thus queues behind himself, and who comes rarely finds the queue short. Nobody is stopped.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import PER_JOB
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.policies.base import Parameter, Policy, Traits, one_of


@dataclass(slots=True)
class Memory:
    """What may not be forgotten: virtual time, finish tag by user's name, start tag per job (NaN: not submitted).

    Users go by name, as their numbers differ from one workload to the next; jobs are numbered anew by the scheduler,
    which `PER_JOB` asks for.
    """

    virtual: float
    finish: dict[str, float]
    start: NDArray[np.float64] = field(metadata=PER_JOB)


class StartTags:
    """The `Order` of the planner: a waiting job's key is its start tag, given once."""

    clock = 0
    by_gpus = False

    def __init__(self, memory: Memory, charge: str) -> None:
        self.memory, self._charge = memory, charge

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        memory, workload = self.memory, snapshot.workload
        if math.isnan(memory.start[job]):  # not so if it comes back from a failed node
            user = workload.user.names[workload.user.codes[job]] if workload.user is not None else ""
            cost = float(workload.duration_s[job] * workload.gpus[job]) if self._charge == "gpu_time" else 1.0
            weight = float(workload.weight[job]) if workload.weight is not None else 1.0
            memory.start[job] = max(memory.virtual, memory.finish.get(user, 0.0))
            memory.finish[user] = memory.start[job] + cost / weight
        return float(memory.start[job])

    def running_key(self, snapshot: Snapshot, job: int) -> None:
        return None  # nobody is stopped


class UserFair(Policy):
    """See the module."""

    id = "user-fair"
    traits = Traits(
        summary="users in turn, by start-time fair queueing",
        knows="users (charge=gpu_time: durations)",
        preemptive="no",
        heterogeneity=False,
        sharing=False,
        paper="Goyal et al., SIGCOMM'96",
        weights="",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("charge", "gpu_time", one_of("gpu_time", "job"), "what a job costs its user: gpu_time or job (1)"),
    )

    remembers = (Memory,)

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        return Memory(0.0, {}, np.full(len(workload), math.nan))

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        # 1. Caches, from any snapshot.
        if self.cache is None:
            self.cache = OrderedPlanner(snapshot, StartTags(memory, self.values["charge"]), preemptive=False)
        # 2. Who came and who ended: newcomers get their tags.
        self.cache.observe(snapshot)
        # 3. Small tags first; virtual time follows those that start.
        decision = self.cache.plan(snapshot)
        for job in decision.run:
            memory.virtual = max(memory.virtual, float(memory.start[job]))
        return decision, memory
