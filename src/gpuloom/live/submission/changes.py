"""Changes by users to existing jobs: cancel, hold, release, requeue, update, move to the top.

A change applies to all jobs named, or to none; jobs for which it is so already stay as they are (`actions`). Each
change of a list of jobs returns the jobs that it changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpuloom.core.errors import ConflictError, InputError, NotFoundError
from gpuloom.core.job import ACTIVE, ENDED, WAITING, EndReason, Job, Phase
from gpuloom.core.masked import unmasked
from gpuloom.live.planning.estimates import like_of
from gpuloom.live.records.forgetting import KEEP_ENVIRONMENTS_S
from gpuloom.live.records.ledger import Draft
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.submission.actions import Action, impossible, so_already
from gpuloom.live.submission.admission import Admission
from gpuloom.live.submission.lookup import JobRecords
from gpuloom.live.submission.spec import job_spec, within_bounds
from gpuloom.store.port import JobQuery

WHILE_ACTIVE = frozenset({"name", "priority", "retries", "estimate", "grace", "on_preempt", "time_limit", "checkpoint"})
"""Fields of a spec that may change while the job runs."""
NEVER = frozenset({"array", "hold"})


class JobChanges:
    """What `Service` promises of these actions. The work is done in the scheduler's thread."""

    def __init__(self, scheduler: Scheduler, jobs: JobRecords, admission: Admission) -> None:
        self._scheduler, self._store, self._jobs, self._admission = scheduler, scheduler.store, jobs, admission

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Collection[int]:
        return self._change(Action.CANCEL, jobs, partial(self._cancel, grace_s=grace_s))

    def hold(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.HOLD, jobs, self._hold)

    def release(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.RELEASE, jobs, self._release)

    def requeue(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.REQUEUE, jobs, self._requeue)

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        do: Mapping[Action, tuple[Callable[[list[Job]], None], frozenset[Phase]]] = {
            Action.CANCEL: (partial(self._cancel, grace_s=grace_s), WAITING | ACTIVE),
            Action.HOLD: (self._hold, frozenset({Phase.QUEUED})),
            Action.RELEASE: (self._release, frozenset({Phase.HELD})),
            Action.REQUEUE: (self._requeue, ENDED | ACTIVE),
        }
        work, phases = do[action]

        def act() -> Mapping[str, int]:
            first, book = self._jobs.get(array), self._scheduler.book
            if first.array_id != array:
                raise NotFoundError(f"job {array} is not the first job of an array")
            asked = JobQuery(array_id=array, oldest_first=True, limit=book.next_job)
            every = self._store.jobs(asked) if phases & ENDED else book.jobs.values()
            records = [
                job
                for record in every
                if record.array_id == array
                and (job := book.jobs.get(record.id, record)).phase in phases
                and not so_already(action, job, book.attempts.get(job.id))
            ]
            for job in records:
                if refusal := impossible(action, job, book.attempts.get(job.id)):
                    raise ConflictError(refusal)
            work(records)
            self._scheduler.planning.stale()
            return Counter([book.jobs[job.id].phase.value for job in records])

        return dict(self._scheduler.do(act))

    def _cancel(self, records: list[Job], *, grace_s: float | None = None) -> None:
        waiting = [job for job in records if job.phase in (Phase.QUEUED, Phase.HELD)]
        active = [job.id for job in records if job.phase in ACTIVE]
        data = {"message": "", "reason": "cancelled"}
        drafts: list[Draft] = [("job.cancelled", job.id, data) for job in waiting]
        waited_for = [job for job in waiting if self._scheduler.ledger.waits_for(job.id)]
        gone = {job.id: replace(job, phase=Phase.CANCELLED) for job in waited_for}
        left_out = {job.id for job in waiting} if gone else set[int]()
        self._write([*drafts, *self._scheduler.intake.follow_up(gone, left_out)])
        if active:
            self._scheduler.dispatch.end_attempts(active, EndReason.CANCELLED, grace_s)

    def _hold(self, records: list[Job]) -> None:
        nothing: Mapping[str, Any] = {}
        self._write([("job.held", job.id, nothing) for job in records])

    def _release(self, records: list[Job]) -> None:
        nothing: Mapping[str, Any] = {}
        self._write([("job.released", job.id, nothing) for job in records])

    def _requeue(self, records: list[Job]) -> None:
        checks = self._admission.checks()
        kept: dict[int, bool] = {}  # by spec, which all jobs of an array share
        for job in records:
            if job.phase not in ENDED:
                continue
            checks.after(job.after, f"job {job.id}")
            if job.spec_id not in kept:
                gone = bool(job.spec.env) and self._store.environment(job.spec_id) is None
                kept[job.spec_id] = not gone
            if not kept[job.spec_id]:
                raise ConflictError(
                    f"job {job.id} can't be requeued: the values of its environment variables are kept for "
                    f"{KEEP_ENVIRONMENTS_S / 86_400:g} days after its end; submit it again"
                )
        book = self._scheduler.book
        for job in records:
            book.jobs.setdefault(job.id, job)  # one that ended long ago may be on disk only
        self._write([("job.requeued", job.id, {}) for job in records if job.phase in ENDED])
        active = [job.id for job in records if job.phase in ACTIVE]
        if active:
            self._scheduler.dispatch.end_attempts(active, EndReason.REQUEUED, None)

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Collection[int]:
        if not changes:
            raise InputError("no change was given")
        for name in NEVER & changes.keys():
            raise InputError(
                f"{name} can't be changed after submission" + ("; use hold and release" * (name == "hold"))
            )

        return self._change(Action.UPDATE, jobs, lambda records: self._update([(job, changes) for job in records]))

    def move_to_top(self, jobs: Sequence[int]) -> Collection[int]:
        def work(records: list[Job]) -> Collection[int]:
            asked = set(jobs)
            others = [
                job.priority
                for job in self._scheduler.book.jobs.values()
                if job.phase in (Phase.QUEUED, Phase.HELD, Phase.FROZEN) and job.id not in asked
            ]
            top = max(others) + 1 if others else None
            raised = [(job, job.priority if top is None else max(top, job.priority)) for job in records]
            return self._update([(job, {"priority": priority}) for job, priority in raised])

        return self._change(Action.TOP, jobs, work)

    def _update(self, wanted: Sequence[tuple[Job, Mapping[str, Any]]]) -> Collection[int]:
        """Change fields of specs; those jobs that are other than before. In the scheduler's thread."""
        drafts: list[Draft] = []
        environments: dict[int, Mapping[str, str]] = {}
        checks = self._admission.checks()
        for job, changes in wanted:
            late = sorted(changes.keys() - WHILE_ACTIVE)
            if job.phase in ACTIVE and late:
                raise ConflictError(
                    f"job {job.id} is {job.phase}: {', '.join(late)} can only be changed while it waits (what can be "
                    f"changed now: {', '.join(sorted(WHILE_ACTIVE))})"
                )
            spec = job_spec({**within_bounds(job.spec.to_json()), **changes}, source=f"job {job.id}")
            before = (self._store.environment(job.spec_id) or {}) if spec.env else {}
            spec = spec.model_copy(update={"env": unmasked(spec.env, before)})
            if job.phase not in ACTIVE:
                checks.spec(spec, f"job {job.id}")
            if any(other == job.id for other, _ in spec.dependencies()):
                raise InputError(f"job {job.id} can't wait for itself")
            kept = spec.kept()
            if all(getattr(kept, name) == getattr(job.spec, name) for name in changes) and spec.env == before:
                continue
            environments[len(drafts)] = spec.env
            like = like_of(kept, job.user, spec.gpus, job.array_id)
            estimate = self._scheduler.estimates.of(like, given_s=spec.estimate, time_limit_s=spec.time_limit)
            data = {
                "spec": kept.to_json(),
                "after": [list(entry) for entry in spec.dependencies()],
                "estimate_s": estimate.total_s,
                "estimate_from": estimate.source.value,
            }
            drafts.append(("job.updated", job.id, data))
        self._scheduler.ledger.write(drafts, (), environments)
        changed = {int(number) for _, number, _ in drafts if number is not None}
        for job, changes in wanted:
            if job.id not in changed:
                continue
            if job.phase is Phase.QUEUED:
                self._scheduler.planning.asks_anew(job.id)
            if "time_limit" in changes:
                self._scheduler.dispatch.set_limit(job.id)
        return changed

    def _write(self, drafts: Iterable[Draft]) -> None:
        self._scheduler.ledger.write(list(drafts))

    def _change(
        self, action: Action, jobs: Sequence[int], work: Callable[[list[Job]], Collection[int] | None]
    ) -> Collection[int]:
        """Do something to jobs, to all or none of them; nothing to those of which it is so already.

        Those that have ended stand in nobody's way where some are left to be cancelled. work: does it, and says which
        jobs are other than before; None: all.
        """

        def change() -> Collection[int]:
            records = [self._jobs.get(job) for job in dict.fromkeys(jobs)]
            if action is Action.CANCEL and any(job.phase not in ENDED for job in records):
                records = [job for job in records if job.phase not in ENDED]
            attempts = self._scheduler.book.attempts
            for job in records:
                if refusal := impossible(action, job, attempts.get(job.id)):
                    raise ConflictError(refusal)
            todo = [job for job in records if not so_already(action, job, attempts.get(job.id))]
            if not todo:
                return ()
            changed = work(todo)
            self._scheduler.planning.stale()
            return {job.id for job in todo} if changed is None else changed

        return self._scheduler.do(change)
