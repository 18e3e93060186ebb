"""Reads records from a store's tables, by an open connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, NodeRecord, Phase
from gpuloom.core.spec import Spec
from gpuloom.store import queries, rows
from gpuloom.store.usage import STRETCH_EVENTS, Stretch, UsageRun, held

MALFORMED = (ValueError, TypeError, LookupError)
"""Errors raised when rows are malformed."""

LOST_SPEC = Spec(("(lost)",), name="(lost)")


def jobs(reader: sqlite3.Connection, statement: queries.Statement, *, lenient: bool = False) -> list[Job]:
    """lenient: of a damaged store, what can be read; a spec that can't is an empty one."""
    found = reader.execute(*statement).fetchall()
    wanted = sorted({rows.spec_id_of(row) for row in found})
    asked = reader.execute(queries.statements()["specs"], (rows.dumps(wanted),)) if wanted else ()
    if not lenient:
        specs = {number: rows.spec_from(spec) for number, spec in asked}
        return [rows.job_of(row, specs) for row in found]
    specs = dict.fromkeys(wanted, LOST_SPEC)
    for number, spec in asked:
        with suppress(*MALFORMED):
            specs[number] = rows.spec_from(spec)
    made = []
    for row in found:
        with suppress(*MALFORMED):
            made.append(rows.job_of(row, specs))
    return made


def attempts(reader: sqlite3.Connection, jobs: Sequence[int]) -> list[Attempt]:
    return [rows.attempt_of(row) for row in reader.execute(*queries.attempts(jobs))]


def events(
    reader: sqlite3.Connection, after: int, job: int | None, types: Sequence[str], limit: int, newest: bool = False
) -> list[Event]:
    return [rows.event_of(row) for row in reader.execute(*queries.events(after, job, types, limit, newest))]


def last_event(reader: sqlite3.Connection) -> tuple[int, float]:
    """Its number and time; (0, 0.0) before the first."""
    number, at_s = reader.execute(queries.statements()["last_event"]).fetchone() or (0, 0.0)
    return int(number), float(at_s)


def nodes(reader: sqlite3.Connection) -> list[NodeRecord]:
    return [rows.node_from(row) for row in reader.execute(queries.statements()["nodes"])]


def settings(reader: sqlite3.Connection) -> dict[str, Any]:
    return {key: rows.loads(value) for key, value in reader.execute(queries.statements()["settings"])}


def next_job(reader: sqlite3.Connection) -> int:
    return int(rows.loads(dict(reader.execute(queries.statements()["meta"]).fetchall())["next_job"]))


def runs(reader: sqlite3.Connection, since_s: float, until_s: float) -> Iterator[UsageRun]:
    told: dict[int, Mapping[int, Sequence[Stretch]]] = {}
    for user, name, phase, ended_s, *row in reader.execute(*queries.runs_in(since_s, until_s)).fetchall():
        attempt = rows.attempt_of(row)
        stretches = held(attempt, told, lambda job: events(reader, 0, job, STRETCH_EVENTS, queries.LARGEST))
        failed_s = ended_s if phase == Phase.FAILED else None
        yield UsageRun(rows.untext(user), rows.untext(name), failed_s, attempt, stretches)
