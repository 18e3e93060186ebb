"""The statements of `queries.sql` by name, and those that depend on what is asked for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

from gpuloom.store.port import JobQuery
from gpuloom.store.rows import ATTEMPT_COLUMNS, JOB_COLUMNS, columns, dumps, text

LARGEST = 2**63 - 1
"""The largest whole number that SQLite knows."""

Statement = tuple[str, list[Any]]


@cache
def statements() -> Mapping[str, str]:
    """SQL by name."""
    source = resources.files("gpuloom.store").joinpath("queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", source, flags=re.MULTILINE)[1:]
    return {name: sql.strip() for name, sql in zip(parts[::2], parts[1::2], strict=True)}


def bounded(number: int) -> int:
    """A number as SQLite can take it; beyond that nothing is found anyway."""
    return max(-LARGEST, min(number, LARGEST))


def _among(values: Sequence[Any]) -> str:
    return dumps([bounded(value) if isinstance(value, int) else value for value in values])


def pattern(name: str) -> str:
    """A name with * and ? as wildcards, for GLOB, to which [ means something else."""
    return name.replace("[", "[[]")


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


# The texts joined below are constants; what users give goes in as parameters.


def jobs(query: JobQuery) -> Statement:
    """The jobs that a query is about."""
    where, given = _where(query)
    order = "ASC" if query.oldest_first else "DESC"
    sql = f"SELECT {columns(JOB_COLUMNS)} FROM jobs{where} ORDER BY id {order} LIMIT ?"  # noqa: S608
    return sql, [*given, bounded(max(query.limit, 0))]


def _where(query: JobQuery) -> tuple[str, list[Any]]:
    terms: list[tuple[str, Any]] = []
    if query.phases:
        terms.append(("phase IN (SELECT value FROM json_each(?))", _among(query.phases)))
    if query.ids:
        terms.append(("id IN (SELECT value FROM json_each(?))", _among(query.ids)))
    if query.array_id is not None:
        terms.append(("array_id = ?", bounded(query.array_id)))
    if query.submitted_from_s is not None:
        terms.append(("submitted_s >= ?", query.submitted_from_s))
    if query.submitted_until_s is not None:
        terms.append(("submitted_s < ?", query.submitted_until_s))
    if query.before is not None:
        terms.append(("id < ?", bounded(query.before)))
    if query.after is not None:
        terms.append(("id > ?", bounded(query.after)))
    sql, given = [term for term, _ in terms], [value for _, value in terms]
    if query.users:
        sql.append(_any("user = ?", len(query.users)))
        given += [text(user) for user in query.users]
    if query.names:
        named = [_named(name) for name in query.names]
        sql.append(" OR ".join(f"({term})" for term, _ in named))
        given += [text(value) for _, values in named for value in values]
    return (" WHERE " + " AND ".join(f"({term})" for term in sql) if sql else ""), given


def _named(name: str) -> tuple[str, list[str]]:
    """Jobs of this name, and tasks of an array of this name."""
    if is_pattern(name):
        return "name GLOB ? OR (array_id IS NOT NULL AND spec_name GLOB ?)", [pattern(name)] * 2
    # Tasks are called name[index], and '\\' comes after '[': a span of the index on names, not all of the table.
    return "name = ? OR (name > ? AND name < ? AND array_id IS NOT NULL AND spec_name = ?)", [
        name,
        f"{name}[",
        f"{name}\\",
        name,
    ]


def _any(term: str, times: int) -> str:
    return " OR ".join([term] * times)


def jobs_to_load(going: Sequence[str], recent: int) -> Statement:
    """Jobs in phases that are no end, and the last `recent` that have ended."""
    listed = columns(JOB_COLUMNS)
    sql = (
        f"SELECT {listed} FROM jobs WHERE phase IN (SELECT value FROM json_each(?)) "  # noqa: S608
        f"UNION ALL SELECT * FROM (SELECT {listed} FROM jobs WHERE ended_s IS NOT NULL "
        "ORDER BY ended_s DESC, id DESC LIMIT ?) ORDER BY id"
    )
    return sql, [dumps(going), bounded(max(recent, 0))]


def attempts(jobs: Sequence[int] | None) -> Statement:
    """All attempts of these jobs (None: of all), in order."""
    where = "" if jobs is None else " WHERE job IN (SELECT value FROM json_each(?))"
    sql = f"SELECT {columns(ATTEMPT_COLUMNS)} FROM attempts{where} ORDER BY job, number"  # noqa: S608
    return sql, [] if jobs is None else [_among(jobs)]


def open_attempts() -> str:
    return f"SELECT {columns(ATTEMPT_COLUMNS)} FROM attempts WHERE ended_s IS NULL ORDER BY job"  # noqa: S608


def events(after: int, job: int | None, types: Sequence[str], limit: int, newest: bool) -> Statement:
    """Events with a higher number than `after`; the newest first where `newest`."""
    where = ["id > ?"]
    given: list[Any] = [bounded(after)]
    if job is not None:
        # An array is submitted by one event, which bears the number of its first job.
        of_array = "job = (SELECT array_id FROM jobs WHERE id = ?) AND type = 'jobs.submitted'"
        where.append(f"(job = ? OR ({of_array}))")
        given += [bounded(job)] * 2
    if types:
        where.append("type IN (SELECT value FROM json_each(?))")
        given.append(dumps(list(types)))
    sql = f"SELECT id, at_s, type, job, data FROM events WHERE {' AND '.join(where)} ORDER BY id"  # noqa: S608
    return f"{sql} {'DESC' if newest else 'ASC'} LIMIT ?", [*given, bounded(max(limit, 0))]


def events_about(jobs: Sequence[int]) -> Statement:
    """All events about these jobs, in order."""
    sql = "SELECT id, at_s, type, job, data FROM events WHERE job IN (SELECT value FROM json_each(?)) ORDER BY id"
    return sql, [_among(jobs)]


def runs_in(since_s: float, until_s: float) -> Statement:
    """Attempts that may have held GPUs in a span: user, spec's name, the job's phase and end, then the attempt."""
    chosen = (
        f"SELECT j.user, j.spec_name, j.phase, j.ended_s, {columns(ATTEMPT_COLUMNS, 'a')} FROM attempts a "  # noqa: S608
        "JOIN jobs j ON j.id = a.job WHERE a.started_s < ? AND a.ended_s"
    )
    # Two selections, as an OR would not use the index.
    sql = f"{chosen} IS NULL UNION ALL {chosen} >= ? ORDER BY job, number"
    return sql, [until_s, until_s, since_s]


def history_page(last: tuple[float, int], until_s: float, limit: int) -> Statement:
    """Jobs by (time of submission, number), after `last` and before a time."""
    chosen = f"SELECT {columns(JOB_COLUMNS)} FROM jobs WHERE submitted_s"  # noqa: S608
    # As one comparison of pairs it would go through a large array (one time, many jobs) anew for each page of it.
    sql = f"{chosen} = ? AND id > ? UNION ALL {chosen} > ? AND submitted_s < ? ORDER BY submitted_s, id LIMIT ?"
    return sql, [*last, last[0], until_s, limit]
