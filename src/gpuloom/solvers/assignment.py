"""Which GPU model each job should use when not all can have the best one: by prices of GPUs.

Give every job at most one GPU model, within the GPUs of each model, so that the summed worth is largest. That is a
linear program, and nearly integral: at most one job per model is split. Its dual has one price per model. At the right
prices every job takes the model on which its worth exceeds the price of its GPUs most, or none. The prices are found by
coordinate descent on the dual: given the other prices, a model's price is the one at which the jobs that want it most
just fill it. Jobs are then assigned in order of what they would lose by their second choice.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8

ROUNDS = 12
"""Sweeps over the models; prices hardly change after a few."""
NOWHERE = -1


def prices(worth: F8, demand: F8, capacity: F8) -> F8:
    """Price per GPU of each model: shape (models,).

    Args:
        worth: of each job on each model, per second: shape (jobs, models); 0 where it can't run.
        demand: GPUs of each job.
        capacity: GPUs of each model.
    """
    models = worth.shape[1]
    found = np.zeros(models)
    for _ in range(ROUNDS):
        before = found.copy()
        for model in range(models):
            # The highest price at which each job still prefers this model.
            net = worth - demand[:, None] * found
            net[:, model] = 0.0
            limit = (worth[:, model] - np.maximum(net.max(axis=1), 0.0)) / demand
            wants = np.flatnonzero(limit > 0)
            order = wants[np.argsort(-limit[wants], kind="stable")]
            filled = demand[order].cumsum()
            over = int(np.searchsorted(filled, capacity[model], side="right"))
            found[model] = limit[order[over]] if over < len(order) else 0.0
        if np.allclose(found, before, rtol=1e-3, atol=0.0):
            break
    return found


def assign(worth: F8, demand: F8, capacity: F8) -> NDArray[np.intp]:
    """The model that each job should use, `NOWHERE` for jobs that should wait: shape (jobs,). Arguments as `prices`."""
    jobs, models = worth.shape
    chosen = np.full(jobs, NOWHERE, dtype=np.intp)
    if not jobs:
        return chosen
    net = worth - demand[:, None] * prices(worth, demand, capacity)
    net = np.where(worth > 0, net, -np.inf)
    ranked = np.sort(net, axis=1)
    second = np.maximum(ranked[:, -2], 0.0) if models > 1 else np.zeros(jobs)
    regret = (ranked[:, -1] - second) / demand
    # No job goes without GPUs while some are free: those priced out come last, best first.
    order = np.lexsort((-net.max(axis=1) / demand, -regret))
    left = capacity.astype(np.float64).tolist()
    choices = np.argsort(-net, axis=1, kind="stable")
    for job in order.tolist():
        for model in choices[job].tolist():
            if net[job, model] == -np.inf:
                break
            if demand[job] <= left[model] + 1e-9:
                left[model] -= demand[job]
                chosen[job] = model
                break
    _exchange(chosen, worth, demand, np.array(left))
    return chosen


def _exchange(chosen: NDArray[np.intp], worth: F8, demand: F8, left: F8) -> None:
    """Jobs of one size change places, with each other, with one that waits or with free GPUs: the best change first,
    until none is worth more. `left`: free GPUs of each model."""
    models = worth.shape[1]
    places = np.arange(models + 1)
    for size in np.unique(demand).tolist():
        rows = np.flatnonzero(demand == size)
        # A last column for waiting, which is worth nothing. Nobody is put where it can't run.
        value = np.zeros((len(rows), models + 1))
        value[:, :models] = np.where(worth[rows] > 0, worth[rows], -np.inf)
        where = np.where(chosen[rows] == NOWHERE, models, chosen[rows])
        here = value[np.arange(len(rows)), where]
        gain = value - here[:, None]
        for _ in range(2 * len(rows)):
            best = np.full((models + 1, models + 1), -np.inf)
            who = np.full((models + 1, models + 1), NOWHERE, dtype=np.intp)
            for place in range(models + 1):
                inside = np.flatnonzero(where == place)
                if len(inside):
                    who[place] = inside[gain[inside].argmax(axis=0)]
                    best[place] = gain[who[place], places]
                if place == models or left[place] >= size - 1e-9:
                    # Free GPUs lose nothing by going elsewhere.
                    who[place] = np.where(best[place] < 0, NOWHERE, who[place])
                    best[place] = np.maximum(best[place], 0.0)
            both = best + best.T
            one, other = divmod(int(both.argmax()), models + 1)
            if not both[one, other] > 1e-9 * (1.0 + here.max()):
                break
            for job, old, new in ((who[one, other], one, other), (who[other, one], other, one)):
                if job == NOWHERE:
                    continue
                where[job] = new
                here[job] = value[job, new]
                gain[job] = value[job] - here[job]
                for model, change in ((old, size), (new, -size)):
                    if model < models:
                        left[model] += change
        chosen[rows] = np.where(where == models, NOWHERE, where)
