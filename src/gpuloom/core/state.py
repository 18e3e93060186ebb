"""The state of every job and GPU, in columns. This module alone changes it.

A running job's progress is kept lazily: `remaining_s` holds at `work_from_s`, and from then on the job works at `rate`
(not before: the restart overhead comes first). Nothing is updated while nothing changes, so an event costs the same
with ten running jobs as with ten thousand.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import floats, ints
from gpuloom.core.decision import Placement
from gpuloom.core.errors import InvalidTransition, PlanError
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import Workload


class JobState(IntEnum):
    """States of a job."""

    FUTURE = 0
    WAITING = 1
    RUNNING = 2
    FINISHED = 3


TRANSITIONS: dict[str, tuple[JobState, JobState]] = {
    "submit": (JobState.FUTURE, JobState.WAITING),
    "start": (JobState.WAITING, JobState.RUNNING),
    "stop": (JobState.RUNNING, JobState.WAITING),
    "retime": (JobState.RUNNING, JobState.RUNNING),
    "resize": (JobState.RUNNING, JobState.RUNNING),
    "finish": (JobState.RUNNING, JobState.FINISHED),
    "adopt": (JobState.WAITING, JobState.RUNNING),
}

_WAITING, _RUNNING, _FINISHED = int(JobState.WAITING), int(JobState.RUNNING), int(JobState.FINISHED)

_COLUMNS = (
    "status_column",
    "remaining_s_column",
    "rate_column",
    "work_from_s_column",
    "run_from_s_column",
    "held_s_column",
    "held_gpu_s_column",
    "first_start_s_column",
    "end_s_column",
    "spare_s_column",
    "starts_column",
    "cause_column",
)
_SPARE_FROM_S, _SPARE_FROM = 1e-3, 1e-6
"""A job has ended as predicted if no more than this is left, seconds and share of its duration."""


@lru_cache(maxsize=1 << 14)
def _bits(mask: int) -> tuple[int, ...]:
    """The bits that are set."""
    return tuple([bit for bit in range(mask.bit_length()) if mask >> bit & 1])


class State:
    """Columns by job and by GPU.

    Columns (NumPy arrays, one entry per job; the names without `_column` are memory views on them, which read
    and write single entries several times faster):
        status: a JobState.
        remaining_s: work left, in seconds of solo run time on the reference GPU model.
        rate: work done per second while running (1: as fast as alone on the reference model).
        work_from_s: since when `remaining_s` falls.
        run_from_s: start of the present run at its present size; held_s: seconds held before that.
        held_gpu_s: GPU-seconds held before that, by GPU model: shape (jobs, models).
        first_start_s, end_s: NaN until then. starts: times (re)started.
        spare_s: work that an ended job was expected to have left when it ended, below 0 if it had more than expected;
            0 where it ended as predicted.
        cause: number of the engine step that made the last change.

    Attributes:
        away: waiting jobs that lie suspended, and the GPUs on which they can go on where they were. moves_on: nodes on
            which they can do so on other GPUs, too. stay_away: jobs that the executor suspends when they make way.
    """

    __slots__ = (
        "_full",
        "_held_gpu_s",
        "_model_of",
        "_models",
        "away",
        "busy_gpus",
        "cause",
        "cause_column",
        "cluster",
        "down",
        "end_s",
        "end_s_column",
        "first_start_s",
        "first_start_s_column",
        "free",
        "held_gpu_s_column",
        "held_s",
        "held_s_column",
        "idle",
        "layers",
        "moves_on",
        "owners",
        "placements",
        "rate",
        "rate_column",
        "remaining_s",
        "remaining_s_column",
        "run_from_s",
        "run_from_s_column",
        "spare_s",
        "spare_s_column",
        "starts",
        "starts_column",
        "status",
        "status_column",
        "stay_away",
        "step",
        "unfinished",
        "waiting",
        "work_from_s",
        "work_from_s_column",
        "workload",
    )

    def __init__(self, workload: Workload, cluster: Cluster, *, layers: int = 1) -> None:
        n = len(workload)
        self.workload, self.cluster, self.layers = workload, cluster, layers
        self.status_column: NDArray[np.int8] = np.zeros(n, dtype=np.int8)
        self.remaining_s_column = workload.duration_s.copy()
        self.rate_column = np.zeros(n)
        self.work_from_s_column = np.zeros(n)
        self.run_from_s_column = np.zeros(n)
        self.held_s_column = np.zeros(n)
        self.held_gpu_s_column = np.zeros((n, len(cluster.models)))
        self.first_start_s_column = np.full(n, np.nan)
        self.end_s_column = np.full(n, np.nan)
        self.spare_s_column = np.zeros(n)
        self.starts_column: NDArray[np.int32] = np.zeros(n, dtype=np.int32)
        self.cause_column: NDArray[np.int32] = np.zeros(n, dtype=np.int32)
        self.status = ints(self.status_column)
        self.remaining_s = floats(self.remaining_s_column)
        self.rate = floats(self.rate_column)
        self.work_from_s = floats(self.work_from_s_column)
        self.run_from_s = floats(self.run_from_s_column)
        self.held_s = floats(self.held_s_column)
        self._held_gpu_s = floats(self.held_gpu_s_column.reshape(-1))
        index = {model: number for number, model in enumerate(cluster.models)}
        self._models = len(index)
        self._model_of = [index[node.gpu_model] for node in cluster.nodes]
        self.first_start_s = floats(self.first_start_s_column)
        self.end_s = floats(self.end_s_column)
        self.spare_s = floats(self.spare_s_column)
        self.starts = ints(self.starts_column)
        self.cause = ints(self.cause_column)
        self.step = 0
        self.waiting = 0
        self.unfinished = n
        self.busy_gpus = 0
        self.placements: dict[int, Placement] = {}
        self.away: dict[int, Placement] = {}
        self.moves_on = frozenset[int]()
        self.stay_away: Container[int] = frozenset()
        self._full = [(1 << node.gpus) - 1 for node in cluster.nodes]
        self.free = [list(self._full) for _ in range(layers)]
        """free[layer][node]: mask of GPUs on which the layer is free."""
        self.idle = list(self._full)
        """idle[node]: mask of GPUs that no layer uses."""
        self.owners: list[list[dict[int, int]]] = [[{} for _ in cluster.nodes] for _ in range(layers)]
        """owners[layer][node]: {GPU: job}; kept only where GPUs may be shared."""
        self.down: set[int] = set()

    def copy(self) -> State:
        """An independent copy. The workload and the cluster, which never change, are shared."""
        twin = State(self.workload, self.cluster, layers=self.layers)
        for name in _COLUMNS:
            getattr(twin, name)[:] = getattr(self, name)
        twin.step, twin.waiting, twin.unfinished = self.step, self.waiting, self.unfinished
        twin.busy_gpus, twin.placements, twin.away = self.busy_gpus, dict(self.placements), dict(self.away)
        twin.free, twin.idle = [list(layer) for layer in self.free], list(self.idle)
        twin.owners = [[dict(node) for node in layer] for layer in self.owners]
        twin.down = set(self.down)
        twin.moves_on, twin.stay_away = self.moves_on, self.stay_away
        return twin

    # -- reading --------------------------------------------------------------------------------------------

    def remaining_at(self, job: int, now_s: float) -> float:
        """Work left at `now_s`, seconds of solo run time."""
        left = self.remaining_s[job]
        worked = now_s - self.work_from_s[job]
        if worked > 0.0 and self.status[job] == _RUNNING:
            left -= worked * self.rate[job]
        return left if left > 0.0 else 0.0

    def predicted_end_s(self, job: int) -> float:
        """When the running job ends if nothing changes; infinity at rate 0."""
        rate = self.rate[job]
        if rate <= 0.0:
            return math.inf if self.remaining_s[job] > 0 else self.work_from_s[job]
        return self.work_from_s[job] + self.remaining_s[job] / rate

    def held_at(self, job: int, now_s: float) -> float:
        """Seconds for which the job has held its GPUs, restart overheads included."""
        if self.status[job] == _RUNNING:
            return self.held_s[job] + now_s - self.run_from_s[job]
        return self.held_s[job]

    def held_gpu_s_at(self, job: int, now_s: float) -> float:
        """GPU-seconds that the job has held, restart overheads included."""
        if self._models == 1:
            held = self._held_gpu_s[job]
        else:
            first = job * self._models
            held = sum_floats(self._held_gpu_s[first : first + self._models])
        if self.status[job] == _RUNNING:
            held += (now_s - self.run_from_s[job]) * self.placements[job].gpus
        return held

    # -- jobs -----------------------------------------------------------------------------------------------

    def submit(self, job: int, now_s: float) -> None:
        self._transit(job, "submit")
        self.waiting += 1

    def submit_all(self, jobs: NDArray[np.intp]) -> None:
        """Many jobs arrive at once."""
        if len(wrong := np.flatnonzero(self.status_column[jobs] != JobState.FUTURE)):
            self.require(int(jobs[wrong[0]]), "submit")
        self.status_column[jobs] = _WAITING
        self.cause_column[jobs] = self.step
        self.waiting += len(jobs)

    def start(
        self, job: int, placement: Placement, now_s: float, overhead_s: float, rate: float, *, anew: bool = True
    ) -> None:
        """A waiting job takes its GPUs; its work goes on after `overhead_s`.

        Args:
            anew: it counts as one more start; False: it was suspended there and goes on.

        Raises:
            PlanError: a GPU of the placement is not free.
            InvalidTransition: the job does not wait.
        """
        if self.status[job] != _WAITING:  # `_transit`, spelt out where thousands of jobs pass through in one step
            self.require(job, "start")
        self.status[job] = _RUNNING
        self.cause[job] = self.step
        self._take(job, placement)
        self.waiting -= 1
        self.rate[job] = rate
        self.run_from_s[job] = now_s
        self.work_from_s[job] = now_s + overhead_s
        if self.away:
            self.away.pop(job, None)
        if not anew:
            return
        starts = self.starts[job]
        if starts == 0:
            self.first_start_s[job] = now_s
        self.starts[job] = starts + 1

    def restore(
        self,
        jobs: NDArray[np.intp],
        *,
        held_s: NDArray[np.float64],
        held_gpu_s: NDArray[np.float64],
        starts: NDArray[np.int32],
        first_start_s: NDArray[np.float64],
        remaining_s: NDArray[np.float64],
    ) -> None:
        """Set the past of jobs from before this state was built, one entry each. Call before `adopt`.

        Args:
            held_s: seconds for which each has held GPUs, without the run that `adopt` will add.
            held_gpu_s: the same in GPU-seconds: by GPU model, shape (jobs, models), or their sum, shape (jobs,), which
                then counts for the first model.
            starts: times each was started, with the run that `adopt` will add. first_start_s: NaN: never.
            remaining_s: work left.

        Raises:
            InvalidTransition: one runs or has ended already.
        """
        status = self.status_column[jobs]
        if len(wrong := np.flatnonzero((status != JobState.FUTURE) & (status != _WAITING))):
            self.require(int(jobs[wrong[0]]), "start")
        self.held_s_column[jobs] = held_s
        if held_gpu_s.ndim == 2:
            self.held_gpu_s_column[jobs] = held_gpu_s
        else:
            self.held_gpu_s_column[jobs] = 0.0
            self.held_gpu_s_column[jobs, 0] = held_gpu_s
        self.starts_column[jobs] = starts
        self.first_start_s_column[jobs] = first_start_s
        self.remaining_s_column[jobs] = remaining_s

    def adopt(
        self,
        jobs: NDArray[np.intp],
        placements: Sequence[Placement],
        *,
        run_from_s: NDArray[np.float64],
        work_from_s: NDArray[np.float64],
        rate: NDArray[np.float64],
    ) -> None:
        """Waiting jobs that really run since before this state was built, one entry each.

        Raises:
            PlanError: a GPU of a placement is not free.
            InvalidTransition: a job does not wait.
        """
        status, take = self.status, self._take
        for job, placement in zip(jobs.tolist(), placements, strict=True):
            if status[job] != _WAITING:
                self.require(job, "adopt")
            status[job] = _RUNNING
            take(job, placement)
        self.cause_column[jobs] = self.step
        self.waiting -= len(jobs)
        self.rate_column[jobs] = rate
        self.run_from_s_column[jobs] = run_from_s
        self.work_from_s_column[jobs] = work_from_s

    def stop(self, job: int, now_s: float, *, lost_s: float = 0.0) -> None:
        """A running job gives its GPUs back and waits; `lost_s` of its work has to be done again."""
        left = self.remaining_at(job, now_s)
        if self.status[job] != _RUNNING:
            self.require(job, "stop")
        self.status[job] = _WAITING
        self.cause[job] = self.step
        self._release(job, now_s)
        self.waiting += 1
        self.remaining_s[job] = min(left + lost_s, self.workload.duration_s.item(job)) if lost_s else left
        self.rate[job] = 0.0

    def suspended(self, job: int, placement: Placement) -> None:
        """A waiting job lies suspended: on these GPUs it can go on where it was. Raises InvalidTransition."""
        self.require(job, "start")
        self.away[job] = placement

    def give_up(self, job: int, lost_s: float) -> None:
        """A waiting job can't go on any more where it was suspended; `lost_s` of its work has to be done again."""
        del self.away[job]
        self.remaining_s[job] = min(self.remaining_s[job] + lost_s, self.workload.duration_s.item(job))

    def vacate(self, job: int, now_s: float) -> None:
        """First half of a resize: the running job's GPUs become free; `resize` has to follow."""
        self.require(job, "resize")
        self.remaining_s[job] = self.remaining_at(job, now_s)
        self._release(job, now_s)

    def resize(self, job: int, placement: Placement, now_s: float, overhead_s: float, rate: float) -> None:
        """Second half: the job goes on at once on these GPUs; its work after `overhead_s`, or after the start under
        way if that takes longer."""
        self._transit(job, "resize")
        self._take(job, placement)
        self.rate[job] = rate
        self.run_from_s[job] = now_s
        self.work_from_s[job] = max(self.work_from_s[job], now_s + overhead_s)

    def retime(self, job: int, now_s: float, rate: float) -> None:
        """A running job goes on at another rate."""
        if self.status[job] != _RUNNING:
            self.require(job, "retime")
        self.cause[job] = self.step
        if now_s > self.work_from_s[job]:
            self.remaining_s[job] = self.remaining_at(job, now_s)
            self.work_from_s[job] = now_s
        self.rate[job] = rate

    def postpone(self, job: int, until_s: float) -> None:
        """The work of a job that has just started goes on later than its own overhead would have it."""
        if self.status[job] != _RUNNING:
            self.require(job, "retime")
        self.work_from_s[job] = until_s

    def finish(self, job: int, now_s: float) -> None:
        self._transit(job, "finish")
        left = self.remaining_s[job]
        if now_s > self.work_from_s[job]:
            left -= (now_s - self.work_from_s[job]) * self.rate[job]
        # Where an end was predicted only rounding is left.
        if abs(left) > _SPARE_FROM_S and abs(left) > _SPARE_FROM * self.workload.duration_s.item(job):
            self.spare_s[job] = left
        self._release(job, now_s)
        self.unfinished -= 1
        self.remaining_s[job] = 0.0
        self.rate[job] = 0.0
        self.end_s[job] = now_s

    def charge_every_step(self, jobs: NDArray[np.intp], now_s: float, overhead_s: NDArray[np.float64]) -> None:
        """Advance running `jobs` to `now_s`, charging each its overhead once more (the Muri artifact's rule)."""
        dt = now_s - self.work_from_s_column[jobs]
        work = np.maximum(dt - overhead_s, 0.0) * self.rate_column[jobs]
        self.remaining_s_column[jobs] = np.maximum(self.remaining_s_column[jobs] - work, 0.0)
        self.work_from_s_column[jobs] = now_s

    # -- nodes ----------------------------------------------------------------------------------------------

    def jobs_on(self, node: int) -> list[int]:
        """Running jobs that hold a GPU of the node, in order of their number."""
        return sorted(job for job, placement in self.placements.items() if node in placement.nodes)

    def node_down(self, node: int) -> None:
        """Take an empty node out of service."""
        if node not in self.down:
            self.down.add(node)
            for layer in self.free:
                layer[node] = 0
            self.idle[node] = 0

    def node_up(self, node: int) -> None:
        if node in self.down:
            self.down.discard(node)
            for layer in self.free:
                layer[node] = self._full[node]
            self.idle[node] = self._full[node]

    # -- inside ---------------------------------------------------------------------------------------------

    def require(self, job: int, transition: str) -> None:
        """Raises InvalidTransition, with the job's story, unless the job may make this step."""
        before, _ = TRANSITIONS[transition]
        if self.status[job] != before:
            raise InvalidTransition(
                f"job {self.workload.job_id(job)} can't {transition}: it is "
                f"{JobState(self.status[job]).name.lower()}, must be {before.name.lower()}. {self.story(job)}"
            )

    def _transit(self, job: int, transition: str) -> None:
        before, after = TRANSITIONS[transition]
        if self.status[job] != before:
            self.require(job, transition)
        self.status[job] = after
        self.cause[job] = self.step

    def _take(self, job: int, placement: Placement) -> None:
        free, idles = self.free[placement.layer], self.idle
        owners = self.owners[placement.layer] if self.layers > 1 else None
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            left = free[node]
            if mask & ~left:
                raise PlanError(
                    f"job {self.workload.job_id(job)} was given GPUs {mask:#x} of node "
                    f"{self.cluster.nodes[node].name}, of which only {left:#x} are free"
                )
            free[node] = left ^ mask
            idle = idles[node]
            if taken := idle & mask:
                self.busy_gpus += taken.bit_count()
                idles[node] = idle ^ taken
            if owners is not None:
                owner = owners[node]
                for gpu in _bits(mask):
                    owner[gpu] = job
        self.placements[job] = placement

    def _release(self, job: int, now_s: float) -> None:
        """Take the job's GPUs back, and book the time for which it held them."""
        placement = self.placements.pop(job)
        held_s = now_s - self.run_from_s[job]
        self.held_s[job] += held_s
        free = self.free[placement.layer]
        gpus = 0
        for node, mask in zip(placement.nodes, placement.masks, strict=True):
            gpus += mask.bit_count()
            free[node] |= mask
            if self.layers > 1:
                owners = self.owners[placement.layer][node]
                for gpu in _bits(mask):
                    del owners[gpu]
                for layer in self.free:
                    mask &= layer[node]
                    if not mask:  # others still use all of them
                        break
            if mask:
                self.busy_gpus -= mask.bit_count()
                self.idle[node] |= mask
        self._held_gpu_s[job * self._models + self._model_of[placement.nodes[0]]] += held_s * gpus

    def story(self, job: int) -> str:
        """What the state knows of a job, for messages."""
        return (
            f"Submitted at {self.workload.submit_s[job]} s, started {self.starts[job]} times, "
            f"held GPUs {self.held_s[job]} s, {self.remaining_s[job]} s of work left, "
            f"on {self.placements.get(job)}, last changed by step {self.cause[job]}."
        )
