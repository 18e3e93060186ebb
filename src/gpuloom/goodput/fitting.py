"""The step time that a job expects where it has not trained: a model fitted to the steps it has seen.

Pollux' model (OSDI '21, section 3.2), which Sia (SOSP '23) keeps by GPU model. With n nodes, k GPUs, local batch b:

    compute    c = α_c + β_c · b
    network    s = α + β · max(k - 2, 0), with α_n, β_n between nodes, α_r, β_r on one; 0 for one GPU
    step       (c^γ + s^γ)^(1/γ),  γ in [1, 10]: 1 nothing overlaps, 10 all does

The parameters make RMSE(log c) + RMSE(log step) + 10⁻³ (γ - 1)² + 10⁻² Σ (β/α)² smallest, by L-BFGS-B from fixed first
values; what the observations say nothing about stays at its first value, which is next to nothing for the network, so
that sizes not yet tried look good. Objective, bounds and first values are those of the artifacts, so that a job knows
as much here as there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.errors import MissingDependencyError
from gpuloom.core.workload import F8
from gpuloom.goodput.job import Seen

_LEAST = 1e-8
_FIRST = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])
_TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class StepModel:
    """α_c, β_c, α_n, β_n, α_r, β_r in seconds, and γ."""

    values: tuple[float, ...]

    def compute_s(self, local: F8) -> F8:
        found: F8 = self.values[0] + self.values[1] * local
        return found

    def step_s(self, compute_s: F8, nodes: NDArray[np.intp], gpus: NDArray[np.intp]) -> F8:
        gamma = self.values[6]
        network = _network(np.array(self.values), nodes > 1, gpus > 1, np.maximum(gpus - 2, _LEAST))
        found: F8 = (compute_s**gamma + network**gamma) ** (1 / gamma)
        return found


def fit_steps(seen: Seen) -> StepModel:
    """The model of what was seen, which must be something.

    Raises:
        MissingDependencyError: SciPy is not installed.
    """
    try:
        from scipy.optimize import Bounds, minimize
    except ImportError as error:
        raise MissingDependencyError("curves that are learnt", "SciPy", "pollux") from error
    keys = np.array(list(seen), dtype=np.float64)
    nodes, gpus, local = keys.T
    step = np.array([step for step, _ in seen.values()])
    compute = step - np.array([sync for _, sync in seen.values()])
    first, lower, upper = _FIRST.copy(), np.full(7, _LEAST), np.full(7, np.inf)
    lower[6], upper[6] = 1.0, 10.0

    def fixed(at: int, value: float) -> None:
        first[at] = lower[at] = upper[at] = value

    if len(np.unique(local)) == 1:
        fixed(0, float(compute.mean()) / 2)
    if not (nodes > 1).any():
        fixed(2, _LEAST)
        fixed(3, _LEAST)
    if not ((nodes == 1) & (gpus > 1)).any():
        fixed(4, _LEAST)
        fixed(5, _LEAST)
    if not (gpus > 2).any():
        fixed(3, _LEAST)
        fixed(5, _LEAST)
    several, more, beyond = nodes > 1, gpus > 1, np.maximum(gpus - 2, _LEAST)
    told: Any = (local, several, more, beyond, np.log(compute), np.log(step))
    bounds = Bounds(lower, upper, keep_feasible=True)
    found = minimize(_error, first, args=told, jac=True, bounds=bounds, tol=_TOLERANCE, method="L-BFGS-B").x
    if not several.any():
        # Between nodes it is at least a little slower than on one.
        found[2], found[3] = max(found[2], found[4] * 1.1), max(found[3], found[5] * 1.1)
    return StepModel(tuple(found.tolist()))


def _network(x: F8, several: NDArray[np.bool_], more: NDArray[np.bool_], beyond: F8) -> F8:
    bottleneck = np.where(several, x[2], np.where(more, x[4], _LEAST))
    each = np.where(several, x[3], np.where(more, x[5], _LEAST))
    found: F8 = bottleneck + each * beyond
    return found


def _error(
    x: F8,
    local: F8,
    several: NDArray[np.bool_],
    more: NDArray[np.bool_],
    beyond: F8,
    log_compute: F8,
    log_step: F8,
) -> tuple[float, F8]:
    """What is made smallest, and its gradient, shape (7,)."""
    gamma, n = x[6], len(local)
    compute = x[0] + x[1] * local
    network = _network(x, several, more, beyond)
    log_c, log_s = np.log(compute), np.log(network)
    # log step = log(c^γ + s^γ) / γ, without overflow.
    top = np.maximum(log_c, log_s)
    powers_c, powers_s = np.exp(gamma * (log_c - top)), np.exp(gamma * (log_s - top))
    both = powers_c + powers_s
    log_found = top + np.log(both) / gamma
    off_c, off = log_c - log_compute, log_found - log_step
    error_c, error = float(np.sqrt((off_c**2).mean())), float(np.sqrt((off**2).mean()))
    share_c, share_s = powers_c / both, powers_s / both
    # d error / d (log of what was predicted), row by row.
    by_c = off_c / (n * error_c) if error_c > 0 else np.zeros(n)
    by_step = off / (n * error) if error > 0 else np.zeros(n)
    of_compute = (by_c + by_step * share_c) / compute
    of_network = by_step * share_s / network
    by_gamma = (share_c * log_c + share_s * log_s - log_found) / gamma
    inside = more & ~several
    ratio_n, ratio_r = x[3] / x[2], x[5] / x[4]
    gradient = np.array(
        [
            of_compute.sum(),
            (of_compute * local).sum(),
            of_network[several].sum() - 2e-2 * ratio_n**2 / x[2],
            (of_network * beyond)[several].sum() + 2e-2 * ratio_n / x[2],
            of_network[inside].sum() - 2e-2 * ratio_r**2 / x[4],
            (of_network * beyond)[inside].sum() + 2e-2 * ratio_r / x[4],
            (by_step * by_gamma).sum() + 2e-3 * (gamma - 1),
        ]
    )
    return error_c + error + 1e-3 * (gamma - 1) ** 2 + 1e-2 * (ratio_n**2 + ratio_r**2), gradient
