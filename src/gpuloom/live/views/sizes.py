"""The sizes of elastic jobs, for people and programs."""

from __future__ import annotations

from collections.abc import Sequence

from gpuloom.core.job import ACTIVE, Attempt, Job, Phase, gpus_in
from gpuloom.core.pace import ModelSpeed, Pace, SpeedSource
from gpuloom.core.replicas import ResizeWhy
from gpuloom.core.spec import OnPreempt, Spec
from gpuloom.core.words import are, plural
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.reasons import free_gpus
from gpuloom.live.views.answers import ReplicasView, SizeView

WHY = {
    ResizeWhy.FREE_GPUS: "it grew on free GPUs",
    ResizeWhy.FROM_OTHERS: "it grew on GPUs that {jobs} gave up",
    ResizeWhy.MADE_ROOM: "it made room for {jobs}",
    ResizeWhy.POLICY: "the policy took GPUs from it",
    ResizeWhy.NODE: "it lost a node or a GPU",
    ResizeWhy.REPLICA: "a replica failed, and it went on with the rest",
    ResizeWhy.RESTARTED: "it started again after it had been stopped",
}


def resize_words(why: str, jobs: Sequence[int]) -> str:
    """Why a job has another size than before, in few words."""
    names = f"{'job' if len(jobs) == 1 else 'jobs'} {', '.join(map(str, jobs))}" if jobs else "other jobs"
    return WHY[ResizeWhy(why)].format(jobs=names)


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
