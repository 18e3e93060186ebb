"""Jobs to machines and places in their queues, for the least sum of times of completion.

A job that runs k-th from the end of a machine's queue makes k jobs wait for as long as it runs there: minimise
Σ k · time over all ways to give every job a machine and a k (Horn, "Minimizing average flow time with parallel
machines", 1973; Bruno, Coffman and Sethi, 1974). Machines of one kind are told apart by nothing, so that a kind's k-th
places are one column with room for as many jobs as it has machines; the transport problem has whole optima.
"""

from __future__ import annotations

import numpy as np

from gpuloom.core.workload import F8
from gpuloom.solvers.linear import maximize


def first_in_queues(time_s: F8, machines: F8) -> list[tuple[int, int]]:
    """(job, kind of machine) of all jobs, those first that are first in their queues; of equals the shorter ones.

    Args:
        time_s: of each job on each kind, shape (jobs, kinds); infinity where it can't run.
        machines: of each kind.
    """
    jobs, kinds = time_s.shape
    places = [(kind, k) for kind in range(kinds) if machines[kind] >= 1 for k in range(1, _most(jobs, machines[kind]))]
    if not places:
        return []
    kind, back = np.array(places).T
    price = back * time_s[:, kind]
    able = np.isfinite(price)
    price = np.where(able, price, 0.0)
    job, place = np.divmod(np.arange(price.size), len(kind))
    x = maximize(
        # Every job has a place if it can; nothing costs as much as none.
        2.0 - price.ravel() / (price.max(initial=0.0) or 1.0),
        np.concatenate([job, jobs + place]),
        np.concatenate([np.arange(price.size)] * 2),
        np.ones(2 * price.size),
        np.full(jobs + len(kind), -np.inf),
        np.concatenate([np.ones(jobs), machines[kind]]),
        able.ravel().astype(np.float64),
    )
    taken = np.flatnonzero(x > 0.5)
    order = np.lexsort((price.ravel()[taken], -back[place[taken]]))
    return [(int(job[cell]), int(kind[place[cell]])) for cell in taken[order]]


def _most(jobs: int, machines: float) -> int:
    return int(np.ceil(jobs / machines)) + 1
