"""Changes by users to existing jobs: cancel, hold, release, suspend, resume, requeue, update, move to the top.

A change applies to all jobs named, or to none; jobs for which it is so already stay as they are (`actions`). Each
change of a list of jobs returns the jobs that it changed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpuloom.core.errors import ConflictError, InputError, NotFoundError
from gpuloom.core.job import ACTIVE, ENDED, EndReason, Job, Phase
from gpuloom.core.masked import unmasked
from gpuloom.core.spec import Spec, spec_of
from gpuloom.live.planning.estimates import like_of
from gpuloom.live.records.forgetting import KEEP_ENVIRONMENTS_S
from gpuloom.live.records.ledger import Draft
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.submission.actions import Action, impossible, so_already
from gpuloom.live.submission.admission import Admission
from gpuloom.live.submission.lookup import JobRecords
from gpuloom.live.submission.spec import JobSpec, job_spec, within_bounds
from gpuloom.store.port import JobQuery

WHILE_ACTIVE = frozenset(
    {
        "name",
        "priority",
        "retries",
        "estimate",
        "speeds",
        "grace",
        "on_preempt",
        "time_limit",
        "checkpoint",
        "suspend_limit",
    }
)
"""Fields of a spec that may change while the job runs."""
OF_ADOPTED = frozenset({"name", "priority", "estimate", "speeds", "on_preempt", "model", "gpu_types"})
"""Fields that may change of a job whose pods somebody else has made."""
NEVER = frozenset({"array", "hold"})

Work = Callable[[list[Job]], Collection[int] | None]
"""Does something to jobs, and says which are other than before; None: all."""


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

    def suspend(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.SUSPEND, jobs, self._suspend)

    def resume(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.RESUME, jobs, self._resume)

    def requeue(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.REQUEUE, jobs, self._requeue)

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Collection[int]:
        return self._change(Action.UPDATE, jobs, _changing(changes, self._update))

    def move_to_top(self, jobs: Sequence[int]) -> Collection[int]:
        return self._change(Action.TOP, jobs, self._raise)

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        work: Mapping[Action, Work] = {
            Action.CANCEL: partial(self._cancel, grace_s=grace_s),
            Action.HOLD: self._hold,
            Action.RELEASE: self._release,
            Action.SUSPEND: self._suspend,
            Action.RESUME: self._resume,
            Action.REQUEUE: self._requeue,
            Action.TOP: self._raise,
        }
        return self._change_array(action, array, work[action])

    def update_array(self, array: int, changes: Mapping[str, Any]) -> Mapping[str, int]:
        return self._change_array(Action.UPDATE, array, _changing(changes, self._update))

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

    def _suspend(self, records: list[Job]) -> None:
        dispatch = self._scheduler.dispatch
        for job in records:
            if job.phase is Phase.RUNNING and (why := dispatch.why_not_frozen(job.id)):
                raise ConflictError(f"job {job.id} can't be suspended: {why}")
        nothing: Mapping[str, Any] = {}
        self._write([("job.suspended", job.id, nothing) for job in records])
        dispatch.suspend([job.id for job in records], self._scheduler.clock.now())

    def _resume(self, records: list[Job]) -> None:
        # One whose run has ended in the meantime was held instead.
        nothing: Mapping[str, Any] = {}
        self._write(
            [("job.released" if job.phase is Phase.HELD else "job.resumed", job.id, nothing) for job in records]
        )
        for job in records:  # a policy that preempts nobody knows no job that comes back
            self._scheduler.planning.asks_anew(job.id)

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

    def _raise(self, records: list[Job]) -> Collection[int]:
        """A priority above all others that wait, if theirs is not higher already."""
        asked = {job.id for job in records}
        others = [
            job.priority
            for job in self._scheduler.book.jobs.values()
            if job.phase in (Phase.QUEUED, Phase.HELD, Phase.FROZEN) and job.id not in asked
        ]
        top = max(others, default=-math.inf) + 1
        return self._update(records, lambda job: {"priority": int(max(top, job.priority))})

    def _update(self, records: Sequence[Job], changes_of: Callable[[Job], Mapping[str, Any]]) -> Collection[int]:
        """Change fields of specs; those jobs that are other than before. In the scheduler's thread.

        Jobs that share a spec go on sharing one, which the event of the first brings; `changes_of` says the same of
        all of them.
        """
        drafts: list[Draft] = []
        environments: dict[int, Mapping[str, str]] = {}
        checks = self._admission.checks()
        first_event = self._scheduler.ledger.newest + 1
        known: dict[int, _Changed] = {}
        changed: dict[int, None] = {}
        for job in records:
            changes = changes_of(job)
            late = sorted(changes.keys() - WHILE_ACTIVE)
            if job.phase in ACTIVE and late:
                raise ConflictError(
                    f"job {job.id} is {job.phase}: {', '.join(late)} can only be changed while it waits (what can be "
                    f"changed now: {', '.join(sorted(WHILE_ACTIVE))})"
                )
            if "time_limit" in changes and (node := self._scheduler.dispatch.keeps_limit(job.id)):
                raise ConflictError(
                    f"job {job.id} runs on node {node}, where the time limit of a running job can't be changed"
                )
            new = known.get(job.spec_id)
            if new is None:
                new = known[job.spec_id] = self._changed(job, changes)
            if job.phase not in ACTIVE and not new.checked:
                checks.spec(new.spec, f"job {job.id}")
                new.checked = True
            if any(other == job.id for other, _ in new.spec.dependencies()):
                raise InputError(f"job {job.id} can't wait for itself")
            if new.as_before:
                continue
            if new.event is None:
                new.event = first_event + len(drafts)
                environments[len(drafts)] = new.spec.env
                brings: Mapping[str, Any] = {"spec": new.whole}
            else:
                brings = {"changes": {name: new.whole[name] for name in changes}, "spec_of": new.event}
            drafts.append(("job.updated", job.id, {**brings, **new.also}))
            changed[job.id] = None
        self._scheduler.ledger.write(drafts, (), environments)
        for job in records:
            if job.id not in changed:
                continue
            if job.phase is Phase.QUEUED:
                self._scheduler.planning.asks_anew(job.id)
            if "time_limit" in changes_of(job):
                self._scheduler.dispatch.set_limit(job.id)
        return changed

    def _also(self, job: Job, kept: Spec, after: list[list[Any]]) -> Mapping[str, Any]:
        """What else the event of a changed spec says."""
        like = like_of(kept, job.user, kept.gpus, job.array_id)
        estimate = self._scheduler.estimates.of(like, given_s=kept.estimate, time_limit_s=kept.time_limit)
        return {"after": after, "estimate_s": estimate.total_s, "estimate_from": estimate.source.value}

    def _changed(self, job: Job, changes: Mapping[str, Any]) -> _Changed:
        """The spec of a job, and of all that share it, with these changes."""
        if job.spec.adopted:
            return self._changed_adopted(job, changes)
        spec = job_spec({**within_bounds(job.spec.to_json()), **changes}, source=f"job {job.id}")
        before = (self._store.environment(job.spec_id) or {}) if spec.env else {}
        spec = spec.model_copy(update={"env": unmasked(spec.env, before)})
        kept = spec.kept()
        also = self._also(job, kept, [list(entry) for entry in spec.dependencies()])
        as_before = all(getattr(kept, name) == getattr(job.spec, name) for name in changes) and spec.env == before
        return _Changed(spec, kept.to_json(), also, as_before=as_before)

    def _changed_adopted(self, job: Job, changes: Mapping[str, Any]) -> _Changed:
        """The same of a job whose pods somebody else has made: what they ask for is theirs to say."""
        if fixed := sorted(changes.keys() - OF_ADOPTED):
            raise ConflictError(
                f"job {job.id} was not made by gpuloom: {', '.join(fixed)} can't be changed here (what can: "
                f"{', '.join(sorted(OF_ADOPTED))})"
            )
        said = job_spec({"command": list(job.spec.command), **changes}, source=f"job {job.id}")
        kept = spec_of({**job.spec.to_json(), **{name: said.to_json()[name] for name in changes}})
        as_before = all(getattr(kept, name) == getattr(job.spec, name) for name in changes)
        return _Changed(said, kept.to_json(), self._also(job, kept, []), as_before=as_before, checked=True)

    def _write(self, drafts: Iterable[Draft]) -> None:
        self._scheduler.ledger.write(list(drafts))

    def _change(self, action: Action, jobs: Sequence[int], work: Work) -> Collection[int]:
        """Do something to jobs, to all or none of them; nothing to those of which it is so already.

        Those that have ended stand in nobody's way where some are left to be cancelled.
        """

        def change() -> Collection[int]:
            records = [self._jobs.get(job) for job in dict.fromkeys(jobs)]
            if action is Action.CANCEL and any(job.phase not in ENDED for job in records):
                records = [job for job in records if job.phase not in ENDED]
            attempts = self._scheduler.book.attempts
            for job in records:
                if refusal := impossible(action, job, attempts.get(job.id)):
                    raise ConflictError(refusal)
            return self._done(work, [job for job in records if not so_already(action, job, attempts.get(job.id))])

        return self._scheduler.do(change)

    def _change_array(self, action: Action, array: int, work: Work) -> Mapping[str, int]:
        """Do something to the jobs of an array with which it can be done: how many were changed, by their new state."""

        def change() -> Mapping[str, int]:
            first, book = self._jobs.get(array), self._scheduler.book
            if first.array_id != array:
                raise NotFoundError(f"job {array} is not the first job of an array")
            every: Iterable[Job] = book.jobs.values()
            if action is Action.REQUEUE:  # also those that ended long ago
                asked = JobQuery(array_id=array, oldest_first=True, limit=book.next_job)
                every = [book.jobs.get(job.id, job) for job in self._store.jobs(asked)]
            records = [
                job
                for job in every
                if job.array_id == array
                and not so_already(action, job, attempt := book.attempts.get(job.id))
                and not impossible(action, job, attempt)
            ]
            return Counter([book.jobs[job].phase.value for job in self._done(work, records)])

        return dict(self._scheduler.do(change))

    def _done(self, work: Work, records: list[Job]) -> Collection[int]:
        """Those jobs that are other than before."""
        if not records:
            return ()
        changed = work(records)
        self._scheduler.planning.stale()
        return dict.fromkeys(job.id for job in records) if changed is None else changed


@dataclass(slots=True)
class _Changed:
    """A changed spec. whole: as events hold it. also: what else they say. event: the one that brings it."""

    spec: JobSpec
    whole: Mapping[str, Any]
    also: Mapping[str, Any]
    as_before: bool
    checked: bool = False
    event: int | None = None


def _changing(
    changes: Mapping[str, Any], work: Callable[[list[Job], Callable[[Job], Mapping[str, Any]]], Collection[int]]
) -> Work:
    """Raises InputError: that can't be changed."""
    if not changes:
        raise InputError("no change was given")
    for name in NEVER & changes.keys():
        raise InputError(f"{name} can't be changed after submission" + ("; use hold and release" * (name == "hold")))
    return lambda records: work(records, lambda job: changes)
