"""When will a job end if only its work so far is known? Learnt from the jobs that have ended.

Work is cut into bins whose lengths grow by a factor. The hazard of a bin is the share of the jobs entering it that end
in it. A GPU count with few ends seen is filled up from all jobs together, and these from a prior. The Gittins index of
a job is the largest ratio, over all amounts of further work, of the chance that it ends within that work to the work
spent on it (Gittins 1979; for attained service: Aalto, Ayesta, Righter 2009).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpuloom.core import logs
from gpuloom.core.workload import F8

FIRST_S, GROWTH, BINS = 300.0, 1.25, 50
"""The first bin, the factor from bin to bin, and their number: up to 1.7e7 seconds of solo work."""
PRIOR, PRIOR_JOBS, OWN_JOBS = 1.0, 5.0, 3.0
"""The prior: a job ends in a bin with chance 1 - 1/e, which counts as much as 5 jobs seen. For a GPU count, all jobs
together count as much as 3 of its own."""


_FEW = 64
"""So many jobs are looked at one by one: those of one class and bin could be looked at as one.
"""
_LATER = np.triu(np.ones((BINS, BINS)))
"""1 for the bins from each bin on."""
_EDGE_S = np.concatenate([[0.0], FIRST_S * logs.power(GROWTH, np.arange(BINS))])
"""Where the bins begin and end."""
_WIDTH_S = np.diff(_EDGE_S)


class Hazards:
    """Ends seen, by class (GPU count) and bin. `exposure` and `ends`, shape (classes, bins), are the memory."""

    def __init__(self, exposure: F8, ends: F8) -> None:
        self.exposure, self.ends = exposure, ends
        self.edge_s, self.width_s = _EDGE_S, _WIDTH_S

    def bins(self, work_s: F8) -> NDArray[np.intp]:
        """The bin that each job is in."""
        found: NDArray[np.intp] = np.minimum(np.searchsorted(self.edge_s, work_s, side="right") - 1, BINS - 1)
        return found

    def ended(self, kind: NDArray[np.intp], work_s: F8) -> None:
        """Jobs of these classes have ended after so much work."""
        np.add.at(self.exposure, kind, self._passed(work_s))
        last = np.clip(np.searchsorted(self.edge_s, work_s) - 1, 0, BINS - 1)
        np.add.at(self.ends, (kind, last), 1.0)

    def index(self, kind: NDArray[np.intp], work_s: F8) -> F8:
        """Gittins index of each active job, per second of solo work; what they survived counts as seen."""
        exposure = self.exposure.copy()
        passed = self._passed(work_s)
        for one in {*kind.tolist()}:
            exposure[one] += passed[kind == one].sum(axis=0)
        pool = (self.ends.sum(axis=0) + PRIOR_JOBS * PRIOR) / (exposure.sum(axis=0) + PRIOR_JOBS)
        hazard = (self.ends + OWN_JOBS * pool) / (exposure + OWN_JOBS)
        bins = self.bins(work_s)
        if len(kind) >= hazard.size:
            found: F8 = self._indices(hazard, *np.indices(hazard.shape).reshape(2, -1)).reshape(hazard.shape)[
                kind, bins
            ]
            return found
        if len(kind) <= _FEW:
            return self._indices(hazard, kind, bins)
        entries, which = np.unique(kind * BINS + bins, return_inverse=True)
        return self._indices(hazard, *np.divmod(entries, BINS))[which]

    def _passed(self, work_s: F8) -> F8:
        """The share of each bin that each job has gone through: shape (jobs, bins)."""
        passed: F8 = (work_s[:, None] - self.edge_s[:-1]) / self.width_s
        np.maximum(passed, 0.0, out=passed)
        return np.minimum(passed, 1.0, out=passed)

    def _indices(self, hazard: F8, kind: NDArray[np.intp], at: NDArray[np.intp]) -> F8:
        """Index of jobs of these classes in these bins: shape as `kind`."""
        total = np.zeros((len(hazard), BINS + 1))
        hazard.cumsum(axis=1, out=total[:, 1:])
        # alive[j, e]: chance that a job at the start of its bin reaches edge e.
        alive = logs.exp(np.minimum(total[kind, at][:, None] - total[kind], 0.0))
        later = _LATER[at]
        spent = alive[:, :-1] * later * (self.width_s * (1.0 - logs.exp(-hazard)) / hazard)[kind]
        spent = spent.cumsum(axis=1)
        ends = (1.0 - alive[:, 1:]) * later
        best: F8 = np.divide(ends, spent, out=np.zeros_like(ends), where=spent > 0).max(axis=1)
        return best
