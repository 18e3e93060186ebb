"""Groups of jobs that share GPUs, as the API shows them."""

from __future__ import annotations

from collections.abc import Sequence

from gpuloom.core.job import Attempt
from gpuloom.core.progress import it_per_s
from gpuloom.live.records.groups import Group
from gpuloom.live.records.together import Measured
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.sights import Sights
from gpuloom.live.views.cluster_answers import GroupMemberView, GroupView


def groups_view(scheduler: Scheduler, sights: Sights) -> list[GroupView]:
    """All groups. In the scheduler's thread."""
    return [_group(scheduler, sights, group) for group in scheduler.sharers.groups.all()]


def _group(scheduler: Scheduler, sights: Sights, group: Group) -> GroupView:
    attempts, found = scheduler.book.attempts, scheduler.sharers.together.of(group)
    return {
        "members": [_member(scheduler, sights, attempts[job], group.members, found) for job in group.members],
        "gpus": group.gpus,
        "since_s": group.since_s,
        "order": None if group.order is None else list(group.order),
        "efficiency": group.efficiency,
        "gain": found.gain,
    }


def _member(
    scheduler: Scheduler, sights: Sights, attempt: Attempt, members: Sequence[int], found: Measured
) -> GroupMemberView:
    job, usage = scheduler.book.jobs[attempt.job], sights.usage(attempt)
    return {
        "job": job.id,
        "name": job.name,
        "user": job.user,
        "expected_rate": scheduler.work.rate_of(job.id),
        "expected_from": scheduler.planning.source(job.id, [other for other in members if other != job.id]),
        "it_per_s": None if usage is None else it_per_s(usage.progress),
        "alone_it_per_s": found.alone[job.id],
        "beside_it_per_s": found.beside[job.id],
        "share": found.share[job.id],
    }
