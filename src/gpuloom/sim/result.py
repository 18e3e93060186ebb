"""What a simulation returns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

F8 = NDArray[np.float64]
I4 = NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The cluster over time: value i holds from `time_s[i]` to `time_s[i + 1]` (the last: to the end)."""

    time_s: F8
    queue_length: I4
    busy_gpus: I4


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Which job ran where and when: one row per run of a job and node, in order of start."""

    job: I4
    start_s: F8
    end_s: F8
    node: I4
    gpu_mask: NDArray[np.object_]
    """GPUs of the node that were held, as a bit mask (Python int)."""
    layer: I4
    """Sharing layer: 0 unless GPUs are shared (docs/explanation/architecture.md)."""


@dataclass(frozen=True, slots=True, eq=False)
class SimResult:
    """One trace under one policy. Times in seconds; arrays have one entry per job, in order of submission.

    A job that had not ended (an interrupted run) has NaN in `end_s` and `jct_s` and is left out of the
    averages.
    """

    policy: str
    trace: str
    cluster: str
    jobs: int
    gpus: int
    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float
    makespan_s: float
    avg_queue_length: float
    blocking_index: float
    utilization: float
    lower_bound_avg_jct_s: float
    wall_s: float
    restarts: int
    moves: int
    """Times a running job was moved to other GPUs."""
    resizes: int
    """Times a running job was given more or fewer GPUs."""
    events: int
    finished: int
    interrupted: bool
    settings: dict[str, Any]
    job_ids: tuple[str, ...]
    job_gpus: I4
    submit_s: F8
    start_s: F8
    end_s: F8
    jct_s: F8
    held_gpu_s: F8
    """GPU-seconds held by GPU model, restart overheads included: shape (jobs, gpu_models)."""
    gpu_models: tuple[str, ...]
    starts: I4
    """Times the job was (re)started."""
    timeline: Timeline
    segments: Segments | None
    node_names: tuple[str, ...]
    suspensions: int = 0
    """Times a running job was suspended with all it had on its GPUs."""
    notes: tuple[str, ...] = ()
    """What readers should know before they trust the figures."""
    window: tuple[int, int] | None = None
    """The jobs of which `avg_jct_s`, `median_jct_s` and `p99_jct_s` are: the first, and the one after the last, counted
    from 0 in order of submission. None: all."""
    saved: str | None = None
    """What the policy would keep of its memory for other workloads (`Policy.saved`)."""

    @property
    def attained_gpu_s(self) -> F8:
        """GPU-seconds held, restart overheads included."""
        held: F8 = self.held_gpu_s.sum(axis=1)
        return held

    def to_dict(self) -> dict[str, Any]:
        """The summary as plain values (NaN becomes None)."""
        keys = (
            "policy",
            "trace",
            "cluster",
            "jobs",
            "gpus",
            "avg_jct_s",
            "median_jct_s",
            "p99_jct_s",
            "makespan_s",
            "avg_queue_length",
            "blocking_index",
            "utilization",
            "lower_bound_avg_jct_s",
            "wall_s",
            "restarts",
            "moves",
            "resizes",
            "suspensions",
            "events",
            "finished",
            "interrupted",
            "window",
            "notes",
            "settings",
        )
        return {key: _plain(getattr(self, key)) for key in keys}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    def to_frame(self) -> pd.DataFrame:
        """One row per job: job_id, gpus, submit_s, start_s, end_s, jct_s, attained_gpu_s, starts.

        Raises:
            MissingDependencyError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingDependencyError("a data frame", "pandas", "frame") from error
        return pd.DataFrame(
            {
                "job_id": list(self.job_ids),
                "gpus": self.job_gpus,
                "submit_s": self.submit_s,
                "start_s": self.start_s,
                "end_s": self.end_s,
                "jct_s": self.jct_s,
                "attained_gpu_s": self.attained_gpu_s,
                "starts": self.starts,
            }
        )


def _plain(value: Any) -> Any:
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return list(value) if isinstance(value, tuple) else value
