"""Records as the plain JSON objects that the API returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from gpuloom.core.decision import Reason
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, ENDED, Allocation, Attempt, EndReason, Job, Phase, gpus_in
from gpuloom.executors.port import RunUsage
from gpuloom.live.views import JobView


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
    left_s: float | None,
    now_s: float,
) -> JobView:
    """A job for people and programs.

    Args:
        attempt: the open one. preemptions: attempts that ended by making way. left_s: predicted work left, if it runs.
    """
    holds = attempt is not None and attempt.phase is not Phase.FROZEN
    run_s = job.held_s + (max(now_s - attempt.since_s, 0.0) if attempt is not None and holds else 0.0)
    until = job.ended_s if job.ended_s is not None else now_s
    spec = job.spec
    return JobView(
        id=job.id,
        name=job.name,
        user=job.user,
        state=job.phase.value,
        reason=None if job.reason is None else job.reason.value,
        message=job.message,
        exit_code=job.exit_code,
        gpus=job.gpus,
        gpu_types=list(spec.get("gpu_types") or ()),
        priority=job.priority,
        command=list(spec["command"]),
        submitted_s=job.submitted_s,
        started_s=job.first_start_s,
        ended_s=job.ended_s,
        waited_s=max(until - job.submitted_s - run_s, 0.0),
        run_s=run_s,
        jct_s=None if job.ended_s is None else job.ended_s - job.submitted_s,
        attempts=job.attempts,
        preemptions=preemptions,
        retries_left=max(int(spec.get("retries", 0)) - job.failures, 0),
        array_id=job.array_id,
        array_index=job.array_index,
        after=[[other, how] for other, how in job.after],
        time_limit_s=spec.get("time_limit"),
        estimate_s=job.estimate_s,
        estimate_from=job.estimate_from,
        predicted_end_s=None if left_s is None or job.phase not in ACTIVE else now_s + left_s,
        where="" if attempt is None else where(attempt.allocation),
        waiting=None if reason is None or job.phase in ENDED else reason_view(reason),
        progress={} if usage is None else dict(usage.progress),
        usage={} if usage is None else usage_view(usage),
        flags=dict(job.flags),
    )


def reason_view(reason: Reason) -> dict[str, Any]:
    """{code, text, numbers}."""
    return {"code": reason.code, "text": reason.text, "numbers": dict(reason.numbers)}


def usage_view(usage: RunUsage) -> dict[str, float | None]:
    """Rates of a run by name."""
    return {key: value for key, value in asdict(usage).items() if key not in ("run", "progress")}


def attempt_view(attempt: Attempt) -> dict[str, Any]:
    """An attempt."""
    return {
        "number": attempt.number,
        "state": "ended" if attempt.phase is None else attempt.phase.value,
        "where": where(attempt.allocation),
        "gpus": gpus_in(attempt.allocation),
        "started_s": attempt.started_s,
        "running_s": attempt.running_s,
        "ended_s": attempt.ended_s,
        "held_s": attempt.held_s,
        "reason": None if attempt.reason is None else attempt.reason.value,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "saved": attempt.saved,
        "message": attempt.message,
        "pid": attempt.pid,
        "stop_reason": None if attempt.stop_reason is None else attempt.stop_reason.value,
        "deadline_s": attempt.deadline_s,
        "peak_memory_mib": attempt.peak_memory_mib,
    }


def event_view(event: Event) -> dict[str, Any]:
    """An event."""
    return {"id": event.id, "at_s": event.at_s, "type": event.type, "job": event.job, "data": dict(event.data)}


def preemptions_of(attempts: Mapping[int, list[Attempt]], job: int) -> int:
    """Attempts of a job that ended by making way."""
    return sum(a.reason in (EndReason.PREEMPTED, EndReason.NODE) for a in attempts.get(job, ()))
