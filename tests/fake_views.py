"""What the scheduler of tests shows: jobs, nodes, why a job waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from gpuloom.agent.sample import GpuSample, NodeRates, Sample
from gpuloom.core.decision import Reason
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, WAITING, Attempt, EndReason, Job, NodeRecord, Phase
from gpuloom.core.usage import RunUsage
from gpuloom.live.forecasts.forecast import Outlook, Span
from gpuloom.live.forecasts.left import left_of
from gpuloom.live.planning.estimates import Estimate, Source
from gpuloom.live.submission.spec import job_spec
from gpuloom.live.views import jobs as views
from gpuloom.live.views import why
from gpuloom.live.views.job_answers import JobView, WhyView
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


def record(**changes: Any) -> Job:
    """A job that waits for one GPU, but for these fields."""
    spec = job_spec({"command": ["./a"]}).named().kept()
    plain = Job(1, "a", "ada", 1, 0, Phase.QUEUED, 1, spec, submitted_s=0.0, queued_s=0.0)
    return replace(plain, **changes)


def attempt(**changes: Any) -> Attempt:
    """The first run of that job, but for these fields."""
    return replace(Attempt(1, 1, Phase.RUNNING, (("node0", (0,)),), started_s=0.0, since_s=0.0), **changes)


def why_view(job: Job, jobs: Iterable[Job], now: float, *, forecast: bool) -> WhyView:
    """As if every job took ten minutes."""
    waiting = sorted(
        (other for other in jobs if other.phase is Phase.QUEUED),
        key=lambda other: (-other.priority, other.id),
    )
    left = left_of(Estimate(job.estimate_s, Source.GIVEN), 0.0)
    if job not in waiting:
        return why.why_view(why.Known(job, None, now, left))
    position = waiting.index(job) + 1
    reason = Reason("gpus", f"It needs {job.gpus} GPUs.", {"gpus": job.gpus})
    known = why.Known(job, reason, now, left)
    if not forecast:
        return why.why_view(known)
    start, end = now + 600.0 * position, now + 600.0 * position + job.estimate_s
    found = Outlook(
        left,
        start=Span(start, start, start),
        end=Span(end, end, end),
        position=position,
        rests_on={Source.GIVEN: position - 1},
    )
    among = why.Among(len(waiting), assumptions=["every job runs for as long as its estimate says"])
    return why.why_view(known, found, among)


def sample(node: NodeRecord, now: float) -> Sample:
    """A look at an idle machine."""
    rates = NodeRates(12.5, 2048, 65_536, 0.5, 100_000, None, None)
    gpus = [GpuSample(gpu.index, gpu.uuid, 0.0, 0, 30.0, 60.0) for gpu in node.gpus]
    return Sample(now, rates, tuple(gpus))


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
