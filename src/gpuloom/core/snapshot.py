"""The read-only view that a policy decides on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import floats
from gpuloom.core.state import JobState, State
from gpuloom.core.sums import sum_ints
from gpuloom.core.workload import Workload


class Sizing(Enum):
    """What a policy that resizes jobs is to do about sizes in this call. Where jobs have several priorities it is asked
    for each of them who runs, and then once who gets how much."""

    USUAL = "usual"
    """What it finds right."""
    LATER = "later"
    """Who starts gets its smallest size, and nobody grows: it will be asked."""
    NOW = "now"
    """Share out what is left: things have happened since sizes were looked at."""


class Speed(NamedTuple):
    """Iterations per second of a job on the GPUs that it has, as it reported them, measured over so many seconds."""

    it_per_s: float
    over_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What jobs reported of their speed, where they really run.

    it_per_s: iterations per second by job that has ended, on the GPUs that it had; who reported none is not in it.
    running: of jobs that run. alike: a name that all runs of one job share.
    """

    it_per_s: Mapping[int, float]
    running: Mapping[int, Speed]
    alike: Callable[[int], str]


class Snapshot:
    """The cluster at `now_s`, and what has happened since the policy was last asked.

    It is a view on the engine's columns, not a copy: valid during one call of `decide`. Events:
        arrived, finished: jobs submitted or ended since the last call.
        evicted: jobs that lost their GPUs to a failure and wait again.
        nodes_down, nodes_up: nodes that left or came back.
        resized: running jobs that have another number of GPUs since the last decision.
    """

    __slots__ = (
        "_state",
        "again_s",
        "arrived",
        "cluster",
        "evicted",
        "finished",
        "fixed",
        "may_preempt",
        "measured",
        "memory_stays",
        "nodes_down",
        "nodes_up",
        "now_s",
        "placements",
        "resize_overhead_s",
        "resized",
        "restart_overhead_s",
        "sizing",
        "workload",
    )

    def __init__(
        self,
        state: State,
        restart_overhead_s: NDArray[np.float64],
        resize_overhead_s: NDArray[np.float64] | None = None,
        again_s: NDArray[np.float64] | None = None,
    ) -> None:
        self._state = state
        self.workload: Workload = state.workload
        self.cluster: Cluster = state.cluster
        self.now_s = 0.0
        self.may_preempt = True
        """False between two scheduling intervals: running jobs stay, and only free GPUs are allocated."""
        self.arrived: Sequence[int] = ()
        self.finished: Sequence[int] = ()
        self.evicted: Sequence[int] = ()
        self.nodes_down: Sequence[int] = ()
        self.nodes_up: Sequence[int] = ()
        self.resized: Sequence[int] = ()
        self.fixed: frozenset[int] = frozenset()
        """Running jobs that must be left as they are; only policies that form pairs are shown any."""
        self.sizing = Sizing.USUAL
        self.measured: Measured | None = None
        """None: nothing is reported, as in a simulation; rates are what they are."""
        self.memory_stays = False
        """GPU memory of jobs is what it is, as in real processes: nothing scales it down, whatever a policy assumes."""
        self.placements = MappingProxyType(state.placements)
        self.restart_overhead_s = floats(restart_overhead_s).toreadonly()
        """Seconds that a (re)start of each job costs."""
        self.again_s = self.restart_overhead_s if again_s is None else floats(again_s).toreadonly()
        """Seconds that stopping each job costs it: a start, and work that it then does again at most; or its way out of
        the GPUs and back, where it is suspended."""
        self.resize_overhead_s = (
            self.restart_overhead_s if resize_overhead_s is None else floats(resize_overhead_s).toreadonly()
        )
        """Seconds that a change of each job's size costs."""

    def remaining_s(self, job: int) -> float:
        """Work left, seconds of solo run time on the reference GPU model."""
        return self._state.remaining_at(job, self.now_s)

    def predicted_end_s(self, job: int) -> float:
        """When the running job ends if nothing changes."""
        return self._state.predicted_end_s(job)

    def alone_end_s(self, job: int) -> float:
        """When the running job would end if it had its GPUs to itself from now on, as far as the policy may know."""
        return self.predicted_end_s(job)

    def rate(self, job: int) -> float:
        """Work done per second by the running job."""
        return self._state.rate[job]

    def works_from_s(self, job: int) -> float:
        """The time from which the running job does work; until then it is starting."""
        return self._state.work_from_s[job]

    def remaining_of(self, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        """Work left of each of these running jobs, seconds of solo run time."""
        state = self._state
        worked = np.maximum(self.now_s - state.work_from_s_column[jobs], 0.0) * state.rate_column[jobs]
        left: NDArray[np.float64] = np.maximum(state.remaining_s_column[jobs] - worked, 0.0)
        return left

    def held_of(self, jobs: NDArray[np.intp]) -> NDArray[np.float64]:
        """Seconds for which each of these running jobs has held its GPUs so far, over all its runs."""
        state = self._state
        held: NDArray[np.float64] = state.held_s_column[jobs] + (self.now_s - state.run_from_s_column[jobs])
        return held

    def spare_s(self, job: int) -> float:
        """Work that a job that has ended was expected to have left; below 0 if it had more than expected."""
        return self._state.spare_s[job]

    def held_s(self, job: int) -> float:
        """Seconds for which the job has held its GPUs so far, over all its runs."""
        return self._state.held_at(job, self.now_s)

    def attained_gpu_s(self, job: int) -> float:
        """Attained service: GPUs times seconds held."""
        return self._state.held_gpu_s_at(job, self.now_s)

    def may_move(self, job: int) -> bool:
        """Whether it is for this policy to move the running job to faster GPUs, and not for one that asks it."""
        return True

    def gpus_of(self, job: int) -> int:
        """GPUs that the running job holds now; 0 for one that waits."""
        placement = self.placements.get(job)
        return 0 if placement is None else placement.gpus

    def starts(self, job: int) -> int:
        """Times the job was (re)started."""
        return self._state.starts[job]

    def first_start_s(self, job: int) -> float:
        """When the job first ran; NaN if never."""
        return self._state.first_start_s[job]

    def is_running(self, job: int) -> bool:
        return self._state.status[job] == JobState.RUNNING

    def is_waiting(self, job: int) -> bool:
        return self._state.status[job] == JobState.WAITING

    def waiting(self) -> list[int]:
        """All waiting jobs, in order of submission. Looks at every job: for rebuilding a cache, not for every call."""
        jobs: list[int] = np.flatnonzero(self._state.status_column == JobState.WAITING).tolist()
        return jobs

    def free_masks(self, layer: int = 0) -> Sequence[int]:
        """Per node, the mask of GPUs whose layer is free. Read only."""
        return self._state.free[layer]

    @property
    def idle_masks(self) -> Sequence[int]:
        """Per node, the mask of GPUs that no job uses on any layer. Read only."""
        return self._state.idle

    def remaining_column(self) -> NDArray[np.float64]:
        """`remaining_s` as stored: true for waiting jobs; for running ones as of their last change."""
        return _read_only(self._state.remaining_s_column)

    @property
    def nodes_out(self) -> frozenset[int]:
        """Nodes out of service."""
        return frozenset(self._state.down)

    @property
    def waiting_count(self) -> int:
        return self._state.waiting

    @property
    def free_gpus(self) -> int:
        """GPUs that no job uses, on nodes in service."""
        return sum_ints(map(int.bit_count, self._state.idle))


def _read_only(column: NDArray[np.float64]) -> NDArray[np.float64]:
    view = column.view()
    view.flags.writeable = False
    return view
