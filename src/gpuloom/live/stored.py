"""A store without a scheduler, as the API sees it: it reads what is left of a damaged store, read-only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gpuloom.core.errors import NotFoundError
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, Attempt, Job, NodeSource, NodeState
from gpuloom.core.pace import ALIKE
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.no_files import NoFiles
from gpuloom.executors.node import RunFiles
from gpuloom.facts.profiles import load_profiles
from gpuloom.live.figures.each import Of
from gpuloom.live.parts import DEFAULT_INTERVAL_S
from gpuloom.live.planning.estimates import Estimates
from gpuloom.live.planning.gpu_memory import GpuMemory
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.records.fleet import fleet_of, models_of
from gpuloom.live.records.history import trace_csv
from gpuloom.live.service import LogOf, hooked_of, logs_of
from gpuloom.live.store_check import Checked
from gpuloom.live.submission.actions import Action
from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.views.answers import StatusView
from gpuloom.live.views.cluster import executor_view, monitor_view, sharing_view, status_view, store_view, usage_row
from gpuloom.live.views.cluster_answers import (
    EachSeriesView,
    GroupView,
    NodeView,
    PolicyView,
    SeriesView,
    StatsView,
    UsageRow,
)
from gpuloom.live.views.figures import each_series_view, series_view, stats_view
from gpuloom.live.views.job_answers import JobView, ShowView, WhyView
from gpuloom.live.views.jobs import job_view, log_place, preemptions_of, show_view
from gpuloom.live.views.pilots import NO_PILOTS, PilotsView
from gpuloom.live.views.sizes import RESIZES
from gpuloom.store.errors import StoreDamagedError
from gpuloom.store.port import JobQuery, Store

NOBODY = "no scheduler is running"


class StoredService:
    """Implements `Service` on a store that no scheduler may go on with. problem: why."""

    def __init__(self, store: Store, runs: Path, problem: str) -> None:
        self._store, self._runs, self._problem = store, runs, problem
        self._now_s = time.time()
        self._nodes: dict[str, NodeSource] | None = None
        """Where each node comes from, once it was asked."""

    # -- reading ----------------------------------------------------------------------------------------------

    def job(self, job: int) -> JobView:
        return self._views([self._get(job)])[0]

    def jobs(self, query: JobQuery) -> Sequence[JobView]:
        return self._views(self._store.jobs(query))

    def show(self, job: int) -> ShowView:
        record, attempts = self._get(job), self._store.attempts([job])
        events = self._store.events(job=job, limit=200, newest=True)
        resizes = self._store.events(job=job, types=RESIZES, newest=True) if record.spec.elastic else ()
        log = log_place(attempts[-1], self._here) if attempts else ""
        seen = hooked_of(self, attempts[-1], live=False) if attempts else None
        need = GpuMemory(self._store.measured_runs, self._store.attempts).of_job(record)
        view, spec, now_s = self._views([record])[0], record.spec, self._now_s
        return show_view(view, spec, ALIKE, attempts, events, log, now_s=now_s, hooked=seen, resizes=resizes, need=need)

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Sequence[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[Event]:
        return self._store.events(after=after, job=job, types=types, limit=limit, newest=newest)

    def wait_for_events(self, after: int, timeout_s: float) -> int:
        found = self._store.events(limit=1, newest=True)
        return found[0].id if found else 0

    def usage(self, *, since_s: float | None, until_s: float | None, by: str) -> Sequence[UsageRow]:
        until = self._now_s if until_s is None else until_s
        return [usage_row(row) for row in self._store.usage(since_s=since_s or 0.0, until_s=until, by=by)]

    def stats(self, *, since_s: float | None, until_s: float | None, user: str | None) -> StatsView:
        return stats_view(self._store, since_s, until_s, user, self._now_s)

    def series(self, *, since_s: float | None, until_s: float | None, user: str | None) -> SeriesView:
        return series_view(self._store, since_s, until_s, user, self._now_s)

    def each_series(self, *, by: Of, name: str | None, since_s: float | None, until_s: float | None) -> EachSeriesView:
        return each_series_view(self._store, by, name, since_s, until_s, self._now_s)

    def history(self, *, since_s: float | None, until_s: float | None) -> str:
        loaded = self._store.load(recent=0)
        fleet = fleet_of(loaded.nodes, everything=True)
        past = self._store.history(since_s=since_s or 0.0, until_s=self._now_s if until_s is None else until_s)
        interval_s = float(loaded.settings.get("interval_s", DEFAULT_INTERVAL_S))
        speeds = ModelSpeeds(self._store.measured_runs, Estimates(self._store.ended_runs))
        speeds.see(models_of(loaded.nodes))
        known, events = load_profiles(), self._store.events
        return trace_csv(past, interval_s, fleet, pace_of=speeds.of_job, profiles=known, events=events)

    def logs(self, job: int, attempt: int | None = None) -> Sequence[LogOf]:
        runs = [run for run in self._store.attempts([job]) if attempt in (None, run.number)]
        if attempt is not None and not runs:
            raise NotFoundError(f"job {job} has no attempt with number {attempt}")
        return [log for run in runs for log in logs_of(run, live=False)]

    def files_of(self, log: LogOf) -> RunFiles:
        return self._here(log.node) or NoFiles(log.node)

    def _here(self, node: str) -> LocalFiles | None:
        if self._nodes is None:
            self._nodes = {known.name: known.source for known in self._store.load(recent=0).nodes}
        return LocalFiles(self._runs) if self._nodes.get(node, NodeSource.HERE) is NodeSource.HERE else None

    def status(self) -> StatusView:
        home = self._runs.parent
        return status_view(
            home=home,
            started_s=self._now_s,
            now_s=self._now_s,
            store=store_view(str(home / "store.db"), self._store.schema_version, self._problem, Checked.DAMAGED),
            executor=executor_view("none", NOBODY, {}),
            monitor=monitor_view(NOBODY),
            policy="",
            policy_problem="",
            policy_failure=None,
            policy_lacks=(),
            interval_s=0.0,
            sharing=sharing_view(on=False, gated=False, text=NOBODY),
            jobs=self._store.counts(),
            nodes=(),
            attempts=(),
            last_pass_s=0.0,
        )

    # -- what needs a scheduler -----------------------------------------------------------------------------------

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        self._refuse()

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Sequence[JobView]:
        self._refuse()

    def hold(self, jobs: Sequence[int]) -> Sequence[JobView]:
        self._refuse()

    def release(self, jobs: Sequence[int]) -> Sequence[JobView]:
        self._refuse()

    def suspend(self, jobs: Sequence[int]) -> Sequence[JobView]:
        self._refuse()

    def resume(self, jobs: Sequence[int]) -> Sequence[JobView]:
        self._refuse()

    def requeue(self, jobs: Sequence[int]) -> Sequence[JobView]:
        self._refuse()

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        self._refuse()

    def update_array(self, array: int, changes: Mapping[str, Any]) -> Mapping[str, int]:
        self._refuse()

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Sequence[JobView]:
        self._refuse()

    def move_to_top(self, jobs: Sequence[int]) -> Sequence[JobView]:
        self._refuse()

    def why(self, job: int, *, forecast: bool = True) -> WhyView:
        self._refuse()

    def nodes(self) -> Sequence[NodeView]:
        self._refuse()

    def set_node(self, node: str, state: NodeState, *, reason: str = "") -> NodeView:
        self._refuse()

    def pilots(self) -> PilotsView:
        return NO_PILOTS

    def groups(self) -> Sequence[GroupView]:
        return []  # nothing runs that is known of

    def policy(self, *, state: bool = False) -> PolicyView:
        self._refuse()

    def set_policy(self, written: str, *, interval_s: float | None = None) -> PolicyView:
        self._refuse()

    def stop(self, *, stop_jobs: bool) -> None:
        self._refuse()

    # -- inside -----------------------------------------------------------------------------------------------

    def _refuse(self) -> NoReturn:
        raise StoreDamagedError(f"no scheduler is running, and none can start: {self._problem}")

    def _get(self, job: int) -> Job:
        found = self._store.job(job)
        if found is None:
            raise NotFoundError(f"job {job} does not exist or can't be read")
        return found

    def _views(self, records: Sequence[Job]) -> list[JobView]:
        runs: dict[int, list[Attempt]] = {}
        for attempt in self._store.attempts([job.id for job in records]):
            runs.setdefault(attempt.job, []).append(attempt)
        return [
            job_view(
                job,
                attempt=runs[job.id][-1] if job.phase in ACTIVE and runs.get(job.id) else None,
                preemptions=preemptions_of(runs, job.id),
                reason=None,
                usage=None,
                left=None,
                now_s=self._now_s,
            )
            for job in records
        ]
