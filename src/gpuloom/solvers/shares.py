"""Shares of time that jobs get of GPU models, by linear program.

Narayanan et al., "Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads" (OSDI'20), section 3:
X_rj is the share of time that row r (a job, or jobs that run together) runs on GPU model j. No job runs for more than
all of the time, no model has more GPUs than it has: Σ_j Σ_{r with m} X_rj ≤ 1, Σ_r g_r X_rj ≤ W_j. The throughput of
job m is Σ_r Σ_j T_mrj X_rj, with T_mrj what m does on model j in row r.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.workload import F8
from gpuloom.solvers.linear import Program

_SLACK = 1e-7
"""Relative: what is lost of the first objective for the second one, the solver's own tolerance."""
_EXACT = 1e-9
"""The solver's tolerance for levels of water, of which several hold at once."""
_SLACKS = 20 * _EXACT
"""What is lost of each of them. What all lose a light job may gain: many times as much, over its weight."""
_TASTE = 1e-3
"""Of equal sums of worth the one with more on the fast models for the worthier: quadratic in the speed, this strong."""
_LEVELS = 24
"""Levels of water that are told apart; the jobs above share what is left as they do in max-min fairness."""
_LEAST_NEED = 1e-6
"""Of what a job could do at most: nobody's need counts as less than that, however its weight compares with others."""
_STEPS = 30
"""Largest number of programs for one finish-time fair allocation; four or five are usual."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What may run: row r takes gpus[r] GPUs of one model, and `alike[r]` equal rows stand behind it. Entry k says that
    job[k] is in row[k] and there does throughput[k, j] on model j; a row runs nowhere where one of its jobs does 0.

    Where job m stands for many[m] that are alike, part[k] is the part of the row's time for which each of these is in
    it.
    """

    gpus: F8
    alike: F8
    row: NDArray[np.intp]
    job: NDArray[np.intp]
    throughput: F8
    jobs: int
    part: F8 | None = None
    many: F8 | None = None

    @classmethod
    def single(cls, speed: F8, gpus: F8, alike: F8 | None = None) -> Rows:
        """A row for each job. speed: shape (jobs, models), 0 where it can't run."""
        each = np.arange(len(gpus))
        return cls(gpus, np.ones(len(gpus)) if alike is None else alike, each, each, speed, len(gpus))

    @property
    def able(self) -> NDArray[np.bool_]:
        """Shape (rows, models): where each may run."""
        able = np.ones((len(self.gpus), self.throughput.shape[1]), dtype=bool)
        np.logical_and.at(able, self.row, self.throughput > 0)
        return able

    def throughputs(self, share: F8) -> F8:
        """What each job does with these shares (rows, models)."""
        done = np.zeros(self.jobs)
        np.add.at(done, self.job, (self.throughput * self.parts[:, None] * share[self.row]).sum(axis=1))
        return done

    @property
    def parts(self) -> F8:
        """`part`, 1 where it is not given."""
        return np.ones(len(self.row)) if self.part is None else self.part

    def cost(self, worth: F8) -> F8:
        """Shape (rows, models): Σ over a row's jobs of worth · throughput, for all rows that are alike."""
        cost = np.zeros((len(self.gpus), self.throughput.shape[1]))
        if self.many is not None:
            behind = self.parts * self.many[self.job]
            np.add.at(cost, self.row, self.throughput * (worth[self.job] * behind)[:, None])
            return cost
        np.add.at(cost, self.row, self.throughput * worth[self.job][:, None])
        return cost * self.alike[:, None]


class Shares:
    """The program of these rows and GPUs; a last column is the level that every job reaches at least."""

    def __init__(self, rows: Rows, capacity: F8, need: F8) -> None:
        """need: of each job the throughput that means level 1 (0: the job is not looked at)."""
        self.rows, self.capacity = rows, capacity
        # Level 1 is no more than any job could do at most: what the solver tolerates is then small
        # for the heaviest job, too, and no entry is too large for it, whatever the weights.
        reach = np.zeros(rows.jobs)
        np.maximum.at(reach, rows.job, rows.throughput.max(axis=1, initial=0.0) * rows.parts)
        looked_at = (need > 0) & (reach > 0)
        self._unit = float((reach[looked_at] / need[looked_at]).min(initial=1.0))
        self.need = np.where(need > 0, np.maximum(need * self._unit, _LEAST_NEED * reach), 0.0)
        self._fixed = np.full(rows.jobs, np.nan)
        """Of jobs that take no part in raising the level: what they get at least."""

    def _program(self, slack: bool = False) -> Program:
        rows, n, models = self.rows, len(self.rows.gpus), len(self.capacity)
        level = n * models
        cells = np.arange(level)
        of_row, model = cells // models, cells % models
        scale = np.where(self.need > 0, 1.0 / np.where(self.need > 0, self.need, 1.0), 0.0)
        # Row m of the first part: throughput of job m over its need, less the level (or what it is to have).
        value_row = np.repeat(rows.job, models)
        value_column = (rows.row[:, None] * models + np.arange(models)).ravel()
        value = (rows.throughput * (scale[rows.job] * rows.parts)[:, None]).ravel()
        risen = np.flatnonzero(np.isnan(self._fixed) & (self.need > 0))
        time_row = rows.jobs + np.repeat(rows.job, models)
        entry_row = [value_row, risen, time_row, 2 * rows.jobs + model]
        entry_column = [value_column, np.full(len(risen), level), value_column, cells]
        entry = [value, -np.ones(len(risen)), np.repeat(rows.parts, models), (rows.gpus * rows.alike)[of_row]]
        upper = np.append(rows.able.ravel().astype(np.float64), np.inf)
        if slack:  # a column for each job: how far it is above the level, up to 1
            entry_row.append(risen)
            entry_column.append(level + 1 + risen)
            entry.append(-np.ones(len(risen)))
            upper = np.append(upper, np.ones(rows.jobs))
        at_least = np.where(self.need > 0, np.nan_to_num(self._fixed), 0.0)
        lower = np.concatenate([at_least, np.full(rows.jobs + models, -np.inf)])
        higher = np.concatenate([np.full(rows.jobs, np.inf), np.ones(rows.jobs), self.capacity])
        tolerance = _EXACT if slack or not np.isnan(self._fixed).all() else None
        entries = np.concatenate(entry_row), np.concatenate(entry_column), np.concatenate(entry)
        return Program(*entries, lower, higher, upper, tolerance)

    def _share(self, x: F8) -> F8:
        n, models = len(self.rows.gpus), len(self.capacity)
        return np.clip(x[: n * models].reshape(n, models), 0.0, 1.0)

    def fair(self, worth: F8) -> tuple[F8, float]:
        """The largest level that all can reach; what is left goes where it adds most to Σ worth · throughput.

        Of two jobs that differ in worth alone the worthier never does less, and gets the faster models.
        """
        cells = len(self.rows.gpus) * len(self.capacity)
        program, level = self._program(), 0.0
        if (np.isnan(self._fixed) & (self.need > 0)).any():
            level = float(program.maximize(np.append(np.zeros(cells), 1.0))[cells])
            program.at_least(cells, _a_little_below(level))
        return self._share(program.maximize(np.append(self._tasteful(worth), 0.0))), level * self._unit

    def most(self, worth: F8, cost: F8) -> F8:
        """The largest Σ worth · throughput / cost of the model."""
        value = self.rows.cost(worth) / cost
        return self._share(self._program().maximize(np.append(value.ravel() / (value.max(initial=0.0) or 1.0), 0.0)))

    def _tasteful(self, worth: F8) -> F8:
        value = self.rows.cost(worth)
        best = self.rows.throughput.max(axis=1, keepdims=True, initial=0.0)
        relative = self.rows.throughput / np.where(best > 0, best, 1.0)
        taste = np.zeros_like(value)
        np.maximum.at(taste, self.rows.row, relative)
        value = value * (1.0 + _TASTE * taste)
        return (value / (value.max(initial=0.0) or 1.0)).ravel()

    def filled(self, worth: F8) -> F8:
        """Max-min fairness in order: where nobody can rise without a poorer job falling (water filling)."""
        n, cells = self.rows.jobs, len(self.rows.gpus) * len(self.capacity)
        for _ in range(_LEVELS):
            risen = np.isnan(self._fixed) & (self.need > 0)
            if not risen.any():
                break
            program = self._program(slack=True)
            columns = cells + 1 + n
            cost = np.zeros(columns)
            cost[cells] = 1.0
            level = float(program.maximize(cost)[cells])
            program.at_least(cells, _a_little_below(level, _SLACKS))
            stuck = risen.copy()
            while stuck.any():  # who can be above it: some at once, until nobody more can
                cost = np.zeros(columns)
                cost[cells + 1 + np.flatnonzero(stuck)] = 1.0
                above = program.maximize(cost)[cells + 1 :] > 100 * _SLACK * max(level, 1.0)
                if not (above & stuck).any():
                    break
                stuck &= ~above
            self._fixed[stuck if stuck.any() else risen] = _a_little_below(level, _SLACKS)
        return self.fair(worth)[0]


def _a_little_below(level: float, slack: float = _SLACK) -> float:
    return max(level - slack * max(level, 1.0), 0.0)


def fair_in_time(
    rows: Rows, capacity: F8, unfairness: Callable[[F8], F8], needed: Callable[[float], F8], worth: F8, start: F8
) -> F8:
    """Shares that minimise the largest ρ of all jobs, when a job's ρ falls with its throughput.

    A generalised fraction (Crouzeix, Ferland and Schaible, "An algorithm for generalized fractional programs", 1985):
    a program for the best ρ so far, which gives a better one, until it does not.

    Args:
        unfairness: ρ of each job at these throughputs.
        needed: the throughputs at which every ρ is this large.
        start: shares to begin with.
    """
    share, best = start, math.inf
    for _ in range(_STEPS):
        ρ = float(unfairness(rows.throughputs(share)).max(initial=0.0))
        if not ρ < best * (1 - 1e-4):
            break
        best = ρ
        share, _ = Shares(rows, capacity, needed(best)).fair(worth)
    return share
