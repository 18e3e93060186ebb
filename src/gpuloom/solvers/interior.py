"""Max-min fair shares as Gavel's released code computes them: by ECOS, an interior-point solver.

Where GPUs are left over once the worst-off is served, the program has many optima, and an interior-point method ends
inside their set: everybody gets some of what is left. The solver is an optional extra (`gpuloom[gavel]`).
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from gpuloom.core.errors import GpuloomError
from gpuloom.core.workload import F8

_TOLERANCE = 1e-8
"""Of feasibility and of the gap, absolute and relative: ECOS's own, which Gavel leaves as it is."""


def require_ecos(who: str) -> None:
    """Raises GpuloomError if the solver is not installed; who: the policy, as one writes it."""
    if find_spec("ecos") is None:
        raise GpuloomError(f"{who} needs the solver ECOS, which is not installed: pip install 'gpuloom[gavel]'")


def interior_shares(value: F8, gpus: F8, capacity: F8) -> F8:
    """X, shape (jobs, models): max min_m Σ_j value_mj X_mj with X ≥ 0, Σ_j X_mj ≤ 1, Σ_m gpus_m X_mj ≤ capacity_j.

    Raises:
        GpuloomError: the solver is not installed, or ends without an answer.
    """
    require_ecos("an interior point")
    import ecos
    from scipy.sparse import csc_matrix

    jobs, models = value.shape
    level = jobs * models
    cells = np.arange(level)
    job, model = cells // models, cells % models
    first = np.cumsum([0, jobs, level, models])
    row = [job, np.arange(jobs), first[1] + cells, first[2] + model, first[3] + job]
    column = [cells, np.full(jobs, level), cells, cells, cells]
    entry = [-value.ravel(), np.ones(jobs), -np.ones(level), gpus[job], np.ones(level)]
    height = int(first[3]) + jobs
    below = csc_matrix(
        (np.concatenate(entry), (np.concatenate(row), np.concatenate(column))), shape=(height, level + 1)
    )
    most = np.concatenate([np.zeros(jobs + level), capacity, np.ones(jobs)])
    cost = np.append(np.zeros(level), -1.0)
    found = ecos.solve(
        cost, below, most, {"l": height}, verbose=False, abstol=_TOLERANCE, reltol=_TOLERANCE, feastol=_TOLERANCE
    )
    if found["info"]["exitFlag"] not in (0, 10):  # optimal, or close to it
        raise GpuloomError(f"ECOS ends without shares for {jobs} jobs: {found['info']['infostring']}")
    x: F8 = np.asarray(found["x"], dtype=np.float64)
    return np.clip(x[:level].reshape(jobs, models), 0.0, 1.0)
