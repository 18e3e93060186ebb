"""GPU time by user, job name or day, in a span of time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuloom.core.book import allocation_of
from gpuloom.core.errors import InputError
from gpuloom.core.events import Event
from gpuloom.core.job import Allocation, Attempt, Phase, gpus_in
from gpuloom.store.port import Usage

BY = ("user", "name", "day", "node")
STRETCH_EVENTS = ("attempt.starting", "attempt.frozen", "attempt.thawed", "attempt.stopping", "attempt.ended")
"""Types of events by which a run gets GPUs or gives them back."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Time in which a run stood still, right after a stretch. until_s: None if it still does. mib: GPU memory that went
    to its node's memory; 0 if none did."""

    from_s: float
    until_s: float | None
    mib: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """Time in which a run held the same GPUs. until_s: None if it still does. rest: it stood still afterwards."""

    from_s: float
    until_s: float | None
    allocation: Allocation
    rest: Rest | None = None


@dataclass(frozen=True, slots=True)
class UsageRun:
    """An attempt, whose it is (the spec's name: tasks of an array share it), when its job failed for good if it did,
    and the stretches of time in which it held GPUs."""

    user: str
    name: str
    failed_s: float | None
    attempt: Attempt
    stretches: Sequence[Stretch]


def was_frozen(attempt: Attempt) -> bool:
    """Whether it gave its GPUs back for a while: only then does its record not say when it held them."""
    if attempt.phase is Phase.FROZEN or attempt.since_s != attempt.started_s:
        return True
    return attempt.ended_s is not None and attempt.held_s != max(attempt.ended_s - attempt.started_s, 0.0)


def stretches(events: Iterable[Event]) -> Mapping[int, Sequence[Stretch]]:
    """By attempt, from a job's events of the types above, in order."""
    found: dict[int, list[Stretch]] = {}
    number = 0
    since: float | None = None
    allocation: Allocation = ()
    for event in events:
        if (mine := found.get(number)) and (rest := mine[-1].rest) is not None and rest.until_s is None:
            over_s = max(float(event.data.get("ended_s") or event.at_s), rest.from_s)
            mine[-1] = replace(mine[-1], rest=replace(rest, until_s=over_s))
        if event.type == "attempt.starting":
            number, allocation = int(event.data["attempt"]), allocation_of(event.data["allocation"])
            found[number], since = [], event.at_s
        elif event.type == "attempt.thawed":
            allocation, since = allocation_of(event.data["allocation"]), event.at_s
        elif event.type == "attempt.stopping":
            since = event.at_s if since is None else since  # one that was frozen goes on, to end
        elif since is not None:  # frozen or ended
            until_s = max(float(event.data.get("ended_s") or event.at_s), since)
            mib = float(event.data.get("suspended_mib") or 0.0)
            rest = Rest(until_s, None, mib) if event.type == "attempt.frozen" else None
            found[number].append(Stretch(since, until_s, allocation, rest))
            since = None
    if since is not None:
        found[number].append(Stretch(since, None, allocation))
    return found


def held(
    attempt: Attempt, told: dict[int, Mapping[int, Sequence[Stretch]]], events: Callable[[int], Iterable[Event]]
) -> Sequence[Stretch]:
    """When an attempt held GPUs. told: what is known already, by job. events: a job's, of STRETCH_EVENTS."""
    if not was_frozen(attempt):
        end_s = None if attempt.ended_s is None else max(attempt.ended_s, attempt.started_s)
        return (Stretch(attempt.started_s, end_s, attempt.allocation),)
    if attempt.job not in told:
        told[attempt.job] = stretches(events(attempt.job))
    return told[attempt.job][attempt.number]


@dataclass(slots=True)
class _Sum:
    jobs: set[int] = field(default_factory=set)
    attempts: set[tuple[int, int]] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    held_s: float = 0.0
    gpu_s_on: dict[str, float] = field(default_factory=dict)
    suspensions: int = 0
    suspended_s: float = 0.0
    suspended_mib: float = 0.0


def tally(runs: Iterable[UsageRun], *, since_s: float, until_s: float, by: str) -> Sequence[Usage]:
    """Sums by key: days (UTC) in order, others by GPU-seconds, most first.

    A job counts as failed where it ended as failed in the span (of days: on that day).
    """
    sums: dict[str, _Sum] = {}
    for run in runs:
        for from_s, to_s, allocation in _parts(run, since_s, until_s):
            for key, a, b, gpus in _pieces(run, from_s, to_s, allocation, by):
                total = sums.setdefault(key, _Sum())
                total.jobs.add(run.attempt.job)
                total.attempts.add((run.attempt.job, run.attempt.number))
                total.held_s += b - a
                model = run.attempt.gpu_model
                total.gpu_s_on[model] = total.gpu_s_on.get(model, 0.0) + (b - a) * gpus
                failed = run.failed_s
                if failed is not None and since_s <= failed < until_s and (by != "day" or day_of(failed) == key):
                    total.failed.add(run.attempt.job)
        for rest, allocation in [(one.rest, one.allocation) for one in run.stretches if one.rest is not None]:
            end_s = until_s if rest.until_s is None else min(rest.until_s, until_s)
            for key, a, b, _ in (
                _pieces(run, max(rest.from_s, since_s), end_s, allocation, by) if since_s < end_s else ()
            ):
                if a < b:
                    total = sums.setdefault(key, _Sum())
                    total.jobs.add(run.attempt.job)
                    total.attempts.add((run.attempt.job, run.attempt.number))
                    total.suspended_s += b - a
                    if a == rest.from_s:
                        total.suspensions += 1
                        total.suspended_mib += rest.mib
    found = [
        Usage(
            key,
            len(total.jobs),
            len(total.attempts),
            total.held_s,
            sum(total.gpu_s_on.values()),
            len(total.failed),
            total.gpu_s_on,
            total.suspensions,
            total.suspended_s,
            total.suspended_mib,
        )
        for key, total in sums.items()
    ]
    return sorted(found, key=lambda usage: usage.key if by == "day" else (-usage.gpu_s, usage.key))


def checked_by(by: str) -> None:
    """Raises: InputError: usage can't be summed by that."""
    if by not in BY:
        raise InputError(f"usage by {by!r}: must be one of {', '.join(BY)}")


def _parts(run: UsageRun, since_s: float, until_s: float) -> Iterator[tuple[float, float, Allocation]]:
    """What of a run lies in the span. A run that took no time counts where it began."""
    if run.attempt.ended_s is not None and run.attempt.ended_s < since_s:
        return
    for stretch in run.stretches:
        end = until_s if stretch.until_s is None else min(stretch.until_s, until_s)
        start = max(stretch.from_s, since_s)
        if start < end or (start == end == stretch.from_s and start < until_s):
            yield start, end, stretch.allocation


def _pieces(
    run: UsageRun, from_s: float, to_s: float, allocation: Allocation, by: str
) -> Iterator[tuple[str, float, float, int]]:
    """(key, from, to, GPUs)."""
    if by == "node":
        for node, gpus in allocation:
            yield node, from_s, to_s, len(gpus)
    elif by == "day":
        while True:
            tomorrow = _midnight(from_s) + timedelta(days=1)
            cut = min(tomorrow.timestamp(), to_s)
            yield day_of(from_s), from_s, cut, gpus_in(allocation)
            if cut >= to_s:
                return
            from_s = cut
    else:
        yield (run.user if by == "user" else run.name), from_s, to_s, gpus_in(allocation)


def day_of(at_s: float) -> str:
    """The day (UTC), such as '2026-03-01'."""
    return _midnight(at_s).date().isoformat()


def _midnight(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
