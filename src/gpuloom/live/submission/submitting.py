"""From the specs of one request to the events that submit its jobs: all are accepted, or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gpuloom.core.errors import ConflictError, InputError
from gpuloom.live.planning.estimates import Estimates, like_of
from gpuloom.live.records.ledger import Draft
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.submission.admission import Admission
from gpuloom.live.submission.spec import JobSpec
from gpuloom.store.port import Submission


class Submissions:
    """What `Service.submit` does."""

    def __init__(self, scheduler: Scheduler, admission: Admission) -> None:
        self._scheduler, self._store, self._admission = scheduler, scheduler.store, admission

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        """Numbers of the jobs of each spec.

        Raises:
            InputError: no spec, one that can't be (`Checks.spec`), or that waits for a job that is not there.
            ImpossibleJobError: one can never be placed.
            ConflictError: the key was used for another submission.
            StoreError: nothing was written.
        """
        if not specs:
            raise InputError("no job was given")
        specs = [spec.named() for spec in specs]
        many = len(specs) > 1
        digested = _digest(specs, user) if idempotency_key is not None else ""
        book = self._scheduler.book
        if idempotency_key is not None and (taken := self._taken(idempotency_key, digested)) is not None:
            return _grouped(specs, taken)  # whatever has become of what it waited for
        checks = self._admission.checks()

        def named(index: int) -> str:
            name = specs[index].name
            return f"job {index + 1} of {len(specs)} ({name})" if many else f"job {name!r}"

        for index, spec in enumerate(specs):
            checks.spec(spec, named(index))

        def take() -> list[list[int]]:
            submissions: list[Submission] = []
            if idempotency_key is not None and (before := self._taken(idempotency_key, digested)) is not None:
                return _grouped(specs, before)
            drafts: list[Draft] = []
            taken: list[list[int]] = []
            number = book.next_job
            for spec in specs:
                data, count = _submitted(spec, user, number, self._scheduler.estimates)
                drafts.append(("jobs.submitted", number, data))
                taken.append(list(range(number, number + count)))
                number += count
            if idempotency_key is not None:
                jobs = tuple(job for group in taken for job in group)
                submissions.append(Submission(idempotency_key, digested, jobs, self._scheduler.clock.now()))
            for index, spec in enumerate(specs):
                # One that it waits for may have ended between the check and now.
                checks.after(spec.dependencies(), named(index))
            environments = {place: spec.env for place, spec in enumerate(specs)}
            self._scheduler.ledger.write(drafts, submissions, environments)
            self._scheduler.planning.stale()
            return taken

        return self._scheduler.do(take)

    def _taken(self, key: str, digested: str) -> tuple[int, ...] | None:
        """Jobs of the submission with this key, if there was one. Raises ConflictError if it was another one."""
        before = self._store.submission(key)
        if before is not None and before.digest != digested:
            raise ConflictError(
                f"idempotency key {key!r} was used for another submission, which became job {before.jobs[0]}: "
                "use a new key for a new submission"
            )
        return None if before is None else before.jobs


def _grouped(specs: Sequence[JobSpec], jobs: Sequence[int]) -> list[list[int]]:
    """The numbers of a submission of before, by spec."""
    groups, at = [], 0
    for spec in specs:
        indices = spec.indices()
        count = 1 if indices is None else len(indices)
        groups.append(list(jobs[at : at + count]))
        at += count
    return groups


def _digest(specs: Sequence[JobSpec], user: str) -> str:
    """What was asked for, in short: the same for the same specs of the same user."""
    text = json.dumps([user, [spec.model_dump(mode="json") for spec in specs]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _submitted(spec: JobSpec, user: str, first: int, estimates: Estimates) -> tuple[Mapping[str, Any], int]:
    """Data of the event `jobs.submitted`, and how many jobs it brings."""
    indices = spec.indices()
    like = like_of(spec, user, spec.gpus, None if indices is None else first)
    estimate = estimates.of(like, given_s=spec.estimate, time_limit_s=spec.time_limit)
    count = 1 if indices is None else len(indices)
    return {
        "user": user,
        "spec": spec.to_json(),
        "first": first,
        "count": count,
        "indices": indices,
        "held": spec.hold,
        "after": [list(entry) for entry in spec.dependencies()],
        "estimates": [[estimate.total_s, estimate.source.value]],
    }, count
