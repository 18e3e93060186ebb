"""The remaining running time of a job as a distribution, by what is known about it.

- A user's estimate, and progress that a job reports, give only a number.
- Earlier runs give a distribution: ten or more as they are; fewer by a log-normal law fitted to them, with a standard
  deviation of a quarter that counts as much as two runs (so that one run alone gives a range as well).
- For a running job, only runs that took longer than it has run so far count.
- A job that has outlived all of this is assumed to run on for as long as it is late, in half of all cases longer: a job
  that is a minute late may end soon; one that is an hour late probably does not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from gpuloom.live.planning.estimates import LEAST_S, MOST_S, Estimate, Source

LOW, MIDDLE, HIGH = 0.1, 0.5, 0.9
"""Quantiles of a range, and of the number within it."""
MANY = 10
"""From this many runs on, their own spread is used."""
_SPREAD, _AS_GOOD_AS = 0.25, 2
_LATE = 0.05
"""Of what was known, to begin with: how late a job is taken to be that has just become late."""
_RARE = 0.02

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class Left:
    """Work left of a job, seconds.

    source: what it rests on. known_s: the whole work that is known or, where nothing is, reckoned with. runs: the
    earlier runs that it rests on, shortest first; of a job that has outlived them all none. most_s: what its time limit
    leaves. overrun_s: by how much it has outlived known_s; 0: not.
    """

    source: Source
    known_s: float
    done_s: float
    runs: tuple[float, ...] = ()
    most_s: float = math.inf
    overrun_s: float = 0.0

    @property
    def known(self) -> bool:
        """Whether anything but a bound is known."""
        return self.source not in (Source.UNKNOWN, Source.TIME_LIMIT)

    @property
    def late_s(self) -> float:
        """The same, if anything but a bound was known."""
        return self.overrun_s if self.known else 0.0

    @property
    def spreads(self) -> bool:
        """Whether it is a range rather than a number."""
        return self.known and (self.overrun_s > 0.0 or bool(self.runs))

    def at_speed(self, speed: float) -> Left:
        """The same as time, on GPUs on which so much work is done per second."""
        if speed == 1.0:
            return self
        return Left(
            self.source,
            self.known_s / speed,
            self.done_s / speed,
            tuple([run / speed for run in self.runs]),
            self.most_s / speed,
            self.overrun_s / speed,
        )

    def at(self, quantile: float) -> float:
        """The remaining time at a quantile. For a job of unknown running time: the guess that scheduling uses."""
        if self.overrun_s > 0.0:
            left = (self.overrun_s + _LATE * self.known_s) * quantile / (1.0 - quantile)
        elif self.runs:
            left = _longer(self.runs, self.done_s, quantile) - self.done_s
        else:
            left = self.known_s - self.done_s
        return min(max(left, LEAST_S), max(self.most_s, LEAST_S), MOST_S)


def left_of(estimate: Estimate, done_s: float, told_s: float | None = None) -> Left:
    """What is left of a job.

    Args:
        done_s: work done so far. told_s: its whole work, as its own reports imply it.
    """
    most_s = math.inf if estimate.limit_s is None else max(estimate.limit_s - done_s, 0.0)
    if told_s is not None:
        late_s = max(done_s - told_s, 0.0)
        return Left(Source.PROGRESS, told_s, done_s, (), most_s, late_s)
    known_s, runs = estimate.total_s, estimate.runs
    if runs and _beyond(runs, done_s):
        known_s, runs = runs[-1], ()
    elif runs or done_s < known_s:
        return Left(estimate.source, known_s, done_s, runs, most_s)
    return Left(estimate.source, known_s, done_s, (), most_s, max(done_s - known_s, LEAST_S))


def _law(runs: Sequence[float]) -> NormalDist:
    """The logarithm of the next run, by a few runs."""
    logs = [math.log(max(run, LEAST_S)) for run in runs]
    count, middle = len(logs), fmean(logs)
    squares = sum((value - middle) ** 2 for value in logs) + _AS_GOOD_AS * _SPREAD**2
    return NormalDist(middle, math.sqrt(squares / (_AS_GOOD_AS + count - 1) * (1.0 + 1.0 / count)))


def _beyond(runs: Sequence[float], done_s: float) -> bool:
    """Whether hardly any run takes longer than that."""
    if done_s <= 0.0:
        return False
    if len(runs) >= MANY:
        return done_s >= runs[-1]
    return _law(runs).cdf(math.log(max(done_s, LEAST_S))) > 1.0 - _RARE


def _longer(runs: Sequence[float], done_s: float, quantile: float) -> float:
    """A quantile of the running times of those that take longer than `done_s`. runs: in order."""
    if len(runs) >= MANY:
        rest = runs[bisect_right(runs, done_s) :]
        place = quantile * (len(rest) + 1) - 1.0  # ten per cent are below the first of nine
        place = min(max(place, 0.0), len(rest) - 1.0)
        below = int(place)
        above = min(below + 1, len(rest) - 1)
        return rest[below] + (place - below) * (rest[above] - rest[below])
    law = _law(runs)
    passed = law.cdf(math.log(done_s)) if done_s > 0.0 else 0.0
    return math.exp(law.inv_cdf(min(max(passed + quantile * (1.0 - passed), 1e-9), 1.0 - 1e-9)))


def standard_normal(quantile: float) -> float:
    """The number below which a standard normal variable lies in that part of all cases."""
    return _NORMAL.inv_cdf(quantile)


def share_below(value: float) -> float:
    """In which part of all cases a standard normal variable lies below that number."""
    return _NORMAL.cdf(value)
