"""The running scheduler as the API sees it (`live/service.py` says what each method does)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from gpuloom.agent.looking import Looker
from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.errors import InputError, NotFoundError
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, ENDED, Attempt, Job, NodeSource, NodeState, Phase
from gpuloom.core.spec import OnPreempt
from gpuloom.core.words import plural
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.node import RunFiles
from gpuloom.facts.inputs import load_policy
from gpuloom.live.dispatch.replicas import RESTARTED
from gpuloom.live.figures.each import Of
from gpuloom.live.planning.lacks import lacks
from gpuloom.live.planning.reasons import why
from gpuloom.live.records.fleet import fleet_of, shares_gpus
from gpuloom.live.records.history import trace_csv
from gpuloom.live.scheduler import Scheduler
from gpuloom.live.service import LogOf, hooked_of, logs_of
from gpuloom.live.sights import Sights
from gpuloom.live.store_check import Checked, StoreCheck
from gpuloom.live.submission.actions import Action
from gpuloom.live.submission.admission import Admission
from gpuloom.live.submission.changes import JobChanges
from gpuloom.live.submission.fields import interval as checked_interval
from gpuloom.live.submission.lookup import JobRecords
from gpuloom.live.submission.spec import JobSpec
from gpuloom.live.submission.submitting import Submissions
from gpuloom.live.views.answers import StatusView
from gpuloom.live.views.cluster import (
    executor_view,
    failure_view,
    holders,
    monitor_view,
    node_view,
    sharing_view,
    status_view,
    store_view,
    usage_row,
)
from gpuloom.live.views.cluster_answers import (
    EachSeriesView,
    FailureView,
    GroupView,
    NodeView,
    PolicyView,
    SeriesView,
    StatsView,
    UsageRow,
)
from gpuloom.live.views.figures import each_series_view, series_view, stats_view
from gpuloom.live.views.groups import groups_view
from gpuloom.live.views.job_answers import JobView, MakesWayView, ShowView, WhyView
from gpuloom.live.views.jobs import job_view, log_place, preemptions_of, show_view
from gpuloom.live.views.pilots import NO_PILOTS, PilotsView
from gpuloom.live.views.policy import policy_view, with_state
from gpuloom.live.views.sizes import RESIZES
from gpuloom.live.views.suspensions import SUSPENSIONS, in_memory, makes_way_view
from gpuloom.live.views.why import Whys
from gpuloom.policies.registry import parse_policy
from gpuloom.store.port import JobQuery


class LiveService:
    """Implements `Service` on a scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        sights: Sights,
        *,
        store_path: str,
        on_stop: Callable[[], None],
        machine: Looker | None = None,
        check: StoreCheck | None = None,
        links: Callable[[], str] = lambda: "",
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """machine: looks at this one, where jobs may run here. check: of the store, if it was not checked as a whole
        before the scheduler began. links: '' or why nothing is heard of nodes that joined. refresh: is called before
        jobs are submitted, so that what files say is known as it is now."""
        self._check, self._links, self._refresh = check, links, refresh
        self.pilots_of: Callable[[], PilotsView] | None = None
        """Says what pilots there are, where there can be any."""
        self._scheduler, self._sights, self._machine, self._store = scheduler, sights, machine, scheduler.store
        self._store_path, self._on_stop = store_path, on_stop
        self._started_s = scheduler.clock.now()
        self._whys = Whys(scheduler)
        self._jobs = JobRecords(scheduler)
        admission = Admission(scheduler.book, self._jobs.find, lambda: scheduler.may_come())
        self._submissions = Submissions(scheduler, admission)
        self._changes = JobChanges(scheduler, self._jobs, admission)

    # -- jobs -------------------------------------------------------------------------------------------------

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        self._refresh()
        return self._submissions.submit(specs, user=user, idempotency_key=idempotency_key)

    def job(self, job: int) -> JobView:
        return self._views([self._jobs.get(job)])[0]

    def jobs(self, query: JobQuery) -> Sequence[JobView]:
        return self._views(self._store.jobs(query))

    def show(self, job: int) -> ShowView:
        record = self._jobs.get(job)
        attempts = self._store.attempts([job])
        events = self._store.events(job=job, limit=200, newest=True)
        resizes = self._store.events(job=job, types=RESIZES, newest=True) if record.spec.elastic else ()
        suspends = record.spec.on_preempt in (OnPreempt.AUTO, OnPreempt.SUSPEND)
        suspensions = self._store.events(job=job, types=SUSPENSIONS, newest=True) if suspends else ()
        several = any(len(attempt.parts) > 1 for attempt in attempts)
        restarts = self._store.events(job=job, types=(RESTARTED,), newest=True) if several else ()
        log = log_place(attempts[-1], self._here) if attempts else ""
        pace = self._scheduler.planning.scene.pace(record)
        group = self._group_of(job) if record.phase in ACTIVE and not self._scheduler.stuck() else None
        seen = hooked_of(self, attempts[-1], live=record.phase in ACTIVE) if attempts else None
        view, need = self._views([record])[0], self._scheduler.planning.scene.memory.of_job(record)
        now_s, spec = self._scheduler.clock.now(), record.spec
        return show_view(
            view, spec, pace, attempts, events, log, group,
            now_s=now_s, hooked=seen, resizes=resizes, suspensions=suspensions,
            restarts=restarts, need=need, makes_way=self._makes_way(record),
        )  # fmt: skip

    def _makes_way(self, job: Job) -> MakesWayView | None:
        attempt, rehearsals = self._scheduler.book.attempts.get(job.id), self._scheduler.planning.scene.rehearsals
        if attempt is None:
            return None
        told = job.spec.on_preempt is OnPreempt.AUTO and rehearsals.able(attempt)
        return makes_way_view(rehearsals.way(job, attempt), rehearsals.why_not(job, attempt) if told else "")

    def _group_of(self, job: int) -> GroupView | None:
        return next((g for g in self.groups() if any(member["job"] == job for member in g["members"])), None)

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Sequence[JobView]:
        return self._changed(self._changes.cancel(jobs, grace_s=grace_s), jobs)

    def hold(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._changed(self._changes.hold(jobs), jobs)

    def release(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._changed(self._changes.release(jobs), jobs)

    def suspend(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._changed(self._changes.suspend(jobs), jobs)

    def resume(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._changed(self._changes.resume(jobs), jobs)

    def requeue(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._changed(self._changes.requeue(jobs), jobs)

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Sequence[JobView]:
        return self._changed(self._changes.update(jobs, changes), jobs)

    def move_to_top(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._changed(self._changes.move_to_top(jobs), jobs)

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        return self._changes.act_on_array(array, action, grace_s=grace_s)

    def update_array(self, array: int, changes: Mapping[str, Any]) -> Mapping[str, int]:
        return self._changes.update_array(array, changes)

    def why(self, job: int, *, forecast: bool = True) -> WhyView:
        return self._whys.view(self._jobs.get(job), forecast=forecast)

    # -- machines and policy ----------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeView]:
        book = self._scheduler.book
        attempts = list(book.attempts.values())
        frozen = partial(self._store.events, types=("attempt.frozen",), limit=1, newest=True)
        suspended = in_memory(attempts, lambda job: frozen(job=job))
        lie = {job for jobs in suspended.values() for job in jobs}
        held = holders(attempt for attempt in attempts if attempt.job not in lie)
        sights, shut, limits = self._sights, self._scheduler.planning.scene.shut, self._scheduler.gangs.limits
        return [
            node_view(
                node,
                held,
                seen.sample,
                seen.notes,
                sights.cut.get(node.name, ""),
                shut.get(node.name, ""),
                limits(node.name),
                suspended.get(node.name, {}),
            )
            for node in list(book.nodes.values())
            for seen in (sights.of(node.name),)
        ]

    def set_node(self, node: str, state: NodeState, *, reason: str = "") -> NodeView:
        if state is NodeState.DOWN:
            raise InputError("a node can be set 'up', 'cordoned' or 'draining', not 'down'")
        if node not in self._scheduler.book.nodes:
            known = ", ".join(self._scheduler.book.nodes)
            raise NotFoundError(f"no node is named {node!r}; there is: {known}")
        self._scheduler.do(lambda: self._scheduler.nodes.set(node, state, reason))
        return next(view for view in self.nodes() if view["name"] == node)

    def pilots(self) -> PilotsView:
        return NO_PILOTS if self.pilots_of is None else self.pilots_of()

    def policy(self, *, state: bool = False) -> PolicyView:
        scheduler, planning = self._scheduler, self._scheduler.planning
        swaps = self._store.events(types=["policy.set"], limit=2, newest=True)
        found = policy_view(planning, swaps, failure=self._policy_failure(), began_s=self._started_s)
        return scheduler.do(lambda: with_state(found, planning, scheduler.clock.now())) if state else found

    def set_policy(self, written: str, *, interval_s: float | None = None) -> PolicyView:
        parse_policy(written)
        load_policy(written)
        if interval_s is not None:
            checked_interval(interval_s)
        self._scheduler.do(lambda: self._scheduler.set_policy(written, interval_s))
        return self.policy()

    # -- reading ----------------------------------------------------------------------------------------------

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
        return self._scheduler.ledger.wait(after, timeout_s)

    def usage(self, *, since_s: float | None, until_s: float | None, by: str) -> Sequence[UsageRow]:
        # What runs has used its GPUs up to now, whatever span is asked for.
        now_s = self._scheduler.clock.now()
        until = now_s if until_s is None else min(until_s, now_s)
        return [usage_row(row) for row in self._store.usage(since_s=since_s or 0.0, until_s=until, by=by)]

    def groups(self) -> Sequence[GroupView]:
        return self._scheduler.do(lambda: groups_view(self._scheduler, self._sights))

    def stats(self, *, since_s: float | None, until_s: float | None, user: str | None) -> StatsView:
        return stats_view(self._store, since_s, until_s, user, self._scheduler.clock.now())

    def series(self, *, since_s: float | None, until_s: float | None, user: str | None) -> SeriesView:
        return series_view(self._store, since_s, until_s, user, self._scheduler.clock.now())

    def each_series(self, *, by: Of, name: str | None, since_s: float | None, until_s: float | None) -> EachSeriesView:
        return each_series_view(self._store, by, name, since_s, until_s, self._scheduler.clock.now())

    def history(self, *, since_s: float | None, until_s: float | None) -> str:
        until = self._scheduler.clock.now() if until_s is None else until_s
        past = self._store.history(since_s=since_s or 0.0, until_s=until)
        fleet = fleet_of(list(self._scheduler.book.nodes.values()), everything=True)
        interval_s = self._scheduler.planning.seat.interval_s
        pace_of, known = self._scheduler.planning.scene.pace, self._scheduler.planning.worlds.profiles
        return trace_csv(past, interval_s, fleet, pace_of=pace_of, profiles=known, events=self._store.events)

    def logs(self, job: int, attempt: int | None = None) -> Sequence[LogOf]:
        record = self._jobs.get(job)
        if attempt is not None and not 1 <= attempt <= record.attempts:
            raise NotFoundError(f"job {job} has {plural(record.attempts, 'attempt')}, so none with number {attempt}")
        return [
            log
            for one in self._store.attempts([job])
            if attempt in (None, one.number)
            for log in logs_of(one, live=one.number == record.attempts and record.phase in ACTIVE)
        ]

    def files_of(self, log: LogOf) -> RunFiles:
        return self._here(log.node) or self._scheduler.gangs.files(log.node)

    def _here(self, node: str) -> LocalFiles | None:
        """The files of runs of this node, if they are on this machine, as those of a node that no record names are."""
        record = self._scheduler.book.nodes.get(node)
        here = record is None or record.source is NodeSource.HERE
        return LocalFiles(self._scheduler.runs) if here else None

    def status(self) -> StatusView:
        scheduler, planning = self._scheduler, self._scheduler.planning
        problems = scheduler.problems
        store = problems.get("store", "") or problems.get("check", "")
        executor = problems.get("executor", "") or self._links() or scheduler.gangs.healthy()
        executor = executor or scheduler.intake.strangers_text
        checked = Checked.WHOLE if self._check is None else self._check.checked
        sharing = scheduler.sharing.why
        if not shares_gpus(list(scheduler.book.nodes.values())):
            sharing = "in this cluster a GPU is given to one pod alone"
        elif scheduler.sharing.able and not planning.policy.pairs:
            sharing = f"policy {planning.seat.written} can't put jobs beside each other on a GPU"
        return status_view(
            home=scheduler.runs.parent,
            started_s=self._started_s,
            now_s=scheduler.clock.now(),
            store=store_view(self._store_path, self._store.schema_version, store, checked),
            executor=executor_view(
                "nodes" if self._many() else "local", executor, scheduler.gangs.limits(scheduler.here)
            ),
            monitor=monitor_view("" if self._machine is None else self._machine.problem),
            policy=planning.seat.written,
            policy_problem=scheduler.policy_problem(),
            policy_failure=self._policy_failure(),
            policy_lacks=lacks(planning),
            interval_s=planning.seat.interval_s,
            sharing=sharing_view(on=planning.policy.pairs, gated=scheduler.sharing.gated, text=sharing),
            jobs=self._store.counts(),
            nodes=list(scheduler.book.nodes.values()),
            attempts=list(scheduler.book.attempts.values()),
            last_pass_s=planning.times.last_pass_s,
        )

    def stop(self, *, stop_jobs: bool) -> None:
        self._scheduler.stop(stop_jobs=stop_jobs)
        if not stop_jobs:  # else the scheduler ends by itself, once all jobs have
            self._on_stop()

    # -- inside -----------------------------------------------------------------------------------------------

    def _many(self) -> bool:
        """Whether jobs run on other machines than this one, too."""
        return any(node.source is not NodeSource.HERE for node in list(self._scheduler.book.nodes.values()))

    def _policy_failure(self) -> FailureView | None:
        standby = self._scheduler.planning.seat.standby
        failure = standby.failure or standby.unwritten
        return None if failure is None else failure_view(failure)

    def _changed(self, changed: Collection[int], jobs: Sequence[int]) -> Sequence[JobView]:
        """Views of jobs to which something was to be done. changed: those to which it was."""
        views = self._views([self._jobs.get(job) for job in jobs])
        for view in views:
            view["changed"] = view["id"] in changed
        return views

    def _views(self, records: Sequence[Job]) -> list[JobView]:
        scheduler = self._scheduler
        now = scheduler.clock.now()
        again = [job.id for job in records if job.attempts > (job.phase in ACTIVE)]
        ended: dict[int, list[Attempt]] = {}
        for attempt in self._store.attempts(again) if again else ():
            ended.setdefault(attempt.job, []).append(attempt)
        waiting = [job.id for job in records if job.phase in (Phase.QUEUED, Phase.HELD, Phase.FROZEN)]
        reasons: Mapping[int, Reason] = {}
        if waiting and (stuck := scheduler.stuck()):  # the list of jobs is there all the same
            reasons = dict.fromkeys(waiting, Reason(WaitCode.POLICY_FAILED, f"{stuck[0].upper()}{stuck[1:]}."))
        elif waiting:
            reasons = scheduler.do(lambda: why(scheduler.planning, waiting, scheduler.clock.now()))
        views = []
        for job in records:
            present = scheduler.book.attempts.get(job.id) if job.phase in ACTIVE else None
            views.append(
                job_view(
                    job,
                    attempt=present,
                    preemptions=preemptions_of(ended, job.id),
                    reason=reasons.get(job.id),
                    usage=self._sights.usage(present) if present is not None else None,
                    left=None if job.phase in ENDED else scheduler.left(job),
                    starting_s=scheduler.work.starting_s(job.id, now),
                    now_s=now,
                )
            )
        return views
