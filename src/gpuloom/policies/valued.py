"""Weaving by value: which jobs run, with which others and where is one choice. Shared by `muri-xs`, `muri-xl` and
`weave`.

The steps are told in `policies/muri_x.py`, which joins these parts first: prices and worth, groups by value, a plan
that is adopted only if it pays for its restarts.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import Rows
from gpuloom.core.cluster import Cluster
from gpuloom.core.decision import Decision
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import F8, Workload
from gpuloom.learning.hazard import BINS, Hazards
from gpuloom.policies.base import Parameter, duration, not_negative, positive
from gpuloom.policies.valued_plan import Planner
from gpuloom.policies.valued_rooms import Jobs
from gpuloom.policies.weaving import WEAVING, Weaving

POWER = Parameter(
    "power", 0.35, not_negative, "how much smaller jobs are preferred; 0: by price alone, 1: Smith's rule"
)
AGEING = Parameter("ageing", 0.07, not_negative, "how much a job's worth grows while it waits; 0: not at all")
HORIZON = Parameter(
    "horizon", 3600.0, duration, "start-up cost: a group that must start loses its value over this time", "1h"
)


PATIENCE = Parameter(
    "patience",
    100.0,
    positive,
    "a job that has been in the system this many times as long as it needs gains value from then on",
    "100",
)


class Valued(Weaving):
    """What both share: everything but the worth of a job."""

    parameters: ClassVar[tuple[Parameter, ...]] = (*WEAVING, POWER, AGEING, PATIENCE, HORIZON)
    weighs_models: bool = False
    """Which GPU model a job uses goes by its speed there; otherwise models are filled one after another."""
    cache: Planner | None

    @abstractmethod
    def time_s(self, snapshot: Snapshot, memory: Any, jobs: Jobs, left_s: F8) -> F8:
        """The solo time that each of all present jobs is taken to have left, seconds.

        Args:
            left_s: what it really has left.
        """

    def classes(self, workload: Workload) -> NDArray[np.intp]:
        """The class of each job, a number: ends of one class tell most of others in it."""
        return workload.gpus.astype(np.intp)

    def bonus(self) -> float:
        """A factor on the worth of running jobs."""
        return 1.0

    def planner(self, snapshot: Snapshot) -> Planner:
        if self.cache is None:
            self.cache = Planner(snapshot, self)
        return self.cache

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        return self.planner(snapshot).plan(snapshot, memory), memory


@dataclass(slots=True)
class Memory:
    """Ends seen by class and bin of work (`Hazards`); classes: those of the rows, rising."""

    classes: NDArray[np.intp]
    exposure: F8
    ends: F8

    def rows(self, classes: NDArray[np.intp]) -> NDArray[np.intp]:
        """The rows of these classes."""
        return np.searchsorted(self.classes, classes)


class Learning(Valued):
    """Durations are not known: the time left is the inverse of the Gittins index of the work done so far."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        *Valued.parameters,
        Parameter("sticky", 0.05, not_negative, "running jobs are worth this much more (a share)"),
    )
    remembers = (Memory,)

    def new_memory(self, workload: Workload, cluster: Cluster) -> Memory:
        classes = np.unique(self.classes(workload))
        return Memory(classes, np.zeros((len(classes), BINS)), np.zeros((len(classes), BINS)))

    def carried(self, memory: Memory, rows: Rows, nodes: Rows, workload: Workload, cluster: Cluster) -> Memory:
        """What was learnt of classes that are gone is kept."""
        classes = np.union1d(memory.classes, self.classes(workload))
        found = Memory(classes, np.zeros((len(classes), BINS)), np.zeros((len(classes), BINS)))
        known = found.rows(memory.classes)
        found.exposure[known], found.ends[known] = memory.exposure, memory.ends
        return found

    def time_s(self, snapshot: Snapshot, memory: Memory, jobs: Jobs, left_s: F8) -> F8:
        hazards = Hazards(memory.exposure, memory.ends)
        work_s = np.maximum(snapshot.workload.duration_s[jobs] - left_s, 0.0)
        seconds: F8 = 1.0 / hazards.index(memory.rows(self.planner(snapshot).class_of[jobs]), work_s)
        return seconds

    def bonus(self) -> float:
        return 1.0 + float(self.values["sticky"])

    def decide(self, snapshot: Snapshot, memory: Memory) -> tuple[Decision, Memory]:
        if snapshot.finished:
            # A job that has ended has done its whole work, however much had been expected.
            jobs = np.array(snapshot.finished, dtype=np.intp)
            hazards = Hazards(memory.exposure, memory.ends)
            work_s = snapshot.workload.duration_s[jobs] - [snapshot.spare_s(job) for job in snapshot.finished]
            hazards.ended(memory.rows(self.planner(snapshot).class_of[jobs]), work_s)
        return super().decide(snapshot, memory)
