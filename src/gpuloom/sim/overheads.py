"""What a start or restart of a job costs, in seconds."""

from __future__ import annotations

from functools import cache

import numpy as np

from gpuloom.core.workload import F8, Workload
from gpuloom.facts.profiles import shipped

DEFAULT_S = 10.0
"""For unknown models (the Muri artifact's default)."""


@cache
def measured() -> dict[str, list[tuple[int, float]]]:
    """Per model: (GPUs, seconds to start), rising in GPUs. Source: data/profiles.csv."""
    table: dict[str, list[tuple[int, float]]] = {}
    for profile in shipped():
        if profile.start_s is not None:
            table.setdefault(profile.model, []).append((profile.gpus, profile.start_s))
    return {model: sorted(rows) for model, rows in table.items()}


def restart_overheads_s(workload: Workload, fixed_s: float | None = None) -> F8:
    """Seconds that every start of each job costs.

    Args:
        fixed_s: the same for all; None: the trace's own column, else what was measured for the job's model at the
            nearest smaller number of GPUs, else `DEFAULT_S`.
    """
    n = len(workload)
    if fixed_s is not None:
        return np.full(n, float(fixed_s))
    seconds = np.full(n, DEFAULT_S)
    if workload.model is not None:
        table = measured()
        for code, name in enumerate(workload.model.names):
            rows = table.get(name)
            if rows is not None:
                of_model = workload.model.codes == code
                gpus = np.array([g for g, _ in rows])
                nearest = np.maximum(np.searchsorted(gpus, workload.gpus[of_model], side="right") - 1, 0)
                seconds[of_model] = np.array([s for _, s in rows])[nearest]
    if workload.restart_overhead_s is not None:
        known = np.isfinite(workload.restart_overhead_s)
        seconds[known] = workload.restart_overhead_s[known]
    return seconds
