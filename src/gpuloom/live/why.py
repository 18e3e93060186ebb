"""Why a job waits, and when it will start: the policy's reason, and the simulator run forward from now."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass

from gpuloom.core.decision import Reason
from gpuloom.core.errors import GpuloomError
from gpuloom.core.job import ENDED, Job, Phase
from gpuloom.core.units import format_duration
from gpuloom.live.preview import Preview, preview
from gpuloom.live.reasons import why
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.views import WhyView
from gpuloom.sim.forward import Forecast, forward

log = logging.getLogger("gpuloom.scheduler")

MOST_EVENTS = 200_000
"""Events of a forecast after which it is given up."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the scheduler's thread hands out, all of one moment."""

    job: Job
    reason: Reason | None
    preview: Preview | None
    now_s: float
    left_s: float | None
    source: str
    since_s: float | None


def why_view(scheduler: Scheduler, job: Job, *, forecast: bool) -> WhyView:
    """The answer to `gpuloom why`. The forecast is made in the caller's thread, on copies."""

    def facts() -> _Facts:
        now = scheduler.clock.now()
        current = scheduler.book.jobs.get(job.id, job)
        attempt = scheduler.book.attempts.get(job.id)
        reason = why(scheduler.planning, [job.id], now).get(job.id)
        active = current.phase not in ENDED
        found = preview(scheduler.planning, current, now) if active and forecast else None
        left = scheduler.left_s(current) if attempt is not None else None
        source = scheduler.planning.estimate(current)[1]
        return _Facts(current, reason, found, now, left, source, None if attempt is None else attempt.since_s)

    known = scheduler.do(facts)
    if known.reason is None:
        return _of_one_that_does_not_wait(known)
    return _of_one_that_waits(known, scheduler.planning.overhead_s)


def _of_one_that_does_not_wait(known: _Facts) -> WhyView:
    job, now = known.job, known.now_s
    view = _view(job, "does_not_wait", "")
    if job.phase in ENDED:
        ago = format_duration(max(now - (job.ended_s or now), 0.0))
        text = f"Job {job.id} does not wait: it has {_ended(job)}, {ago} ago."
        if job.message:
            text += f" {job.message[0].upper()}{job.message[1:]}."
        view["end_s"] = job.ended_s
    elif job.phase is Phase.STOPPING:
        text = f"Job {job.id} does not wait: it was told to end, and saves its work or ends now."
    else:
        since = format_duration(max(now - (known.since_s or now), 0.0))
        text = f"Job {job.id} does not wait: it is {job.phase} and has held its GPUs for {since}."
        if known.left_s is not None:
            view["start_s"], view["end_s"] = job.first_start_s, now + known.left_s
            text += (
                f" It is expected to end in about {format_duration(known.left_s)}"
                f" ({_clock(now + known.left_s, now)}), by {_source(known.source)}."
            )
    view["text"] = text
    view["sentences"] = [text]
    return view


def _ended(job: Job) -> str:
    how = "" if job.reason is None or job.reason.value == job.phase.value else f" ({job.reason.replace('_', ' ')})"
    return {"finished": "finished", "failed": "failed", "cancelled": "been cancelled"}[job.phase.value] + how


def _of_one_that_waits(known: _Facts, overhead_s: float) -> WhyView:
    job, reason, preview, now = known.job, known.reason, known.preview, known.now_s
    assert reason is not None  # noqa: S101 - asked for those that have one
    view = _view(job, reason.code, reason.text)
    view["numbers"] = {key: float(value) for key, value in reason.numbers.items()}
    state = "is frozen and waits" if job.phase is Phase.FROZEN else "waits"
    sentences = [f"Job {job.id} ({job.name}, {_gpus(job.gpus)}) {state}. {reason.text}"]
    if preview is None:
        view["sentences"] = sentences
        return view
    view["waiting"] = preview.waiting
    start, end, position, note = _forecast(preview, job)
    view["start_s"], view["end_s"], view["position"] = start, end, position
    if position is not None:
        ahead = "next to start" if position == 1 else f"number {position} in the order in which jobs will start"
        sentences.append(f"It is {ahead}; {_wait(preview.waiting)} of its priority or a higher one.")
    if start is not None:
        text = f"It is expected to start in about {format_duration(start - now)} ({_clock(start, now)})"
        if end is not None:
            text += f" and to end {format_duration(end - start)} later ({_clock(end, now)})"
        sentences.append(text + ".")
    else:
        sentences.append(note)
    if start is not None:
        view["assumptions"] = _assumptions(preview, overhead_s)
    view["sentences"] = sentences
    return view


def _forecast(preview: Preview, job: Job) -> tuple[float | None, float | None, int | None, str]:
    """(start, end, position, why there is none). The job comes when it may, if it may not yet."""
    row = preview.row_of.get(job.id)
    if row is None or preview.never:
        return None, None, None, preview.never or "When it will start can't be said, as it is not in the queue."
    future: dict[int, float] = {}
    if preview.waits_for:
        ends = _run(preview, None, {}, until="end", jobs=preview.waits_for)
        if isinstance(ends, str):
            return None, None, None, ends
        at = max(float(ends.end_s[other]) for other in preview.waits_for)
        if not math.isfinite(at):
            return (
                None,
                None,
                None,
                "When it will start can't be said: those it waits for don't end in the forecast.",
            )
        future = {row: max(at, preview.now_s)}
    elif preview.comes_s is not None:
        future = {row: max(preview.comes_s, preview.now_s)}
    found = _run(preview, row, future, until="start", jobs=[row])
    if isinstance(found, str):
        return None, None, None, found
    start = float(found.start_s[row])
    if not math.isfinite(start):
        return (
            None,
            None,
            None,
            (
                "When it will start can't be said: it does not within the next "
                f"{format_duration(found.until_s - preview.now_s)} of the forecast, or as long as what runs now runs."
            ),
        )
    position = found.order.index(row) + 1 + preview.ahead if row in found.order else None
    finished = _run(preview, row, future, until="end", jobs=[row])
    end = math.inf if isinstance(finished, str) else float(finished.end_s[row])
    return start, end if math.isfinite(end) else None, position, ""


def _run(preview: Preview, row: int | None, future: dict[int, float], *, until: str, jobs: list[int]) -> Forecast | str:
    try:
        return forward(
            preview.state,
            preview.policy,
            preview.memory,
            progress=preview.progress,
            now_s=preview.now_s,
            interval_s=preview.interval_s,
            wake_at_s=preview.wake_at_s,
            future=future,
            fixed=preview.fixed,
            jobs=jobs,
            until="end" if until == "end" else "start",
            most_events=MOST_EVENTS,
        )
    except Exception as error:  # of the policy, which may be anybody's: it must not cost the rest of the answer
        if not isinstance(error, GpuloomError):
            log.exception("a forecast failed")
        return f"When it will start can't be said: the forecast failed ({error})."


def _assumptions(preview: Preview, overhead_s: float) -> list[str]:
    found = [
        f"running times are as estimated; its own is {format_duration(preview.own[0])} ({_source(preview.own[1])})",
        "until then nobody submits, cancels or changes a job, and no machine fails",
        f"policy {preview.written} goes on"
        + (f", stopping jobs at multiples of {format_duration(preview.interval_s)}" if preview.gated else ""),
        f"each start costs {format_duration(overhead_s)}",
    ]
    if preview.lower:
        found.append(f"jobs of lower priority that wait ({preview.lower:,}) are left out")
    if preview.guessed:
        found.append(f"of {preview.guessed} other jobs that run or wait nothing is known: their estimate is a guess")
    return found


def _view(job: Job, code: str, text: str) -> WhyView:
    return WhyView(
        job=job.id,
        state=job.phase.value,
        code=code,
        text=text,
        numbers={},
        position=None,
        waiting=0,
        start_s=None,
        end_s=None,
        assumptions=[],
        sentences=[],
    )


def _source(source: str) -> str:
    return {"given": "its user's estimate", "time limit": "its time limit"}.get(source, source)


def _clock(at_s: float, now_s: float) -> str:
    day = "%Y-%m-%d %H:%M" if at_s - now_s > 12 * 3600 else "%H:%M:%S"
    return time.strftime(day, time.localtime(at_s))


def _gpus(count: int) -> str:
    return f"{count} GPU" + ("s" if count != 1 else "")


def _wait(count: int) -> str:
    return f"{count:,} job waits" if count == 1 else f"{count:,} jobs wait"
