"""How good are the forecasts? The event log is replayed: at past submissions a forecast is made with what was known
then, and compared with what happened.

Nothing extra needs to be stored for this. What the log does not hold is missing: progress reports of jobs, and the
policy's memory, which starts empty at each submission examined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuloom.core.book import Book
from gpuloom.core.errors import GpuloomError
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, EndReason, Job
from gpuloom.live.forecasts.forecast import NOTHING, SAME_S, Queue, Span, outlook
from gpuloom.live.forecasts.preview import gate_of, preview
from gpuloom.live.planning.claims import Claims
from gpuloom.live.planning.estimates import Estimates, Source
from gpuloom.live.planning.followed import Followed
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.work import WorkDone
from gpuloom.store.port import Store

SAMPLE = 200
"""Submissions that are looked at, if there are more."""
PAGE = 5000
AT_ONCE_S = 2.0
"""A job that starts within this time of its submission counts as not waiting."""
WORST_FIRST = (
    Source.UNKNOWN,
    Source.TIME_LIMIT,
    Source.EARLIER_RUNS,
    Source.ARRAY,
    Source.PROGRESS,
    Source.GIVEN,
)


@dataclass(slots=True)
class Case:
    """A job at its submission: what was expected, and what came.

    start_by, end_by: the least that the forecast rests on. started_s, ended_s: None if that was not seen (it was
    cancelled or changed by its user, or has not ended well yet).
    """

    job: int
    at_s: float
    start_by: Source | None
    end_by: Source
    start: Span = NOTHING
    end: Span = NOTHING
    started_s: float | None = None
    ended_s: float | None = None


@dataclass(frozen=True, slots=True)
class Errors:
    """Forecasts of a kind (start or end) beside what happened, by what they rest on.

    cases: how many; unknown: of those, without a number. error_s: quantiles 0.1, 0.5 and 0.9 of the actual time less
    the forecast; off_s: of its size. off: median of its size as a part of what was waited for. ranges, within, width_s:
    of those with a range how many there are, which part fell into it, and how wide the middle one is.
    """

    what: str
    source: str
    cases: int
    unknown: int
    error_s: tuple[float, float, float] | None
    off_s: tuple[float, float, float] | None
    off: float | None
    ranges: int
    within: float | None
    width_s: float | None


@dataclass(slots=True)
class Checked:
    """All of it. submissions: in that span; failed: forecasts that failed; ended_early: it was interrupted."""

    submissions: int = 0
    cases: list[Case] = field(default_factory=list)
    failed: int = 0
    ended_early: bool = False

    def errors(self) -> list[Errors]:
        """By kind and source; starts of jobs that did not wait apart."""
        starts: dict[str, list[tuple[Span, float, float]]] = {}
        ends: dict[str, list[tuple[Span, float, float]]] = {}
        for case in self.cases:
            if case.started_s is not None:
                waited = case.started_s - case.at_s
                expected_s = math.inf if case.start.high is None else case.start.high - case.at_s
                kind = "nothing" if case.start_by is None else case.start_by.value
                if max(waited, expected_s) <= AT_ONCE_S:
                    kind = "did not wait"
                starts.setdefault(kind, []).append((case.start, case.started_s, waited))
            if case.ended_s is not None:
                ends.setdefault(case.end_by.value, []).append((case.end, case.ended_s, case.ended_s - case.at_s))
        order = ["did not wait", "nothing", *[source.value for source in reversed(WORST_FIRST)]]
        return [
            _errors(what, kind, found[kind])
            for what, found in (("start", starts), ("end", ends))
            for kind in sorted(found, key=order.index)
        ]


def _errors(what: str, source: str, found: Sequence[tuple[Span, float, float]]) -> Errors:
    error = [at - span.median for span, at, _ in found if span.median is not None]
    off = [abs(at - span.median) / max(waited, 1.0) for span, at, waited in found if span.median is not None]
    ranges = [
        (span.low, span.high, at)
        for span, at, _ in found
        if span.low is not None and span.high is not None and span.high - span.low > SAME_S
    ]
    inside = [low - SAME_S <= at <= high + SAME_S for low, high, at in ranges]
    return Errors(
        what,
        source,
        len(found),
        len(found) - len(error),
        _quantiles(error),
        _quantiles([abs(value) for value in error]),
        _middle(off),
        len(ranges),
        sum(inside) / len(inside) if inside else None,
        _middle([high - low for low, high, _ in ranges]),
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    low, middle, high = (ordered[min(int(share * len(ordered)), len(ordered) - 1)] for share in (0.1, 0.5, 0.9))
    return low, middle, high


def _middle(values: Sequence[float]) -> float | None:
    found = _quantiles(values)
    return None if found is None else found[1]


class Past:
    """A scheduler's world at a moment, rebuilt from its log up to then."""

    def __init__(self, policy: str, interval_s: float) -> None:
        self.full, self.now_s = Book(), 0.0
        self._open = Book()
        """Jobs that have not ended alone: a forecast need not look at the others."""
        self._work, self._estimates = WorkDone(), Estimates(lambda user, name, limit: ())
        self._speeds = ModelSpeeds(lambda user, name, limit: (), self._estimates)
        self._claims = Claims()
        self._followed = Followed(self._work, self._claims, self._estimates, self._speeds)
        self._ended_gpu_s: list[float] = []
        self._set(policy, interval_s)

    def _set(self, policy: str, interval_s: float) -> None:
        self.planning = Planning(
            self._open,
            self._work,
            self._estimates,
            self._speeds,
            lambda: self._ended_gpu_s[-1000:],
            policy=policy,
            interval_s=interval_s,
            overhead_s=1.0,
            stored=True,
            claims=self._claims,
        )

    def take(self, event: Event) -> None:
        """This happened next."""
        self.now_s = event.at_s
        changes = self.full.stage([event])
        self.full.commit(changes)
        opened = self._open
        for number, job in changes.jobs.items():
            if job.phase in ENDED:
                opened.jobs.pop(number, None)
            else:
                opened.jobs[number] = job
        opened.attempts, opened.nodes = self.full.attempts, self.full.nodes
        self._work.at(event.at_s)
        for attempt in changes.attempts.values():
            if self._followed.take(event, attempt, self.full.jobs[attempt.job]):
                self._ended_gpu_s.append(self.full.jobs[attempt.job].held_gpu_s)
        if event.type == "policy.set":
            self._set(str(event.data["policy"]), float(event.data["interval_s"]))

    def expected(self, number: int) -> Case | None:
        """What is expected of a job that has just been submitted; None if it can't be said as no GPU is in service."""
        job = self.full.jobs[number]
        found = preview(self.planning, job.priority, self.now_s, asked_now=True)
        if found is None:
            return None
        told = outlook(Queue(found), gate_of(found, job), number)
        by = min(told.rests_on, key=WORST_FIRST.index) if told.rests_on else None
        if told.start.median is None and told.unknown:
            by = Source.UNKNOWN if told.start.high is None else Source.TIME_LIMIT
        end_by = told.own.source if by is None else min(told.own.source, by, key=WORST_FIRST.index)
        return Case(number, self.now_s, by, end_by, told.start, told.end)


def events_of(store: Store) -> Iterator[Event]:
    """The log from its beginning."""
    after = 0
    while page := store.events(after=after, limit=PAGE):
        yield from page
        after = page[-1].id


def check(
    events: Callable[[], Iterable[Event]],
    *,
    policy: str,
    interval_s: float,
    since_s: float = -math.inf,
    sample: int = SAMPLE,
    on_progress: Callable[[int, int], None] | None = None,
) -> Checked:
    """Compare forecasts with what happened. An interrupt (Ctrl-C) ends early with what there is.

    Args:
        events: the log; it is read twice. policy, interval_s: if the log names none. since_s: of submissions from
            then on. sample: at most so many of them, evenly.
    """
    chosen, found, named = _chosen(events(), since_s, sample)
    if named is not None:  # what is older came with the first look at an engine that is watched
        policy, interval_s = str(named.data["policy"]), float(named.data["interval_s"])
    past, watched = Past(policy, interval_s), dict[int, Case]()
    done = 0
    try:
        for event in events():
            past.take(event)
            number = event.job
            if number in watched:
                _happened(watched[number], event, past.full.jobs[number], watched)
            if event.id in chosen:
                done += 1
                first, count = int(event.data["first"]), int(event.data["count"])
                number = first + event.id % count  # of an array any
                try:
                    case = past.expected(number)
                except GpuloomError:
                    found.failed += 1
                    case = None
                if case is not None:
                    watched[number] = case
                    found.cases.append(case)
                if on_progress is not None:
                    on_progress(done, len(chosen))
    except KeyboardInterrupt:
        found.ended_early = True
    return found


def _chosen(events: Iterable[Event], since_s: float, sample: int) -> tuple[set[int], Checked, Event | None]:
    """Numbers of the events of the submissions that are looked at; the first event that names a policy."""
    submitted, named = list[int](), None
    for event in events:
        if event.type == "policy.set" and named is None:
            named = event
        elif event.type == "jobs.submitted" and event.at_s >= since_s and not event.data.get("held"):
            submitted.append(event.id)
    step = max(len(submitted) / max(sample, 1), 1.0)
    chosen = {submitted[int(place * step)] for place in range(min(sample, len(submitted)))}
    return chosen, Checked(submissions=len(submitted)), named


def _happened(case: Case, event: Event, job: Job, watched: dict[int, Case]) -> None:
    """Something has happened to a job of which something was expected."""
    if event.type == "attempt.starting" and case.started_s is None:
        case.started_s = event.at_s
    elif event.type in ("job.updated", "job.held", "job.requeued", "job.cancelled"):
        del watched[case.job]  # its user has changed what was asked for
    elif event.type == "attempt.ended" and job.phase in ENDED:
        if job.reason is EndReason.FINISHED:
            case.ended_s = job.ended_s
        del watched[case.job]


def as_json(found: Checked) -> Mapping[str, Any]:
    """The same as plain objects."""
    return {
        "submissions": found.submissions,
        "checked": len(found.cases),
        "failed": found.failed,
        "interrupted": found.ended_early,
        "errors": [
            {
                "what": one.what,
                "source": one.source,
                "cases": one.cases,
                "unknown": one.unknown,
                "error_s": _named(one.error_s),
                "abs_error_s": _named(one.off_s),
                "relative_error": one.off,
                "ranges": one.ranges,
                "within": one.within,
                "width_s": one.width_s,
            }
            for one in found.errors()
        ],
    }


def _named(quantiles: tuple[float, float, float] | None) -> Mapping[str, float] | None:
    return None if quantiles is None else dict(zip(("p10", "p50", "p90"), quantiles, strict=True))
