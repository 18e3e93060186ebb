"""The input of a forecast: a world in which the job waits, and what keeps the job out of the queue."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import Job, Phase
from gpuloom.core.state import JobState, State
from gpuloom.core.workload import F8
from gpuloom.engine.clockwork import Clockwork
from gpuloom.live.forecasts.left import Left, left_of
from gpuloom.live.planning.estimates import LEAST_S, Source
from gpuloom.live.planning.held_gpus import held_gpus
from gpuloom.live.planning.lasting import lasting
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.world import World

_NOWHERE = Reason(WaitCode.NODES_END_TOO_SOON, "No node that is there is ours for long enough.")


@dataclass(frozen=True, slots=True)
class Gate:
    """What has to happen before a job may be started at all.

    waits_for: rows that must end. comes_s: when it may start. turns: of its array, how many go before it, and rows of
    those that run: one starts for each that ends. never: why it can't be said.
    """

    waits_for: tuple[int, ...] = ()
    comes_s: float | None = None
    turns: tuple[int, tuple[int, ...]] | None = None
    never: str = ""

    @property
    def open(self) -> bool:
        return not (self.waits_for or self.turns or self.never) and self.comes_s is None


@dataclass(frozen=True, slots=True)
class Preview:
    """A world of its own, in which jobs of the priority and higher ones wait.

    waiting, lower: jobs that wait, of its priority or higher and of lower ones (which are left out).
    """

    planning: Planning
    world: World
    now_s: float
    waiting: int
    lower: int
    kept_back: Mapping[int, str]
    """Codes of the reasons why jobs that wait are not in the queue."""
    wake_at_s: float | None
    """When the policy is asked next if nothing happens; None: now."""

    @property
    def gated(self) -> bool:
        """Whether jobs are stopped for others at multiples of the interval only."""
        return Clockwork.of(self.planning.policy, self.planning.seat.interval_s).gated

    @property
    def overhead_s(self) -> float:
        """What a start costs."""
        return self.planning.worlds.overhead_s

    def left(self, row: int) -> Left:
        """What is left of the job in a row, as work (core/pace.py)."""
        planning, number = self.planning, self.world.jobs[row]
        job = planning.book.jobs[number]
        attempt = planning.book.attempts.get(number)
        allocation = () if attempt is None else attempt.allocation
        _, done, told_s, _ = planning.scene.known(job, allocation, self.now_s)
        stopped = attempt is not None and attempt.stop_reason is not None and number not in planning.claims.grants
        if stopped and self.world.is_running(number):
            return Left(Source.PROGRESS, done + LEAST_S, done)  # it was told to stop
        return left_of(planning.scene.estimate(job), done, told_s)


def preview(
    planning: Planning, priority: int, now_s: float, *, closed: Collection[str] = (), asked_now: bool = False
) -> Preview | None:
    """What forecasts of jobs of a priority need; None if nothing can be given away at all.

    Args:
        planning: a copy, which nobody changes. closed: nodes that are of no use to these jobs, as their time with us
            ends too soon. asked_now: the policy has not been asked since the last event.
    """
    eligible, reasons, _ = planning.candidates.eligible(now_s)
    nowhere = {number for number, tied in lasting(planning.scene, eligible, now_s).tied.items() if not tied.lasting}
    reasons |= dict.fromkeys(nowhere, _NOWHERE)
    seen = {number for number in eligible - nowhere if planning.book.jobs[number].priority >= priority}
    # Higher priorities are forecast as if they had come long before: what goes by submission takes them first.
    levels = sorted({planning.scene.level(number) for number in seen})
    rank = {number: levels.index(planning.scene.level(number)) for number in seen} if len(levels) > 1 else {}
    there = held_gpus(planning.scene, math.inf, planning.yielding, closed=closed)
    world, _ = planning.worlds.build(seen, there, now_s, aside=planning.policy.twin(), rank=rank)
    if world is None:
        return None
    kept_back = {number: reason.code for number, reason in reasons.items()}
    wake_at_s = None if asked_now else planning.times.next_s
    return Preview(planning, world, now_s, len(seen), len(eligible) - len(seen), kept_back, wake_at_s)


def gate_of(preview: Preview, job: Job) -> Gate:
    """What has to happen before this job may be started."""
    planning, world = preview.planning, preview.world
    code = preview.kept_back.get(job.id)
    if job.id in world.unplaceable:
        return Gate(never="the GPUs it needs are not in service")
    if job.suspended:
        return Gate(never="it was suspended by hand")
    if job.phase is Phase.HELD:
        return Gate(never="it is held")
    if code == WaitCode.NODES_END_TOO_SOON:
        return Gate(never="no node that is there is ours for long enough")
    if code == WaitCode.DEPENDENCY_FAILED:
        return Gate(never="a job it waits for did not succeed")
    if code == WaitCode.DEPENDENCY:
        return Gate(waits_for=tuple([world.row_of[other] for other, _ in job.after if other in world.row_of]))
    if code in (WaitCode.PAUSE_BEFORE_RETRY, WaitCode.START_FAILED):
        return Gate(comes_s=job.not_before_s)
    if code == WaitCode.ARRAY_THROTTLE:
        jobs = planning.book.jobs
        runs = [n for n in planning.book.attempts if jobs[n].array_id == job.array_id and world.is_running(n)]
        before = sum(
            kept == code and n < job.id and jobs[n].array_id == job.array_id for n, kept in preview.kept_back.items()
        )
        if not runs:
            return Gate(never="its array has reached its limit, and no job of the array runs")
        return Gate(turns=(before, tuple([world.row_of[n] for n in runs])))
    if job.id not in world.row_of:
        return Gate(never="it is not in the queue")
    return Gate()


def part_of(world: World, rows: Sequence[int], left_s: F8, *, pace: float, now_s: float) -> State:
    """A state of some of the jobs of a world only, with so much left of each. The world stays as it is.

    Args:
        rows: in rising order; all jobs that run are among them. pace: for one job of the part this many wait in the
            world: time goes as many times faster for what has begun.
    """
    whole, index = world.state, np.asarray(rows, dtype=np.intp)
    runs = whole.status_column[index] == JobState.RUNNING
    taken = whole.workload.take(index)
    done_s = np.maximum(taken.duration_s - whole.remaining_s_column[index], 0.0)
    state = State(replace(taken, duration_s=done_s + left_s), whole.cluster, layers=whole.layers)
    every = np.arange(len(index))
    state.restore(
        every,
        held_s=whole.held_s_column[index],
        held_gpu_s=whole.held_gpu_s_column[index],
        starts=whole.starts_column[index],
        first_start_s=whole.first_start_s_column[index],
        remaining_s=left_s,
    )
    waits = whole.status_column[index] == JobState.WAITING
    state.submit_all(every[waits | runs])
    there = index[runs].tolist()
    begin_s = whole.work_from_s_column[index[runs]]
    state.adopt(
        every[runs],
        [whole.placements[row] for row in there],
        run_from_s=whole.run_from_s_column[index[runs]],
        work_from_s=now_s + np.maximum(begin_s - now_s, 0.0) / pace,
        rate=whole.rate_column[index[runs]],
    )
    state.step = whole.step
    return state
