"""How much each run has worked, in seconds alone on its GPUs: less than the seconds it held them if it shared them."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import median

KEEP = 30
"""Start-ups that are remembered."""
TRUSTED, TRUSTED_S = 0.05, 60.0
"""From this part of the work on, or this much of it, a report says how long the whole will take: the first steps may be
reported too early, or be slower than all others."""


@dataclass(slots=True)
class _Work:
    since_s: float
    from_s: float
    done_s: float = 0.0
    rate: float = 1.0
    alone: bool = True
    start_up_s: float | None = None
    first: tuple[float, float] | None = None
    """Of one that may go on from a checkpoint: work done, and the part that it reported, at its first report."""


class WorkDone:
    """By job, for the attempt under way. The rates are the policy's model of sharing; 1 for a job alone.

    Attributes:
        told_s: the job's whole work, seconds at its present speed, as its reports of progress imply it.
        usual_s: the median of the last start-ups that were reported; None: of none yet.
    """

    def __init__(self) -> None:
        self._runs: dict[int, _Work] = {}
        self._now_s = 0.0
        self.told_s: dict[int, float] = {}
        self.usual_s: float | None = None
        self._start_ups: deque[float] = deque(maxlen=KEEP)

    def at(self, now_s: float) -> None:
        """Time has passed."""
        self._now_s = now_s

    def begin(self, job: int, now_s: float, since_s: float | None = None, *, done_s: float = 0.0) -> None:
        """The job holds GPUs from now on, or has since `since_s`; done_s: work of this attempt before that."""
        since = now_s if since_s is None else since_s
        self._runs[job] = _Work(since, since, done_s)

    def pause(self, job: int, now_s: float) -> None:
        """It is frozen: it keeps what it has done, and does nothing more until `resume`."""
        run = self._runs.get(job)
        if run is not None:
            run.done_s += max(now_s - run.from_s, 0.0) * run.rate
            run.from_s, run.alone = math.inf, False

    def resume(self, job: int, now_s: float) -> None:
        """It goes on."""
        run = self._runs.get(job)
        if run is not None:
            run.since_s = run.from_s = now_s

    def knows(self, job: int) -> bool:
        """Whether an attempt of it is under way."""
        return job in self._runs

    def rate(self, job: int, rate: float) -> None:
        """It works at this rate from now on."""
        run = self._runs.get(job)
        if run is not None and rate != run.rate:
            if run.from_s < math.inf:
                run.done_s += max(self._now_s - run.from_s, 0.0) * run.rate
                run.from_s = self._now_s
            run.rate, run.alone = rate, False

    def rate_of(self, job: int) -> float | None:
        """Part of its speed alone at which it is expected to work now; None: no attempt of it is under way."""
        run = self._runs.get(job)
        return None if run is None else run.rate

    def was_alone(self, job: int) -> bool:
        """Whether its attempt has had its GPUs for itself, without a break: what it reports measures its speed."""
        run = self._runs.get(job)
        return run is not None and run.alone

    def started_up(self, job: int, at_s: float) -> None:
        """It reported its first step at this time: until then it was starting up."""
        run = self._runs.get(job)
        if run is not None and run.start_up_s is None:
            run.start_up_s = max(at_s - run.since_s, 0.0)
            if run.start_up_s > 0.0:
                self._start_ups.append(run.start_up_s)
                self.usual_s = median(self._start_ups)

    def report(self, job: int, fraction: float, at_s: float, before_s: float, *, again: bool = False) -> None:
        """It reported at this time that this part of all its work is done.

        Args:
            before_s: work done by earlier attempts, in seconds at its present speed. again: there were some, and
                nothing of their work is known (the job was requeued, say): it may begin anew, or go on from a
                checkpoint. Only how fast it goes on from its first report then says how long it will take.
        """
        done = before_s + self.of(job, at_s)
        run = self._runs.get(job)
        since, from_part = 0.0, 0.0
        if again and before_s == 0.0 and run is not None:
            if run.first is None:
                run.first = done, fraction
            since, from_part = run.first
        gained, part = done - since, fraction - from_part
        if 0.0 < fraction <= 1.0 and part > 0.0 and gained > 0.0 and (part >= TRUSTED or gained >= TRUSTED_S):
            self.told_s[job] = done + (1.0 - fraction) * gained / part

    def since(self, job: int) -> float:
        """Since when it holds GPUs; now if it does not yet."""
        run = self._runs.get(job)
        return self._now_s if run is None else run.since_s

    def of(self, job: int, now_s: float) -> float:
        """Work done by the attempt under way, without its start-up."""
        run = self._runs.get(job)
        if run is None:
            return 0.0
        done = run.done_s + max(now_s - run.from_s, 0.0) * run.rate
        return max(done - (run.start_up_s or 0.0), 0.0)

    def starting_s(self, job: int, now_s: float) -> float:
        """Of a run that has not said when its work began: how long it is expected to go on starting up."""
        run = self._runs.get(job)
        if run is None or run.start_up_s is not None or self.usual_s is None:
            return 0.0
        return max(self.usual_s - (now_s - run.since_s), 0.0)

    def expected(self, job: int, now_s: float) -> float:
        """As `of`; but a run that has not said when its work began is taken to have started up in the usual time."""
        run = self._runs.get(job)
        if run is None or run.start_up_s is not None or self.usual_s is None:
            return self.of(job, now_s)
        return max(self.of(job, now_s) - self.usual_s, 0.0)

    def end(self, job: int) -> None:
        self._runs.pop(job, None)
        self.told_s.pop(job, None)
