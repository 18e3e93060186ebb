"""Which option each job gets, a number of GPUs of one model, so that the sum of their values is largest.

    maximise Σ value[j, o_j]   with   Σ_{j: o_j of model m} gpus[o_j] ≤ capacity[m]

Its linear relaxation has a price per GPU of each model; at the right prices every job takes the option whose value
exceeds the price of its GPUs most (Lagrangian relaxation; Everett, "Generalized Lagrange multiplier method", 1963). At
most one job per model is then split. The prices are found by coordinate descent, each by bisection. What the prices
leave over, or give twice, is settled job by job; then single jobs take better options, and pairs exchange theirs,
while that gains. Sia (Jayaram Subramanya et al., SOSP'23) solves the like program, with options of few sizes, by
branch and bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8

Chosen = NDArray[np.intp]
SWEEPS = 4
"""Over the models; prices hardly change after a few."""
STEPS = 14
"""Of bisection: prices are found up to a ten-thousandth of the largest; the rest is settled job by job."""
LEAST = 1e-9
"""Values that differ by less are equal."""
_MOST_EXCHANGED = 192
"""With more jobs the pairs are not tried: their number grows with the square."""


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """The options of all jobs in columns: GPU model (an index) and GPUs of each. models: how many there are."""

    model: NDArray[np.intp]
    gpus: F8
    models: int

    @classmethod
    def of(cls, models: int, sizes: list[int]) -> Options:
        """Every size of every model."""
        return cls(np.repeat(np.arange(models), len(sizes)), np.tile(np.array(sizes, dtype=np.float64), models), models)

    def used(self, chosen: Chosen) -> F8:
        """GPUs of each model that a choice takes."""
        return np.bincount(self.model[chosen], self.gpus[chosen], self.models).astype(np.float64)


def total(value: F8, chosen: Chosen) -> float:
    """What a choice is worth."""
    return float(value[np.arange(len(chosen)), chosen].sum())


def choose(options: Options, value: F8, capacity: F8, start: Chosen, wide: F8 | None = None) -> Chosen:
    """The best option of each job that is found, and never less in all than `start`.

    Args:
        value: of each option to each job, shape (jobs, options); minus infinity: it can't have it.
        capacity: GPUs of each model.
        start: a choice that fits.
        wide: values that count once GPUs are left over; None: the same.
    """
    wide = value if wide is None else wide
    best = improve(options, wide, capacity, start)
    seated = _seat(options, value, capacity, prices(options, value, capacity))
    if seated is not None:
        seated = improve(options, wide, capacity, seated)
        if total(wide, seated) > total(wide, best) + LEAST:
            best = seated
    if options.models > 1 and len(start) <= _MOST_EXCHANGED:
        best = _exchange(options, wide, capacity, best)
    return best


def prices(options: Options, value: F8, capacity: F8) -> F8:
    """Price per GPU of each model at which those who want it most just fill it: shape (models,)."""
    found = np.zeros(options.models)
    if options.models == 1:
        found[0] = _only_price(value, options.gpus, float(capacity[0]))
        return found
    columns = [np.flatnonzero(options.model == model) for model in range(options.models)]
    for _ in range(SWEEPS):
        before = found.copy()
        for model, own in enumerate(columns):
            net = value - found[options.model] * options.gpus
            net[:, own] = -np.inf
            other = net.max(axis=1)
            found[model] = _price(value[:, own], options.gpus[own], other, float(capacity[model]))
        if np.allclose(found, before, rtol=1e-3, atol=0.0):
            break
    return found


def _price(value: F8, gpus: F8, other: F8, capacity: float) -> float:
    """The price of one model. other: what each job nets elsewhere."""
    # Asked at every step for the same jobs: those that can't have it are left out, the best is taken from where it is.
    able = (value > -np.inf).any(axis=1)
    theirs, elsewhere = value[able], other[able]
    first = np.arange(len(theirs)) * len(gpus)

    def demand(price: float) -> float:
        net = theirs - price * gpus
        best = net.argmax(axis=1)
        return float(np.add.reduce(gpus.take(best[net.take(first + best) >= elsewhere])))

    if not len(theirs) or demand(0.0) <= capacity:
        return 0.0
    # At the highest price of all everybody has their smallest option, or goes elsewhere.
    finite = np.where(np.isfinite(value), value, np.nan)
    with np.errstate(invalid="ignore"):
        spread = np.nanmax(finite) - min(np.nanmin(finite), float(other[np.isfinite(other)].min(initial=0.0)))
    return _bisected(demand, float(spread) + LEAST, capacity)


def _only_price(value: F8, gpus: F8, capacity: float) -> float:
    """The price where there is one model: as `_price` with nothing elsewhere, in fewer steps."""
    finite = value > -np.inf
    some = finite.any(axis=1)
    if not some.all():
        value, finite = value[some], finite[some]

    def demand(price: float) -> float:
        return float(np.add.reduce(gpus.take((value - price * gpus).argmax(axis=1))))

    if not len(value) or demand(0.0) <= capacity:
        return 0.0
    least = float(np.where(finite, value, np.inf).min())
    return _bisected(demand, float(value.max()) - min(least, 0.0) + LEAST, capacity)


def _bisected(demand: Callable[[float], float], high: float, capacity: float) -> float:
    """The least price up to `high` at which no more is wanted than there is, to `STEPS` bits."""
    low = 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        if demand(middle) > capacity:
            low = middle
        else:
            high = middle
    return high


def _seat(options: Options, value: F8, capacity: F8, price: F8) -> Chosen | None:
    """What each job takes at these prices; where that is too much, those who lose least take something else. None if
    that leads nowhere."""
    net = value - price[options.model] * options.gpus
    chosen: Chosen = net.argmax(axis=1)
    rows = np.arange(len(chosen))
    for _ in range(4 * len(chosen)):
        left = capacity - options.used(chosen)
        over = np.flatnonzero(left < 0)
        if not len(over):
            return chosen
        model = int(over[0])
        here = options.model[chosen] == model
        # Fewer GPUs of this model, or free ones of another.
        own = options.model == model
        fewer = own[None, :] & (options.gpus[None, :] < options.gpus[chosen][:, None])
        elsewhere = ~own & (options.gpus <= left[options.model])
        freed = np.where(
            own[None, :], options.gpus[chosen][:, None] - options.gpus[None, :], options.gpus[chosen][:, None]
        )
        may = here[:, None] & (fewer | elsewhere[None, :]) & np.isfinite(value)
        if not may.any():
            return None
        # Those who would free more than is missing count as if they freed just that.
        with np.errstate(invalid="ignore", divide="ignore"):
            loss = (net[rows, chosen][:, None] - net) / np.minimum(freed, -left[model])
        loss[~may] = np.inf
        job, option = np.unravel_index(int(loss.argmin()), loss.shape)
        chosen[job] = option
    return None


def improve(options: Options, value: F8, capacity: F8, start: Chosen) -> Chosen:
    """Single jobs take better options that fit into what is left over, those that gain most per GPU first, while any
    gains."""
    if options.models == 1:
        return _improve_one(options.gpus, value, float(capacity[0]), start)
    chosen = start.copy()
    left = capacity - options.used(chosen)
    if not len(chosen):
        return chosen
    # What each option gains per GPU that it takes beyond those that the job has of its model.
    same = options.model[None, :] == options.model[chosen][:, None]
    more = options.gpus[None, :] - np.where(same, options.gpus[chosen][:, None], 0.0)
    gain = value - value[np.arange(len(chosen)), chosen][:, None]  # what a job has is worth a finite number
    gains = gain > LEAST
    if not gains.any():
        return chosen
    rate = np.where(gains, gain / np.maximum(more, 1.0), -np.inf)
    for _ in range(8 * len(chosen)):
        open_ = np.where(more > left[options.model], -np.inf, rate)
        best = int(open_.argmax())
        if open_.flat[best] == -np.inf:
            break
        job, option = divmod(best, len(options.gpus))
        left[options.model[chosen[job]]] += options.gpus[chosen[job]]
        chosen[job] = option
        left[options.model[option]] -= options.gpus[option]
        more[job] = options.gpus - np.where(options.model == options.model[option], options.gpus[option], 0.0)
        gain = value[job] - value[job, option]
        rate[job] = np.where(gain > LEAST, gain / np.maximum(more[job], 1.0), -np.inf)
    return chosen


def _improve_one(gpus: F8, value: F8, capacity: float, start: Chosen) -> Chosen:
    """As `improve` where there is one model."""
    chosen = start.copy()
    left = capacity - float(gpus[chosen].sum())
    if left <= 0.0 or not len(chosen):
        return chosen
    more = gpus - gpus[chosen][:, None]
    gain = value - value[np.arange(len(chosen)), chosen][:, None]
    gains = gain > LEAST
    if not gains.any():
        return chosen
    rate = np.where(gains, gain / np.maximum(more, 1.0), -np.inf)
    for _ in range(8 * len(chosen)):
        open_ = np.where(more > left, -np.inf, rate)
        best = int(open_.argmax())
        if open_.item(best) == -np.inf:
            break
        job, option = divmod(best, len(gpus))
        chosen[job] = option
        left -= more.item(best)
        if left <= 0.0:
            break
        more[job] = gpus - gpus[option]
        gain = value[job] - value[job, option]
        rate[job] = np.where(gain > LEAST, gain / np.maximum(more[job], 1.0), -np.inf)
    return chosen


def _exchange(options: Options, value: F8, capacity: F8, chosen: Chosen) -> Chosen:
    """Pairs of jobs exchange options while that gains, those that gain most first."""
    rows = np.arange(len(chosen))
    for _ in range(len(chosen)):
        there = value[:, chosen]
        now = value[rows, chosen]
        gain = there + there.T - now[:, None] - now[None, :]
        gain[~np.isfinite(gain)] = -np.inf
        if not len(gain) or not gain.max() > LEAST:
            return chosen
        one, other = np.unravel_index(int(gain.argmax()), gain.shape)
        chosen = chosen.copy()
        chosen[[one, other]] = chosen[[other, one]]
        chosen = improve(options, value, capacity, chosen)
    return chosen
