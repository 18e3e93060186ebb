"""Who shares GPUs with whom, and on which GPU model, where all that is known are measured pairs: one linear program.

A *column* is a job alone, or two jobs that were measured beside each other, on GPUs of one model. Its value is the sum
of its jobs' worth · speed there · share of that speed that each keeps. Every job gets at most one column, and a model
has only so many GPUs. The largest summed value is an integer program, and its linear relaxation is nearly
integral. What is fractional is rounded, the largest shares first.

What a job's work costs follows from a second program: the most work per second of all jobs that are there, the same
share of its best speed for each, however GPUs and jobs divide their time. Its duals are the prices w of a second of
each kind's work, p of the models' GPUs, and v of a job's time. A column of jobs J on g GPUs of a model then obeys

    sum over J of w · speed · share ≤ g · p + |J| · v,

with equality for those that the best division uses. While there are more jobs than GPUs could serve, only GPUs are
short: v is 0, and a job is worth what its work takes from others. (Cost times speed is what comes out as nearly best
for parallel servers: Mandelbaum and Stolyar, "Scheduling flexible servers with convex delay costs", 2004.) While every
job has the GPUs that it wants, only the jobs' own time is short: p is 0, and a second saved is worth the same to every
job. In between both count: a job that ends a second sooner has saved its own second, and its GPUs' rent for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.pairs import NO_KIND
from gpuloom.core.workload import F8
from gpuloom.interleave.groups import GroupTimes
from gpuloom.solvers.linear import maximize

PARTNERS = 8
"""Partners of each job that are looked at on each model: those with which it is worth most."""
_LEAST = 0.02
"""Work costs at least this much of what it costs on average."""
_KEPT = 2_000
_TINY = 1e-6

Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Chosen:
    """A job alone, or two, on a GPU model: positions in what was asked."""

    model: int
    members: tuple[int, ...]


class Pairing:
    """What pairs were measured on the models of a cluster; remembers the costs of work.

    Args:
        gpu_models: names of the models, in their order.
        gpu_memory_mib: two jobs that need more than this together do not share a GPU.
    """

    def __init__(self, times: GroupTimes, gpu_models: Sequence[str], gpu_memory_mib: float = float("inf")) -> None:
        kinds = np.array([*times.kind, NO_KIND], dtype=np.intp)  # the last stands for jobs of no profile
        memory = np.array([*times.memory_mib, np.inf])
        fits = memory[:, None] + memory[None, :] <= gpu_memory_mib if np.isfinite(gpu_memory_mib) else None
        self._share: list[F8] = []
        """By model, what a job of the row's profile keeps of its speed beside one of the column's; 0: they can't."""
        for model in gpu_models:
            known = None if times.pairs is None else times.pairs.on(model)
            share = np.zeros((len(kinds), len(kinds)))
            if known is not None:
                padded = np.pad(np.nan_to_num(known), (0, 1))
                share = padded[np.ix_(kinds, kinds)]
                share[~((share > 0) & (share.T > 0) & (share + share.T > 1.0))] = 0.0
                if fits is not None:
                    share[~fits] = 0.0
            self._share.append(share)
        self._costs: dict[bytes, F8] = {}

    def costs(self, profile: Index, speed: F8, gpus: F8, capacity: F8) -> F8:
        """What a second of each job's work costs, in GPUs' and jobs' time, 1 on average over the jobs: shape (jobs,).

        Args:
            speed: shape (jobs, models), 0 where a job can't run.
            gpus: of each job.
            capacity: GPUs of each model.
        """
        if not len(profile):
            return np.ones(0)
        table = np.column_stack([profile, gpus, speed])
        distinct, first, member = np.unique(table, axis=0, return_index=True, return_inverse=True)
        member = member.reshape(-1)
        count = np.bincount(member).astype(np.float64)
        key = distinct.tobytes() + count.tobytes() + capacity.tobytes()
        found = self._costs.get(key)
        if found is None:
            if len(self._costs) > _KEPT:
                self._costs.clear()
            found = self._costs[key] = self._priced(profile[first], speed[first], gpus[first], count, capacity)
        return found[member]

    def _priced(self, profile: Index, speed: F8, gpus: F8, count: F8, capacity: F8) -> F8:
        """By kind of job. Columns of the program: what a second of each kind's work costs, the price of each model, the
        price of a job's time."""
        kinds, models = speed.shape
        best = speed.max(axis=1)
        best[best <= 0.0] = 1.0
        speed = speed / best[:, None]
        rows: list[Index] = []
        columns: list[Index] = []
        values: list[F8] = []
        many = 0
        for model in range(models):
            alone = np.flatnonzero(speed[:, model] > 0)
            one, two, mine, its = self._pairs(profile, speed[:, model], model, same=True)
            several = (one != two) | (count[one] > 1)
            one, two, mine, its = one[several], two[several], mine[several], its[several]
            own = many + np.arange(len(alone))
            both = many + len(alone) + np.arange(len(one))
            many += len(alone) + len(one)
            # Of two alike jobs one entry with both their work: entries of one place must not be told twice.
            other = one != two
            rows += [own, own, both, both[other], both, own, both]
            columns += [alone, np.full(len(alone), kinds + model), one, two[other], np.full(len(one), kinds + model)]
            columns += [np.full(len(alone), kinds + models), np.full(len(one), kinds + models)]
            values += [speed[alone, model], -gpus[alone], np.where(other, mine, mine + its), its[other], -gpus[one]]
            values += [np.full(len(alone), -1.0), np.full(len(one), -2.0)]
        rows.append(np.full(kinds, many))
        columns.append(np.arange(kinds))
        values.append(count)
        x = maximize(
            np.concatenate([np.zeros(kinds), -capacity, [-count.sum()]]),
            np.concatenate(rows),
            np.concatenate(columns),
            np.concatenate(values),
            np.append(np.full(many, -np.inf), 1.0),
            np.append(np.zeros(many), 1.0),
            np.full(kinds + models + 1, np.inf),
        )
        costs = np.maximum(x[:kinds] * count.sum(), _LEAST) / best
        mean: F8 = costs / ((costs * count).sum() / count.sum())
        return mean

    def _pairs(self, profile: Index, speed: F8, model: int, *, same: bool) -> tuple[Index, Index, F8, F8]:
        """(one, two, work per second of one, of two) of all that may share GPUs of a model.

        Args:
            same: two of the same row, too.
        """
        share = self._share[model][np.ix_(profile, profile)]
        able = np.triu(share > 0, 0 if same else 1) & (speed[:, None] > 0) & (speed[None, :] > 0)
        one, two = np.nonzero(able)
        return one, two, speed[one] * share[one, two], speed[two] * share[two, one]

    def choose(
        self,
        profile: Index,
        worth: F8,
        speed: F8,
        gpus: F8,
        capacity: F8,
        starts: F8,
        held: Index,
        beside: Index,
        *,
        own: bool = False,
    ) -> list[Chosen]:
        """Who runs, on which model and beside whom, the surest first; jobs that are in none wait.

        Args:
            worth: of a second of each job's work.
            speed: shape (jobs, models), 0 where a job can't run.
            gpus: of each job.
            capacity: GPUs of each model.
            starts: of each job the part of its value that is lost if it has to start, 0 to 1.
            held: the model that each job runs on, -1: none.
            beside: the position of the job that it shares GPUs with, -1: none.
            own: jobs have processes of their own: who gets or loses a partner goes on where it is.
        """
        jobs, models = speed.shape
        value: list[F8] = []
        of_model: list[Index] = []
        ones: list[Index] = []
        twos: list[Index] = []
        for model in range(models):
            rate = worth * speed[:, model]
            alone = np.flatnonzero(rate > 0)
            # Of two that part one stays where it is.
            parts = np.where(held[alone] == model, np.where(beside[alone] >= 0, 0.5, 0.0), 1.0)
            value.append(rate[alone] * (1.0 - parts * starts[alone]))
            one, two, mine, its = self._pairs(profile, speed[:, model], model, same=False)
            together = worth[one] * mine + worth[two] * its
            better = together > np.maximum(rate[one], rate[two])
            one, two, together = one[better], two[better], together[better]
            keep = _best_partners(one, two, together, jobs)
            one, two, together = one[keep], two[keep], together[keep]
            stay = (held[one] == model) & (beside[one] == two)
            lost = starts[one] + starts[two]
            if own:
                here, there = held[one] == model, held[two] == model
                both = np.minimum(starts[one], starts[two])
                lost = np.where(here & there, both, np.where(here, starts[two], np.where(there, starts[one], lost)))
            together = together * (1.0 - np.where(stay, 0.0, np.minimum(lost, 1.0)))
            value.append(together)
            of_model.append(np.full(len(alone) + len(one), model))
            ones += [alone, one]
            twos += [np.full(len(alone), -1), two]
        cost, model_of = np.concatenate(value), np.concatenate(of_model)
        first, second = np.concatenate(ones), np.concatenate(twos)
        columns = np.arange(len(cost))
        pair = np.flatnonzero(second >= 0)
        x = maximize(
            cost / (cost.max(initial=0.0) or 1.0),
            np.concatenate([first, second[pair], jobs + model_of]),
            np.concatenate([columns, pair, columns]),
            np.concatenate([np.ones(len(columns) + len(pair)), gpus[first]]),
            np.full(jobs + models, -np.inf),
            np.concatenate([np.ones(jobs), capacity]),
            np.ones(len(columns)),
        )
        taken, left = np.zeros(jobs, dtype=bool), capacity.astype(np.float64).copy()
        chosen: list[Chosen] = []
        order = np.lexsort((-cost, -np.round(x, 6)))
        rank = np.flatnonzero(x[order] <= _TINY)
        sure, rest = (order, order[:0]) if not len(rank) else (order[: rank[0]], order[rank[0] :])
        # What the program leaves open: jobs alone on what is free, the most valuable first.
        for column in [*sure.tolist(), *rest[(second[rest] < 0) & (cost[rest] > 0)].tolist()]:
            model = int(model_of[column])
            members = tuple(at for at in (int(first[column]), int(second[column])) if at >= 0)
            if gpus[members[0]] <= left[model] and not any(taken[at] for at in members):
                left[model] -= gpus[members[0]]
                taken[list(members)] = True
                chosen.append(Chosen(model, members))
        return chosen


def _best_partners(one: Index, two: Index, value: F8, jobs: int) -> NDArray[np.bool_]:
    """Pairs that are among the `PARTNERS` most valuable of either job."""
    keep = np.zeros(len(one), dtype=bool)
    for side in (one, two):
        order = np.lexsort((-value, side))
        start = np.searchsorted(side[order], np.arange(jobs))
        place = np.arange(len(order)) - start[side[order]]
        keep[order[place < PARTNERS]] = True
    return keep
