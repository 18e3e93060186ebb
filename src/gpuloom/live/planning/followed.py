"""What follows from the events of attempts for those who don't cause them: a log that is replayed, an engine that is
watched.
"""

from __future__ import annotations

from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, Phase
from gpuloom.live.planning.claims import Claims, Step
from gpuloom.live.planning.estimates import Estimates, like_of
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.records.work import WorkDone


class Followed:
    """Keeps claims, work done and what is known of running times as the events of attempts have it."""

    def __init__(self, work: WorkDone, claims: Claims, estimates: Estimates, speeds: ModelSpeeds) -> None:
        self._work, self._claims, self._estimates, self._speeds = work, claims, estimates, speeds

    def take(self, event: Event, attempt: Attempt, job: Job, *, stored: bool = False) -> bool:
        """An event of an attempt has come. stored: a store has it, too. Whether the job has finished by it."""
        if not event.type.startswith("attempt."):
            return False
        self._claims.on(Step(event.type), job.id, allocation=attempt.allocation, now_s=event.at_s)
        match event.type:
            case "attempt.starting":
                self._work.begin(job.id, event.at_s)
            case "attempt.frozen":
                self._work.pause(job.id, event.at_s)
            case "attempt.thawed":
                self._work.resume(job.id, event.at_s)
            case "attempt.ended":
                self._work.end(job.id)
                like = like_of(job.spec, job.user, job.gpus, job.array_id)
                if attempt.it_per_s is not None:
                    self._speeds.measured(like, attempt.gpu_model, attempt.it_per_s, stored=stored)
                if job.phase is Phase.FINISHED:
                    if not stored:
                        self._estimates.of(like, given_s=None, time_limit_s=None)  # from now on its runs are remembered
                    self._estimates.finished(like, job.work_s, given_s=job.spec.estimate, on=job.work_on)
                    self._speeds.finished(like)
                    return True
        return False
