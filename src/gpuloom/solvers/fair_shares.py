"""Shares of a cluster that make the worst-off job as well off as possible."""

from __future__ import annotations

import numpy as np

from gpuloom.core import products
from gpuloom.core.workload import F8

_STEPS = 60


def least_worst_shares(age_s: F8, left_s: F8, ideal: F8, gpus: F8, capacity: float) -> F8:
    """Minimise max_j (age_j + left_j / x_j) / ideal_j over 0 ≤ x ≤ 1 with Σ gpus·x ≤ capacity.

    A level z of the maximum asks for x_j(z) = left_j / (z·ideal_j − age_j), falling in z, so the least feasible z
    follows by Newton's method (the total is convex and falling). Where the level is set by a job at x = 1 and
    capacity is left over, the answer is not unique: what is left goes to all jobs in proportion to what they lack.

    Returns:
        x, shape (jobs,).
    """
    left_s, ideal = np.maximum(left_s, 1e-9), np.maximum(ideal, 1e-9)
    # The least level that no x_j > 1 could beat.
    z = float(((age_s + left_s) / ideal).max())
    low = np.minimum(left_s / np.maximum(z * ideal - age_s, 1e-300), 1.0)
    over = capacity - products.dot(gpus, low)
    if over >= 0:
        lacking = products.dot(gpus, 1.0 - low)
        shares: F8 = low + (1.0 - low) * (min(over / lacking, 1.0) if lacking > 0 else 0.0)
        return shares
    for _ in range(_STEPS):
        room = z * ideal - age_s
        x = left_s / room
        over = products.dot(gpus, x) - capacity
        slope = products.dot(gpus, x * ideal / room)
        step = over / slope
        z += step
        if abs(step) <= 1e-15 * abs(z):
            break
    return np.minimum(left_s / (z * ideal - age_s), 1.0)
