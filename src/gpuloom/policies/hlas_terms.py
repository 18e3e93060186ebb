"""What `hlas` remembers, its options, and how it measures service and throughput."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import MODELS, PER_JOB, PER_JOB_A_MODEL, PER_JOB_AND_MODEL, PER_MODEL
from gpuloom.core.cluster import Cluster, plain_model
from gpuloom.core.errors import PolicyError
from gpuloom.core.workload import F8, Workload

NEW, IN_Q1, IN_Q2, ON_GPUS = 0, 1, 2, 3
"""States of a job in `Memory.state`."""


@dataclass(slots=True)
class Memory:
    """Of each job: its state; GPU-seconds by GPU model (jobs, models) and seconds run in the closed periods that count;
    of the open period its GPU model, begin, and seconds held before it; when it joined its queue; when it last was
    moved. Of each GPU model its name, and when a running job may next move to its free GPUs. And how many jobs have
    ended, the seconds that they had run, and whether jobs have to be placed though nothing happened: nobody was yet."""

    state: NDArray[np.int8] = field(metadata=PER_JOB)
    gpu_s: F8 = field(metadata=PER_JOB_AND_MODEL)
    ran_s: F8 = field(metadata=PER_JOB)
    model: NDArray[np.int16] = field(metadata=PER_JOB_A_MODEL)
    since_s: F8 = field(metadata=PER_JOB)
    held_before_s: F8 = field(metadata=PER_JOB)
    queued_s: F8 = field(metadata=PER_JOB)
    moved_s: F8 = field(metadata=PER_JOB)
    models: tuple[str, ...] = field(metadata=MODELS)
    upgrade_at_s: F8 = field(metadata=PER_MODEL)
    ended: int = 0
    ended_run_s: float = 0.0
    stirred: bool = True


@dataclass(frozen=True, slots=True)
class Options:
    """The policy's parameters, after `literal`."""

    over: float
    starve: float
    performance: str | Mapping[str, float]
    iterations: bool
    work_conserving: bool
    only_if_waiting: bool
    horizon: bool
    upgrade: bool
    between_moves_s: float
    tick_s: float
    blind: bool

    @property
    def settle(self) -> float:
        """Restart overheads for which a job must have held its GPUs before it is suspended."""
        return 2.0 if self.only_if_waiting else 1.0

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Options:
        on = not values["literal"]
        performance = values["performance"]
        return cls(
            over=float(values["priority_threshold_ratio"]),  # type: ignore[arg-type]
            starve=float(values["starve_threshold_ratio"]),  # type: ignore[arg-type]
            performance=performance if isinstance(performance, str | Mapping) else "",
            iterations=not on or values["gain"] == "iterations",
            work_conserving=on and bool(values["work_conserving"]),
            only_if_waiting=on and bool(values["demote_only_if_waiting"]),
            horizon=on and bool(values["gain_horizon"]),
            upgrade=on and bool(values["upgrade"]),
            between_moves_s=float(values["min_seconds_between_moves"]) if on else 0.0,  # type: ignore[arg-type]
            tick_s=float(values["tick"]),  # type: ignore[arg-type]
            blind=bool(values["blind"]),
        )


def performance_of(cluster: Cluster, options: Options) -> F8:
    """p of each GPU model, relative to the slowest of the cluster; 1 for a model of which nothing is known."""
    given = options.performance
    if options.blind or len(cluster.models) == 1:
        return np.ones(len(cluster.models))
    if isinstance(given, str):
        raise PolicyError(
            f"hlas: performance={given} names a measure of GPU models, but its numbers were not passed: give numbers "
            "(V100:2/K80:1), or have gpuloom.facts.inputs.load_policy make the policy"
        )
    known = [given.get(plain_model(model)) for model in cluster.models]
    slowest = min((value for value in known if value is not None), default=1.0)
    return np.array([1.0 if value is None else value / slowest for value in known])


def per_gpu_throughput(workload: Workload, speed: F8, options: Options) -> F8:
    """M', shape (jobs, GPU models): throughput per GPU; 0 where the job can't run.

    In iterations per second where the trace tells a job's (else its speed), or relative to its best model here.
    """
    if options.blind:
        return (speed > 0).astype(np.float64)
    if options.iterations:
        seconds = np.ones(len(workload)) if workload.iteration_s is None else workload.iteration_s
        seconds = np.where(np.isfinite(seconds) & (seconds > 0), seconds, 1.0)
        return speed / (seconds * workload.gpus)[:, None]
    best = speed.max(axis=1, keepdims=True, initial=0.0)
    return speed / np.where(best > 0, best, 1.0)
