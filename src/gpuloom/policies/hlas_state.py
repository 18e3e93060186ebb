"""What `hlas` shows of itself: its queues, and each job's attained service against mean and threshold."""

from __future__ import annotations

import math

import numpy as np

from gpuloom.core import products
from gpuloom.core.policy_state import HlasJob, HlasQueue, HlasState
from gpuloom.core.snapshot import Snapshot
from gpuloom.policies.hlas_terms import IN_Q2, ON_GPUS, Memory, Options, performance_of


def hlas_state(snapshot: Snapshot, memory: Memory, options: Options) -> HlasState:
    """The state at the snapshot's time. What happened since the last decision is told by the next one."""
    performance = performance_of(snapshot.cluster, options)
    weight = snapshot.workload.weight
    running = sorted(snapshot.placements)
    waiting = snapshot.waiting()
    attained: dict[int, float] = {}
    ran_s: dict[int, float] = {}
    for job in (*running, *waiting):
        open_s = 0.0
        gpu_s = products.dot(memory.gpu_s[job], performance)
        if memory.state.item(job) == ON_GPUS:
            open_s = snapshot.held_s(job) - memory.held_before_s.item(job)
            model = memory.model.item(job)
            gpu_s += open_s * snapshot.workload.gpus.item(job) * (float(performance[model]) if model >= 0 else 1.0)
        attained[job] = gpu_s / (1.0 if weight is None else weight.item(job))
        ran_s[job] = memory.ran_s.item(job) + open_s
    mean = float(np.mean([attained[job] for job in running])) if running else 0.0
    threshold = options.over * mean

    def one(job: int) -> HlasJob:
        runs = job in snapshot.placements
        waited_s = 0.0 if runs else max(snapshot.now_s - memory.queued_s.item(job), 0.0)
        after_s = math.inf
        queue = HlasQueue.RUNNING if runs else HlasQueue.Q1
        if not runs and memory.state.item(job) == IN_Q2:
            after_s = options.starve * ran_s[job]
            queue = HlasQueue.STARVING if waited_s > after_s or ran_s[job] == 0.0 else HlasQueue.Q2
        if runs:
            placement = snapshot.placements[job]
            model = snapshot.cluster.nodes[placement.nodes[0]].gpu_model
        else:
            model = ""
        return HlasJob(
            snapshot.workload.job_id(job),
            queue,
            snapshot.workload.gpus.item(job),
            model,
            attained[job],
            runs and attained[job] > threshold,
            waited_s,
            ran_s[job],
            after_s,
        )

    models = tuple(zip(snapshot.cluster.models, performance.tolist(), strict=True))
    jobs = tuple([one(job) for job in (*running, *waiting)])
    return HlasState(mean, threshold, options.over, options.starve, models, jobs)
