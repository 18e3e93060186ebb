"""What a forecast of a job's start needs, copied from the live scheduler."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from gpuloom.core.job import Job, Phase
from gpuloom.core.state import State
from gpuloom.engine.progress import Progress
from gpuloom.live.planning import Planning
from gpuloom.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Preview:
    """All that a forecast needs, copied: the scheduler goes on meanwhile.

    waiting, lower: jobs that wait, of its priority or higher and of lower ones (which are left out). guessed: jobs in
        the forecast of whose running time nothing is known. own: the job's own estimate, and its source.
    ahead: of its array, jobs that are not in the forecast and go before it. waits_for: rows that must end before it may
        start. comes_s: when it may start, if not yet. never: why there can be no forecast.
    """

    state: State
    policy: Policy
    memory: Any
    progress: Progress
    fixed: frozenset[int]
    row_of: Mapping[int, int]
    now_s: float
    interval_s: float
    wake_at_s: float
    written: str
    gated: bool
    waiting: int
    lower: int
    guessed: int
    own: tuple[float, str]
    ahead: int = 0
    waits_for: list[int] = field(default_factory=list)
    comes_s: float | None = None
    never: str = ""


def preview(planning: Planning, job: Job, now_s: float) -> Preview | None:
    """What a forecast of this job's start needs; None if nothing can be given away at all."""
    eligible, reasons, _ = planning.eligible(now_s)
    seen = {number for number in eligible if planning.book.jobs[number].priority >= job.priority}
    # Higher priorities are forecast as if they had come long before: what goes by submission takes them first.
    levels = sorted({planning.level(number) for number in seen})
    rank = {number: levels.index(planning.level(number)) for number in seen} if len(levels) > 1 else {}
    world = planning.build(seen, math.inf, now_s, planning.policy.twin(), rank)
    if world is None:
        return None
    waits_for: list[int] = []
    comes_s, never = None, ""
    reason = reasons.get(job.id)
    ahead = 0
    if job.id in world.unplaceable:
        never = "When it will start can't be said, as the GPUs that it needs are not in service."
    elif job.phase is Phase.HELD:
        never = "When it will start can't be said, as it is held."
    elif reason is not None and reason.code == "dependency":
        waits_for = [world.row_of[other] for other, _ in job.after if other in world.row_of]
    elif reason is not None and reason.code == "pause_before_retry":
        comes_s = job.not_before_s
    elif reason is not None and reason.code == "array_throttle":
        running = [n for n, j in planning.book.jobs.items() if j.array_id == job.array_id and world.is_running(n)]
        ends = sorted(world.state.predicted_end_s(world.row_of[number]) for number in running)
        before = [n for n, r in reasons.items() if r.code == "array_throttle" and n < job.id]
        before = [n for n in before if planning.book.jobs[n].array_id == job.array_id]
        if ends:
            rounds, place = divmod(len(before), len(ends))
            ahead = len(before)
            comes_s = ends[place] + rounds * planning.estimate(job)[0]
    sources = [planning.estimate(planning.book.jobs[n])[1] for n in seen | set(planning.book.attempts) if n != job.id]
    return Preview(
        state=world.state,
        policy=planning.policy,
        memory=deepcopy(world.engine.memory),
        progress=world.engine.progress,
        fixed=world.engine.snapshot.fixed,
        row_of=world.row_of,
        now_s=now_s,
        interval_s=planning.interval_s,
        wake_at_s=planning.next_s(),
        written=planning.written,
        gated=planning.interval_s > 0 and planning.policy.preempts_at_intervals,
        waiting=len(seen),
        lower=len(eligible) - len(seen),
        guessed=sum(source.startswith("default") for source in sources),
        own=planning.estimate(job),
        ahead=ahead,
        waits_for=waits_for,
        comes_s=comes_s,
        never=never,
    )
