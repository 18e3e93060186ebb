"""The steps of `solvers/assignment.py` for a few jobs, in plain numbers: the same sums in the same order, so the same
result. Arrays of a dozen numbers cost more than they save.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpuloom.core.sums import sum_floats
from gpuloom.solvers.seats import NOWHERE, Seats, alone_and_stuck

ROUNDS = 12
"""Sweeps over the models; prices hardly change after a few."""
_CLOSE = 1e-3
"""Prices that change by a smaller share are found."""
_NEVER = float("-inf")

Table = Sequence[Sequence[float]]
"""By job and model."""


def close(found: Sequence[float], before: Sequence[float]) -> bool:
    """Whether a sweep has hardly changed the prices."""
    return all(abs(new - old) <= _CLOSE * abs(old) for new, old in zip(found, before, strict=True))


def prices(worth: Table, demand: Sequence[float], capacity: Sequence[float]) -> list[float]:
    """See `assignment.prices`."""
    models = len(capacity)
    columns = [[of_job[model] for of_job in worth] for model in range(models)]
    above = [[value if value > 0.0 else 0.0 for value in column] for column in columns]
    found = [0.0] * models
    seen: list[list[float] | None] = [None] * models
    for _ in range(ROUNDS):
        before = found[:]
        for model in range(models):
            others = found[:model] + found[model + 1 :]
            if others == seen[model]:
                continue
            seen[model] = others
            column = columns[model]
            limit = _limits(column, above[:model] + above[model + 1 :], demand)
            price = _filling(limit, demand, capacity[model])
            if price != found[model]:
                found[model] = price
                above[model] = [
                    net if (net := value - asks * price) > 0.0 else 0.0
                    for value, asks in zip(column, demand, strict=True)
                ]
        if close(found, before):
            break
    return found


def _limits(column: Sequence[float], rivals: Sequence[Sequence[float]], demand: Sequence[float]) -> list[float]:
    """The highest price at which each job still prefers a model; `rivals`: what the others leave it, by model."""
    if len(rivals) == 2:  # the usual case
        return [
            (value - (one if one > two else two)) / asks
            for value, one, two, asks in zip(column, *rivals, demand, strict=True)
        ]
    most = [0.0] * len(demand) if not rivals else rivals[0] if len(rivals) == 1 else list(map(max, *rivals))
    return [(value - other) / asks for value, other, asks in zip(column, most, demand, strict=True)]


def _filling(limit: Sequence[float], demand: Sequence[float], room: float) -> float:
    """The price at which those who would pay most just fill a model; 0 if there is room for all who would pay."""
    wants = [job for job, most in enumerate(limit) if most > 0.0]
    # Only where it is close the order in which demands are added up matters.
    if sum_floats([demand[job] for job in wants]) > room * (1.0 - 1e-6):
        total = 0.0
        for job in sorted(wants, key=limit.__getitem__, reverse=True):
            total += demand[job]
            if total > room:
                return limit[job]
    return 0.0


def bids(worth: Table, demand: Sequence[float], price: Sequence[float]) -> list[list[float]]:
    """See `assignment.bids`."""
    found: list[list[float]] = []
    for of_job, asks in zip(worth, demand, strict=True):
        net = [max(value - asks * cost, 0.0) if value > 0.0 else 0.0 for value, cost in zip(of_job, price, strict=True)]
        found.append(
            [max(value - max(net[:model] + net[model + 1 :], default=0.0), 0.0) for model, value in enumerate(of_job)]
        )
    return found


def assign(worth: Table, demand: Sequence[float], capacity: Sequence[float], price: Sequence[float]) -> list[int]:
    """See `assignment.assign`."""
    chosen = [NOWHERE] * len(demand)
    models = range(len(price))
    entries: list[tuple[float, float, int]] = []
    nets: list[list[float]] = []
    for job, (of_job, asks) in enumerate(zip(worth, demand, strict=True)):
        net = [value - asks * cost if value > 0.0 else _NEVER for value, cost in zip(of_job, price, strict=True)]
        nets.append(net)
        ranked = sorted(net)
        second = max(ranked[-2], 0.0) if len(ranked) > 1 else 0.0
        entries.append((-((ranked[-1] - second) / asks), -ranked[-1] / asks, job))
    # No job goes without GPUs while some are free: those priced out come last, best first.
    entries.sort()
    left = list(capacity)
    for _, _, job in entries:
        net, asks = nets[job], demand[job]
        for model in sorted(models, key=net.__getitem__, reverse=True):
            if net[model] == _NEVER:
                break
            if asks <= left[model] + 1e-9:
                left[model] -= asks
                chosen[job] = model
                break
    _exchange(chosen, worth, demand, left)
    return chosen


def _exchange(chosen: list[int], worth: Table, demand: Sequence[float], left: list[float]) -> None:
    """See `assignment._exchange`."""
    models = len(left)
    by_size: dict[float, list[int]] = {}
    for job, asks in enumerate(demand):
        by_size.setdefault(asks, []).append(job)
    for size in sorted(by_size):
        rows = by_size[size]
        # A last place for waiting, which is worth nothing. Nobody is put where it can't run.
        value = [[*(one if one > 0.0 else _NEVER for one in worth[job]), 0.0] for job in rows]
        where = [models if chosen[job] == NOWHERE else chosen[job] for job in rows]
        # Who gains nothing itself may make room for others, but some must gain.
        if not any(max(of_job) > of_job[place] for of_job, place in zip(value, where, strict=True)):
            continue
        if alone_and_stuck(size, where, left):
            continue
        seats = Seats(size, value, where, left)
        seats.improve()
        for job, place in zip(rows, seats.where, strict=True):
            chosen[job] = NOWHERE if place == models else place
