"""Replays the event log and compares the resulting records with the stored ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gpuloom.core.book import Book
from gpuloom.core.errors import InvalidTransition
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, NodeRecord
from gpuloom.core.spec import Spec
from gpuloom.store.port import Finding

MOST = 20
"""Findings of one kind that are named one by one."""


@dataclass(slots=True)
class Records:
    """Everything that a log leads to. events: how many there are."""

    specs: dict[int, Spec] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    attempts: dict[tuple[int, int], Attempt] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    next_job: int = 1
    events: int = 0


class Findings:
    """Collects what is wrong; of each kind the first few, and then how many more."""

    def __init__(self) -> None:
        self._found: list[Finding] = []
        self._counts: dict[str, int] = {}

    def add(self, what: str, detail: str) -> None:
        count = self._counts[what] = self._counts.get(what, 0) + 1
        if count <= MOST:
            self._found.append(Finding(what, detail))

    def all(self) -> tuple[Finding, ...]:
        more = [Finding(what, f"… and {n - MOST:,} more") for what, n in self._counts.items() if n > MOST]
        return (*self._found, *more)


def replay(events: Iterable[Event], findings: Findings, *, whole: bool = True) -> Records | None:
    """The records that follow from a log; None if it can't be replayed to its end (which is then a finding).

    whole: these are all events there are, without gaps.
    """
    book, told = Book(), Records()
    last_s = float("-inf")
    for event in events:
        told.events += 1
        if whole and event.id != told.events:
            findings.add("log", f"event {told.events} is missing: event {event.id} follows instead")
            return None
        if event.at_s < last_s:
            findings.add("log", f"event {event.id} is at {event.at_s:.3f}, before the previous one ({last_s:.3f})")
        last_s = event.at_s
        try:
            changes = book.stage((event,))
        except (InvalidTransition, LookupError, ValueError, TypeError, AttributeError) as error:
            findings.add("log", f"event {event.id} ({event.type}) can't be replayed: {type(error).__name__}: {error}")
            return None
        book.commit(changes)
        told.specs.update(changes.specs)
        told.attempts.update(changes.attempts)
    told.jobs, told.nodes, told.settings, told.next_job = book.jobs, book.nodes, book.settings, book.next_job
    return told


def compare(told: Records, kept: Records, findings: Findings) -> None:
    """Compare the stored records with those that follow from the log."""
    _compare("spec", told.specs, kept.specs, findings)
    _compare("job", told.jobs, kept.jobs, findings)
    _compare(
        "attempt",
        {f"{job}.{number}": record for (job, number), record in told.attempts.items()},
        {f"{job}.{number}": record for (job, number), record in kept.attempts.items()},
        findings,
    )
    _compare("node", told.nodes, kept.nodes, findings)
    _compare("setting", told.settings, kept.settings, findings)
    if told.next_job != kept.next_job:
        findings.add("setting", f"the next job's number is {kept.next_job}, but by the log it is {told.next_job}")


def _compare(kind: str, told: Mapping[Any, Any], kept: Mapping[Any, Any], findings: Findings) -> None:
    for key, record in told.items():
        if key not in kept:
            findings.add(kind, f"{kind} {key} is in the log and not in the table")
        elif record != kept[key]:
            findings.add(kind, f"{kind} {key}: {_difference(record, kept[key])}")
    for key in kept:
        if key not in told:
            findings.add(kind, f"{kind} {key} is in the table and not in the log")


def _difference(told: Any, kept: Any) -> str:
    if not isinstance(told, Job | Attempt | NodeRecord):
        return f"the table says {_short(kept)}, the log {_short(told)}"
    return ", ".join(
        f"{each.name} is {_short(getattr(kept, each.name))} in the table, {_short(getattr(told, each.name))} by the log"
        for each in fields(told)
        if getattr(told, each.name) != getattr(kept, each.name)
    )


def _short(value: object) -> str:
    text = repr(str(value)) if isinstance(value, str) else repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
