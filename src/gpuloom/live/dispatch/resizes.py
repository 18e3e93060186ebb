"""Changes of the sizes of elastic jobs: what is decided, and what is written down of it.

The first way to resize, for every program that saves and goes on: notice, save, end, and at once started again with
the new members (`EndReason.RESIZED`). What a job was given stays its own in between (`planning/claims.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuloom.core.book import Book
from gpuloom.core.job import Allocation, Attempt, EndReason, Job, gpus_in
from gpuloom.core.replicas import ResizeWhy
from gpuloom.live.dispatch.replicas import EVENT as REPLICAS_FAILED
from gpuloom.live.planning.claims import Claims
from gpuloom.live.records.fleet import slots_of
from gpuloom.live.records.ledger import Draft
from gpuloom.store.port import Store

LEAST_LIMIT_S = 0.001
"""A run that has used its time up gets so much: then its executor says that it is over."""
_BY_A_FAULT = frozenset({EndReason.NODE, EndReason.LOST})


def resizes_of(book: Book, claims: Claims, jobs: Sequence[int]) -> dict[int, Mapping[str, Any]]:
    """Of these jobs that are about to leave their GPUs those that go on with another number of them, and what their
    `attempt.stopping` says of that: to_gpus, why, and the other jobs that it is about."""
    found: dict[int, Mapping[str, Any]] = {}
    for number in jobs:
        given, had = claims.grants.get(number), book.attempts[number].allocation
        if given is None or not book.jobs[number].spec.elastic or gpus_in(given) == gpus_in(had):
            continue
        why, others = _why(claims, number, had, given)
        found[number] = {"to_gpus": gpus_in(given), "why": why.value, "jobs": others}
    return found


def _why(claims: Claims, job: int, had: Allocation, given: Allocation) -> tuple[ResizeWhy, list[int]]:
    before, after = set(slots_of(had)), set(slots_of(given))
    if len(after) < len(before):
        lost = before - after
        takers = [
            other for other, there in claims.grants.items() if other != job and not lost.isdisjoint(slots_of(there))
        ]
        return (ResizeWhy.MADE_ROOM if takers else ResizeWhy.POLICY), takers
    holders = claims.holders()
    givers = sorted({other for slot in after - before for other in holders.get(slot, ()) if other != job})
    return (ResizeWhy.FROM_OTHERS if givers else ResizeWhy.FREE_GPUS), givers


def limit_left_s(job: Job, attempt: int, before: Sequence[Attempt]) -> float | None:
    """For how long an attempt of a job may run; None: as long as it takes. Attempts before it that ended to be resized
    are one run with it: a resize does not begin the time limit anew.

    before: the job's attempts.
    """
    limit_s = job.spec.time_limit
    if limit_s is None:
        return None
    by_number = {one.number: one for one in before}
    number = attempt - 1
    while (one := by_number.get(number)) is not None and one.reason is EndReason.RESIZED:
        limit_s -= one.held_s
        number -= 1
    return max(limit_s, LEAST_LIMIT_S)


def resized_draft(store: Store, job: Job, given: Allocation) -> Draft | None:
    """The event that an elastic job starts at another size than it last had; None: it doesn't, or is no elastic job.

    Raises:
        StoreError: the store can't be read.
    """
    replicas = job.spec.replicas
    if replicas is None or not job.attempts:
        return None
    before = [one for one in store.attempts([job.id]) if one.started_s >= job.submitted_s]
    if not before or gpus_in(before[-1].allocation) == gpus_in(given):
        return None
    last = before[-1]
    why, others = ResizeWhy.RESTARTED, []
    if last.reason in _BY_A_FAULT:
        why = ResizeWhy.NODE
    elif last.reason is EndReason.RESIZED:
        told = store.events(job=job.id, types=("attempt.stopping", REPLICAS_FAILED), limit=1, newest=True)
        if told and told[-1].type == REPLICAS_FAILED:
            why = ResizeWhy.REPLICA
        elif told and told[-1].data.get("reason") == EndReason.RESIZED:
            why, others = ResizeWhy(told[-1].data["why"]), list(told[-1].data["jobs"])
    sizes = gpus_in(last.allocation), gpus_in(given)
    data = {
        "attempt": job.attempts + 1,
        "from_gpus": sizes[0],
        "to_gpus": sizes[1],
        "from_replicas": replicas.of(sizes[0]),
        "to_replicas": replicas.of(sizes[1]),
        "why": why.value,
        "jobs": others,
    }
    return "job.resized", job.id, data
