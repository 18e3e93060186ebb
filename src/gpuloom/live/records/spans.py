"""On which GPUs past jobs ran, span by span, and together with whom, for a trace of the past (`history.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from gpuloom.core.events import Event
from gpuloom.core.job import Allocation, Attempt, Job
from gpuloom.core.ran import Run, Runs, Together
from gpuloom.live.records.fleet import Fleet

PAGE = 10_000
FROZEN = "frozen"
"""Why a span ended in which the job's processes stayed."""


class EventsOf(Protocol):
    """Events of a store (`store/port.py`)."""

    def __call__(
        self, *, after: int = 0, job: int | None = None, types: Sequence[str] = (), limit: int = 1000
    ) -> Sequence[Event]: ...


def runs_of(
    rows: Sequence[tuple[Job, tuple[Attempt, ...]]],
    origin: float,
    fleet: Fleet | None = None,
    events: EventsOf | None = None,
) -> Runs:
    """The runs of these jobs, and their times with others; seconds since `origin`.

    A node is called as in the fleet's cluster; a GPU that the fleet does not have keeps its names. events: None: nobody
    shared GPUs or was frozen.
    """
    frozen: dict[int, list[Event]] = {}
    groups: list[Event] = []
    costs: dict[tuple[int, int], Event] = {}
    types = ("attempt.frozen", "attempt.thawed", "group.changed", "job.resize_cost")
    for event in () if events is None else _all(events, types):
        if event.job is None:
            groups.append(event)
        elif event.type == "job.resize_cost":
            costs[event.job, event.data["attempt"]] = event
        else:
            frozen.setdefault(event.job, []).append(event)
    runs = []
    for job, attempts in rows:
        told = frozen.get(job.id, [])
        starts = [] if not told or events is None else list(_all(events, ("attempt.starting",), job.id))
        given = {int(event.data["attempt"]): _allocation(event) for event in starts}
        spans = [
            span
            for one in attempts
            for span in _with_cost(
                _spans(one, told, given.get(one.number), fleet), costs.get((job.id, one.number)), one.started_s
            )
        ]
        runs.append(tuple(span.moved(origin) for span in spans))
    together: dict[int, list[Together]] = {job.id: [] for job, _ in rows}
    # Of a job that was requeued, what was before is of another life.
    came_s = {job.id: job.submitted_s for job, _ in rows}
    last_s = {job.id: attempts[-1].ended_s or attempts[-1].started_s for job, attempts in rows}
    for members, one in _groups(groups, last_s):
        if one.until_s <= one.since_s:
            continue  # one left as the other came
        for number in members & came_s.keys():
            if one.since_s >= came_s[number]:
                together[number].append(one.moved(origin))
    names = () if fleet is None else tuple(node.name for node in fleet.cluster.nodes)
    return Runs(tuple(runs), tuple(tuple(together[job.id]) for job, _ in rows), names)


def _all(events: EventsOf, types: Sequence[str], job: int | None = None) -> Iterator[Event]:
    after = 0
    while page := events(after=after, job=job, types=types, limit=PAGE):
        yield from page
        after = page[-1].id


def _allocation(event: Event) -> Allocation:
    return tuple((str(node), tuple(map(int, gpus))) for node, gpus in event.data["allocation"])


def _spans(attempt: Attempt, told: Sequence[Event], first: Allocation | None, fleet: Fleet | None) -> Iterator[Run]:
    """The spans of an attempt. told: when its job was frozen and thawed. first: what it was given first."""
    end_s = attempt.ended_s if attempt.ended_s is not None else attempt.started_s
    where, since_s = attempt.allocation if first is None else first, attempt.started_s
    goes = True
    for event in told:
        if not attempt.started_s <= event.at_s <= end_s:
            continue
        if event.type == "attempt.frozen" and goes:
            yield Run(since_s, event.at_s, FROZEN, _parts(where, fleet))
            goes = False
        elif event.type == "attempt.thawed":
            where, since_s, goes = _allocation(event), event.at_s, True
    if goes:
        reason = "" if attempt.reason is None else attempt.reason.value
        yield Run(min(since_s, end_s), end_s, reason, _parts(where, fleet))


def _with_cost(spans: Iterable[Run], cost: Event | None, started_s: float) -> Iterator[Run]:
    """The spans of an attempt, the first of which begins with a resize if that is known to have cost something."""
    for span in spans:
        if cost is not None and span.start_s == started_s:
            yield span._replace(stood_s=cost.data["cost_s"], lost_steps=cost.data["lost_steps"])
        else:
            yield span


def _parts(allocation: Allocation, fleet: Fleet | None) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """By the names and numbers that the fleet's cluster has for them."""
    found: dict[str, list[int]] = {}
    for name, gpus in allocation:
        for gpu in gpus:
            at = None if fleet is None else fleet.at.get((name, gpu))
            node, number = (name, gpu) if fleet is None or at is None else (fleet.cluster.nodes[at[0]].name, at[1])
            found.setdefault(node, []).append(number)
    return tuple((node, tuple(sorted(numbers))) for node, numbers in found.items())


def _groups(events: Sequence[Event], last_s: dict[int, float]) -> Iterator[tuple[frozenset[int], Together]]:
    """Every group with its times. last_s: when jobs ended: a group whose end no event tells had ended by then."""
    now: dict[frozenset[int], Event] = {}

    def ended(members: frozenset[int], at_s: float) -> tuple[frozenset[int], Together]:
        begun = now.pop(members)
        order = begun.data.get("order")
        ids = tuple(map(str, begun.data["members"] if order is None else order))
        until_s = max(min([at_s, *(last_s[job] for job in members if job in last_s)]), begun.at_s)
        return members, Together(begun.at_s, until_s, ids, order is not None, begun.data.get("efficiency"))

    for event in events:
        for members in [one for one in now if not one.isdisjoint(event.data["was"])]:
            yield ended(members, event.at_s)
        if event.data["members"]:
            now[frozenset(map(int, event.data["members"]))] = event
    for members in list(now):
        if any(job in last_s for job in members):
            yield ended(members, now[members].at_s if not last_s else max(last_s.values()))
