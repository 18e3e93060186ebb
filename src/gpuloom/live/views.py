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
    estimate_s: float | None
    """Its whole running time, as far as it is known; None: nothing is but a bound, or not even that."""
    estimate_from: str
    """given, progress, array, earlier_runs, time_limit or unknown (live/estimates.py, Source)."""
    estimate_runs: int
    """How many earlier runs that rests on."""
    predicted_end_s: float | None
    """Of one that runs; never in the past. None where it is not known, or it has outlived what was known."""
    predicted_end_s_low: float | None
    predicted_end_s_high: float | None
    """Between these it ends in eight of ten cases; the high alone is its time limit."""
    overrun_s: float
    """By how much it has outlived what was known of its running time."""
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
    """When it started; None: not yet."""
    start_s_low: float | None
    start_s_median: float | None
    start_s_high: float | None
    """Forecast of its start, epoch seconds: between low and high in eight of ten cases. None: unknown; a low alone: not
    before."""
    end_s: float | None
    """When it ended; None: not yet."""
    end_s_low: float | None
    end_s_median: float | None
    end_s_high: float | None
    source: str
    """What is known of its own running time, and whence (live/estimates.py, Source)."""
    n: int
    """How many earlier runs that rests on."""
    overrun_s: float
    """By how much it has outlived that."""
    rests_on: dict[str, int]
    """What is known of the running times of the jobs that run or go before it: how many by which source."""
    unknown: list[int]
    """Of those, jobs of which nothing is known and on which its start depends."""
    lacks: list[str]
    """What the policy would go by and is not told of here."""
    assumptions: list[str]
    sentences: list[str]
    """The whole answer, for people."""
