"""Fair shares as released code computes them (Gavel's, and Muri's Themis): by ECOS, an interior-point solver.

Where GPUs are left over once the worst-off is served, the program has many optima, and an interior-point method ends
inside their set: everybody gets some of what is left. The solver is an optional extra (`gpuloom[gavel]`).
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import GpuloomError, MissingDependencyError
from gpuloom.core.workload import F8

_TOLERANCE = 1e-8
"""Of feasibility and of the gap, absolute and relative: ECOS's own, which Gavel leaves as it is."""


def require_ecos(who: str) -> None:
    """Raises MissingDependencyError if the solver is not installed; who: the policy, as one writes it."""
    if find_spec("ecos") is None:
        raise MissingDependencyError(who, "the solver ECOS", "gavel")


def interior_shares(value: F8, gpus: F8, capacity: F8, throughput_term: float = 0.0) -> F8:
    """X, shape (jobs, models): max min_m Σ_j value_mj X_mj with X ≥ 0, Σ_j X_mj ≤ 1, Σ_m gpus_m X_mj ≤ capacity_j.

    Args:
        throughput_term: so much of Σ_m Σ_j value_mj X_mj is added to what is maximised.

    Raises:
        GpuloomError: the solver is not installed, or ends without an answer.
    """
    jobs, models = value.shape
    level = jobs * models
    limits, most = _limits(gpus, capacity, jobs, models)
    each = np.arange(jobs)
    row = np.concatenate([np.repeat(each, models), each])
    column = np.concatenate([np.arange(level), np.full(jobs, level)])
    entry = np.concatenate([-value.ravel(), np.ones(jobs)])
    rows = [(row, column, entry), limits]
    most = np.concatenate([np.zeros(jobs), most])
    x = _solved(np.append(-throughput_term * value.ravel(), -1.0), rows, most, cones=0)
    return np.clip(x[:level].reshape(jobs, models), 0.0, 1.0)


def interior_shares_in_time(speed: F8, left: F8, age_s: F8, alone_s: F8, gpus: F8, capacity: F8) -> F8:
    """X as above, with min max_m (age_m + left_m / Σ_j speed_mj X_mj) / alone_m.

    The inverse is a cone: y_m · done_m ≥ 1 is ‖(2, done − y)‖ ≤ done + y.

    Raises:
        GpuloomError: as above.
    """
    jobs, models = speed.shape
    shares = jobs * models
    inverse, level = shares, shares + jobs  # columns: X, y, and the largest ratio
    limits, most = _limits(gpus, capacity, jobs, models)
    each, cells = np.arange(jobs), np.arange(shares)
    ratio = (
        np.concatenate([each, each]),
        np.concatenate([inverse + each, np.full(jobs, level)]),
        np.concatenate([left / alone_s, -np.ones(jobs)]),
    )
    of_job = np.repeat(each, models)
    cone = (  # rows done + y, done − y, 2, of each job
        np.concatenate([3 * of_job, 3 * each, 3 * of_job + 1, 3 * each + 1]),
        np.concatenate([cells, inverse + each, cells, inverse + each]),
        np.concatenate([-speed.ravel(), -np.ones(jobs), -speed.ravel(), np.ones(jobs)]),
    )
    most = np.concatenate([-age_s / alone_s, most, np.tile([0.0, 0.0, 2.0], jobs)])
    x = _solved(np.append(np.zeros(level), 1.0), [ratio, limits, cone], most, cones=jobs)
    return np.clip(x[:shares].reshape(jobs, models), 0.0, 1.0)


def interior_shares_of_sum(value: F8, gpus: F8, capacity: F8) -> F8:
    """X as above, with max Σ_m Σ_j value_mj X_mj."""
    jobs, models = value.shape
    limits, most = _limits(gpus, capacity, jobs, models)
    x = _solved(-value.ravel(), [limits], most, cones=0)
    return np.clip(x.reshape(jobs, models), 0.0, 1.0)


def interior_shares_by(speed: F8, left: F8, gpus: F8, capacity: F8, within: float) -> F8 | None:
    """An X as above by which all jobs end in time: Σ_j speed_mj X_mj ≥ left_m / within; None: there is none."""
    jobs, models = speed.shape
    limits, most = _limits(gpus, capacity, jobs, models)
    cells = np.arange(jobs * models)
    ends = (cells // models, cells, -speed.ravel())
    try:
        x = _solved(np.zeros(len(cells)), [limits, ends], np.concatenate([most, -left / within]), cones=0, close=False)
    except GpuloomError:
        return None
    return np.clip(x.reshape(jobs, models), 0.0, 1.0)


_Part = tuple[NDArray[np.intp], NDArray[np.intp], F8]
"""Rows, columns and values of entries that are not 0."""


def _limits(gpus: F8, capacity: F8, jobs: int, models: int) -> tuple[_Part, F8]:
    """−X ≤ 0, Σ_m gpus_m X_mj ≤ capacity_j, Σ_j X_mj ≤ 1, and the right sides."""
    cells = np.arange(jobs * models)
    job, model = cells // models, cells % models
    row = np.concatenate([cells, len(cells) + model, len(cells) + models + job])
    entry = np.concatenate([-np.ones(len(cells)), gpus[job], np.ones(len(cells))])
    return (row, np.tile(cells, 3), entry), np.concatenate([np.zeros(len(cells)), capacity, np.ones(jobs)])


def _solved(cost: F8, parts: list[_Part], most: F8, *, cones: int, close: bool = True) -> F8:
    """The x with the least cost·x where most − A·x is at least 0, or, in the last 3 · cones rows, in cones of three.

    Args:
        parts: of A, one below the other.
        close: an answer that is close to the optimum will do.
    """
    require_ecos("an interior point")
    import ecos
    from scipy.sparse import csc_matrix

    heights = np.cumsum([0, *(int(part[0].max()) + 1 for part in parts)])
    row = np.concatenate([part[0] + above for part, above in zip(parts, heights, strict=False)])
    column, entry = (np.concatenate([part[of] for part in parts]) for of in (1, 2))
    below = csc_matrix((entry, (row, column)), shape=(len(most), len(cost)))
    found = ecos.solve(
        cost,
        below,
        most,
        {"l": len(most) - 3 * cones, "q": [3] * cones},
        verbose=False,
        abstol=_TOLERANCE,
        reltol=_TOLERANCE,
        feastol=_TOLERANCE,
    )
    if found["info"]["exitFlag"] not in ((0, 10) if close else (0,)):  # optimal, or close to it
        raise GpuloomError(f"ECOS ends without an answer ({len(cost)} columns): {found['info']['infostring']}")
    x: F8 = np.asarray(found["x"], dtype=np.float64)
    return x
