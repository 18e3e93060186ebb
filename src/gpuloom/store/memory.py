"""A store that keeps everything in memory: for the scheduler on paper (`live/trial`), and for tests."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from gpuloom.core.book import Changes
from gpuloom.core.events import Event
from gpuloom.core.job import ENDED, Attempt, Job, Phase, gpus_in
from gpuloom.store import rows
from gpuloom.store.connect import schema_version
from gpuloom.store.errors import StoreError
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
from gpuloom.store.queries import is_pattern
from gpuloom.store.replay import Findings, Records, compare, replay
from gpuloom.store.sqlite import SqliteStore
from gpuloom.store.usage import STRETCH_EVENTS, Stretch, UsageRun, checked_by, held, tally


class MemoryStore:
    """See store/port.py; from any thread."""

    def __init__(self) -> None:
        self.schema_version = schema_version()
        self._lock = threading.RLock()
        self._records = Records()
        self._events: list[Event] = []
        self._submissions: dict[str, Submission] = {}
        self._memory: tuple[str, bytes] | None = None
        self._samples: dict[tuple[int, float], SampleRow] = {}
        self._environments: dict[int, dict[str, str]] = {}
        self._closed = False

    def close(self) -> None:
        """Any later call raises StoreError, as that of a file does."""
        self._closed = True

    def _open(self) -> Records:
        if self._closed:
            raise StoreError("the store in memory is closed")
        return self._records

    # -- writing --------------------------------------------------------------------------------------------

    def append(self, events: Sequence[Event], changes: Changes, submissions: Sequence[Submission] = ()) -> None:
        # What a file would give back, so that nobody changes it from outside and nothing but JSON gets in.
        copied = [rows.event_of(row) for row in rows.event_rows(events)]
        specs = {number: rows.spec_from(rows.spec_text(spec)) for number, spec in changes.specs.items()}
        settings = {key: rows.loads(rows.dumps(value)) for key, value in changes.settings.items()}
        with self._lock:
            kept = self._open()
            known = {**kept.specs, **specs}
            jobs = {job.id: rows.job_of(rows.job_row(job), known) for job in changes.jobs.values()}
            for expected, event in enumerate(copied, len(self._events) + 1):
                if event.id != expected:
                    raise StoreError(f"event {event.id} can't follow event {expected - 1}: the log has no gaps")
            if taken := [each.key for each in submissions if each.key in self._submissions]:
                raise StoreError(f"the key {taken[0]!r} has been used")
            self._events += copied
            kept.specs, kept.events = known, len(self._events)
            kept.jobs.update(jobs)
            kept.attempts.update(changes.attempts)
            kept.nodes.update(changes.nodes)
            kept.settings.update(settings)
            kept.next_job = kept.next_job if changes.next_job is None else changes.next_job
            self._environments.update({number: dict(env) for number, env in changes.environments.items()})
            self._submissions.update({each.key: each for each in submissions})

    def forget_environments(self, ended_before_s: float) -> None:
        with self._lock:
            jobs = self._open().jobs.values()
            kept = {job.spec_id for job in jobs if job.ended_s is None or job.ended_s >= ended_before_s}
            self._environments = {number: env for number, env in self._environments.items() if number in kept}

    def environment(self, spec_id: int) -> Mapping[str, str] | None:
        with self._lock:
            self._open()
            return self._environments.get(spec_id)

    def save_memory(self, policy: str, memory: bytes) -> None:
        with self._lock:
            self._open()
            self._memory = policy, bytes(memory)

    def put_samples(self, samples: Sequence[SampleRow], keep_from_s: Mapping[int, float]) -> None:
        with self._lock:
            self._open()
            for row in samples:
                copied = SampleRow(row.width_s, row.from_s, row.span_s, rows.loads(rows.dumps(row.data)))
                self._samples[row.width_s, row.from_s] = copied
            for width_s, from_s in keep_from_s.items():
                for key in [key for key in self._samples if key[0] == width_s and key[1] < from_s]:
                    del self._samples[key]

    # -- reading --------------------------------------------------------------------------------------------

    def samples(self, *, since_s: float, until_s: float) -> Sequence[SampleRow]:
        with self._lock:
            self._open()
            return [self._samples[key] for key in sorted(self._samples) if since_s <= key[1] < until_s]

    def completed(self, *, since_s: float, until_s: float, user: str | None) -> Sequence[Completed]:
        with self._lock:
            jobs = sorted(self._open().jobs.values(), key=_end)
        return [
            Completed(job.phase, job.submitted_s, job.ended_s)
            for job in jobs
            if job.ended_s is not None
            and since_s <= job.ended_s < until_s
            and job.attempts
            and user in (None, job.user)
        ]

    def run_counts(self, *, since_s: float, until_s: float, user: str | None) -> Runs:
        with self._lock:
            kept = self._open()
            runs = [run for (job, _), run in kept.attempts.items() if user in (None, kept.jobs[job].user)]
        again = sum(run.number > 1 and since_s <= run.started_s < until_s for run in runs)
        ended: dict[str, int] = {}
        for run in runs:
            if run.ended_s is not None and run.reason is not None and since_s <= run.ended_s < until_s:
                ended[run.reason.value] = ended.get(run.reason.value, 0) + 1
        return Runs(again, ended)

    def load(self, *, recent: int = 10_000) -> Loaded:
        with self._lock:
            kept = self._open()
            ended = sorted((job for job in kept.jobs.values() if job.phase in ENDED), key=_end, reverse=True)
            going = [job for job in kept.jobs.values() if job.phase not in ENDED]
            return Loaded(
                jobs=sorted([*going, *ended[: max(recent, 0)]], key=lambda job: job.id),
                attempts=sorted((run for run in kept.attempts.values() if run.phase is not None), key=lambda r: r.job),
                nodes=sorted(kept.nodes.values(), key=lambda node: node.name),
                settings=dict(kept.settings),
                next_job=kept.next_job,
                last_event=len(self._events),
                last_event_s=self._events[-1].at_s if self._events else 0.0,
                memory=self._memory,
            )

    def job(self, job: int) -> Job | None:
        with self._lock:
            return self._open().jobs.get(job)

    def jobs(self, query: JobQuery) -> Sequence[Job]:
        fits = _fits(query)
        with self._lock:
            found = sorted((job for job in self._open().jobs.values() if fits(job)), key=lambda job: job.id)
        return (found if query.oldest_first else found[::-1])[: max(query.limit, 0)]

    def counts(self) -> Mapping[str, int]:
        found = dict.fromkeys((phase.value for phase in Phase), 0)
        with self._lock:
            for job in self._open().jobs.values():
                found[job.phase.value] += 1
        return found

    def attempts(self, jobs: Sequence[int]) -> Sequence[Attempt]:
        wanted = set(jobs)
        with self._lock:
            kept = self._open().attempts
            return [kept[key] for key in sorted(kept) if key[0] in wanted]

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Sequence[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[Event]:
        with self._lock:
            asked = None if job is None else self._open().jobs.get(job)
            self._open()
            later = self._events[max(after, 0) :]
        array = None if asked is None else asked.array_id

        def about(event: Event) -> bool:
            return event.job == job or (array is not None and event.job == array and event.type == "jobs.submitted")

        found = [event for event in later if (job is None or about(event)) and (not types or event.type in types)]
        limit = max(limit, 0)
        return found[max(len(found) - limit, 0) :] if newest else found[:limit]

    def submission(self, key: str) -> Submission | None:
        with self._lock:
            self._open()
            return self._submissions.get(key)

    def ended_runs(self, user: str, name: str, limit: int) -> Sequence[EndedRun]:
        with self._lock:
            found = [
                job
                for job in self._open().jobs.values()
                if job.phase is Phase.FINISHED and job.user == user and name in ("", rows.spec_name(job))
            ]
        found.sort(key=_end)
        last = found[max(len(found) - max(limit, 0), 0) :]
        return [EndedRun(job.gpus, job.work_s, job.array_id, job.spec, job.work_on) for job in last]

    def measured_runs(self, user: str, name: str, limit: int) -> Sequence[MeasuredRun]:
        with self._lock:
            kept = self._open()
            found = [
                (attempt, job)
                for (number, _), attempt in kept.attempts.items()
                if (attempt.it_per_s is not None or attempt.gpu_memory_mib is not None)
                and (job := kept.jobs[number]).phase is Phase.FINISHED
                and (job.user, rows.spec_name(job)) == (user, name)
            ]
        found.sort(key=lambda entry: (*_end(entry[1]), entry[0].number))
        last = found[max(len(found) - max(limit, 0), 0) :]
        return [
            MeasuredRun(
                job.gpus,
                job.array_id,
                job.spec,
                attempt.gpu_model,
                attempt.it_per_s or 0.0,
                gpus_in(attempt.allocation) if job.spec.elastic else 0,
                attempt.gpu_memory_mib,
            )
            for attempt, job in last
        ]

    def usage(self, *, since_s: float, until_s: float, by: str) -> Sequence[Usage]:
        checked_by(by)
        with self._lock:
            kept, told = self._open(), dict[int, Mapping[int, Sequence[Stretch]]]()
            runs = []
            for key in sorted(kept.attempts):
                attempt, job = kept.attempts[key], kept.jobs[key[0]]
                failed_s = job.ended_s if job.phase is Phase.FAILED else None
                stretches = held(
                    attempt, told, lambda number: self.events(job=number, types=STRETCH_EVENTS, limit=10**9)
                )
                runs.append(UsageRun(job.user, rows.spec_name(job), failed_s, attempt, stretches))
        return tally(runs, since_s=since_s, until_s=until_s, by=by)

    def history(self, *, since_s: float, until_s: float) -> Iterator[tuple[Job, tuple[Attempt, ...]]]:
        with self._lock:
            jobs = [job for job in self._open().jobs.values() if since_s <= job.submitted_s < until_s]
        for job in sorted(jobs, key=lambda job: (job.submitted_s, job.id)):
            yield job, tuple(self.attempts([job.id]))

    # -- care -----------------------------------------------------------------------------------------------

    def check(self) -> CheckReport:
        findings = Findings()
        with self._lock:
            kept = self._open()
            told = replay(self._events, findings)
            if told is not None:
                compare(told, kept, findings)
            return CheckReport(
                len(self._events), len(kept.jobs), len(kept.attempts), self.schema_version, findings.all()
            )

    def examine(self) -> Examined:
        return Examined(self.check(), complete=True)

    def backup(self, path: Path, *, overwrite: bool = False) -> None:
        """Into a SQLite store, which a scheduler can be started with."""
        with self._lock, tempfile.TemporaryDirectory(prefix="gpuloom-") as folder:
            kept = self._open()
            changes = Changes(
                kept.specs, kept.jobs, kept.attempts, kept.nodes, kept.settings, kept.next_job, {**self._environments}
            )
            with SqliteStore(Path(folder) / "store.db") as store:
                store.append(self._events, changes, list(self._submissions.values()))
                if self._memory is not None:
                    store.save_memory(*self._memory)
                store.put_samples(list(self._samples.values()), {})
                store.backup(path, overwrite=overwrite)


def _end(job: Job) -> tuple[float, int]:
    return (job.ended_s if job.ended_s is not None else 0.0), job.id


def _fits(query: JobQuery) -> Callable[[Job], bool]:
    names = [_named(name) for name in query.names]

    def fits(job: Job) -> bool:
        return (
            (not query.phases or job.phase in query.phases)
            and (not query.users or job.user in query.users)
            and (not names or any(named(job.name) or named(rows.spec_name(job)) for named in names))
            and (not query.ids or job.id in query.ids)
            and (query.array_id is None or job.array_id == query.array_id)
            and (query.submitted_from_s is None or job.submitted_s >= query.submitted_from_s)
            and (query.submitted_until_s is None or job.submitted_s < query.submitted_until_s)
            and (query.before is None or job.id < query.before)
            and (query.after is None or job.id > query.after)
        )

    return fits


def _named(name: str) -> Callable[[str], bool]:
    if not is_pattern(name):
        return lambda other: other == name
    written = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in name)
    found = re.compile(written, re.DOTALL)
    return lambda other: found.fullmatch(other) is not None
