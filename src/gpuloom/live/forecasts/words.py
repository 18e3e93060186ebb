"""Forecasts in words."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpuloom.core.job import Job
from gpuloom.core.units import format_duration
from gpuloom.core.words import are, plural
from gpuloom.live.forecasts.forecast import SAME, SAME_S, Outlook, Span
from gpuloom.live.forecasts.left import HIGH, LOW, Left
from gpuloom.live.forecasts.preview import Preview
from gpuloom.live.planning.estimates import Source

FEW = 3
"""Most jobs that are named; of more, the first."""
HOWS = {
    Source.GIVEN: "its user's estimate",
    Source.PROGRESS: "its own report of progress",
    Source.TIME_LIMIT: "its time limit, an upper bound",
    Source.UNKNOWN: "nothing",
}
OF_OTHERS = {
    Source.GIVEN: "their users' estimates",
    Source.PROGRESS: "their own reports of progress",
    Source.ARRAY: "members of their arrays that have ended",
    Source.EARLIER_RUNS: "earlier runs of the same job",
    Source.TIME_LIMIT: "nothing but their time limits",
    Source.UNKNOWN: "a guess, as nothing is known about them",
}
HOW_TO_TELL = "none of its earlier runs has finished, and it has no --estimate"


def source(left: Left, job: Job) -> str:
    """What is known of a job's own running time, and whence."""
    count = len(left.runs)
    name = job.spec.name or job.name
    if left.source is Source.GIVEN and count:
        return f"its user's estimate, corrected by how {plural(count, 'earlier one')} turned out"
    if left.source is Source.ARRAY:
        return f"{plural(count, 'member')} of its array that finished" if count else "its array"
    if left.source is Source.EARLIER_RUNS:
        return f"{plural(count, 'earlier run')} of {name}" if count else f"earlier runs of {name}"
    return HOWS[left.source]


def nearly_same(low_s: float, high_s: float) -> bool:
    """Whether one duration says what two would."""
    return high_s - low_s <= max(SAME_S, 5 * SAME * high_s)


def span(low_s: float, high_s: float) -> str:
    """Two durations, or one if they are nearly the same, or the first is none."""
    if nearly_same(low_s, high_s):
        return f"about {format_duration(high_s)}"
    if low_s < SAME_S:
        return f"at most {format_duration(high_s)}"
    return f"{format_duration(low_s)} to {format_duration(high_s)}"


def clocks(low: float, high: float, now_s: float) -> str:
    """The same as times of day."""
    first, last = clock(low, now_s), clock(high, now_s)
    return first if nearly_same(low - now_s, high - now_s) else f"{first} to {last}"


def clock(at_s: float, now_s: float) -> str:
    """A time of day, with its date if it is far."""
    day = "%Y-%m-%d %H:%M" if at_s - now_s > 12 * 3600 else "%H:%M:%S"
    return time.strftime(day, time.localtime(at_s))


def end_of_one_that_runs(
    left: Left, job: Job, seconds: tuple[float | None, float | None, float | None], now: float
) -> str:
    """When a job that runs is expected to end."""
    low, median, high = seconds
    at_most = "" if high is None else f", but in {format_duration(high)} at the latest (its time limit)"
    if left.late_s > 0.0:
        late = format_duration(left.late_s)
        return f"It runs {late} longer than {source(left, job)} said, so when it ends can't be said{at_most}."
    if low is None or median is None or high is None:
        return f"When it ends is unknown: {HOW_TO_TELL}{at_most}."
    text = f"It is expected to end in {span(low, high)} ({clocks(now + low, now + high, now)})"
    return f"{text}, by {source(left, job)}."


def position(found: Outlook, waiting: int) -> str:
    """Where in the queue it is."""
    about = "about " if found.pace > 1.0 else ""
    ahead = (
        "next to start"
        if found.position == 1
        else f"{about}number {found.position:,} in the order in which jobs will start"
    )
    return f"It is {ahead}; {are(waiting, 'job', ('waits', 'wait'))} of its priority or a higher one."


def start(found: Outlook, names: Mapping[int, str], now: float) -> str:
    """When it starts."""
    low, median, high = found.start
    if found.cause:
        return f"The start can't be predicted: {found.cause}."
    if low is not None and high is not None:
        text = f"It is expected to start in {span(low - now, high - now)} ({clocks(low, high, now)})"
        if median is not None and not nearly_same(low - now, high - now):
            text += f", most likely in about {format_duration(median - now)}"
        return f"{text}{_unknown(found, names, 'the running time of {} is unknown, or only bounded')}."
    if median is not None:
        return f"It is expected to start in about {format_duration(median - now)} ({clock(median, now)}); " + (
            "there was no time to compute a range."
        )
    reason = _unknown(found, names, f"the running time of {{}} is unknown ({HOW_TO_TELL})")
    if low is not None and low - now > SAME_S:
        text = f"It will not start before {clock(low, now)} (in {format_duration(low - now)})"
        return f"{text}; when it will is unknown{reason}."
    return f"When it will start is unknown{reason}."


def _unknown(found: Outlook, names: Mapping[int, str], text: str) -> str:
    if not found.unknown:
        return ""
    shown = [f"job {number} ({names.get(number, '?')})" for number in found.unknown[:FEW]]
    more = len(found.unknown) - len(shown)
    who = " and ".join([", ".join(shown), f"{more:,} more"]) if more else ", ".join(shown)
    return ": " + text.format(who)


def own(found: Outlook, job: Job, now: float) -> str:
    """How long it then runs, and when it ends."""
    left = found.own
    if left.source is Source.UNKNOWN:
        return f"How long it then runs is unknown: {HOW_TO_TELL}."
    if left.source is Source.TIME_LIMIT:
        return f"It then runs for {format_duration(left.most_s)} at most (its time limit); {HOW_TO_TELL}."
    text = f"It then runs for {span(left.at(LOW), left.at(HIGH))} ({source(left, job)})"
    return text + _ends(found.end, now) + "."


def _ends(end: Span, now: float) -> str:
    if end.low is not None and end.high is not None:
        return f" and ends in {span(end.low - now, end.high - now)} ({clocks(end.low, end.high, now)})"
    if end.median is not None:
        return f" and ends in about {format_duration(end.median - now)} ({clock(end.median, now)})"
    if end.low is not None:
        return f" and does not end before {clock(end.low, now)}"
    return ""


def assumptions(found: Outlook, preview: Preview) -> list[str]:
    """What the forecast takes for granted."""
    planning = preview.planning
    parts = [
        "until then no job is submitted, cancelled or changed, and no machine fails",
        f"policy {planning.seat.written} stays in use"
        + (f", preempting jobs at multiples of {format_duration(planning.seat.interval_s)}" if preview.gated else ""),
        f"each start costs {format_duration(preview.overhead_s)}",
    ]
    if found.rests_on:
        known = [f"{count:,} by {OF_OTHERS[source]}" for source, count in sorted(found.rests_on.items())]
        parts.insert(0, f"running times of jobs that run or go before it: {', '.join(known)}")
    spans = [span for span in (found.start, found.end) if span.median is not None and span.low != span.high]
    if spans:
        parts.insert(0, "a range covers eight of ten cases, if all of this holds")
    if found.late:
        late = ", ".join(map(str, found.late[:FEW])) + ("…" if len(found.late) > FEW else "")
        parts.append(f"running longer than expected: {late}; each is assumed to run on about as long as it is late")
    if preview.lower:
        parts.append(f"waiting jobs of lower priority ({preview.lower:,}) are left out")
    if found.pace > 1.0:
        parts.append(f"one job in {found.pace:.0f} of the queue was simulated, and stands for the rest")
    return parts
