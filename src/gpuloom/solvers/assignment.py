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
_CLOSE = 1e-3
"""Prices that change by a smaller share are found."""
NOWHERE = -1


def prices(worth: F8, demand: F8, capacity: F8) -> F8:
    """Price per GPU of each model: shape (models,).

    Args:
        worth: of each job on each model, per second: shape (jobs, models); 0 where it can't run.
        demand: GPUs of each job.
        capacity: GPUs of each model.
    """
    models = worth.shape[1]
    columns = [np.ascontiguousarray(worth[:, model]) for model in range(models)]
    above = [np.maximum(column, 0.0) for column in columns]
    """Worth above the price, by model; 0 where there is none."""
    zeros = np.zeros(len(demand))
    room: list[float] = capacity.tolist()
    found = [0.0] * models
    for _ in range(ROUNDS):
        before = found[:]
        for model in range(models):
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
        if all(abs(new - old) <= _CLOSE * abs(old) for new, old in zip(found, before, strict=True)):
            break
    return np.array(found)


def bids(worth: F8, demand: F8, price: F8) -> F8:
    """What each job gains by having a model rather than the best of the others at their prices, or none: shape (jobs,
    models); 0 where it gains nothing.

    Args:
        price: per GPU of each model, as `prices` finds them. The other arguments as there.
    """
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
    net = worth - demand[:, None] * (prices(worth, demand, capacity) if price is None else price)
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
        seats = _Seats(size, value[rows].tolist(), where[rows].tolist(), left)
        seats.improve()
        chosen[rows] = [NOWHERE if place == models else place for place in seats.where]


class _Seats:
    """Jobs of one size and where they are: plain numbers, as there are few of each size. The last place is waiting.

    Args:
        value: by job and place.
        left: free GPUs of each model, kept up to date.
    """

    def __init__(self, size: float, value: list[list[float]], where: list[int], left: list[float]) -> None:
        self._size, self._value, self.where, self._left = size, value, where, left
        self._here = [of_job[place] for of_job, place in zip(value, where, strict=True)]
        self._places = len(left) + 1
        self._best: list[list[float]] = [[] for _ in range(self._places)]
        self._who: list[list[int]] = [[] for _ in range(self._places)]

    def improve(self) -> None:
        places = range(self._places)
        best, who = self._best, self._who
        for place in places:
            self._look(place)
        for _ in range(2 * len(self.where)):
            most, one, other = -np.inf, 0, 0
            for a in places:
                for b in places:
                    both = best[a][b] + best[b][a]
                    if both > most:
                        most, one, other = both, a, b
            if not most > 1e-9 * (1.0 + max(self._here)):
                break
            for job, old, new in ((who[one][other], one, other), (who[other][one], other, one)):
                if job != NOWHERE:
                    self._move(job, old, new)
            self._look(one)
            self._look(other)

    def _look(self, place: int) -> None:
        """Who of this place gains most by going to each other one, and how much; the first of equals."""
        places = range(self._places)
        best, who = [-np.inf] * self._places, [NOWHERE] * self._places
        for job, there in enumerate(self.where):
            if there == place:
                value, here = self._value[job], self._here[job]
                for other in places:
                    gain = value[other] - here
                    if gain > best[other] or who[other] == NOWHERE:
                        best[other], who[other] = gain, job
        if place == len(self._left) or self._left[place] >= self._size - 1e-9:
            # Free GPUs lose nothing by going elsewhere.
            for other in places:
                if best[other] < 0.0:
                    best[other], who[other] = 0.0, NOWHERE
        self._best[place], self._who[place] = best, who

    def _move(self, job: int, old: int, new: int) -> None:
        self.where[job] = new
        self._here[job] = self._value[job][new]
        for place, change in ((old, self._size), (new, -self._size)):
            if place < len(self._left):
                self._left[place] += change
