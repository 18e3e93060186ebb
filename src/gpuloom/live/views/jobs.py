"""Records as the plain JSON objects that the API returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpuloom.core.decision import Reason
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, Allocation, Attempt, EndReason, Job, Member, Phase, SavedBy, gpus_in
from gpuloom.core.kept import Kept
from gpuloom.core.pace import ModelSpeed, Pace
from gpuloom.core.replicas import Replicas
from gpuloom.core.spec import Spec
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.port import RunUsage
from gpuloom.executors.recognise import launcher_for
from gpuloom.facts.gpus import price_usd_per_hour
from gpuloom.files.hook_records import Hooked
from gpuloom.live.forecasts.left import HIGH, LOW, MIDDLE, Left
from gpuloom.live.planning.estimates import Source
from gpuloom.live.planning.gpu_memory import Need
from gpuloom.live.views.cluster_answers import GroupView
from gpuloom.live.views.costs import attempt_cost_usd, job_cost_usd
from gpuloom.live.views.job_answers import (
    AttemptView,
    Dependency,
    EventView,
    JobView,
    KeptView,
    MakesWayView,
    MemberView,
    RatesView,
    ReasonView,
    SavedHow,
    ShowView,
    SourceOfEstimate,
    SpeedView,
    StateOfAttempt,
)
from gpuloom.live.views.measured import hooks_view
from gpuloom.live.views.sizes import replicas_view, resize_views, size_views
from gpuloom.live.views.suspensions import suspension_views

_SOURCES = frozenset(source.value for source in Source)
"""Records of older versions have other words."""
_KNOWN = _SOURCES - {Source.UNKNOWN.value, Source.TIME_LIMIT.value}


def ends_in(left: Left) -> tuple[float | None, float | None, float | None]:
    """Seconds to its end, if it runs: low, median, high, as far as they may be told."""
    most_s = left.most_s if left.most_s < math.inf else None
    if not left.known or left.late_s > 0.0:
        return None, None, most_s
    return left.at(LOW), left.at(MIDDLE), left.at(HIGH)


def where(allocation: Allocation) -> str:
    """'host:0,1', several machines separated by spaces."""
    return " ".join(f"{node}:{','.join(map(str, gpus))}" for node, gpus in allocation)


def job_view(
    job: Job,
    *,
    attempt: Attempt | None,
    preemptions: int,
    reason: Reason | None,
    usage: RunUsage | None,
    left: Left | None,
    starting_s: float = 0.0,
    now_s: float,
) -> JobView:
    """A job for people and programs.

    Args:
        attempt: the open one. preemptions: attempts that ended by making way. left: what is
            known of the work left, unless it has ended. starting_s: it goes on starting up for so long.
    """
    holds = attempt is not None and attempt.phase is not Phase.FROZEN
    run_s = job.held_s + (max(now_s - attempt.since_s, 0.0) if attempt is not None and holds else 0.0)
    until = job.ended_s if job.ended_s is not None else now_s
    spec = job.spec
    end = None
    if left is not None and attempt is not None and job.phase in (Phase.STARTING, Phase.RUNNING):
        end = ends_in(left)
    known = left.known if left is not None else job.estimate_from in _KNOWN
    total_s = job.estimate_s if left is None else left.known_s
    source = left.source.value if left is not None else job.estimate_from
    if source not in _SOURCES:
        source = Source.UNKNOWN.value
    return JobView(
        id=job.id,
        name=job.name,
        user=job.user,
        state=job.phase.value,
        reason=None if job.reason is None else job.reason.value,
        message=job.message,
        exit_code=job.exit_code,
        gpus=job.gpus,
        replicas=replicas_view(job, attempt),
        gpu_types=list(spec.gpu_types),
        priority=job.priority,
        command=list(spec.command),
        submitted_s=job.submitted_s,
        started_s=job.first_start_s,
        ended_s=job.ended_s,
        waited_s=max(until - job.submitted_s - run_s, 0.0),
        run_s=run_s,
        jct_s=None if job.ended_s is None else job.ended_s - job.submitted_s,
        attempts=job.attempts,
        preemptions=preemptions,
        retries_left=max(spec.retries - job.failures, 0),
        array_id=job.array_id,
        array_index=job.array_index,
        after=cast("list[Dependency]", list(job.after)),
        time_limit_s=spec.time_limit,
        estimate_s=total_s if known else None,
        estimate_from=cast("SourceOfEstimate", source),
        estimate_runs=0 if left is None else len(left.runs),
        predicted_end_s=None if end is None or end[1] is None else now_s + starting_s + end[1],
        predicted_end_s_low=None if end is None or end[0] is None else now_s + starting_s + end[0],
        predicted_end_s_high=None if end is None or end[2] is None else now_s + starting_s + end[2],
        overrun_s=0.0 if left is None or attempt is None else left.late_s,
        where="" if attempt is None else where(attempt.allocation),
        waiting=None if reason is None or job.phase in ENDED else reason_view(reason),
        progress={} if usage is None else dict(usage.progress),
        usage={} if usage is None else rates_view(usage),
        flags=dict(job.flags),
    )


def reason_view(reason: Reason) -> ReasonView:
    """Why it waits."""
    return {"code": reason.code, "text": reason.text, "numbers": dict(reason.numbers)}


def rates_view(usage: RunUsage) -> RatesView:
    """What a run uses."""
    return {
        "cpu_cores": usage.cpu_cores,
        "memory_mib": usage.memory_mib,
        "gpu_utilization": usage.gpu_utilization,
        "gpu_memory_mib": usage.gpu_memory_mib,
        "read_mib_per_s": usage.read_mib_per_s,
        "write_mib_per_s": usage.write_mib_per_s,
        "log_mib": usage.log_mib,
    }


def attempt_view(
    attempt: Attempt, now_s: float, replicas: Replicas | None = None, restarts: Iterable[Event] = ()
) -> AttemptView:
    """An attempt. replicas: sizes of its job, if that is elastic. restarts: events of members that were begun anew."""
    last = {one.data["member"]: one.data for one in restarts if one.data["attempt"] == attempt.number}
    return {
        "number": attempt.number,
        "state": "ended" if attempt.phase is None else cast("StateOfAttempt", attempt.phase.value),
        "where": where(attempt.allocation),
        "gpus": gpus_in(attempt.allocation),
        "replicas": None if replicas is None else replicas.of(gpus_in(attempt.allocation)),
        "started_s": attempt.started_s,
        "running_s": attempt.running_s,
        "ended_s": attempt.ended_s,
        "held_s": attempt.held_s,
        "cost_usd": attempt_cost_usd(attempt, now_s),
        "reason": None if attempt.reason is None else attempt.reason.value,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "saved": attempt.saved,
        "saved_by": None if attempt.saved_by is SavedBy.NOTHING else cast("SavedHow", attempt.saved_by.value),
        "kept": kept_view(attempt.kept),
        "message": attempt.message,
        "pid": attempt.pid,
        "stop_reason": None if attempt.stop_reason is None else attempt.stop_reason.value,
        "deadline_s": attempt.deadline_s,
        "peak_memory_mib": attempt.peak_memory_mib,
        "gpu_model": attempt.gpu_model or None,
        "it_per_s": attempt.it_per_s,
        "gpu_memory_mib": attempt.gpu_memory_mib,
        "members": [member_view(rank, member, last.get(rank)) for rank, member in enumerate(attempt.parts)],
    }


def kept_view(kept: Kept | None) -> KeptView | None:
    """A save."""
    if kept is None:
        return None
    return {"step": kept.step, "at_s": kept.at_s, "by": kept.keeper.value, "framework": kept.framework or None}


def speed_view(gpu_model: str, speed: ModelSpeed) -> SpeedView:
    """How fast a job is on a GPU model."""
    return {
        "gpu_model": gpu_model,
        "speed": speed.factor,
        "it_per_s": speed.it_per_s,
        "source": speed.source.value,
        "runs": speed.runs,
        "price_usd_per_hour": price_usd_per_hour(gpu_model),
    }


def member_view(rank: int, member: Member, restarted: Mapping[str, Any] | None = None) -> MemberView:
    """A member of an attempt. restarted: data of the last event that it was begun anew."""
    return {
        "rank": rank,
        "node": member.node,
        "gpus": list(member.gpus),
        "pid": member.pid,
        "reason": None if member.reason is None else member.reason.value,
        "exit_code": member.exit_code,
        "signal": member.signal,
        "message": member.message,
        "ended_s": member.ended_s,
        "restarts": 0 if restarted is None else restarted["times"],
        "restarted": "" if restarted is None else restarted["why"],
    }


def event_view(event: Event) -> EventView:
    """An event."""
    return {"id": event.id, "at_s": event.at_s, "type": event.type, "job": event.job, "data": dict(event.data)}


def show_view(
    view: JobView,
    spec: Spec,
    pace: Pace,
    attempts: Sequence[Attempt],
    events: Sequence[Event],
    log: str,
    group: GroupView | None = None,
    *,
    now_s: float,
    resizes: Iterable[Event] = (),
    suspensions: Iterable[Event] = (),
    restarts: Sequence[Event] = (),
    hooked: Hooked | None = None,
    need: Need | None = None,
    makes_way: MakesWayView | None = None,
) -> ShowView:
    """Everything about a job. pace: how fast it is on each GPU model. resizes, suspensions, restarts: its events of
    that. log: where its last log is; '' for none. group: of which it is a member. hooked: what hooks saw of its last
    run. need: its memory on one GPU; None: not known. makes_way: None: it does not run."""
    return {
        "job": view,
        "spec": {**spec.to_json(), "launcher": None} if spec.adopted else spec.to_json(),
        "launcher": None if (launcher := launcher_for(spec)) is None else launcher.value,
        "speeds": [speed_view(model, speed) for model, speed in pace.speeds.items()],
        "sizes": size_views(spec, pace),
        "gpu_memory": None if need is None else {"mib": need.mib, "source": need.source.value, "runs": need.runs},
        "cost_usd": job_cost_usd(attempts, now_s),
        "attempts": [attempt_view(attempt, now_s, spec.replicas, restarts) for attempt in attempts],
        "resizes": resize_views(resizes),
        "suspensions": suspension_views(suspensions),
        "makes_way": makes_way,
        "events": [event_view(event) for event in events],
        "log": log,
        "group": group,
        "hooks": None if hooked is None else hooks_view(hooked),
    }


def log_place(attempt: Attempt, here: Callable[[str], LocalFiles | None]) -> str:
    """Where the log of an attempt's master is: its path on this machine, or 'node:path' with the path in that node's
    home. here: the files of a node, if they are on this machine."""
    node = attempt.nodes[0] if attempt.nodes else ""
    files = here(node)
    path = (LocalFiles(Path("runs")) if files is None else files).log_path(attempt.run)
    return f"{node}:{path}" if files is None else str(path)


def preemptions_of(attempts: Mapping[int, list[Attempt]], job: int) -> int:
    """Attempts of a job that ended by making way."""
    return sum(a.reason in (EndReason.PREEMPTED, EndReason.NODE) for a in attempts.get(job, ()))
