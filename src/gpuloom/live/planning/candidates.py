"""Which of the jobs that wait are handed to the policy, and why the others are not."""

from __future__ import annotations

import math
from collections.abc import Iterable
from copy import copy

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import ENDED, MAKES_WAY, Job, Phase
from gpuloom.live.planning.asking import Asking, Call
from gpuloom.live.planning.claims import State
from gpuloom.live.planning.eligible import Throttles, blocked, throttle_of
from gpuloom.live.planning.lasting import outlasts
from gpuloom.live.planning.lines import Lines
from gpuloom.live.planning.roster import kind_of
from gpuloom.live.planning.scene import Scene

SPARE = 256
"""Of equal jobs that wait so many more are shown than the policy has to see: a world lasts until they have started."""


class Candidates:
    """Used by the scheduler's thread alone.

    Attributes:
        lines: jobs that wait, in lines of equals. sees_all: whether the policy is shown all jobs, or the first of those
            that are alike only. lasts: so many jobs may start until the next ones of their lines have to be shown.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.lines = Lines(kind_of, lambda job: job.array_id if throttle_of(job) else None)
        scene.book.watch(self.lines.take)
        self.sees_all = True
        self.lasts = math.inf

    def copy(self, scene: Scene) -> Candidates:
        """The same of a copy of the scene. Its lines go on changing: only `eligible` may be asked."""
        twin = copy(self)
        twin.scene = scene
        return twin

    def drop_grants(self, now_s: float) -> None:
        """Take back what was given to jobs that may not start any more (held, waiting again for others, …)."""
        for number in list(self.scene.claims.grants):
            job = self.scene.book.jobs[number]
            if job.phase in ENDED or (
                job.phase in (Phase.QUEUED, Phase.HELD)
                and (
                    blocked(job, self.scene.book.jobs, now_s)
                    or outlasts(self.scene, job, self.scene.claims.grants[number], now_s)
                )
            ):
                self.scene.claims.take_back(number)

    def eligible(self, now_s: float) -> tuple[set[int], dict[int, Reason], float]:
        """Jobs for the policy; why others that wait are not; when the first pause before a retry ends."""
        jobs = self.scene.book.jobs
        throttles = Throttles(jobs[number] for number in self.scene.book.attempts)
        return self._looked_at(jobs, [], set(), throttles, now_s)

    def _looked_at(
        self, numbers: Iterable[int], special: list[int], found: set[int], throttles: Throttles, now_s: float
    ) -> tuple[set[int], dict[int, Reason], float]:
        """What `eligible` says of these jobs. special, found: others, to be looked at more closely, or not."""
        jobs, grants = self.scene.book.jobs, self.scene.claims.grants
        reasons: dict[int, Reason] = {}
        pause = math.inf
        for number in grants:
            throttles.take(jobs[number])
        for number in numbers:
            job = jobs[number]
            if job.phase in ENDED:
                continue
            if job.phase is Phase.QUEUED:
                if number in grants:
                    continue
                if not job.after and job.not_before_s <= now_s and not throttle_of(job):
                    found.add(number)
                    continue
                special.append(number)
            elif job.suspended or job.phase is Phase.HELD:
                reasons[number] = blocked(job, jobs, now_s) or Reason(WaitCode.HELD, "It is held.")
            elif number not in grants and self._makes_way(job):
                found.add(number)
        for number in sorted(special):
            if number in grants:
                continue
            reason = blocked(jobs[number], jobs, now_s) or throttles.take(jobs[number])
            if reason is None:
                found.add(number)
                continue
            reasons[number] = reason
            if jobs[number].not_before_s > now_s:
                pause = min(pause, jobs[number].not_before_s)
        return found, reasons, pause

    def first(self, now_s: float) -> tuple[set[int], dict[int, Reason], float]:
        """As `eligible`, but of jobs that are alike only as many as the policy has to see, and some more."""
        jobs, policy = self.scene.book.jobs, self.scene.policy
        with Asking(Call.SEES, policy):
            sees = policy.sees(sum(len(node.gpus) for node in self.scene.book.nodes.values()))
        self.lasts = math.inf
        self.sees_all = sees is None or (policy.pairs and any(line.shares for line in self.lines))
        if sees is None or self.sees_all:
            return self.eligible(now_s)
        throttles = Throttles(jobs[number] for number in self.scene.book.attempts)
        found: set[int] = set()
        special: list[int] = []
        for line in self.lines:
            if line.throttle is not None:
                special += line.first(throttle_of(jobs[line.one()]) + len(self.scene.claims.grants))
                continue
            if len(line) > sees + SPARE:
                self.lasts = SPARE
            found.update(line.first(sees + SPARE + len(self.scene.claims.grants)))
        found -= self.scene.claims.grants.keys()
        return self._looked_at(self.lines.others, special, found, throttles, now_s)

    def _makes_way(self, job: Job) -> bool:
        """Whether an active job waits, as the policy sees it."""
        attempt = self.scene.book.attempts.get(job.id)
        stopping = job.phase is Phase.STOPPING and attempt is not None and attempt.stop_reason in MAKES_WAY
        return stopping or self.scene.claims.state(job.id) in (State.FREEZING, State.FROZEN, State.REFREEZING)
