"""Why a job waits, in words: what the scheduler knows, or what the policy says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import ACTIVE, ENDED, Job, Phase
from gpuloom.core.words import are, plural
from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.eligible import Throttles, blocked
from gpuloom.live.planning.lasting import too_short
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.shortage import not_now
from gpuloom.live.planning.world import World
from gpuloom.live.records.fleet import slots_of

_NOT_OF_NODES = frozenset(
    (
        *(WaitCode.HELD, WaitCode.SUSPENDED, WaitCode.DEPENDENCY, WaitCode.DEPENDENCY_FAILED, WaitCode.START_FAILED),
        *(WaitCode.PAUSE_BEFORE_RETRY, WaitCode.ARRAY_THROTTLE, WaitCode.EXECUTOR_IN_TROUBLE, WaitCode.POLICY_FAILED),
        *(WaitCode.GPUS_BEING_VACATED, WaitCode.NO_GPU_IN_SERVICE),
    )
)
"""Reasons that would be the same if there were more nodes, or that name them already."""
_WAITS_FOR_NODES = frozenset({WaitCode.NO_GPU_IN_SERVICE, WaitCode.NODES_END_TOO_SOON})
_BEHIND_EQUALS = Reason(WaitCode.BEHIND_EQUALS, "Identical jobs were submitted before it, and wait as well.")


def why(planning: Planning, jobs: Iterable[int], now_s: float) -> Mapping[int, Reason]:
    """Why each of these jobs that wait does so."""
    found = _why(planning, jobs, now_s)
    if aside := not_now(planning.book, planning.scene.shut):
        for number, reason in found.items():
            if reason.code not in _NOT_OF_NODES:
                found[number] = replace(reason, text=f"{reason.text} {aside}")
    for number in found.keys() & planning.engine_says.keys():
        found[number] = replace(found[number], text=f"{found[number].text} {planning.engine_says[number]}")
    return found


def _why(planning: Planning, jobs: Iterable[int], now_s: float) -> dict[int, Reason]:
    found: dict[int, Reason] = {}
    free_now: int | None = None
    for number in jobs:
        job = planning.book.jobs.get(number)
        if job is None or job.phase in ENDED or (job.phase in ACTIVE and job.phase is not Phase.FROZEN):
            continue
        if planning.no_starts and job.phase is Phase.QUEUED and blocked(job, planning.book.jobs, now_s) is None:
            found[number] = Reason(WaitCode.EXECUTOR_IN_TROUBLE, f"No job can be started now: {planning.no_starts}.")
        elif number in planning.claims.grants:
            found[number] = vacated(planning, number)
        elif job.phase is Phase.HELD and planning.watches:
            found[number] = Reason(WaitCode.HELD, "It is kept back.")
        elif job.suspended and (other := planning.scene.room.get(number)) is not None:
            text = f"It makes room for job {other}, which is interactive, and goes on when that has ended."
            found[number] = Reason(WaitCode.SUSPENDED, text, {"job": other})
        elif job.suspended or job.phase is Phase.HELD:
            found[number] = blocked(job, planning.book.jobs, now_s) or Reason(WaitCode.HELD, "It is held.")
        elif number in planning.reasons:
            known = planning.reasons[number]
            if known.code in _WAITS_FOR_NODES:  # what is left of nodes becomes less
                known = too_short(planning.scene, job, now_s) or known
            found[number] = known
        elif (world := next((w for w in planning.seen if w.is_waiting(number)), None)) is not None:
            snapshot = world.engine.snapshot
            snapshot.now_s = now_s
            free = free_now = free_gpus(planning) if free_now is None else free_now
            if world is not planning.world and free < job.gpus:  # what it knows of free GPUs may be old
                text = f"It needs {plural(job.gpus, 'GPU')} at once and {are(free)} free."
                found[number] = Reason(WaitCode.NOT_ENOUGH_FREE_GPUS, text, {"gpus": job.gpus, "free_gpus": free})
            else:
                found[number] = _of_policy(planning, world, number)
        elif (of_line := _of_line(planning, job)) is not None:
            found[number] = of_line
        elif planning.failed:
            found[number] = Reason(WaitCode.POLICY_FAILED, f"No decision can be made: {planning.failure}")
        else:
            found[number] = Reason(WaitCode.QUEUED, "The scheduler has not considered it yet.")
        if (why := found[number]).code in _WAITS_FOR_NODES and (words := planning.scene.coming.words):
            found[number] = replace(why, text=f"{why.text} {words}")
    return found


def _of_line(planning: Planning, job: Job) -> Reason | None:
    """Why a job waits of which the policy need not be shown more than those before it that are like it."""
    line = planning.candidates.lines.line_of(job.id)
    if line is None:
        return None
    first = line.first(1)[0]
    if first in planning.reasons:
        return planning.reasons[first]
    if line.throttle is not None:
        jobs = planning.book.jobs
        return Throttles(jobs[n] for n in {**planning.book.attempts, **planning.claims.grants}).take(job)
    return _BEHIND_EQUALS if any(world.is_waiting(first) for world in planning.seen) else None


def _of_policy(planning: Planning, world: World, job: int) -> Reason:
    """What the policy says, and whether it is the one that was set."""
    policy = world.policy
    try:
        with Asking(Call.REASON, policy):
            why = policy.reason(world.engine.snapshot, world.row_of[job])
            found = Reason(str(why.code), str(why.text), {str(key): float(n) for key, n in why.numbers.items()})
    except PolicyFailure as error:  # jobs are listed all the same
        return Reason(WaitCode.POLICY_FAILED, f"Policy {planning.seat.written} can't say why: {error}.")
    failure = planning.seat.standby.failure
    if failure is None or not planning.seat.standby.serving:
        return found
    text = (
        f"{found.text} Policy {failure.policy} fails (gpuloom status says how); {failure.serves} is used in its place."
    )
    return Reason(found.code, text, found.numbers)


def vacated(planning: Planning, job: int) -> Reason:
    """The job has been given GPUs that others are leaving."""
    slots = set(slots_of(planning.claims.grants[job]))
    there = [n for n, a in planning.book.attempts.items() if n != job and not slots.isdisjoint(slots_of(a.allocation))]
    who = f"job {there[0]}" if len(there) == 1 else f"jobs {', '.join(map(str, sorted(there)))}"
    text = f"Its GPUs are being freed by {who}." if there else "Its GPUs are free; it is about to start."
    return Reason(WaitCode.GPUS_BEING_VACATED, text, {"jobs": len(there)})


def free_gpus(planning: Planning) -> int:
    """GPUs in service that nobody has or is about to have."""
    return len(planning.scene.free_slots)
