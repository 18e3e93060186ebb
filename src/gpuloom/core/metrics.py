"""How the figures of a schedule are computed, for simulated and for live ones alike (`definitions.py`: what each is).

Names are fields of `SimResult`, of the answers of the API and of `gpuloom stats` alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F8 = NDArray[np.float64]

LEAST_LEFT_S = 1.0
"""For the blocking index a job has this much left to run at least."""


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
