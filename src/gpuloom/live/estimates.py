"""How long a job will run: what its user says, what its like took, or a guess that is said to be one.

Users' earlier runs predict better than their own limits (Tsafrir, Etsion, Feitelson, "Backfilling Using System-
Generated Predictions Rather Than User Runtime Estimates", IEEE TPDS 18(6), 2007: the mean of a user's last two jobs).
Here it is the median of the last five of the same user and name, as a job's name says more than its user.
"""

from __future__ import annotations

import math
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


TOLERANCE, TOLERANCE_S = 0.1, 10.0
"""A job that has overrun its estimate by no more than this part of it, or this much, is expected to end now."""
NOW_S = 0.001
"""Work left of a job that is expected to end now: policies ask for more than none."""


def left_s(total_s: float, done_s: float, told_s: float | None = None) -> float:
    """Work left of a job, seconds, always above 0.

    Args:
        total_s: its estimate. done_s: work done so far. told_s: its whole work, as its own reports imply it.

    A job that reports its progress is believed. One that overruns what was expected is due now: what is kept for those
    that wait for its GPUs stays theirs. After an overrun that is no longer small it is expected to overrun by twice the
    tolerance, then by four times as much, and so on: short jobs may then use what would lie idle. (Tsafrir et al. also
    correct predictions that were too short little by little, as each correction lets others go first.)
    """
    expected_s = total_s if told_s is None else told_s
    if done_s < expected_s:
        return expected_s - done_s
    over_s, tolerated_s = done_s - expected_s, _tolerated(expected_s)
    if over_s < tolerated_s:
        return NOW_S
    return max(2.0 ** (math.floor(math.log2(over_s / tolerated_s)) + 1) * tolerated_s - over_s, NOW_S)


def stands_s(total_s: float, done_s: float, told_s: float | None = None) -> float:
    """How long after the end that `left_s` expects another one has to be expected, seconds of work."""
    expected_s = total_s if told_s is None else told_s
    over_s, tolerated_s = done_s - expected_s, _tolerated(expected_s)
    return 0.0 if over_s >= tolerated_s else tolerated_s - max(over_s, 0.0)


def _tolerated(expected_s: float) -> float:
    return max(TOLERANCE * expected_s, TOLERANCE_S)
