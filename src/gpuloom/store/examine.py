"""Whether a store is sound: all of it (`check`), or what a start can wait for (`examine`).

A small store is examined as it is checked: the file, and every record against the whole log. Of a large one the file is
checked for a bounded time, and the records by which a job could be lost are rebuilt from the log: those of jobs that
have not ended, by the table or by the log. The rest is left to `check`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpuloom.core.events import Event
from gpuloom.store import queries, read, rows
from gpuloom.store.port import CheckReport, Examined, JobQuery
from gpuloom.store.read import MALFORMED
from gpuloom.store.replay import Findings, Records, compare, replay

ALL_EVENTS = 20_000
"""Up to this many events the whole log is replayed: about a second."""
REPLAYED_JOBS = 10_000
"""Of a larger log, at most this many jobs are replayed: those that were submitted first."""
FILE_S = 2.0
"""How long the file's pages and indexes may be checked: about a gigabyte."""
_STEPS = 20_000
"""Steps of SQLite's virtual machine between two checks of the clock."""


def check(reader: sqlite3.Connection, version: int) -> CheckReport:
    """Verify the file, replay the log and compare with the records."""
    findings, told, kept = Findings(), None, Records()

    def whole() -> None:
        nonlocal told, kept
        _verify(reader, findings)
        told = replay(_log(reader), findings)
        kept = _records(reader, findings)
        if told is not None:
            compare(told, kept, findings)

    _as_finding(whole, findings)
    events = kept.events if told is None else told.events
    return CheckReport(events, len(kept.jobs), len(kept.attempts), version, findings.all())


def examine(reader: sqlite3.Connection, version: int) -> Examined:
    """See the module."""
    (events,) = reader.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()
    if events <= ALL_EVENTS:
        return Examined(check(reader, version), complete=True)
    findings = Findings()

    def parts() -> None:
        end = time.monotonic() + FILE_S
        reader.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
        try:
            _verify(reader, findings)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
        finally:
            reader.set_progress_handler(None, 0)
        _check_jobs(reader, findings)

    _as_finding(parts, findings)
    jobs, attempts = (reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("jobs", "attempts"))  # noqa: S608
    return Examined(CheckReport(events, jobs, attempts, version, findings.all()), complete=False)


def _as_finding(work: Callable[[], None], findings: Findings) -> None:
    """What can't be read on is a finding; that the disk or another process is in the way is none."""
    try:
        work()
    except (sqlite3.DatabaseError, *MALFORMED) as error:
        # Operational: the disk, or another process. But JSON that is none comes as the same, with no code of its own.
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        findings.add("file", f"can't be read further: {type(error).__name__}: {error}")


def _verify(reader: sqlite3.Connection, findings: Findings) -> None:
    for (said,) in reader.execute("PRAGMA integrity_check(20)"):
        if said != "ok":
            findings.add("file", said)
    for table, row, parent, _ in reader.execute("PRAGMA foreign_key_check"):
        findings.add("reference", f"row {row} of {table} refers to a missing row of {parent}")


# -- the whole log ---------------------------------------------------------------------------------------------


def _log(reader: sqlite3.Connection) -> Iterator[Event]:
    last = 0
    while page := read.events(reader, last, None, (), 10_000):
        yield from page
        last = page[-1].id


def _records(reader: sqlite3.Connection, findings: Findings) -> Records:
    said = queries.statements()
    specs = dict(_each(reader, (said["all_specs"], ()), lambda row: (row[0], rows.spec_from(row[1])), findings))
    all_jobs = queries.jobs(JobQuery(oldest_first=True, limit=queries.LARGEST))
    all_runs = queries.attempts(None)
    kept = Records(
        specs=specs,
        jobs={job.id: job for job in _each(reader, all_jobs, lambda row: rows.job_of(row, specs), findings)},
        attempts={(run.job, run.number): run for run in _each(reader, all_runs, rows.attempt_of, findings)},
        nodes={node.name: node for node in _each(reader, (said["nodes"], ()), rows.node_from, findings)},
        settings=read.settings(reader),
        next_job=read.next_job(reader),
        events=reader.execute("SELECT count(*) FROM events").fetchone()[0],
    )
    for submission in _each(reader, (said["submissions"], ()), rows.submission_of, findings):
        if any(job not in kept.jobs for job in submission.jobs):
            findings.add("submission", f"submission {submission.key!r} names jobs that do not exist")
    return kept


def _each(
    reader: sqlite3.Connection, statement: tuple[str, Sequence[Any]], make: Callable[[Any], Any], findings: Findings
) -> Iterator[Any]:
    for row in reader.execute(*statement):
        try:
            yield make(row)
        except MALFORMED as error:
            findings.add("row", f"{row!r:.120} can't be read: {type(error).__name__}: {error}")


# -- what can cost a job -----------------------------------------------------------------------------------------


def _check_jobs(reader: sqlite3.Connection, findings: Findings) -> None:
    said = queries.statements()
    count, last = reader.execute(said["events_there"]).fetchone()
    if count != last:
        findings.add("log", f"{last - count:,} of {last:,} events are missing")
    for job, event in reader.execute(said["jobs_left_behind"]):
        findings.add("job", f"job {job} differs from what event {event}, the last about it, says")
    for job, phase, kind in reader.execute(said["jobs_not_as_caused"]):
        findings.add("job", f"job {job} is {phase} in the table, which {kind}, the last event about it, does not say")
    highest, there = reader.execute(said["highest_job"]).fetchone()
    (submitted,) = reader.execute(said["submitted_jobs"]).fetchone()
    if there != submitted:
        findings.add("job", f"{submitted:,} jobs were submitted, and there are {there:,}")
    if (next_job := read.next_job(reader)) <= highest:
        findings.add("setting", f"the next job's number is {next_job}, and there is a job {highest}")
    chosen = reader.execute(said["jobs_to_tell"], (REPLAYED_JOBS,)).fetchall()
    jobs = [number for number, _ in chosen]
    about = sorted({*jobs, *(array for _, array in chosen if array is not None)})
    told = replay(map(rows.event_of, reader.execute(*queries.events_about(about))), findings, whole=False)
    if told is None:
        return
    wanted = set(jobs)
    job_rows = queries.jobs(JobQuery(ids=tuple(jobs), limit=queries.LARGEST))
    kept_jobs = {job.id: job for job in read.jobs(reader, job_rows)}
    kept_runs = {(run.job, run.number): run for run in read.attempts(reader, jobs)}
    compare(
        Records(
            jobs={number: job for number, job in told.jobs.items() if number in wanted},
            attempts={key: run for key, run in told.attempts.items() if key[0] in wanted},
        ),
        Records(jobs=kept_jobs, attempts=kept_runs),
        findings,
    )
