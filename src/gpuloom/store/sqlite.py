"""The store in one SQLite file: write-ahead log, one writer, any number of readers beside it."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from gpuloom.core.book import Changes, allocation_of
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, WAITING, Attempt, Job, Phase, gpus_in
from gpuloom.store import queries, read, rows
from gpuloom.store.backup import copy_database
from gpuloom.store.connect import open_reader, open_writer, version_of
from gpuloom.store.errors import StoreError
from gpuloom.store.examine import check, examine
from gpuloom.store.faults import RESTORE, store_error
from gpuloom.store.port import (
    CheckReport,
    Completed,
    EndedRun,
    Examined,
    JobQuery,
    Loaded,
    MeasuredRun,
    Runs,
    SampleRow,
    Submission,
    Usage,
)
from gpuloom.store.read import MALFORMED
from gpuloom.store.usage import checked_by, tally

POINTS = ("begin", "events", "specs", "jobs", "attempts", "nodes", "settings", "submissions", "commit", "committed")
"""Where `append` calls `_at`: before the transaction begins, after each table, before and after the commit."""
READERS_KEPT = 4
PAGE = 1000


class SqliteStore:
    """See store/port.py. Use in one process; `append` and `save_memory` may come from any one thread at a time.

    Not to be used in a child process that was forked from the one that opened it.
    """

    def __init__(self, path: Path | str, *, read_only: bool = False, lenient: bool = False) -> None:
        """Open the file; unless `read_only`, make it and bring its schema up to date if need be. lenient: of a damaged
        one, read what can be read.

        Raises:
            StoreError: it can't be opened, is damaged, is not a store, or a newer program's.
        """
        self.path, self.read_only = Path(os.path.abspath(path)), read_only
        self._lenient = lenient
        self._lock = threading.Lock()  # of the writer; readers never wait for it
        self._pool = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._last: int | None = None
        self._closed = False
        try:
            if not read_only:
                with self._lock, self._faults("open"):
                    self._open()
            with self._reading("open") as reader:
                self.schema_version = version_of(reader)
                meta = dict(reader.execute(queries.statements()["meta"]).fetchall())
            if missing := {"store_id", "created_s", "next_job"} - meta.keys():
                raise StoreError(f"{self.path}: {', '.join(sorted(missing))} of the store is missing; {RESTORE}")
            self.store_id: str = rows.loads(meta["store_id"])
            self.created_s: float = rows.loads(meta["created_s"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SqliteStore:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Any later call raises StoreError. May be called again."""
        with self._lock, self._pool:
            self._closed = True
            # The writer last: the last to leave folds the log into the file, which readers may not.
            for connection in (*self._idle, self._writer):
                if connection is not None:
                    connection.close()
            self._writer, self._idle = None, []

    # -- writing --------------------------------------------------------------------------------------------

    def _at(self, point: str) -> None:
        """Called at each of POINTS. Does nothing: tests of reliability override it, to end the process there, or to
        raise what SQLite raises there (sqlite3.Error or OSError, which become StoreError; others come out as they
        are). A fault at 'committed' is none of the caller's: what is committed counts as written."""

    def append(self, events: Sequence[Event], changes: Changes, submissions: Sequence[Submission] = ()) -> None:
        """Write events and the records they lead to, all or nothing; durable when this returns.

        Raises:
            StoreError: nothing was written; it may be tried again.
            TypeError, ValueError: an event or record holds what is no JSON; nothing was written.
        """
        batches = _batches(events, changes, submissions)
        if not any(values for _, _, values in batches):
            return
        with self._lock:
            with self._writing("write", events[-1].id if events else None) as writer:
                if events:
                    self._follow(writer, events)
                for point, sql, values in batches:
                    if values:
                        writer.executemany(sql, values)
                    self._at(point)
            if events:
                self._last = events[-1].id

    def save_memory(self, policy: str, memory: bytes) -> None:
        with self._lock, self._writing("write", None) as writer:
            writer.execute(queries.statements()["put_memory"], (rows.text(policy), memory))

    def forget_environments(self, ended_before_s: float) -> None:
        going = rows.dumps(sorted(WAITING | ACTIVE))
        with self._lock, self._writing("write", None) as writer:
            writer.execute(queries.statements()["forget_environments"], (going, ended_before_s))

    def put_samples(self, samples: Sequence[SampleRow], keep_from_s: Mapping[int, float]) -> None:
        said = queries.statements()
        written = [(row.width_s, row.from_s, row.span_s, rows.dumps(row.data)) for row in samples]
        with self._lock, self._writing("write", None) as writer:
            writer.executemany(said["put_sample"], written)
            writer.executemany(said["drop_samples"], list(keep_from_s.items()))

    def _follow(self, writer: sqlite3.Connection, events: Sequence[Event]) -> None:
        """The log has no gaps, and no other process writes to it."""
        if self._last is None:
            self._last = read.last_event(writer)[0]
        for expected, event in enumerate(events, self._last + 1):
            if event.id != expected:
                raise StoreError(
                    f"{self.path}: event {event.id} can't follow event {expected - 1}: something else wrote to this "
                    "store. Restart the scheduler"
                )

    @contextmanager
    def _writing(self, doing: str, last_event: int | None) -> Iterator[sqlite3.Connection]:
        """A transaction. The lock is held by the caller."""
        with self._faults(doing):
            writer = self._open()
            try:
                self._at("begin")
                writer.execute("BEGIN IMMEDIATE")
                yield writer
                self._at("commit")
                writer.execute("COMMIT")
                self._at("committed")
            except BaseException as error:
                self._roll_back(writer)
                fault = isinstance(error, sqlite3.Error | OSError)
                if not (fault and last_event is not None and self._landed(last_event)):
                    raise

    def _open(self) -> sqlite3.Connection:
        if self.read_only:
            raise StoreError(f"{self.path}: was opened to be read only; open it without read_only to write")
        if self._closed:
            raise StoreError(f"{self.path}: the store is closed")
        if self._writer is None:
            self._writer = open_writer(self.path)
            self._last = None
            found = os.stat(self.path)
            self._file = self._file or (found.st_dev, found.st_ino)
        self._refuse_another_file()
        return self._writer

    def _refuse_another_file(self) -> None:
        """What is written to a file without a name is lost."""
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != self._file:
            raise StoreError(
                f"{self.path}: was {'removed' if found is None else 'replaced by another file'} while in use; put it "
                "back, or restart the scheduler"
            )

    def _roll_back(self, writer: sqlite3.Connection) -> None:
        self._last = None  # read it from the file next time
        try:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
        except sqlite3.Error:
            # A connection that can't even do that is of no use; the next call opens another.
            self._writer = None
            with suppress(sqlite3.Error):
                writer.close()

    def _landed(self, event: int) -> bool:
        """Whether the transaction is in the file after all: a commit may report a fault and have been made."""
        try:
            with closing(open_reader(self.path)) as reader:
                return read.last_event(reader)[0] == event
        except (sqlite3.Error, OSError, StoreError):
            return False  # not known; if it is there, `_follow` will say so

    @contextmanager
    def _faults(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise store_error(error, self.path, doing) from error

    # -- reading --------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self, doing: str = "read", *, together: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection for this thread. together: all that is read is of one moment."""
        with self._pool:
            if self._closed:
                raise StoreError(f"{self.path}: the store is closed")
            reader = self._idle.pop() if self._idle else None
        with self._faults(doing):
            reader = reader or open_reader(self.path)
            kept = False
            try:
                if together:
                    reader.execute("BEGIN")
                yield reader
                if together:
                    reader.execute("COMMIT")
                kept = self._give_back(reader)
            except MALFORMED as error:
                raise StoreError(
                    f"{self.path}: can't {doing}: it holds something that gpuloom did not write ({error}); {RESTORE}"
                ) from error
            finally:
                if not kept:
                    reader.close()

    def _give_back(self, reader: sqlite3.Connection) -> bool:
        with self._pool:
            if self._closed or len(self._idle) >= READERS_KEPT:
                return False
            self._idle.append(reader)
            return True

    def load(self, *, recent: int = 10_000) -> Loaded:
        with self._reading(together=True) as reader:
            jobs = read.jobs(reader, queries.jobs_to_load(sorted(WAITING | ACTIVE), recent))
            attempts = [rows.attempt_of(row) for row in reader.execute(queries.open_attempts())]
            last, last_s = read.last_event(reader)
            memory = reader.execute(queries.statements()["memory"]).fetchone()
            return Loaded(
                jobs=jobs,
                attempts=attempts,
                nodes=read.nodes(reader),
                settings=read.settings(reader),
                next_job=read.next_job(reader),
                last_event=last,
                last_event_s=last_s,
                memory=None if memory is None else (rows.untext(memory[0]), memory[1]),
            )

    def job(self, job: int) -> Job | None:
        found = self.jobs(JobQuery(ids=(job,), limit=1))
        return found[0] if found else None

    def jobs(self, query: JobQuery) -> Sequence[Job]:
        with self._reading() as reader:
            return read.jobs(reader, queries.jobs(query), lenient=self._lenient)

    def counts(self) -> Mapping[str, int]:
        """Jobs by phase; 0 where there are none."""
        with self._reading() as reader:
            found = dict(reader.execute(queries.statements()["counts"]).fetchall())
        return {phase.value: found.get(phase.value, 0) for phase in Phase}

    def attempts(self, jobs: Sequence[int]) -> Sequence[Attempt]:
        with self._reading() as reader:
            return read.attempts(reader, jobs)

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Sequence[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[Event]:
        with self._reading() as reader:
            found = read.events(reader, after, job, types, limit, newest)
        return found[::-1] if newest else found

    def environment(self, spec_id: int) -> Mapping[str, str] | None:
        with self._reading() as reader:
            row = reader.execute(queries.statements()["environment"], (spec_id,)).fetchone()
            return None if row is None else dict(rows.loads(row[0]))

    def submission(self, key: str) -> Submission | None:
        with self._reading() as reader:
            row = reader.execute(queries.statements()["submission"], (rows.text(key),)).fetchone()
        return None if row is None else rows.submission_of(row)

    def ended_runs(self, user: str, name: str, limit: int) -> Sequence[EndedRun]:
        """The last jobs that finished well, the oldest of them first. name: as in the spec, so that tasks of an array
        count."""
        given = [rows.text(user)] + ([rows.text(name)] if name else [])
        sql = queries.statements()["ended_runs_of_name" if name else "ended_runs_of_user"]
        with self._reading() as reader:
            found = reader.execute(sql, (*given, queries.bounded(max(limit, 0)))).fetchall()
        specs = {spec: rows.spec_from(spec) for *_, spec in found}
        return [
            EndedRun(int(gpus), float(work_s), array, specs[spec], rows.loads(work_on))
            for gpus, work_s, array, work_on, spec in reversed(found)
        ]

    def measured_runs(self, user: str, name: str, limit: int) -> Sequence[MeasuredRun]:
        given = rows.text(user), rows.text(name), queries.bounded(max(limit, 0))
        with self._reading() as reader:
            found = reader.execute(queries.statements()["measured_runs"], given).fetchall()
        specs = {spec: rows.spec_from(spec) for *_, spec in found}
        return [
            MeasuredRun(
                int(gpus),
                array,
                specs[spec],
                rows.untext(model),
                float(speed or 0.0),
                gpus_in(allocation_of(rows.loads(allocation))) if specs[spec].elastic else 0,
                memory_mib,
            )
            for gpus, array, model, speed, memory_mib, allocation, spec in reversed(found)
        ]

    def samples(self, *, since_s: float, until_s: float) -> Sequence[SampleRow]:
        with self._reading() as reader:
            found = reader.execute(queries.statements()["samples"], (since_s, until_s)).fetchall()
            return [
                SampleRow(int(width_s), from_s, span_s, rows.loads(data)) for width_s, from_s, span_s, data in found
            ]

    def completed(self, *, since_s: float, until_s: float, user: str | None) -> Sequence[Completed]:
        with self._reading() as reader:
            found = reader.execute(queries.statements()["completed"], _span(since_s, until_s, user)).fetchall()
            return [Completed(Phase(phase), submitted_s, ended_s) for phase, submitted_s, ended_s in found]

    def run_counts(self, *, since_s: float, until_s: float, user: str | None) -> Runs:
        given = _span(since_s, until_s, user)
        with self._reading(together=True) as reader:
            (restarts,) = reader.execute(queries.statements()["restarts"], given).fetchone()
            return Runs(int(restarts), dict(reader.execute(queries.statements()["ended_attempts"], given).fetchall()))

    def usage(self, *, since_s: float, until_s: float, by: str) -> Sequence[Usage]:
        checked_by(by)
        with self._reading(together=True) as reader:
            runs = list(read.runs(reader, since_s, until_s))
        return tally(runs, since_s=since_s, until_s=until_s, by=by)

    def history(self, *, since_s: float, until_s: float) -> Iterator[tuple[Job, tuple[Attempt, ...]]]:
        """Read page by page: nothing is held open in between, and a job is as it was when its page was read."""
        last = (since_s, 0)  # numbers begin at 1
        while since_s < until_s:
            with self._reading(together=True) as reader:
                jobs = read.jobs(reader, queries.history_page(last, until_s, PAGE), lenient=self._lenient)
                runs: dict[int, list[Attempt]] = {job.id: [] for job in jobs}
                for attempt in read.attempts(reader, list(runs)):
                    runs[attempt.job].append(attempt)
            yield from ((job, tuple(runs[job.id])) for job in jobs)
            if len(jobs) < PAGE:
                return
            last = jobs[-1].submitted_s, jobs[-1].id

    # -- care -----------------------------------------------------------------------------------------------

    def check(self) -> CheckReport:
        """Verify the file, replay the log and compare with the records."""
        with self._reading("check", together=True) as reader:
            return check(reader, self.schema_version)

    def examine(self) -> Examined:
        """As much of a check as a start can wait for (examine.py)."""
        with self._reading("check", together=True) as reader:
            return examine(reader, self.schema_version)

    def backup(self, path: Path, *, overwrite: bool = False) -> None:
        """A consistent copy while in use, in one file, for its owner alone.

        Raises:
            InputError: there is a file already, and `overwrite` is not given. StoreError: it can't be written.
        """
        with self._reading() as reader:
            copy_database(reader, self.path, path, overwrite=overwrite)


def _span(since_s: float, until_s: float, user: str | None) -> Mapping[str, Any]:
    return {"since": since_s, "until": until_s, "user": None if user is None else rows.text(user)}


# -- rows to records ---------------------------------------------------------------------------------------------


def _batches(
    events: Sequence[Event], changes: Changes, submissions: Sequence[Submission]
) -> Sequence[tuple[str, str, Sequence[Any]]]:
    """(point, statement, rows) in the order in which they refer to each other."""
    said = queries.statements()
    next_job = changes.next_job
    whole, parts = _by_change(events, changes)
    return (
        ("events", said["add_event"], rows.event_rows(events)),
        ("specs", said["put_spec"], [(number, rows.spec_text(spec)) for number, spec in changes.specs.items()]),
        ("specs", said["put_environment"], [(number, rows.dumps(env)) for number, env in changes.environments.items()]),
        ("jobs", rows.PUT_JOB, [rows.job_row(job) for job in whole]),
        *(("jobs", rows.CHANGE_JOBS[kind], rows.changed_rows(kind, jobs)) for kind, jobs in parts.items()),
        ("attempts", rows.PUT_ATTEMPT, [rows.attempt_row(attempt) for attempt in changes.attempts.values()]),
        ("nodes", said["put_node"], [rows.node_row(node) for node in changes.nodes.values()]),
        ("settings", said["put_setting"], [(key, rows.dumps(value)) for key, value in changes.settings.items()]),
        ("settings", said["put_meta"], [] if next_job is None else [("next_job", rows.dumps(next_job))]),
        ("submissions", said["add_submission"], [rows.submission_row(submission) for submission in submissions]),
    )


def _by_change(events: Sequence[Event], changes: Changes) -> tuple[Sequence[Job], Mapping[str, Sequence[Job]]]:
    """Jobs that are written whole; and by type of event those that are there already, to which this alone has come."""
    kinds: dict[int, str] = {}
    for event in events if changes.next_job is None else ():  # else some are new
        if event.job is not None:
            kinds[event.job] = event.type if event.job not in kinds and rows.changes_part(event) else ""
    whole: list[Job] = []
    parts: dict[str, list[Job]] = {kind: [] for kind in rows.CHANGED_BY}
    for number, job in changes.jobs.items():
        parts.get(kinds.get(number, ""), whole).append(job)
    return whole, parts
