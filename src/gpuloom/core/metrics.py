"""What the figures of a schedule mean and how they are computed: one definition, for simulated and for live ones.

Names are fields of `SimResult`, of the answers of the API and of `gpuloom stats` alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]

LEAST_LEFT_S = 1.0
"""For the blocking index a job has this much left to run at least."""

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "avg_jct_s": "Job completion time (JCT) is end − submission: waiting, running and restarting. Mean over the "
        "jobs that ended.",
        "median_jct_s": "The middle JCT of the jobs that ended, or the mean of the two in the middle.",
        "p99_jct_s": "With the JCTs of the n jobs that ended sorted upwards, the one at index int(0.99 n), counted "
        "from 0.",
        "makespan_s": "From the first submission to the end of the last job",
        "avg_queue_length": "Number of jobs that wait, averaged over time: a length that lasts twice as long weighs "
        "twice as much.",
        "blocking_index": "Mean over the waiting jobs of time waited / run time that remains (at least 1 s), averaged "
        "over time; 0 while no job waits. High when short jobs wait for long.",
        "utilization": "GPUs held by jobs, as a part of all GPUs, averaged over time.",
        "restarts": "How often a job that had run before was started again, over all jobs.",
    }
)
"""By name."""


@dataclass(frozen=True, slots=True)
class JctFigures:
    """Figures of job completion times, seconds; NaN where no job ended."""

    avg_jct_s: float
    median_jct_s: float
    p99_jct_s: float


def jct_figures(jct_s: F8) -> JctFigures:
    """Of the JCTs of jobs that ended, in any order."""
    if len(jct_s) == 0:
        return JctFigures(math.nan, math.nan, math.nan)
    ordered = np.sort(jct_s)
    return JctFigures(float(jct_s.mean()), float(np.median(jct_s)), float(ordered[int(0.99 * len(ordered))]))


def blocking_per_s(left_s: float) -> float:
    """By how much a waiting job's part of the blocking index grows in a second. left_s: run time that remains."""
    return 1.0 / left_s if left_s > LEAST_LEFT_S else 1.0 / LEAST_LEFT_S


def time_mean(integral: float, span_s: float) -> float:
    """An average over time, of the integral over a span; 0 for an empty one."""
    return integral / span_s if span_s > 0 else 0.0
