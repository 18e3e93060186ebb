"""What the API returns and the command line prints: plain JSON objects, one shape each, described here once."""

from __future__ import annotations

from typing import Any, TypedDict


class JobView(TypedDict, total=False):
    """A job for people and programs. Times are epoch seconds; None where there is none yet."""

    id: int
    name: str
    user: str
    state: str
    """held, queued, starting, running, stopping, frozen, finished, failed or cancelled."""
    reason: str | None
    """Why it ended, or why its last attempt did (core/job.py, EndReason)."""
    message: str
    exit_code: int | None
    gpus: int
    gpu_types: list[str]
    priority: int
    command: list[str]
    submitted_s: float
    started_s: float | None
    """Its first start."""
    ended_s: float | None
    waited_s: float
    """Seconds in which it held no GPUs, so far."""
    run_s: float
    """Seconds in which it held GPUs, so far."""
    jct_s: float | None
    """Submission to end."""
    attempts: int
    preemptions: int
    retries_left: int
    array_id: int | None
    array_index: int | None
    after: list[list[Any]]
    time_limit_s: float | None
    estimate_s: float
    estimate_from: str
    predicted_end_s: float | None
    where: str
    """Node and GPUs of the present attempt ('host:0,1'), or ''."""
    waiting: dict[str, Any] | None
    """Of one that waits: {code, text, numbers}."""
    progress: dict[str, Any]
    """What the job reported last ({step, steps, fraction, …})."""
    usage: dict[str, float | None]
    flags: dict[str, str]


class WhyView(TypedDict, total=False):
    """Why a job waits, and when it will start."""

    job: int
    state: str
    code: str
    text: str
    numbers: dict[str, float]
    position: int | None
    """1: next to start, in the order in which the forecast starts jobs."""
    waiting: int
    start_s: float | None
    """Forecast of its start, epoch seconds; None if not within the forecast."""
    end_s: float | None
    assumptions: list[str]
    sentences: list[str]
    """The whole answer, for people."""
