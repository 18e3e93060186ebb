"""Records as rows of tables, and back. Nothing else in the store knows the columns.

Text that can't be written as UTF-8 (a file name that is no text, as Python's surrogates) is kept as bytes in the same
column, so that every record comes back as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuloom.core.book import allocation_of, members_data, members_of, node_data, node_of
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, EndReason, Job, Needed, NodeRecord, Phase, SavedBy
from gpuloom.core.kept import kept_data, kept_of
from gpuloom.core.spec import Spec, spec_of
from gpuloom.store.port import Submission

Row = Sequence[Any]

JOB_COLUMNS = (
    "id", "name", "spec_name", "user", "gpus", "priority", "phase", "spec_id", "submitted_s", "queued_s",
    "not_before_s", "first_start_s", "ended_s", "attempts", "failures", "held_s", "held_gpu_s", "work_s", "work_on",
    "reason", "exit_code", "message", "array_id", "array_index", "after_jobs", "estimate_s", "estimate_from", "flags",
    "suspended", "cause",
)  # fmt: skip
ATTEMPT_COLUMNS = (
    "job", "number", "phase", "allocation", "started_s", "since_s", "running_s", "pid", "start_ticks", "boot_id",
    "stop_reason", "deadline_s", "ended_s", "reason", "exit_code", "signal", "saved", "held_s", "work_s", "message",
    "peak_memory_mib", "identity", "saved_by", "members", "gpu_model", "it_per_s", "kept",
    "gpu_memory_mib", "cause",
)  # fmt: skip
_SPEC_ID = JOB_COLUMNS.index("spec_id")


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} ({type(value).__name__}) can't be written as JSON")


# Not a number and infinity are no JSON: clients could not read them.
dumps = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode
loads = json.loads


def columns(names: Iterable[str], table: str = "") -> str:
    """A list of columns for a SELECT."""
    return ", ".join(f"{table}.{name}" if table else name for name in names)


def upsert(table: str, names: Sequence[str], key: Sequence[str]) -> str:
    """The statement that writes a row in place of the one with this key."""
    marks = ", ".join("?" for _ in names)
    changed = ", ".join(f"{name} = excluded.{name}" for name in names if name not in key)
    where = ", ".join(key)
    # Names of tables and columns are constants of this module.
    return f"INSERT INTO {table} ({columns(names)}) VALUES ({marks}) ON CONFLICT ({where}) DO UPDATE SET {changed}"  # noqa: S608


CHANGED_BY: Mapping[str, tuple[str, ...]] = {
    "job.held": ("phase",),
    "job.released": ("phase", "queued_s"),
    "job.cancelled": ("phase", "ended_s", "reason", "message"),
    "job.requeued": (
        "phase", "submitted_s", "queued_s", "first_start_s", "not_before_s", "ended_s", "failures", "held_s",
        "held_gpu_s", "work_s", "work_on", "flags",
    ),
    "job.updated": ("gpus", "priority", "spec_id", "after_jobs", "estimate_s", "estimate_from"),
}  # fmt: skip
"""By type of event that comes to many jobs at once, all that it changes in a job's row but for its cause: the indexes
of other columns need not be touched."""
# One statement for all jobs that it leaves alike costs half of what one for each does. Each has just been written down.
_CAUSE = "(SELECT max(events.id) FROM events WHERE events.job = jobs.id)"
CHANGE_JOBS: Mapping[str, str] = {
    kind: f"UPDATE jobs SET {', '.join(f'{name} = ?' for name in names)}, cause = {_CAUSE} "  # noqa: S608
    "WHERE id IN (SELECT value FROM json_each(?))"
    for kind, names in CHANGED_BY.items()
}


def changes_part(event: Event) -> bool:
    """Whether CHANGE_JOBS can write what this event changes in a job's row."""
    if event.type == "job.updated":
        changes = event.data.get("changes")
        return changes is not None and "name" not in changes
    return event.type in CHANGED_BY


def changed_rows(kind: str, jobs: Iterable[Job]) -> list[Row]:
    """What CHANGE_JOBS of this type of event needs: a row for all jobs that it leaves alike."""
    alike: dict[Row, list[int]] = {}
    for job in jobs:
        alike.setdefault(_changed(kind, job), []).append(job.id)
    return [(*values, dumps(numbers)) for values, numbers in alike.items()]


def _changed(kind: str, job: Job) -> Row:
    match kind:
        case "job.held":
            return (job.phase.value,)
        case "job.released":
            return job.phase.value, job.queued_s
        case "job.cancelled":
            return job.phase.value, job.ended_s, None if job.reason is None else job.reason.value, text(job.message)
        case "job.updated":
            after = dumps(job.after) if job.after else "[]"
            return job.gpus, job.priority, job.spec_id, after, job.estimate_s, text(job.estimate_from)
        case _:
            return (
                job.phase.value, job.submitted_s, job.queued_s, job.first_start_s, job.not_before_s, job.ended_s,
                job.failures, job.held_s, job.held_gpu_s, job.work_s, dumps(job.work_on) if job.work_on else "{}",
                dumps(job.flags) if job.flags else "{}",
            )  # fmt: skip


PUT_JOB = upsert("jobs", JOB_COLUMNS, ("id",))
PUT_ATTEMPT = upsert("attempts", ATTEMPT_COLUMNS, ("job", "number"))


def text(value: str) -> str | bytes:
    """Text as SQLite can keep it."""
    return value if value.isascii() or _encodes(value) else value.encode("utf-8", "surrogatepass")


def _encodes(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def untext(value: object) -> str:
    """Raises: ValueError: the column holds something else (the file is damaged)."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        raise ValueError(f"{value!r} is stored where text is expected")
    return value.decode("utf-8", "surrogatepass")


# -- specs -----------------------------------------------------------------------------------------------------


def spec_text(spec: Spec) -> str:
    return dumps(spec.to_json())


def spec_from(written: str) -> Spec:
    """Raises: ValueError: it is no spec (the file is damaged)."""
    return spec_of(loads(written))


# -- jobs ------------------------------------------------------------------------------------------------------


def job_row(job: Job) -> Row:
    """In the order of JOB_COLUMNS."""
    return (
        job.id,
        text(job.name),
        text(spec_name(job)),
        text(job.user),
        job.gpus,
        job.priority,
        job.phase.value,
        job.spec_id,
        job.submitted_s,
        job.queued_s,
        job.not_before_s,
        job.first_start_s,
        job.ended_s,
        job.attempts,
        job.failures,
        job.held_s,
        job.held_gpu_s,
        job.work_s,
        dumps(job.work_on) if job.work_on else "{}",
        None if job.reason is None else job.reason.value,
        job.exit_code,
        text(job.message),
        job.array_id,
        job.array_index,
        dumps(job.after) if job.after else "[]",
        job.estimate_s,
        text(job.estimate_from),
        dumps(job.flags) if job.flags else "{}",
        int(job.suspended),
        job.cause,
    )


def spec_name(job: Job) -> str:
    """The name that all tasks of an array share; of other jobs, their name."""
    return job.name if job.array_index is None else job.spec.name


def spec_id_of(row: Row) -> int:
    return int(row[_SPEC_ID])


def job_of(row: Row, specs: Mapping[int, Spec]) -> Job:
    """From a row of JOB_COLUMNS; specs by number."""
    (
        id_, name, _, user, gpus, priority, phase, spec_id, submitted_s, queued_s, not_before_s, first_start_s, ended_s,
        attempts, failures, held_s, held_gpu_s, work_s, work_on, reason, exit_code, message, array_id, array_index,
        after_jobs, estimate_s, estimate_from, flags, suspended, cause,
    ) = row  # fmt: skip
    return Job(
        id=id_,
        name=untext(name),
        user=untext(user),
        gpus=gpus,
        priority=priority,
        phase=Phase(phase),
        spec_id=spec_id,
        spec=specs[spec_id],
        submitted_s=submitted_s,
        queued_s=queued_s,
        not_before_s=not_before_s,
        first_start_s=first_start_s,
        ended_s=ended_s,
        attempts=attempts,
        failures=failures,
        held_s=held_s,
        held_gpu_s=held_gpu_s,
        work_s=work_s,
        work_on={} if work_on == "{}" else loads(work_on),
        reason=None if reason is None else EndReason(reason),
        exit_code=exit_code,
        message=untext(message),
        array_id=array_id,
        array_index=array_index,
        after=() if after_jobs == "[]" else tuple((int(job), Needed(how)) for job, how in loads(after_jobs)),
        estimate_s=estimate_s,
        estimate_from=untext(estimate_from),
        flags={} if flags == "{}" else loads(flags),
        suspended=bool(suspended),
        cause=cause,
    )


# -- attempts --------------------------------------------------------------------------------------------------


def attempt_row(attempt: Attempt) -> Row:
    """In the order of ATTEMPT_COLUMNS."""
    return (
        attempt.job,
        attempt.number,
        None if attempt.phase is None else attempt.phase.value,
        dumps(attempt.allocation),
        attempt.started_s,
        attempt.since_s,
        attempt.running_s,
        attempt.pid,
        attempt.start_ticks,
        attempt.boot_id,
        None if attempt.stop_reason is None else attempt.stop_reason.value,
        attempt.deadline_s,
        attempt.ended_s,
        None if attempt.reason is None else attempt.reason.value,
        attempt.exit_code,
        attempt.signal,
        int(attempt.saved),
        attempt.held_s,
        attempt.work_s,
        text(attempt.message),
        attempt.peak_memory_mib,
        attempt.identity,
        attempt.saved_by.value,
        dumps(members_data(attempt.members)) if attempt.members else "[]",
        text(attempt.gpu_model),
        attempt.it_per_s,
        "{}" if attempt.kept is None else dumps(kept_data(attempt.kept)),
        attempt.gpu_memory_mib,
        attempt.cause,
    )


def attempt_of(row: Row) -> Attempt:
    """From a row of ATTEMPT_COLUMNS."""
    (
        job, number, phase, allocation, started_s, since_s, running_s, pid, start_ticks, boot_id, stop_reason,
        deadline_s, ended_s, reason, exit_code, signal, saved, held_s, work_s, message, peak_memory_mib, identity,
        saved_by, members, gpu_model, it_per_s, kept, gpu_memory_mib, cause,
    ) = row  # fmt: skip
    return Attempt(
        job=job,
        number=number,
        phase=None if phase is None else Phase(phase),
        allocation=allocation_of(loads(allocation)),
        started_s=started_s,
        since_s=since_s,
        running_s=running_s,
        pid=pid,
        start_ticks=start_ticks,
        boot_id=boot_id,
        stop_reason=None if stop_reason is None else EndReason(stop_reason),
        deadline_s=deadline_s,
        ended_s=ended_s,
        reason=None if reason is None else EndReason(reason),
        exit_code=exit_code,
        signal=signal,
        saved=bool(saved),
        held_s=held_s,
        work_s=work_s,
        message=untext(message),
        peak_memory_mib=peak_memory_mib,
        identity=identity,
        saved_by=SavedBy(saved_by),
        members=() if members == "[]" else members_of(loads(members)),
        gpu_model=untext(gpu_model),
        it_per_s=it_per_s,
        kept=None if kept == "{}" else kept_of(loads(kept)),
        gpu_memory_mib=gpu_memory_mib,
        cause=cause,
    )


# -- the rest --------------------------------------------------------------------------------------------------


def event_rows(events: Iterable[Event]) -> list[Row]:
    """Rows of events, of which many in a line may have the same data."""
    found: list[Row] = []
    last: Mapping[str, Any] | None = None
    written = ""
    for event in events:
        if event.data is not last:
            last, written = event.data, dumps(event.data)
        found.append((event.id, event.at_s, event.type, event.job, written))
    return found


def event_of(row: Row) -> Event:
    id_, at_s, type_, job, data = row
    return Event(id_, at_s, type_, job, loads(data))


def node_row(node: NodeRecord) -> Row:
    return text(node.name), dumps(node_data(node)), node.cause


def node_from(row: Row) -> NodeRecord:
    _, data, cause = row
    return node_of({**loads(data), "cause": cause})


def submission_row(submission: Submission) -> Row:
    return text(submission.key), submission.digest, dumps(submission.jobs), submission.at_s


def submission_of(row: Row) -> Submission:
    key, digest, jobs, at_s = row
    return Submission(untext(key), digest, tuple(int(job) for job in loads(jobs)), at_s)
