"""The sizes of elastic jobs, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, Attempt, Job, Phase, gpus_in
from gpuloom.core.pace import ModelSpeed, Pace, SpeedSource
from gpuloom.core.replicas import resize_words
from gpuloom.core.spec import OnPreempt, Spec
from gpuloom.core.words import are, plural
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.reasons import free_gpus
from gpuloom.live.views.job_answers import ReplicasView, ResizeView, SizeView

RESIZES = ("job.resized", "job.resize_cost")
"""Events of which `resize_views` makes an answer."""


def resize_views(events: Iterable[Event]) -> list[ResizeView]:
    """The resizes of a job, in order, with what they cost."""
    found: dict[int, ResizeView] = {}
    for event in events:
        data = event.data
        if event.type == "job.resized":
            found[data["attempt"]] = {
                "at_s": event.at_s,
                "attempt": data["attempt"],
                "from_replicas": data["from_replicas"],
                "to_replicas": data["to_replicas"],
                "why": data["why"],
                "jobs": data["jobs"],
                "cost_s": None,
                "lost_steps": None,
                "cost_from": None,
            }
        elif event.type == "job.resize_cost" and (one := found.get(data["attempt"])) is not None:
            one["cost_s"], one["lost_steps"] = data["cost_s"], data["lost_steps"]
            one["cost_from"] = data["cost_from"]
    return list(found.values())


def replicas_view(job: Job, attempt: Attempt | None) -> ReplicasView | None:
    """The size of an elastic job. attempt: the open one."""
    replicas = job.spec.replicas
    if replicas is None:
        return None
    holds = attempt is not None and job.phase in ACTIVE
    return {
        "now": replicas.of(gpus_in(attempt.allocation)) if holds and attempt is not None else None,
        "least": replicas.least,
        "most": replicas.most,
        "gpus": replicas.gpus,
    }


def size_views(spec: Spec, pace: Pace) -> list[SizeView]:
    """How fast an elastic job is: at the sizes that were measured, the one that it asks for, the ends of its range, and
    doublings of the smallest."""
    replicas = spec.replicas
    if replicas is None:
        return []
    least = replicas.sizes[0]
    shown = {least << step for step in range(11)} | {least, spec.gpus, replicas.sizes[-1]}
    return [
        _size_view(replicas.of(gpus), gpus, speed)
        for gpus, speed in sorted(pace.sizes.items())
        if gpus in shown or speed.source is SpeedSource.MEASURED
    ]


def _size_view(replicas: int, gpus: int, speed: ModelSpeed) -> SizeView:
    return {
        "replicas": replicas,
        "gpus": gpus,
        "speed": speed.factor,
        "it_per_s": speed.it_per_s,
        "source": speed.source.value,
        "runs": speed.runs,
    }


def why_this_size(planning: Planning, job: Job, resized: tuple[str, Sequence[int]] | None) -> str:
    """A sentence on the size of an elastic job that runs, and why it is no larger; '' for any other.

    resized: why it has another size than before, and the other jobs that this was about; None: it has the first.
    """
    attempt, replicas = planning.book.attempts.get(job.id), job.spec.replicas
    if attempt is None or replicas is None or job.phase not in (Phase.STARTING, Phase.RUNNING):
        return ""
    now = replicas.of(gpus_in(attempt.allocation))
    text = f"It has {plural(now, 'replica')} of {replicas.least} to {replicas.most}"
    if resized is not None:
        text += f" ({resize_words(*resized)})"
    if now == replicas.most:
        return f"{text}."
    free = free_gpus(planning)
    if not planning.policy.resizes:
        return f"{text}: policy {planning.seat.serves} does not resize jobs."
    if job.spec.on_preempt is OnPreempt.NEVER:
        return f"{text}: it must not be stopped, so it keeps the size at which it started."
    if free < replicas.gpus:
        return f"{text}: {are(free, 'GPU')} free, and another replica needs {replicas.gpus}."
    return (
        f"{text}: {are(free, 'GPU')} free; policy {planning.seat.serves} keeps them for others, has not looked since, "
        "or finds that a resize does not pay."
    )
