"""Orders by what is left to do, over the weight: time (SRTF) or GPU-time (SRSF)."""

from __future__ import annotations

import numpy as np

from gpuloom.core.columns import floats
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Workload
from gpuloom.placement.ordered import OrderedPlanner
from gpuloom.placement.repack import RepackPlanner
from gpuloom.placement.shapes import best_speeds, speeds_on


class RemainingOrder:
    """Remaining time, times GPUs if `by_gpus`, over the weight (Smith's rule).

    On mixed clusters a running job's time counts on the GPUs that it has, a waiting one's on the fastest model that it
    may use; but it stops others for what its time is on *their* GPUs (`key_on`): else two alike would stop each other
    again and again on a slow GPU, each faster in thought. A waiting job's key includes the restart that it would pay,
    so that no job is stopped for one that would end later than itself. A running job's key is stored as its predicted
    end without guests, and falls with time.
    """

    clock = 1

    def __init__(self, snapshot: Snapshot, *, by_gpus: bool) -> None:
        self.by_gpus = by_gpus
        self._weights = snapshot.workload.weights
        self._speed: memoryview[float] | None = None
        if snapshot.workload.speeds is not None:
            self._speed = floats(best_speeds(snapshot.workload, snapshot.cluster))
            self._speed_on = speeds_on(snapshot.workload, snapshot.cluster.models)

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        return self._key(snapshot, job, 1.0 if self._speed is None else self._speed[job])

    def key_on(self, snapshot: Snapshot, job: int, pool: int) -> float:
        """The key of a waiting job on a GPU model that it may use, where jobs differ in speed."""
        return self._key(snapshot, job, self._speed_on.item(job, pool))

    def _key(self, snapshot: Snapshot, job: int, speed: float) -> float:
        left = snapshot.remaining_s(job) / speed + snapshot.restart_overhead_s[job]
        if self._weights is not None:
            left /= self._weights.item(job)
        return left * snapshot.workload.gpus.item(job) if self.by_gpus else left

    def running_key(self, snapshot: Snapshot, job: int) -> float:
        return snapshot.alone_end_s(job)


class BareRemainingOrder:
    """The same without restarts and GPU models, with the present value for running jobs (for `RepackPlanner`)."""

    def __init__(self, workload: Workload, *, by_gpus: bool) -> None:
        self.by_gpus = by_gpus
        self._weights = workload.weights

    def waiting_key(self, snapshot: Snapshot, job: int) -> float:
        left = snapshot.remaining_s(job)
        if self._weights is not None:
            left /= self._weights.item(job)
        return left * snapshot.workload.gpus.item(job) if self.by_gpus else left

    def running_keys(self, snapshot: Snapshot, jobs: list[int]) -> list[float]:
        """The present keys of running jobs."""
        index = np.array(jobs, dtype=np.intp)
        left = snapshot.remaining_of(index)
        if self._weights is not None:
            left = left / self._weights[index]
        keys: list[float] = (left * snapshot.workload.gpus[index] if self.by_gpus else left).tolist()
        return keys


def planner_by_remaining(snapshot: Snapshot, placement: str, *, by_gpus: bool) -> OrderedPlanner | RepackPlanner:
    """The planner of SRTF (or, `by_gpus`, of SRSF) with `placement` sticky, scatter or repack."""
    if placement == "repack":
        return RepackPlanner(snapshot, BareRemainingOrder(snapshot.workload, by_gpus=by_gpus))
    order = RemainingOrder(snapshot, by_gpus=by_gpus)
    by_model = snapshot.workload.speeds is not None and len(snapshot.cluster.models) > 1
    key_on = order.key_on if by_model else None
    return OrderedPlanner(snapshot, order, preemptive=True, scatter=placement == "scatter", key_on=key_on)
