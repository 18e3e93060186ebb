"""The running scheduler as the API sees it (`live/service.py` says what each method does)."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from gpuloom import __version__
from gpuloom.core.decision import Reason
from gpuloom.core.errors import InputError
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, ENDED, WAITING, Attempt, EndReason, Job, Phase
from gpuloom.core.masked import masked, unmasked
from gpuloom.core.words import plural
from gpuloom.facts.inputs import load_policy
from gpuloom.live.care import Checked, StoreCheck
from gpuloom.live.dispatch.launch import run_directory
from gpuloom.live.forecasts.estimates import like_of
from gpuloom.live.machine import Machine
from gpuloom.live.planning.fleet import fleet_of
from gpuloom.live.planning.lacks import lacks
from gpuloom.live.planning.reasons import why
from gpuloom.live.planning.standby import FALLBACK
from gpuloom.live.records.history import trace_csv
from gpuloom.live.records.ledger import Draft
from gpuloom.live.scheduler import KEEP_ENVIRONMENTS_S, Scheduler
from gpuloom.live.service import ConflictError, NotFoundError
from gpuloom.live.submission.actions import Action, impossible, so_already
from gpuloom.live.submission.admission import Checks, dependencies, digest, submitted
from gpuloom.live.submission.spec import JobSpec, indices_of, job_spec, within_bounds
from gpuloom.live.views.jobs import attempt_view, event_view, job_view, preemptions_of
from gpuloom.live.views.models import FailureView, JobView, NodeView, PolicyView, ShowView, StatusView, WhyView
from gpuloom.live.views.why import Whys
from gpuloom.policies.registry import parse_policy
from gpuloom.store.port import JobQuery, Submission

T = TypeVar("T")

WHILE_ACTIVE = frozenset({"name", "priority", "retries", "estimate", "grace", "on_preempt", "time_limit", "checkpoint"})
"""Fields of a spec that may change while the job runs."""
NEVER = frozenset({"array", "hold"})


class LiveService:
    """Implements `Service` on a scheduler."""

    def __init__(
        self,
        scheduler: Scheduler,
        machine: Machine,
        *,
        store_path: str,
        on_stop: Callable[[], None],
        check: StoreCheck | None = None,
    ) -> None:
        """check: of the store, if it was not checked as a whole before the scheduler began."""
        self._check = check
        self._scheduler, self._machine, self._store = scheduler, machine, scheduler.store
        self._store_path, self._on_stop = store_path, on_stop
        self._started_s = scheduler.clock.now()
        self._whys = Whys(scheduler)

    # -- jobs -------------------------------------------------------------------------------------------------

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        if not specs:
            raise InputError("no job was given")
        specs = [spec.named() for spec in specs]
        many = len(specs) > 1
        digested = digest(specs, user) if idempotency_key is not None else ""
        book = self._scheduler.book
        if idempotency_key is not None and (taken := self._taken(idempotency_key, digested)) is not None:
            return _grouped(specs, taken)  # whatever has become of what it waited for
        checks = Checks(list(book.nodes.values()), self._find)

        def named(index: int) -> str:
            name = specs[index].name
            return f"job {index + 1} of {len(specs)} ({name})" if many else f"job {name!r}"

        for index, spec in enumerate(specs):
            checks.spec(spec, named(index))

        def take() -> list[list[int]]:
            submissions: list[Submission] = []
            if idempotency_key is not None and (before := self._taken(idempotency_key, digested)) is not None:
                return _grouped(specs, before)
            drafts: list[Draft] = []
            taken: list[list[int]] = []
            number = book.next_job
            for spec in specs:
                data, count = submitted(spec, user, number, self._scheduler.estimates)
                drafts.append(("jobs.submitted", number, data))
                taken.append(list(range(number, number + count)))
                number += count
            if idempotency_key is not None:
                jobs = tuple(job for group in taken for job in group)
                submissions.append(Submission(idempotency_key, digested, jobs, self._scheduler.clock.now()))
            for index, spec in enumerate(specs):
                # One that it waits for may have ended between the check and now.
                checks.after(dependencies(spec), named(index))
            environments = {place: spec.env for place, spec in enumerate(specs)}
            self._scheduler.ledger.write(drafts, submissions, environments)
            self._scheduler.planning.stale()
            return taken

        return self._scheduler.do(take)

    def job(self, job: int) -> JobView:
        return self._views([self._get(job)])[0]

    def jobs(self, query: JobQuery) -> Sequence[JobView]:
        return self._views(self._store.jobs(query))

    def show(self, job: int) -> ShowView:
        record = self._get(job)
        attempts = self._store.attempts([job])
        return {
            "job": self._views([record])[0],
            "spec": dict(record.spec),
            "attempts": [attempt_view(attempt) for attempt in attempts],
            "events": [event_view(event) for event in self._store.events(job=job, limit=200, newest=True)],
            "log": self._log(attempts[-1]) if attempts else "",
        }

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Sequence[JobView]:
        return self._change(Action.CANCEL, jobs, partial(self._cancel, grace_s=grace_s))

    def hold(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._change(Action.HOLD, jobs, self._hold)

    def release(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._change(Action.RELEASE, jobs, self._release)

    def requeue(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._change(Action.REQUEUE, jobs, self._requeue)

    def act_on_array(self, array: int, action: str, *, grace_s: float | None = None) -> Mapping[str, int]:
        do: Mapping[Action, tuple[Callable[[list[Job]], None], frozenset[Phase]]] = {
            Action.CANCEL: (partial(self._cancel, grace_s=grace_s), WAITING | ACTIVE),
            Action.HOLD: (self._hold, frozenset({Phase.QUEUED})),
            Action.RELEASE: (self._release, frozenset({Phase.HELD})),
            Action.REQUEUE: (self._requeue, ENDED | ACTIVE),
        }
        work, phases = do[Action(action)]

        def act() -> Mapping[str, int]:
            first, book = self._get(array), self._scheduler.book
            if first.array_id != array:
                raise NotFoundError(f"job {array} is not the first of an array")
            asked = JobQuery(array_id=array, oldest_first=True, limit=book.next_job)
            every = self._store.jobs(asked) if phases & ENDED else book.jobs.values()
            records = [
                job
                for record in every
                if record.array_id == array
                and (job := book.jobs.get(record.id, record)).phase in phases
                and not so_already(Action(action), job, book.attempts.get(job.id))
            ]
            for job in records:
                if refusal := impossible(Action(action), job, book.attempts.get(job.id)):
                    raise ConflictError(refusal)
            work(records)
            self._scheduler.planning.stale()
            return Counter([book.jobs[job.id].phase.value for job in records])

        return dict(self._scheduler.do(act))

    def _cancel(self, records: list[Job], *, grace_s: float | None = None) -> None:
        waiting = [job for job in records if job.phase in (Phase.QUEUED, Phase.HELD)]
        active = [job.id for job in records if job.phase in ACTIVE]
        data = {"message": "", "reason": "cancelled"}
        drafts: list[Draft] = [("job.cancelled", job.id, data) for job in waiting]
        waited_for = [job for job in waiting if self._scheduler.ledger.waits_for(job.id)]
        gone = {job.id: replace(job, phase=Phase.CANCELLED) for job in waited_for}
        left_out = {job.id for job in waiting} if gone else set[int]()
        self._write([*drafts, *self._scheduler.intake.follow_up(gone, left_out)])
        if active:
            self._scheduler.dispatch.end_attempts(active, EndReason.CANCELLED, grace_s)

    def _hold(self, records: list[Job]) -> None:
        nothing: Mapping[str, Any] = {}
        self._write([("job.held", job.id, nothing) for job in records])

    def _release(self, records: list[Job]) -> None:
        nothing: Mapping[str, Any] = {}
        self._write([("job.released", job.id, nothing) for job in records])

    def _requeue(self, records: list[Job]) -> None:
        checks = Checks(list(self._scheduler.book.nodes.values()), self._find)
        kept: dict[int, bool] = {}  # by spec, which all jobs of an array share
        for job in records:
            if job.phase not in ENDED:
                continue
            checks.after(job.after, f"job {job.id}")
            if job.spec_id not in kept:
                gone = bool(job.spec.get("env")) and self._store.environment(job.spec_id) is None
                kept[job.spec_id] = not gone
            if not kept[job.spec_id]:
                raise ConflictError(
                    f"job {job.id} can't be requeued: the values of its environment variables are kept for "
                    f"{KEEP_ENVIRONMENTS_S / 86_400:g} days after its end; submit it again"
                )
        book = self._scheduler.book
        for job in records:
            book.jobs.setdefault(job.id, job)  # one that ended long ago may be on disk only
        self._write([("job.requeued", job.id, {}) for job in records if job.phase in ENDED])
        active = [job.id for job in records if job.phase in ACTIVE]
        if active:
            self._scheduler.dispatch.end_attempts(active, EndReason.REQUEUED, None)

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Sequence[JobView]:
        if not changes:
            raise InputError("no change was given")
        for name in NEVER & changes.keys():
            raise InputError(
                f"{name} can't be changed after submission" + ("; use hold and release" * (name == "hold"))
            )

        return self._change(Action.UPDATE, jobs, lambda records: self._update([(job, changes) for job in records]))

    def move_to_top(self, jobs: Sequence[int]) -> Sequence[JobView]:
        def work(records: list[Job]) -> Collection[int]:
            asked = set(jobs)
            others = [
                job.priority
                for job in self._scheduler.book.jobs.values()
                if job.phase in (Phase.QUEUED, Phase.HELD, Phase.FROZEN) and job.id not in asked
            ]
            top = max(others) + 1 if others else None
            raised = [(job, job.priority if top is None else max(top, job.priority)) for job in records]
            return self._update([(job, {"priority": priority}) for job, priority in raised])

        return self._change(Action.TOP, jobs, work)

    def _update(self, wanted: Sequence[tuple[Job, Mapping[str, Any]]]) -> Collection[int]:
        """Change fields of specs; those jobs that are other than before. In the scheduler's thread."""
        drafts: list[Draft] = []
        environments: dict[int, Mapping[str, str]] = {}
        checks = Checks(list(self._scheduler.book.nodes.values()), self._find)
        for job, changes in wanted:
            late = sorted(changes.keys() - WHILE_ACTIVE)
            if job.phase in ACTIVE and late:
                raise ConflictError(
                    f"job {job.id} is {job.phase}: {', '.join(late)} can only be changed while it waits "
                    f"(now: {', '.join(sorted(WHILE_ACTIVE))})"
                )
            spec = job_spec({**within_bounds(job.spec), **changes}, source=f"job {job.id}")
            before = (self._store.environment(job.spec_id) or {}) if spec.env else {}
            spec = spec.model_copy(update={"env": unmasked(spec.env, before)})
            if job.phase not in ACTIVE:
                checks.spec(spec, f"job {job.id}")
            if any(other == job.id for other, _ in dependencies(spec)):
                raise InputError(f"job {job.id} can't wait for itself")
            written = masked(spec.model_dump(mode="json"))
            if all(written[name] == job.spec.get(name) for name in changes) and spec.env == before:
                continue
            environments[len(drafts)] = spec.env
            like = like_of(written, job.user, spec.gpus, job.array_id)
            estimate = self._scheduler.estimates.of(like, given_s=spec.estimate, time_limit_s=spec.time_limit)
            data = {
                "spec": written,
                "after": [list(entry) for entry in dependencies(spec)],
                "estimate_s": estimate.total_s,
                "estimate_from": estimate.source.value,
            }
            drafts.append(("job.updated", job.id, data))
        self._scheduler.ledger.write(drafts, (), environments)
        changed = {int(number) for _, number, _ in drafts if number is not None}
        for job, changes in wanted:
            if job.id not in changed:
                continue
            if job.phase is Phase.QUEUED:
                self._scheduler.planning.asks_anew(job.id)
            if "time_limit" in changes:
                self._scheduler.set_limit(job.id)
        return changed

    def why(self, job: int, *, forecast: bool = True) -> WhyView:
        return self._whys.view(self._get(job), forecast=forecast)

    # -- machines and policy ----------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeView]:
        book = self._scheduler.book
        jobs: dict[tuple[str, int], list[int]] = {}
        for attempt in list(book.attempts.values()):
            for name, gpus in attempt.allocation:
                for gpu in gpus:
                    jobs.setdefault((name, gpu), []).append(attempt.job)
        return [self._machine.node_view(node, jobs) for node in list(book.nodes.values())]

    def set_node(self, node: str, state: str, *, reason: str = "") -> NodeView:
        if state not in ("up", "cordoned", "draining"):
            raise InputError(f"a node's state is 'up', 'cordoned' or 'draining', not {state!r}")
        if node not in self._scheduler.book.nodes:
            known = ", ".join(self._scheduler.book.nodes)
            raise NotFoundError(f"no node is named {node!r}; there is: {known}")
        self._scheduler.do(lambda: self._scheduler.set_node(node, state, reason))
        return next(view for view in self.nodes() if view["name"] == node)

    def policy(self) -> PolicyView:
        events = self._store.events(types=["policy.set"], limit=2, newest=True)
        planning = self._scheduler.planning
        return {
            "policy": planning.written,
            "interval_s": planning.interval_s,
            "since_s": events[-1].at_s if events else self._started_s,
            "previous": events[0].data["policy"] if len(events) > 1 else None,
            "serves": FALLBACK if planning.standby.serving else planning.written,
            "failure": self._policy_failure(),
        }

    def set_policy(self, written: str, *, interval_s: float | None = None) -> PolicyView:
        parse_policy(written)
        load_policy(written)
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

    def usage(self, *, since_s: float | None, until_s: float | None, by: str) -> Sequence[Mapping[str, Any]]:
        # What runs has used its GPUs up to now, whatever span is asked for.
        now_s = self._scheduler.clock.now()
        until = now_s if until_s is None else min(until_s, now_s)
        return [asdict(row) for row in self._store.usage(since_s=since_s or 0.0, until_s=until, by=by)]

    def history(self, *, since_s: float | None, until_s: float | None) -> str:
        until = self._scheduler.clock.now() if until_s is None else until_s
        past = self._store.history(since_s=since_s or 0.0, until_s=until)
        fleet = fleet_of(list(self._scheduler.book.nodes.values()), everything=True)
        return trace_csv(past, self._scheduler.planning.interval_s, "" if fleet is None else str(fleet.cluster))

    def log_files(self, job: int, attempt: int | None = None) -> Sequence[Mapping[str, Any]]:
        record = self._get(job)
        if attempt is not None and not 1 <= attempt <= record.attempts:
            raise NotFoundError(f"job {job} has {plural(record.attempts, 'attempt')}, so none with number {attempt}")
        return [
            {
                "attempt": run.number,
                "path": self._log(run),
                "live": run.number == record.attempts and record.phase in ACTIVE,
            }
            for run in self._store.attempts([job])
            if attempt in (None, run.number)
        ]

    def _log(self, attempt: Attempt) -> str:
        return str(run_directory(self._scheduler.runs, attempt.run) / "output.log")

    def status(self) -> StatusView:
        scheduler = self._scheduler
        nodes = list(scheduler.book.nodes.values())
        busy = {
            slot
            for a in list(scheduler.book.attempts.values())
            for n, gpus in a.allocation
            for slot in [(n, g) for g in gpus]
        }
        store = scheduler.problems.get("store", "") or scheduler.problems.get("check", "")
        executor = (
            scheduler.problems.get("executor", "") or scheduler.executor.healthy() or scheduler.intake.strangers_text
        )
        return {
            "version": __version__,
            "pid": os.getpid(),
            "started_s": self._started_s,
            "now_s": scheduler.clock.now(),
            "home": str(scheduler.runs.parent),
            "store": {
                "kind": "sqlite",
                "path": self._store_path,
                "schema_version": self._store.schema_version,
                "ok": not store,
                "problem": store,
                "checked": (Checked.WHOLE if self._check is None else self._check.checked).value,
            },
            "executor": {
                "name": scheduler.executor.name,
                "ok": not executor,
                "problem": executor,
                "limits": dict(self._machine.limits()),
            },
            "monitor": {"ok": not self._machine.problem, "problem": self._machine.problem},
            "policy": scheduler.planning.written,
            "policy_problem": scheduler.policy_problem(),
            "policy_failure": self._policy_failure(),
            "policy_lacks": [
                {"input": lack.input.value, "jobs": lack.jobs, "text": lack.text} for lack in lacks(scheduler.planning)
            ],
            "interval_s": scheduler.planning.interval_s,
            "sharing": {
                "on": scheduler.planning.policy.pairs,
                "gated": scheduler.sharing.gated,
                "text": scheduler.sharing.why
                if scheduler.planning.policy.pairs or not scheduler.sharing.able
                else f"policy {scheduler.planning.written} forms no pairs",
            },
            "jobs": dict(self._store.counts()),
            "gpus": {
                "total": sum(len(node.gpus) for node in nodes),
                "busy": len(busy),
                "in_service": sum(gpu.state == "ok" for node in nodes if node.state == "up" for gpu in node.gpus),
                "kind": nodes[0].kind if nodes else "gpu",
            },
            "nodes": len(nodes),
            "last_pass_s": scheduler.planning.last_pass_s,
        }

    def stop(self, *, stop_jobs: bool) -> None:
        self._scheduler.stop(stop_jobs=stop_jobs)
        if not stop_jobs:  # else the scheduler ends by itself, once all jobs have
            self._on_stop()

    def _taken(self, key: str, digested: str) -> tuple[int, ...] | None:
        """Jobs of the submission with this key, if there was one. Raises ConflictError if it was another one."""
        before = self._store.submission(key)
        if before is not None and before.digest != digested:
            raise ConflictError(
                f"idempotency key {key!r} was used for another submission, which became job {before.jobs[0]}: "
                "use a new key for a new submission"
            )
        return None if before is None else before.jobs

    # -- inside -----------------------------------------------------------------------------------------------

    def _policy_failure(self) -> FailureView | None:
        standby = self._scheduler.planning.standby
        failure = standby.failure or standby.unwritten
        return None if failure is None else failure.view()

    def _find(self, job: int) -> Job | None:
        return self._scheduler.book.jobs.get(job) or self._store.job(job)

    def _get(self, job: int) -> Job:
        found = self._find(job)
        if found is None:
            last = self._scheduler.book.next_job - 1
            raise NotFoundError(f"there is no job {job}" + (f"; numbers go up to {last}" if last else "; none yet"))
        return found

    def _write(self, drafts: Iterable[Draft]) -> None:
        self._scheduler.ledger.write(list(drafts))

    def _change(
        self, action: Action, jobs: Sequence[int], work: Callable[[list[Job]], Collection[int] | None]
    ) -> Sequence[JobView]:
        """Do something to jobs, to all or none of them; nothing to those of which it is so already.

        Those that have ended stand in nobody's way where some are left to be cancelled. work: does it, and says which
        jobs are other than before; None: all.
        """

        def change() -> Collection[int]:
            records = [self._get(job) for job in dict.fromkeys(jobs)]
            if action is Action.CANCEL and any(job.phase not in ENDED for job in records):
                records = [job for job in records if job.phase not in ENDED]
            attempts = self._scheduler.book.attempts
            for job in records:
                if refusal := impossible(action, job, attempts.get(job.id)):
                    raise ConflictError(refusal)
            todo = [job for job in records if not so_already(action, job, attempts.get(job.id))]
            if not todo:
                return ()
            changed = work(todo)
            self._scheduler.planning.stale()
            return {job.id for job in todo} if changed is None else changed

        changed = self._scheduler.do(change)
        views = self._views([self._get(job) for job in jobs])
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
            reasons = dict.fromkeys(waiting, Reason("policy_failed", f"{stuck[0].upper()}{stuck[1:]}."))
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
                    usage=self._machine.usage(present.run) if present is not None else None,
                    left=None if job.phase in ENDED else scheduler.left(job),
                    starting_s=scheduler.work.starting_s(job.id, now),
                    now_s=now,
                )
            )
        return views


def _grouped(specs: Sequence[JobSpec], jobs: Sequence[int]) -> list[list[int]]:
    """The numbers of a submission of before, by spec."""
    groups, at = [], 0
    for spec in specs:
        count = 1 if spec.array is None else len(indices_of(spec.array)[0])
        groups.append(list(jobs[at : at + count]))
        at += count
    return groups
