"""How long a job will run: what its user says, what its like took, or a guess that is said to be one.

Users' earlier runs predict better than their own limits (Tsafrir, Etsion, Feitelson, "Backfilling Using System-
Generated Predictions Rather Than User Runtime Estimates", IEEE TPDS 18(6), 2007: the mean of a user's last two jobs).
Here it is the median of the last five of the same user and name, as a job's name says more than its user.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from statistics import median

DEFAULT_S = 3600.0
KEEP = 5
MOST_NAMES = 10_000
"""Names that are remembered; the store has all."""

Earlier = Callable[[str, str, int], Sequence[tuple[int, float]]]
"""(user, name, limit) → (GPUs, seconds of work) of the last jobs that finished well; name '' for any."""


class Estimates:
    """Remembers the last runs by user and name; asks the store once for those of before."""

    def __init__(self, earlier: Earlier) -> None:
        self._earlier = earlier
        self._runs: OrderedDict[tuple[str, str], tuple[float, ...]] = OrderedDict()

    def finished(self, user: str, name: str, work_s: float) -> None:
        """A job finished well."""
        for key in ((user, name), (user, "")):
            if (runs := self._runs.get(key)) is not None:
                self._runs[key] = (*runs, work_s)[-KEEP:]

    def of(self, user: str, name: str, *, given_s: float | None, time_limit_s: float | None) -> tuple[float, str]:
        """(seconds of work, where that is from)."""
        if given_s is not None:
            return given_s, "given"
        most = time_limit_s if time_limit_s is not None else float("inf")
        if runs := self._of((user, name)):
            return min(median(runs), most), f"median of the last {len(runs)} runs of this name"
        if time_limit_s is not None:
            return time_limit_s, "time limit"
        if runs := self._of((user, "")):
            return median(runs), f"median of the user's last {len(runs)} jobs"
        return DEFAULT_S, "default, as nothing is known of it"

    def _of(self, key: tuple[str, str]) -> tuple[float, ...]:
        runs = self._runs.get(key)
        if runs is None:
            runs = tuple([max(work_s, 0.001) for _, work_s in self._earlier(*key, KEEP)])
            if len(self._runs) >= MOST_NAMES:
                self._runs.popitem(last=False)
            self._runs[key] = runs
        else:
            self._runs.move_to_end(key)
        return runs


def left_s(total_s: float, done_s: float, told_s: float | None = None) -> float:
    """Work left of a job, seconds, always above 0.

    Args:
        total_s: its estimate. done_s: work done so far. told_s: its whole work, as its own reports imply it.

    A job that reports its progress is believed. One that outlives its estimate is taken to need half as long again as
    it has run so far, and again, until it ends; a twentieth, if it says that all is done.
    """
    left = (total_s if told_s is None else told_s) - done_s
    return left if left > 0.0 else max((0.5 if told_s is None else 0.05) * done_s, 1.0)
