"""What `gavel` keeps of jobs: their shares, the time that they have run since these were made, and what they are owed.

The rules are those of Gavel's released scheduler (`scheduler.py` of its repository): time counts from the last
allocation on and begins at half a round; a pair (job, model) goes by its share over its part of all job-time on the
model; ties by the deficit, the time that it should have run in earlier allocations less the time that it did, and then
by the share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuloom.core.carrying import MODELS, PER_JOB, PER_JOB_A_MODEL, PER_JOB_AND_MODEL, PER_MODEL
from gpuloom.core.pairs import Kind
from gpuloom.core.workload import F8


@dataclass(slots=True)
class Memory:
    """Of job m on GPU model j: received_s[m, j], the seconds run since the last allocation; share[m, j], what this
    gave; deficit_s[m, j], what earlier ones gave and it did not get; on[m], the model that it runs on (-1: none);
    known[m]: it had a part in the last allocation. Of each model: worked_s, the time received of all jobs since then,
    with the half rounds that they began with. models: names of the columns. stale: jobs have come or gone since;
    since_s: until when time is counted (NaN: nothing was seen yet); solved_at_s: when the last allocation was made;
    round_at_s: when the next round is due.

    Of `packed` (`gavel_packed.py`), by job and, for each model in turn, by the kind of job beside it (last: alone):
    beside, its share; beside_s, the seconds that it has run so since the last allocation; and by job mate, the kind of
    job beside it since the last decision, if it runs. kinds: names of the kinds.

    Of `released`: done_s[m], when the steps of this round are done (NaN: it has none); began_s: since when the time of
    this round counts. For finish-time fairness alone_s[m], how long it would have run alone until the last allocation,
    and what it had left then, left_s[m], at which throughput alone, alone[m] (NaN: there was none).
    """

    received_s: F8 = field(metadata=PER_JOB_AND_MODEL)
    share: F8 = field(metadata=PER_JOB_AND_MODEL)
    deficit_s: F8 = field(metadata=PER_JOB_AND_MODEL)
    beside: F8 = field(metadata=PER_JOB)
    beside_s: F8 = field(metadata=PER_JOB)
    mate: NDArray[np.int32] = field(metadata=PER_JOB)
    on: NDArray[np.int16] = field(metadata=PER_JOB_A_MODEL)
    known: NDArray[np.bool_] = field(metadata=PER_JOB)
    done_s: F8 = field(metadata=PER_JOB)
    alone_s: F8 = field(metadata=PER_JOB)
    left_s: F8 = field(metadata=PER_JOB)
    alone: F8 = field(metadata=PER_JOB)
    worked_s: F8 = field(metadata=PER_MODEL)
    models: tuple[str, ...] = field(metadata=MODELS)
    kinds: tuple[Kind, ...] = ()
    since_s: float = math.nan
    solved_at_s: float = math.nan
    began_s: float = math.nan
    round_at_s: float = -math.inf
    stale: bool = True

    @classmethod
    def of(cls, jobs: int, models: tuple[str, ...], kinds: tuple[Kind, ...] = ()) -> Memory:
        """The memory of a number of new jobs.

        Args:
            kinds: kinds of jobs beside which speeds were measured.
        """
        shape, beside = (jobs, len(models)), (jobs, len(models) * (len(kinds) + 1))
        return cls(
            received_s=np.zeros(shape),
            share=np.zeros(shape),
            deficit_s=np.zeros(shape),
            beside=np.zeros(beside),
            beside_s=np.zeros(beside),
            mate=np.full(jobs, len(kinds), dtype=np.int32),
            on=np.full(jobs, -1, dtype=np.int16),
            known=np.zeros(jobs, dtype=bool),
            done_s=np.full(jobs, np.nan),
            alone_s=np.zeros(jobs),
            left_s=np.zeros(jobs),
            alone=np.full(jobs, np.nan),
            worked_s=np.zeros(len(models)),
            models=models,
            kinds=kinds,
        )

    def receive(self, job: int, model: int, seconds: float) -> None:
        """The job has run on this model."""
        self.received_s[job, model] += seconds
        self.worked_s[model] += seconds

    def allocate(self, jobs: NDArray[np.intp], now_s: float, round_s: float) -> None:
        """A new allocation for these jobs, all that there are, is being made: time counts anew.

        The caller then writes their shares.
        """
        passed_s = 0.0 if math.isnan(self.solved_at_s) else now_s - self.solved_at_s
        owed_s = np.where(self.known[jobs, None], self.share[jobs], 0.0) * passed_s
        self.deficit_s[jobs] += owed_s - self.received_s[jobs]
        self.received_s[:] = 0.0
        self.known[:] = False
        self.known[jobs] = True
        self.worked_s[:] = round_s / 2 * len(jobs)
        self.solved_at_s, self.stale = now_s, False

    def priorities(self, jobs: NDArray[np.intp], round_s: float) -> F8:
        """Shape (jobs, models): the share over the part of all job-time on the model; 0 where there is no share."""
        worked_s = np.where(self.worked_s > 0, self.worked_s, np.inf)
        part = (self.received_s[jobs] + round_s / 2) / worked_s
        known = self.known[jobs, None]
        return np.where(known & (part > 0), self.share[jobs] / np.where(part > 0, part, 1.0), 0.0)

    def queue(self, jobs: NDArray[np.intp], model: int, priority: F8) -> NDArray[np.intp]:
        """Positions in `jobs`, those first that are most behind on this model; of equals the first ones."""
        chosen = self.share[jobs, model]
        return np.lexsort((-chosen, -self.deficit_s[jobs, model], -priority[:, model]))
