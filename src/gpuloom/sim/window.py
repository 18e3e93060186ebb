"""Averages over a part of a trace's jobs, as papers measure them: the first fill the cluster, the last empty it.

Gavel (OSDI '20) reports jobs 4,000 to 5,000 of a trace (`--window 4000-5000`; `-s 4000 -e 5000` in its simulator):
those numbered from 4,000 on and below 5,000, counted from 0 in order of submission. All jobs run; these are averaged.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from gpuloom.core.errors import InputError
from gpuloom.core.metrics import jct_figures
from gpuloom.core.words import plural
from gpuloom.core.workload import F8
from gpuloom.sim.result import SimResult

Window = tuple[int, int]
"""The first job, and the one after the last, counted from 0 in order of submission."""


def parse_window(text: str) -> Window:
    """'4000-5000': 1,000 jobs, from the one numbered 4,000 on.

    Raises:
        InputError: not so written, or no job lies between.
    """
    found = re.fullmatch(r"(\d{1,12})-(\d{1,12})", text.strip(), re.ASCII)
    if found is None or int(found[1]) >= int(found[2]):
        raise InputError(
            f"--window {text!r}: must be FIRST-END, jobs counted from 0 in order of submission, the first smaller than "
            "the end, as 4000-5000"
        )
    return int(found[1]), int(found[2])


def check_window(window: Window, jobs: int) -> None:
    """Raises InputError unless a workload has all jobs of the window."""
    if window[1] > jobs:
        raise InputError(
            f"window {window[0]}-{window[1]}: must end at {jobs} or before, as there are {plural(jobs, 'job')}"
        )


def named(window: Window) -> str:
    """Which jobs these are, for a sentence."""
    first, end = window
    which = f"job {first:,}" if end == first + 1 else f"the {end - first:,} jobs {first:,} to {end - 1:,}"
    return f"{which}, counted from 0"


def figures(jct_s: F8) -> tuple[float, float, float]:
    """Mean, median and 99th percentile of the times that are known; NaN of none."""
    found = jct_figures(jct_s[np.isfinite(jct_s)])
    return found.avg_jct_s, found.median_jct_s, found.p99_jct_s


def windowed(result: SimResult, window: Window) -> SimResult:
    """The result with averages over the jobs of the window, which it then names.

    Mean, median and 99th percentile of the JCT are of those jobs. All else (makespan, queue, utilisation, restarts) is
    still of the whole run; the lower bound, which is one for all jobs, is not given.

    Raises:
        InputError: there are fewer jobs.
    """
    first, end = window
    check_window(window, result.jobs)
    avg, median, p99 = figures(result.jct_s[first:end])
    note = f"average, median and p99 JCT are of {named(window)}"
    return replace(
        result,
        avg_jct_s=avg,
        median_jct_s=median,
        p99_jct_s=p99,
        lower_bound_avg_jct_s=math.nan,
        window=window,
        notes=(*result.notes, note),
    )
