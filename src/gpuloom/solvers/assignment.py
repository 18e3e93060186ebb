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
from gpuloom.solvers import assignment_few as few
from gpuloom.solvers.seats import NOWHERE, Seats, alone_and_stuck

__all__ = ["NOWHERE", "assign", "bids", "prices"]

_FEW = 32
"""So many jobs are looked at faster one by one than as arrays, with the same result."""


def prices(worth: F8, demand: F8, capacity: F8) -> F8:
    """Price per GPU of each model: shape (models,).

    Args:
        worth: of each job on each model, per second: shape (jobs, models); 0 where it can't run.
        demand: GPUs of each job.
        capacity: GPUs of each model.
    """
    if len(demand) <= _FEW:
        return np.array(few.prices(worth.tolist(), demand.tolist(), capacity.tolist()))
    models = worth.shape[1]
    columns = [np.ascontiguousarray(worth[:, model]) for model in range(models)]
    above = [np.maximum(column, 0.0) for column in columns]
    """Worth above the price, by model; 0 where there is none."""
    zeros = np.zeros(len(demand))
    room: list[float] = capacity.tolist()
    found = [0.0] * models
    seen: list[list[float] | None] = [None] * models
    """By model, the prices of the others that its own was found at."""
    for _ in range(few.ROUNDS):
        before = found[:]
        for model in range(models):
            others = found[:model] + found[model + 1 :]
            if others == seen[model]:
                continue
            seen[model] = others
            # The highest price at which each job still prefers this model.
            rivals = above[:model] + above[model + 1 :]
            other = rivals[0] if rivals else zeros
            for rival in rivals[1:]:
                other = np.maximum(other, rival)
            limit = (columns[model] - other) / demand
            wants = (limit > 0).nonzero()[0]
            price = 0.0
            # Only where it is close the order in which demands are added up matters.
            if np.add.reduce(demand[wants]) > room[model] * (1.0 - 1e-6):
                order = wants[(-limit[wants]).argsort(kind="stable")]
                over = int(demand[order].cumsum().searchsorted(room[model], side="right"))
                price = float(limit[order[over]]) if over < len(order) else 0.0
            if price != found[model]:
                found[model] = price
                above[model] = np.maximum(columns[model] - demand * price, 0.0)
        if few.close(found, before):
            break
    return np.array(found)


def bids(worth: F8, demand: F8, price: F8) -> F8:
    """What each job gains by having a model rather than the best of the others at their prices, or none: shape (jobs,
    models); 0 where it gains nothing.

    Args:
        price: per GPU of each model, as `prices` finds them. The other arguments as there.
    """
    if len(demand) <= _FEW:
        return np.array(few.bids(worth.tolist(), demand.tolist(), price.tolist())).reshape(worth.shape)
    net = np.maximum(np.where(worth > 0, worth - demand[:, None] * price, 0.0), 0.0)
    found = np.empty_like(net)
    for model in range(worth.shape[1]):
        others = np.delete(net, model, axis=1)
        found[:, model] = worth[:, model] - (others.max(axis=1) if others.shape[1] else 0.0)
    return np.maximum(found, 0.0)


def assign(worth: F8, demand: F8, capacity: F8, price: F8 | None = None) -> NDArray[np.intp]:
    """The model that each job should use, `NOWHERE` for jobs that should wait: shape (jobs,). Arguments as `prices`;
    `price`: what it found, if that is known."""
    jobs, models = worth.shape
    chosen = np.full(jobs, NOWHERE, dtype=np.intp)
    if not jobs:
        return chosen
    if price is None:
        price = prices(worth, demand, capacity)
    if jobs <= _FEW:
        where = few.assign(worth.tolist(), demand.tolist(), capacity.tolist(), price.tolist())
        return np.array(where, dtype=np.intp)
    net = worth - demand[:, None] * price
    net = np.where(worth > 0, net, -np.inf)
    ranked = np.sort(net, axis=1)
    second = np.maximum(ranked[:, -2], 0.0) if models > 1 else np.zeros(jobs)
    regret = (ranked[:, -1] - second) / demand
    # No job goes without GPUs while some are free: those priced out come last, best first.
    order = np.lexsort((-net.max(axis=1) / demand, -regret))
    left = capacity.astype(np.float64).tolist()
    asks, nets, ways = demand.tolist(), net.tolist(), np.argsort(-net, axis=1, kind="stable").tolist()
    for job in order.tolist():
        for model in ways[job]:
            if nets[job][model] == -np.inf:
                break
            if asks[job] <= left[model] + 1e-9:
                left[model] -= asks[job]
                chosen[job] = model
                break
    _exchange(chosen, worth, demand, left)
    return chosen


def _exchange(chosen: NDArray[np.intp], worth: F8, demand: F8, left: list[float]) -> None:
    """Jobs of one size change places, with each other, with one that waits or with free GPUs: the best change first,
    until none is worth more. `left`: free GPUs of each model."""
    models = worth.shape[1]
    # A last column for waiting, which is worth nothing. Nobody is put where it can't run.
    value = np.zeros((len(chosen), models + 1))
    value[:, :models] = np.where(worth > 0, worth, -np.inf)
    where = np.where(chosen == NOWHERE, models, chosen)
    gain = value - value[np.arange(len(chosen)), where][:, None]
    # Who gains nothing itself may make room for others, but some must gain.
    gains = gain.max(axis=1) > 0.0
    for size in sorted(set(demand[gains].tolist())):
        rows = np.flatnonzero(demand == size)
        there = where[rows].tolist()
        if alone_and_stuck(size, there, left):
            continue
        seats = Seats(size, value[rows].tolist(), there, left)
        seats.improve()
        chosen[rows] = [NOWHERE if place == models else place for place in seats.where]
