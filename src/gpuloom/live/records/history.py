"""The past as a trace that the simulator replays."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from gpuloom.core.errors import InputError
from gpuloom.core.job import ENDED, MAKES_WAY, Attempt, Job, gpus_in
from gpuloom.core.pace import ALIKE, Pace, speeds_of
from gpuloom.core.profile import Profiles
from gpuloom.core.script_key import profile_key
from gpuloom.core.workload import Labels, Ran, Workload
from gpuloom.facts.profiles import with_profiles
from gpuloom.live.records.fleet import Fleet, slots_of, wanted_types
from gpuloom.live.records.scaling import scaling_of
from gpuloom.live.records.spans import EventsOf, runs_of
from gpuloom.sharing.job_profile import named_profile
from gpuloom.traces.write import write_csv

HOUR_S = 3600.0

History = Iterable[tuple[Job, tuple[Attempt, ...]]]


PaceOf = Callable[[Job], Pace]


def trace_csv(
    history: History,
    interval_s: float,
    fleet: Fleet | None = None,
    *,
    pace_of: PaceOf = lambda job: ALIKE,
    profiles: Profiles | None = None,
    events: EventsOf | None = None,
) -> str:
    """Jobs that ran and ended, as gpuloom's own CSV (docs/reference/traces.md).

    Args:
        fleet: all GPUs that there are. pace_of: how fast a job is on each GPU model. profiles: the library, out of
            which the stage times come by which jobs were put together. events: of the store, which tell who was
            together, and when jobs were frozen.

    Raises:
        InputError: no job in that span has run and ended.
    """
    stream = io.BytesIO()
    workload = trace_of(history, interval_s, fleet, pace_of=pace_of, events=events, keys=profiles or ())
    if profiles is not None and workload.model is not None:
        workload = with_profiles(workload, profiles)
    write_csv(replace(workload, cluster="" if fleet is None else str(fleet.cluster)), stream)
    return stream.getvalue().decode()


def trace_of(
    history: History,
    interval_s: float,
    fleet: Fleet | None = None,
    *,
    pace_of: PaceOf = lambda job: ALIKE,
    events: EventsOf | None = None,
    keys: Container[str] = (),
) -> Workload:
    """The same as a workload.

    duration_s: the work that a job did, alone on its GPUs, under whatever policy: also that of attempts that failed.
    On GPUs of several models it is that time on the model of speed 1, and speeds say how fast the others are. Of an
    elastic job it is that time at the size that it asks for, and scaling says how fast it is at its others.
    restart_overhead_s: what each start cost it besides (starting up, saving, work that a preemption made it do twice).
    Duration and as many overheads as it had starts are together the time for which it held GPUs. Of jobs that shared
    GPUs the duration is what the policy's model of sharing says, and the overhead is the median of the others.
    ran: what happened, for comparison: also on which GPUs, and together with whom.
    submit_s: when it was submitted, or the last job that it waited for ended. Time 0 is a multiple of the scheduling
    interval, so that a replay decides at the same moments.
    keys: of scripts of which there are profiles: they are the model of jobs that name none.
    """
    # Runs of before a requeue are another life of the job.
    every = [(job, tuple(a for a in attempts if a.started_s >= job.submitted_s)) for job, attempts in history]
    rows = [(job, attempts) for job, attempts in every if job.phase in ENDED and attempts and job.held_s > 0]
    if not rows:
        raise InputError("no job ran and ended in that time: there is nothing to replay")
    shared = _shared([attempt for _, attempts in rows for attempt in attempts])
    work, overhead = [], []
    paces = [pace_of(job) for job, _ in rows]
    for (job, attempts), pace in zip(rows, paces, strict=True):
        done, cost = _work_and_overhead(attempts, pace)
        work.append(done)
        overhead.append(math.nan if job.id in shared else cost)
    known = [value for value in overhead if value == value]
    usual = median(known) if known else 0.0
    step = interval_s if interval_s > 0 else HOUR_S
    ends = {job.id: job.ended_s for job, _ in every if job.ended_s is not None}
    submitted = [ready_s(job, ends) for job, _ in rows]
    origin = math.floor(min(submitted) / step) * step
    specs = [job.spec for job, _ in rows]
    types = [wanted_types(spec) for spec in specs]
    memory = [spec.gpu_memory for spec in specs]
    classes = [spec.sharing_class for spec in specs]
    kernels = [named_profile(s.kernel_profile, s.model, s.workdir) if s.sharing_class else "" for s in specs]
    models = [profile_key(spec.model, spec.command, keys) for spec in specs]
    return Workload.sorted_by_submit(
        "history",
        np.array(submitted) - origin,
        np.array(work),
        np.array([job.gpus for job, _ in rows], dtype=np.int32),
        job_ids=tuple(str(job.id) for job, _ in rows),
        user=Labels.of([job.user for job, _ in rows]),
        model=Labels.of(models) if any(models) else None,
        gpu_type=Labels.of(types) if any(types) else None,
        restart_overhead_s=np.array([usual if value != value else value for value in overhead]),
        gpu_memory_mib=np.array([np.nan if mib is None else float(mib) for mib in memory]) if any(memory) else None,
        share_class=Labels.of(classes) if any(classes) else None,
        kernel_profile=Labels.of(kernels) if any(kernels) else None,
        priority=np.array([job.priority < 0 for job, _ in rows], dtype=np.int32),
        ran=Ran(
            np.array([attempts[0].started_s for _, attempts in rows]) - origin,
            np.array([ends[job.id] for job, _ in rows]) - origin,
            np.array([sum(_held_s(attempt, job) for attempt in attempts) for job, attempts in rows]),
            np.array([len(attempts) for _, attempts in rows], dtype=np.int32),
            runs_of(rows, origin, fleet, events),
        ),
        speeds=speeds_of(paces),
        scaling=scaling_of([(job.gpus, job.spec.replicas) for job, _ in rows], paces),
    )


def ready_s(job: Job, ends: Mapping[int, float]) -> float:
    """When a job could first start: a job that waits for another cannot before that one's end. ends: of jobs that have
    ended."""
    first = job.first_start_s if job.first_start_s is not None else math.inf
    waited = [ends[other] for other, _ in job.after if other in ends and ends[other] <= first]
    return max([job.submitted_s, *waited])


def _work_and_overhead(attempts: Sequence[Attempt], pace: Pace) -> tuple[float, float]:
    """Work in all; and seconds that a start cost besides, on average.

    An attempt that failed would have failed under any policy, and what it did is as good as work; only what went with
    a start that a policy may have caused or spared is overhead.
    """
    work, lost, starts, before = 0.0, 0.0, 0, 0.0
    for attempt in attempts:
        # Less than before: the job was requeued and began anew.
        gained = attempt.work_s - before if attempt.work_s >= before else attempt.work_s
        before = attempt.work_s
        gained = min(max(gained, 0.0), attempt.held_s)
        if gained == 0.0 and attempt.reason not in MAKES_WAY:
            work += attempt.held_s * _speed(attempt, pace)
            continue
        work += gained * _speed(attempt, pace)
        lost += attempt.held_s - gained
        starts += 1
    if work == 0.0:  # all that it ever did was lost to preemptions
        longest = max(attempts, key=lambda attempt: attempt.held_s)
        work, lost = longest.held_s * _speed(longest, pace), lost - longest.held_s
    return work, lost / max(starts, 1)


def _held_s(attempt: Attempt, job: Job) -> float:
    """For how long it held GPUs; of an elastic job, as many as it asks for: so that GPU-seconds are right."""
    return attempt.held_s * gpus_in(attempt.allocation) / job.gpus if job.spec.elastic else attempt.held_s


def _speed(attempt: Attempt, pace: Pace) -> float:
    """Work per second of an attempt. Of jobs that are not elastic nothing is known at other sizes, nor needed."""
    return pace.of(attempt.gpu_model, gpus_in(attempt.allocation))


def _shared(attempts: Sequence[Attempt]) -> set[int]:
    """Jobs that had a GPU together with another one for a while: how long they held it does not measure their work."""
    by_slot: dict[tuple[str, int], list[Attempt]] = {}
    for attempt in attempts:
        if attempt.ended_s is not None and attempt.held_s < attempt.ended_s - attempt.started_s - 0.1:
            continue  # frozen for a while: others had its GPUs meanwhile, not together with it
        for slot in slots_of(attempt.allocation):
            by_slot.setdefault(slot, []).append(attempt)
    found: set[int] = set()
    for held in by_slot.values():
        held.sort(key=lambda attempt: attempt.started_s)
        until, owner = 0.0, -1
        for attempt in held:
            # Held to the end of saving: a moment of overlap is the change from one to the next.
            if attempt.started_s < until - 0.001 and attempt.job != owner:
                found.update((attempt.job, owner))
            end = attempt.ended_s if attempt.ended_s is not None else attempt.started_s
            if end > until:
                until, owner = end, attempt.job
    return found
