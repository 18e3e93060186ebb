"""Who has which GPUs: what a policy is shown, and what is kept from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuloom.core.book import Book
from gpuloom.core.job import Allocation, EndReason, Job, Phase
from gpuloom.core.share_class import BEST_EFFORT, is_pair, share_class_of
from gpuloom.live.forecasts.estimates import left_s
from gpuloom.live.planning.fleet import Slot, slots_of, wanted_types
from gpuloom.live.planning.hold import Hold, hold_for
from gpuloom.placement.shapes import model_allowed

if TYPE_CHECKING:
    from gpuloom.live.planning.planning import Planning

MAKES_WAY = frozenset({EndReason.PREEMPTED, EndReason.NODE})
"""Reasons of a stop after which the job waits again, as the policy sees it."""


def open_slots(book: Book) -> set[Slot]:
    """GPUs that may be given away or are: in service, on machines that are open to new jobs."""
    return {
        (node.name, gpu.index)
        for node in book.nodes.values()
        for gpu in node.gpus
        if node.state == "up" and gpu.state == "ok"
    }


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Running jobs in the policy's sight (GPUs, since when, sharing layer), and GPUs out of its sight.

    fixed: of those jobs, the ones that it may put others beside, and must leave as they are otherwise. leaving: those
    that are about to end, and are shown so that what is kept for others does not shrink meanwhile.
    """

    jobs: Mapping[int, tuple[Allocation, float, int]]
    pinned: set[Slot]
    fixed: frozenset[int]
    leaving: frozenset[int] = frozenset()


def occupancy(planning: Planning, priority: float) -> Occupancy:
    """Who has which GPUs, for a pass of this priority."""
    book, pairs = planning.book, planning.policy.pairs
    fixed: set[int] = set()
    leaving: set[int] = set()
    free_for_all = open_slots(planning.book)
    found: dict[int, tuple[Allocation, float]] = {}
    pinned: set[Slot] = set()
    for number in {**planning.grants, **book.attempts}:
        job, attempt = book.jobs[number], book.attempts.get(number)
        granted = planning.grants.get(number) or planning.thawing.get(number)
        if number in planning.refreeze and number not in planning.grants:
            continue
        if granted is not None:
            allocation, since_s = granted, planning.work.since(number)
        elif attempt is None or number in planning.yielding or job.phase is Phase.FROZEN or number in planning.freezing:
            continue
        elif attempt.stop_reason is not None:
            if attempt.stop_reason in MAKES_WAY:
                continue
            if planning.preempts or (planning.policy.max_jobs_per_gpu > 1 and not pairs):  # who might start it again
                pinned.update(slots_of(attempt.allocation))
                continue
            leaving.add(number)
            allocation, since_s = attempt.allocation, attempt.since_s
        else:
            allocation, since_s = attempt.allocation, attempt.since_s
        slots = slots_of(allocation)
        stays = planning.preempts and job.spec.get("on_preempt") == "never" and granted is None
        is_fixed = stays or planning.level(number) > priority
        if not free_for_all.issuperset(slots) or (is_fixed and not (pairs and share_class_of(job.spec))):
            pinned.update(slots)
            continue
        found[number] = (allocation, since_s)
        if is_fixed:
            fixed.add(number)
    # Who shares a GPU with a pinned job is pinned as well; so is who finds no sharing layer (the policy before
    # may have shared more). Who was on which layer is not written down; AntMan's opportunistic jobs are never on
    # the first.
    layers = planning.policy.max_jobs_per_gpu
    while True:
        layer_of: dict[int, int] = {}
        on: dict[Slot, str] = {}
        used: dict[Slot, int] = {}
        out: set[int] = set()
        for number, (allocation, _) in found.items():
            slots = slots_of(allocation)
            job_class = share_class_of(book.jobs[number].spec) if pairs else ""
            taken = 0
            for slot in slots:
                taken |= used.get(slot, 0)
            behind = book.jobs[number].priority < 0 or share_class_of(book.jobs[number].spec) == BEST_EFFORT
            first = int(layers > 1 and planning.policy.own_priorities and behind)
            free = [layer for layer in (*range(first, layers), *range(first)) if not taken >> layer & 1]
            if not free or not pinned.isdisjoint(slots) or (pairs and taken and not _is_pair(on, job_class, slots)):
                out.add(number)
                continue
            layer_of[number] = free[0]
            for slot in slots:
                on[slot] = job_class
                used[slot] = used.get(slot, 0) | 1 << free[0]
        if not out:
            jobs = {n: (*has, layer_of[n]) for n, has in found.items()}
            return Occupancy(jobs, pinned, frozenset(fixed & jobs.keys()), frozenset(leaving & jobs.keys()))
        for number in out:
            pinned.update(slots_of(found.pop(number)[0]))


def _is_pair(on: Mapping[Slot, str], job_class: str, slots: Sequence[Slot]) -> bool:
    """Whether a job of this class and the one that is there may share a GPU."""
    return len(slots) == 1 and is_pair([on[slots[0]], job_class])


def reservation(planning: Planning, job: Job, before: Hold | None, now_s: float) -> Hold | None:
    """What is kept for the first job of a priority that waits on, from all of lower ones."""
    slots = open_slots(planning.book)
    models = {
        (node.name, gpu.index)
        for node in planning.book.nodes.values()
        for gpu in node.gpus
        if model_allowed(wanted_types(job.spec), gpu.model)
    }
    ends: list[tuple[float, int]] = []
    held: set[Slot] = set()
    for number in {**planning.grants, **planning.book.attempts}:
        attempt = planning.book.attempts.get(number)
        allocation = planning.grants.get(number) or planning.thawing.get(number)
        if allocation is None and attempt is not None and attempt.phase is not Phase.FROZEN:
            allocation = attempt.allocation
        if allocation is None:
            continue
        mine = slots & models & set(slots_of(allocation))
        other, done = planning.book.jobs[number], planning.work.expected(number, now_s)
        stopping = attempt is not None and attempt.stop_reason is not None
        left = (
            0.0
            if stopping
            else left_s(planning.estimate(other).total_s, other.work_s + done, planning.work.told_s.get(number))
        )
        ends.append((now_s + left, len(mine - held)))
        held |= mine
    return hold_for(job, len((slots & models) - held), ends, before, now_s=now_s)
