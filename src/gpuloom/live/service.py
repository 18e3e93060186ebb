"""The scheduler as the API sees it: every method may be called from any thread and answers with plain JSON objects.

Errors are those of `core/errors.py`: InputError (what was asked for is wrong), NotFoundError (no such job or node),
ConflictError (not in this state), ImpossibleJobError (can never be placed), StoreError (nothing was changed).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpuloom.core.events import Event
from gpuloom.core.job import Attempt, NodeState
from gpuloom.executors.node import Hooked, RunFiles
from gpuloom.executors.port import ExecutorError
from gpuloom.live.figures.each import Of
from gpuloom.live.submission.actions import Action
from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views.answers import StatusView
from gpuloom.live.views.cluster_answers import (
    EachSeriesView,
    GroupView,
    NodeView,
    PolicyView,
    SeriesView,
    StatsView,
    UsageRow,
)
from gpuloom.live.views.job_answers import JobView, ShowView, WhyView
from gpuloom.live.views.pilots import PilotsView
from gpuloom.store.port import JobQuery


@dataclass(frozen=True, slots=True)
class LogOf:
    """The log of a member of an attempt. member: its rank. node: where its run's files are. live: it may be written
    to."""

    attempt: int
    member: int
    node: str
    run: str
    live: bool


def logs_of(attempt: Attempt, *, live: bool) -> list[LogOf]:
    """The logs of an attempt, in the order of ranks."""
    nodes = attempt.nodes or ("",)
    return [
        LogOf(attempt.number, member, node, run, live)
        for member, (node, run) in enumerate(zip(nodes, attempt.runs, strict=True))
    ]


def hooked_of(service: Service, attempt: Attempt, *, live: bool) -> Hooked | None:
    """What hooks saw of an attempt's master; None: its node can't be asked."""
    master = logs_of(attempt, live=live)[0]
    try:
        return service.files_of(master).hooks(master.run)
    except (ExecutorError, ValueError):  # not there now, or a name of an older version
        return None


class Service(Protocol):
    """See the module."""

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        """Numbers of the jobs of each spec (several for an array). All are taken, or none.

        With a key that was used before for the same specs, the numbers of then; for others, ConflictError.
        """
        ...

    def job(self, job: int) -> JobView: ...

    def jobs(self, query: JobQuery) -> Sequence[JobView]: ...

    def show(self, job: int) -> ShowView:
        """Everything about a job."""
        ...

    # Of what is done to jobs, each view says by `changed` whether it did something; what is so already is no error.

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Sequence[JobView]: ...

    def hold(self, jobs: Sequence[int]) -> Sequence[JobView]: ...

    def release(self, jobs: Sequence[int]) -> Sequence[JobView]: ...

    def suspend(self, jobs: Sequence[int]) -> Sequence[JobView]:
        """Running jobs leave their GPUs, and go on in the same attempt once they are resumed."""
        ...

    def resume(self, jobs: Sequence[int]) -> Sequence[JobView]: ...

    def requeue(self, jobs: Sequence[int]) -> Sequence[JobView]:
        """A job that has ended, or runs, goes back into the queue."""
        ...

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        """Do this (not an update) to all jobs of an array with which it can be done, however many: {state: jobs} of
        those that it changed."""
        ...

    def update_array(self, array: int, changes: Mapping[str, Any]) -> Mapping[str, int]:
        """As `update`, for all jobs of an array that have not ended: {state: jobs} of those that it changed."""
        ...

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Sequence[JobView]:
        """Change fields of the spec. Of a running job: name, priority, time_limit, retries, estimate, grace."""
        ...

    def move_to_top(self, jobs: Sequence[int]) -> Sequence[JobView]:
        """First in the queue: a priority above all others that wait, if theirs is not higher already. One that runs
        stays as it is."""
        ...

    def why(self, job: int, *, forecast: bool = True) -> WhyView: ...

    def nodes(self) -> Sequence[NodeView]:
        """Machines, their GPUs, and who uses them."""
        ...

    def set_node(self, node: str, state: NodeState, *, reason: str = "") -> NodeView:
        """state: not down; nobody says that of a machine."""
        ...

    def pilots(self) -> PilotsView:
        """Allocations of Slurm on whose nodes jobs run."""
        ...

    def policy(self, *, state: bool = False) -> PolicyView:
        """The policy in use; state: with its own state."""
        ...

    def set_policy(self, written: str, *, interval_s: float | None = None) -> PolicyView: ...

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Sequence[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[Event]: ...

    def wait_for_events(self, after: int, timeout_s: float) -> int:
        """Returns once there is an event with a higher number than `after`, or at the time-out; the newest number."""
        ...

    def usage(self, *, since_s: float | None, until_s: float | None, by: str) -> Sequence[UsageRow]: ...

    def groups(self) -> Sequence[GroupView]:
        """Jobs that hold the same GPUs at the same time."""
        ...

    def stats(self, *, since_s: float | None, until_s: float | None, user: str | None) -> StatsView:
        """Figures of what ran in a span of time, by default the last day; user: of one alone."""
        ...

    def series(self, *, since_s: float | None, until_s: float | None, user: str | None) -> SeriesView:
        """Figures over that span, sample by sample."""
        ...

    def each_series(self, *, by: Of, name: str | None, since_s: float | None, until_s: float | None) -> EachSeriesView:
        """What each node, GPU, user or job used, sample by sample, by default in the last hour; name: of one alone."""
        ...

    def history(self, *, since_s: float | None, until_s: float | None) -> str:
        """A trace of the past jobs as CSV, for `gpuloom simulate` and `compare`."""
        ...

    def logs(self, job: int, attempt: int | None = None) -> Sequence[LogOf]:
        """Of all attempts, or of one: the first attempt first, its members in the order of their ranks."""
        ...

    def files_of(self, log: LogOf) -> RunFiles:
        """Who reads that log; of a node that is not there, files of which each call says so."""
        ...

    def status(self) -> StatusView:
        """The scheduler about itself."""
        ...

    def stop(self, *, stop_jobs: bool) -> None:
        """Ask the scheduler to stop; with `stop_jobs` running jobs are preempted first, and go on when it is back."""
        ...
