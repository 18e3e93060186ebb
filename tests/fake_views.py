"""What the scheduler of tests shows: jobs, nodes, why a job waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from gpuloom.core.decision import Reason
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, WAITING, Attempt, EndReason, Job, NodeRecord, Phase
from gpuloom.core.units import format_duration
from gpuloom.core.usage import RunUsage
from gpuloom.live.forecasts.estimates import Estimate, Source
from gpuloom.live.forecasts.left import left_of
from gpuloom.live.views import jobs as views
from gpuloom.live.views.models import JobView, WhyView
from gpuloom.store.port import JobQuery


def job_view(job: Job, runs: Sequence[Attempt], progress: Mapping[str, Any], now: float) -> JobView:
    """What the live scheduler shows of a job with these attempts."""
    attempt = next((run for run in runs if run.phase is not None), None)
    running = attempt is not None and attempt.phase is not Phase.FROZEN
    rates = {"cpu_cores": 1.0, "memory_mib": 512.0} if running else {}
    return views.job_view(
        job,
        attempt=attempt,
        preemptions=sum(run.reason is EndReason.PREEMPTED for run in runs),
        reason=Reason(job.phase.value, f"It is {job.phase}.") if job.phase in WAITING else None,
        usage=RunUsage(attempt.run, progress=progress, **rates) if attempt is not None else None,
        left=None
        if job.phase in ENDED
        else left_of(Estimate(job.estimate_s, Source.GIVEN), 0.0 if attempt is None else now - attempt.started_s),
        now_s=now,
    )


def why_view(job: Job, jobs: Iterable[Job], now: float, *, forecast: bool) -> WhyView:
    """As if every job took ten minutes."""
    waiting = sorted(
        (other for other in jobs if other.phase is Phase.QUEUED),
        key=lambda other: (-other.priority, other.id),
    )
    if job not in waiting:
        return {
            **_nothing_expected(job),
            "state": job.phase.value,
            "code": job.phase.value,
            "text": f"It is {job.phase}.",
            "numbers": {},
            "position": None,
            "waiting": len(waiting),
            "assumptions": [],
            "sentences": [f"Job {job.id} is {job.phase}."],
        }
    position = waiting.index(job) + 1
    start = now + 600.0 * position if forecast else None
    sentences = [f"Job {job.id} waits for {job.gpus} GPUs; it is number {position} of {len(waiting)}."]
    if start is not None:
        sentences.append(f"It will start in about {format_duration(600.0 * position)}.")
    end = None if start is None else start + job.estimate_s
    return {
        **_nothing_expected(job),
        "state": "queued",
        "code": "gpus",
        "text": f"It needs {job.gpus} GPUs.",
        "numbers": {"gpus": float(job.gpus)},
        "position": position,
        "waiting": len(waiting),
        "start_s_low": start,
        "start_s_median": start,
        "start_s_high": start,
        "end_s_low": end,
        "end_s_median": end,
        "end_s_high": end,
        "rests_on": {} if start is None else {"given": position - 1},
        "assumptions": ["every job runs for as long as its estimate says"] if forecast else [],
        "sentences": sentences,
    }


def _nothing_expected(job: Job) -> WhyView:
    return {
        "job": job.id,
        "start_s": job.first_start_s,
        "start_s_low": None,
        "start_s_median": None,
        "start_s_high": None,
        "end_s": job.ended_s,
        "end_s_low": None,
        "end_s_median": None,
        "end_s_high": None,
        "source": "given",
        "n": 0,
        "overrun_s": 0.0,
        "rests_on": {},
        "unknown": [],
        "lacks": [],
    }


def node_views(nodes: Iterable[NodeRecord], attempts: Iterable[Attempt]) -> list[dict[str, Any]]:
    """Nodes and who uses them."""
    holders: dict[tuple[str, int], list[int]] = {}
    for attempt in attempts:
        for name, gpus in attempt.allocation:
            for gpu in gpus:
                holders.setdefault((name, gpu), []).append(attempt.job)
    return [
        {
            "name": node.name,
            "state": node.state,
            "reason": node.reason,
            "kind": node.kind,
            "cpus": node.cpus,
            "memory_mib": node.memory_mib,
            "cpu_percent": 12.5,
            "memory_used_mib": 2048,
            "disk_free_mib": 100_000,
            "load": 0.5,
            "gpus": [
                {
                    "index": gpu.index,
                    "uuid": gpu.uuid,
                    "model": gpu.model,
                    "memory_mib": gpu.memory_mib,
                    "state": gpu.state,
                    "reason": gpu.reason,
                    "utilization": 0.0,
                    "memory_used_mib": 0,
                    "temperature_c": 30.0,
                    "power_w": 60.0,
                    "jobs": holders.get((node.name, gpu.index), []),
                    "foreign": [],
                }
                for gpu in node.gpus
            ],
            "topology": [list(link) for link in node.topology],
        }
        for node in nodes
    ]


def submits(event: Event, job: int) -> bool:
    data = event.data
    return event.type == "jobs.submitted" and data["first"] <= job < data["first"] + data["count"]


def matches(job: Job, query: JobQuery) -> bool:
    def like(pattern: str) -> bool:
        parts = (re.escape(c) if c not in "*?" else {"*": ".*", "?": "."}[c] for c in pattern)
        found = re.compile("".join(parts), re.DOTALL)
        names = {job.name, job.spec.name} if job.array_id is not None else {job.name}
        return any(found.fullmatch(name) for name in names)

    return (
        (not query.phases or job.phase in query.phases)
        and (not query.users or job.user in query.users)
        and (not query.names or any(like(name) for name in query.names))
        and (not query.ids or job.id in query.ids)
        and (query.array_id is None or job.array_id == query.array_id)
        and (query.submitted_from_s is None or job.submitted_s >= query.submitted_from_s)
        and (query.submitted_until_s is None or job.submitted_s < query.submitted_until_s)
        and (query.before is None or job.id < query.before)
        and (query.after is None or job.id > query.after)
    )


def node_data(node: NodeRecord) -> dict[str, Any]:
    data = asdict(node)
    data.pop("cause")
    return data
