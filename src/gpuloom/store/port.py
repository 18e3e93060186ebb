"""The port of a store: an event log, the records that follow from it, and what else must survive a restart.

One process writes: the scheduler's thread calls `append` and `save_memory`. Any thread may read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gpuloom.core.book import Changes
from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, Job, NodeRecord, Phase
from gpuloom.core.spec import Spec


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a scheduler begins with: all jobs that have not ended, the newest `recent` of those that have, the open
    attempts, nodes and settings; the highest event number and its time; the policy's memory."""

    jobs: Sequence[Job]
    attempts: Sequence[Attempt]
    nodes: Sequence[NodeRecord]
    settings: Mapping[str, Any]
    next_job: int
    last_event: int
    last_event_s: float
    memory: tuple[str, bytes] | None


@dataclass(frozen=True, slots=True)
class Submission:
    """A submission that carried an idempotency key: what was asked for (a digest) and what came of it."""

    key: str
    digest: str
    jobs: tuple[int, ...]
    at_s: float


@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs. Empty tuples and None: any. `before`, `after`: job numbers, for pages (newest first by default)."""

    phases: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Whole names, or with * and ? as wildcards; tasks of an array by its name as well."""
    ids: tuple[int, ...] = ()
    array_id: int | None = None
    submitted_from_s: float | None = None
    submitted_until_s: float | None = None
    before: int | None = None
    after: int | None = None
    oldest_first: bool = False
    limit: int = 100


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of one user, day or job name."""

    key: str
    jobs: int
    attempts: int
    held_s: float
    gpu_s: float
    failed: int
    gpu_s_on: Mapping[str, float]
    """By GPU model, as attempts were recorded with it ('': not known)."""
    suspensions: int = 0
    """How often jobs were suspended or frozen."""
    suspended_s: float = 0.0
    """For how long in all, without GPUs."""
    suspended_mib: float = 0.0
    """GPU memory that went to main memory, all times together, MiB."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A job that finished well: what it asked for, and the seconds of work that it took.

    work_on: the same by GPU model and size, as far as that is known (core/pace.py: RanOn).
    """

    gpus: int
    work_s: float
    array_id: int | None
    spec: Spec
    work_on: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """An attempt of which something was measured: what its job asked for, and iterations per second on this GPU model
    (0: it reported none).

    on_gpus: of an elastic job, on how many GPUs; 0: on as many as it asked for. gpu_memory_mib: at its peak, on one
    GPU; None: it was not seen.
    """

    gpus: int
    array_id: int | None
    spec: Spec
    gpu_model: str
    it_per_s: float
    on_gpus: int = 0
    gpu_memory_mib: float | None = None


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample of a series: its kind (for how long one stands), since when, for how long things were seen, and what."""

    width_s: int
    from_s: float
    span_s: float
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Completed:
    """A job that ran and ended: its end state, and when it was submitted and ended."""

    phase: Phase
    submitted_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class Runs:
    """Attempts in a span of time. restarts: begun in it by jobs that had run before. ended: by reason of the end."""

    restarts: int
    ended: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that `check` found wrong."""

    what: str
    detail: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Result of `check`: how much was looked at, and what is wrong (nothing: the store is sound)."""

    events: int
    jobs: int
    attempts: int
    schema_version: int
    findings: tuple[Finding, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Examined:
    """report: what was found. complete: nothing is left for `check`."""

    report: CheckReport
    complete: bool


class Store(Protocol):
    """See the module. Every method may raise StoreError."""

    schema_version: int

    def load(self, *, recent: int = 10_000) -> Loaded:
        """recent: of the jobs that have ended, so many are loaded: those that ended last."""
        ...

    def append(self, events: Sequence[Event], changes: Changes, submissions: Sequence[Submission] = ()) -> None:
        """Write events and the records they lead to, all or nothing; durable when this returns."""
        ...

    def save_memory(self, policy: str, memory: bytes) -> None:
        """Keep the policy's memory (replaces the one before)."""
        ...

    def forget_environments(self, ended_before_s: float) -> None:
        """Drop the environments of specs of which no job is going on, or ended since that time."""
        ...

    def put_samples(self, samples: Sequence[SampleRow], keep_from_s: Mapping[int, float]) -> None:
        """Write samples, in place of those of the same kind and time, and drop those of each kind that are older than
        `keep_from_s` says; all in one transaction."""
        ...

    # -- reading --------------------------------------------------------------------------------------------

    def samples(self, *, since_s: float, until_s: float) -> Sequence[SampleRow]:
        """Samples of all kinds that begin in that span, by kind and time."""
        ...

    def completed(self, *, since_s: float, until_s: float, user: str | None) -> Sequence[Completed]:
        """Jobs that ran and ended in that span, by their end; user: those of one."""
        ...

    def run_counts(self, *, since_s: float, until_s: float, user: str | None) -> Runs:
        """Attempts in that span; user: of jobs of one."""
        ...

    def job(self, job: int) -> Job | None: ...

    def jobs(self, query: JobQuery) -> Sequence[Job]: ...

    def counts(self) -> Mapping[str, int]:
        """Jobs by phase."""
        ...

    def attempts(self, jobs: Sequence[int]) -> Sequence[Attempt]:
        """All attempts of these jobs, in order."""
        ...

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Sequence[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[Event]:
        """Events with a higher number than `after`, in order; `newest`: the last `limit` of them.

        Of a job of an array the submission of the array, which bears its first job's number, is one.
        """
        ...

    def environment(self, spec_id: int) -> Mapping[str, str] | None:
        """Values of the environment variables of a spec; None: they are not kept any more."""
        ...

    def submission(self, key: str) -> Submission | None: ...

    def ended_runs(self, user: str, name: str, limit: int) -> Sequence[EndedRun]:
        """The last jobs of this user and name that finished well, the oldest first; '' for any name."""
        ...

    def measured_runs(self, user: str, name: str, limit: int) -> Sequence[MeasuredRun]:
        """Attempts of which speed or GPU memory was measured, of the last jobs of this user and name that finished
        well, the oldest first; at most `limit`."""
        ...

    def usage(self, *, since_s: float, until_s: float, by: str) -> Sequence[Usage]:
        """GPU-seconds held in a span of time (attempts under way included, up to `until_s`), by 'user', 'name', 'day'
        or 'node'."""
        ...

    def history(self, *, since_s: float, until_s: float) -> Iterator[tuple[Job, tuple[Attempt, ...]]]:
        """Jobs submitted in that span with their attempts, in order of submission."""
        ...

    # -- care -----------------------------------------------------------------------------------------------

    def check(self) -> CheckReport:
        """Verify the files, replay the log and compare with the records."""
        ...

    def examine(self) -> Examined:
        """As much of a check as a start can wait for: what can cost a job is in it."""
        ...

    def backup(self, path: Path) -> None:
        """A consistent copy while in use."""
        ...

    def close(self) -> None: ...
