"""A scheduler for tests of API, client and command line: all rules of a job's states, no executor, no store.

What a real scheduler would do by itself, a test asks for: `run`, `write`, `finish`, `preempt`, `freeze`, `thaw`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gpuloom
from fake_views import job_view, matches, node_data, sample, submits, why_view
from gpuloom.core.book import Book
from gpuloom.core.errors import ConflictError, ImpossibleJobError, InputError, NotFoundError, PolicyError
from gpuloom.core.events import Event
from gpuloom.core.job import ACTIVE, ENDED, WAITING, Attempt, EndReason, Gpu, Job, NodeRecord, NodeState, Phase
from gpuloom.core.pace import ALIKE
from gpuloom.executors.local_files import LocalFiles
from gpuloom.executors.no_files import NoFiles
from gpuloom.executors.node import RunFiles
from gpuloom.executors.port import ExecutorError
from gpuloom.live.figures.each import Of
from gpuloom.live.figures.sample import WIDTHS_S, Figures, row_of
from gpuloom.live.service import LogOf, logs_of
from gpuloom.live.store_check import Checked
from gpuloom.live.submission.actions import Action, impossible, so_already
from gpuloom.live.submission.spec import JobSpec, job_spec
from gpuloom.live.views import cluster
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
from gpuloom.live.views.figures import each_series_view, series_view, stats_view
from gpuloom.live.views.job_answers import JobView, ShowView, WhyView
from gpuloom.live.views.jobs import show_view
from gpuloom.live.views.pilots import NO_PILOTS, PilotsView
from gpuloom.live.views.policy import parameters_of
from gpuloom.policies.registry import create_policy
from gpuloom.store.errors import StoreError
from gpuloom.store.memory import MemoryStore
from gpuloom.store.port import JobQuery, Usage

RUNNING_MAY_CHANGE = {"name", "priority", "time_limit", "retries", "estimate", "grace"}


class Silent(NoFiles):
    """The files of a node whose link is cut."""

    def _error(self) -> ExecutorError:
        return ExecutorError(f"node {self._node} does not answer")


class FakeService:
    """A `live.service.Service` in memory. home: where the files of runs go, whichever node they are of.

    Cancelled jobs that run end at once. broken: a message; from then on every write is refused as a full disk would.
    silent: nodes that can't be asked for files.
    calls: every call that asks for a change, as (name, keyword arguments).
    """

    def __init__(self, home: Path, *, gpus: int = 4, clock: Callable[[], float] = time.time) -> None:
        self.home, self.clock, self.broken = home, clock, ""
        self.pilots_now: PilotsView = NO_PILOTS
        self.files, self.silent = LocalFiles(home / "runs"), set[str]()
        self.book = Book()
        self.samples: list[Figures] = []
        self.groups_now: list[GroupView] = []
        self.log: list[Event] = []
        self.past: dict[int, list[Attempt]] = {}
        self.keys: dict[str, tuple[str, list[list[int]]]] = {}
        self.progress: dict[int, dict[str, Any]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.stopped = threading.Event()
        self._changed = threading.Condition(threading.RLock())
        self._started_s = clock()
        node = NodeRecord(
            "node0",
            tuple(Gpu(i, f"GPU-{i:04d}", "H100", 81_920) for i in range(gpus)),
            cpus=16,
            memory_mib=65_536,
        )
        self._emit("scheduler.started", None, {"version": gpuloom.__version__})
        self._emit("node.changed", None, {"node": node_data(node)})
        self._emit("policy.set", None, {"policy": "fifo", "interval_s": 60.0})

    # -- what the machine would do ------------------------------------------------------------------------------------

    def run(self, job: int) -> None:
        """The job gets the first free GPUs and runs."""
        with self._changed:
            record = self._job(job)
            taken = {g for a in self.book.attempts.values() for _, gpus in a.allocation for g in gpus}
            free = [gpu.index for gpu in self.book.nodes["node0"].gpus if gpu.index not in taken][: record.gpus]
            assert len(free) == record.gpus, f"job {job} needs {record.gpus} GPUs, free: {free}"
            self._begin(record, [["node0", free]])

    def run_gang(self, job: int, *nodes: str) -> None:
        """The job runs with a member and GPU 0 on each of these nodes."""
        with self._changed:
            for name in nodes:
                if name not in self.book.nodes:
                    node = replace(self.book.nodes["node0"], name=name)
                    self._emit("node.changed", None, {"node": node_data(node)})
            self._begin(self._job(job), [[name, [0]] for name in nodes])

    def _begin(self, record: Job, allocation: list[list[Any]]) -> None:
        job, identity = record.id, {"pid": 1000 + record.id, "start_ticks": 1, "boot_id": "boot"}
        self._emit("attempt.starting", job, {"attempt": record.attempts + 1, "allocation": allocation})
        members = {"members": [[1000 + job + rank, 1, "boot"] for rank in range(len(allocation))]}
        self._emit("attempt.running", job, identity | (members if len(allocation) > 1 else {}))
        for rank in range(len(allocation)):
            path = self.log_path(job, rank)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def write(self, job: int, text: str | bytes, member: int = 0) -> None:
        """The job (or one of its members) writes to its log."""
        with self.log_path(job, member).open("ab") as file:
            file.write(text.encode() if isinstance(text, str) else text)

    def finish(self, job: int, exit_code: int = 0) -> None:
        """The job's process ends by itself."""
        good = exit_code == 0
        self._end(
            job,
            EndReason.FINISHED if good else EndReason.FAILED,
            Phase.FINISHED if good else Phase.FAILED,
            exit_code=exit_code,
            message="" if good else f"exit code {exit_code}",
        )

    def fail_to_start(self, job: int, message: str) -> None:
        """The job's process could not be started."""
        self._end(job, EndReason.NOT_STARTED, Phase.FAILED, exit_code=None, message=message)

    def preempt(self, job: int) -> None:
        """The job is stopped for others and waits again."""
        self._stop(job, EndReason.PREEMPTED, 0.0)
        self._end(job, EndReason.PREEMPTED, Phase.QUEUED, exit_code=85)

    def freeze(self, job: int) -> None:
        self._emit("attempt.frozen", job, {})

    def thaw(self, job: int) -> None:
        allocation = [[node, list(gpus)] for node, gpus in self.book.attempts[job].allocation]
        self._emit("attempt.thawed", job, {"allocation": allocation})

    def flag(self, job: int, flag: str, text: str) -> None:
        self._emit("job.flagged", job, {"flag": flag, "text": text})

    def report(self, job: int, **progress: Any) -> None:
        """The job reports progress."""
        self.progress[job] = progress

    def log_path(self, job: int, member: int = 0) -> Path:
        """Log of its present or last attempt."""
        return self.files.log_path(self._attempts(job)[-1].runs[member])

    # -- changes ------------------------------------------------------------------------------------------------------

    def submit(
        self, specs: Sequence[JobSpec], *, user: str, idempotency_key: str | None = None
    ) -> Sequence[Sequence[int]]:
        with self._changed:
            self.calls.append(("submit", {"specs": list(specs), "user": user, "idempotency_key": idempotency_key}))
            digest = ""
            if idempotency_key is not None:
                text = json.dumps([user, *(spec.model_dump(mode="json") for spec in specs)], sort_keys=True)
                digest = hashlib.sha256(text.encode()).hexdigest()
                if idempotency_key in self.keys:
                    before, numbers = self.keys[idempotency_key]
                    if before != digest:
                        raise ConflictError(
                            f"the idempotency key {idempotency_key!r} was used before for other jobs: take a new one"
                        )
                    return numbers
            total = sum(len(node.gpus) for node in self.book.nodes.values())
            first, entries, answer = self.book.next_job, [], []
            for spec in specs:
                if spec.gpus > total:
                    raise ImpossibleJobError(f"it asks for {spec.gpus} GPUs, and there are {total}")
                for other in (*spec.after, *spec.after_any):
                    if other not in self.book.jobs and not self.book.next_job <= other < first:
                        raise NotFoundError(f"there is no job {other} to wait for")
                indices = spec.indices()
                count = 1 if indices is None else len(indices)
                data = spec.named().model_dump(mode="json")
                after = [[other, "ok"] for other in spec.after] + [[other, "any"] for other in spec.after_any]
                entries.append(
                    {
                        "user": user,
                        "spec": data,
                        "first": first,
                        "count": count,
                        "indices": indices,
                        "held": spec.hold,
                        "after": after,
                        "estimates": [[spec.estimate or 3600.0, "given" if spec.estimate else "default"]],
                    }
                )
                answer.append(list(range(first, first + count)))
                first += count
            self._emit_all([("jobs.submitted", None, entry) for entry in entries])
            if idempotency_key is not None:
                self.keys[idempotency_key] = digest, answer
            return answer

    def cancel(self, jobs: Sequence[int], *, grace_s: float | None = None) -> Sequence[JobView]:
        def one(job: Job) -> None:
            if job.phase in WAITING:
                self._emit("job.cancelled", job.id, {"message": "cancelled by its user", "reason": "cancelled"})
            else:
                self._stop(job.id, EndReason.CANCELLED, grace_s)
                self._end(job.id, EndReason.CANCELLED, Phase.CANCELLED, exit_code=None, message="cancelled by its user")

        return self._each("cancel", jobs, one, grace_s=grace_s)

    def hold(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._each("hold", jobs, lambda job: self._emit("job.held", job.id, {}))

    def release(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._each("release", jobs, lambda job: self._emit("job.released", job.id, {}))

    def suspend(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._each("suspend", jobs, lambda job: self._emit("job.suspended", job.id, {}))

    def resume(self, jobs: Sequence[int]) -> Sequence[JobView]:
        return self._each("resume", jobs, self._resumed)

    def _resumed(self, job: Job) -> None:
        self._emit("job.released" if job.phase is Phase.HELD else "job.resumed", job.id, {})

    def act_on_array(self, array: int, action: Action, *, grace_s: float | None = None) -> Mapping[str, int]:
        given = {"grace_s": grace_s} if action is Action.CANCEL else {}
        call = self.move_to_top if action is Action.TOP else getattr(self, action.value)
        return self._each_of_array(array, action, partial(call, **given))

    def update_array(self, array: int, changes: Mapping[str, Any]) -> Mapping[str, int]:
        return self._each_of_array(array, Action.UPDATE, lambda jobs: self.update(jobs, changes))

    def _each_of_array(
        self, array: int, action: Action, call: Callable[[Sequence[int]], Sequence[JobView]]
    ) -> Mapping[str, int]:
        phases = {
            Action.CANCEL: WAITING | ACTIVE,
            Action.HOLD: {Phase.QUEUED},
            Action.RELEASE: {Phase.HELD},
            Action.SUSPEND: {Phase.RUNNING, Phase.FROZEN},
            Action.RESUME: {Phase.HELD, Phase.FROZEN},
            Action.REQUEUE: ENDED | ACTIVE,
            Action.UPDATE: WAITING | ACTIVE,
            Action.TOP: WAITING,
        }
        jobs = [job.id for job in self.book.jobs.values() if job.array_id == array]
        if not jobs:
            raise NotFoundError(f"job {array} is not the first job of an array")
        todo = [number for number in jobs if self.book.jobs[number].phase in phases[action]]
        if todo:
            call(todo)
        return dict(Counter([self.book.jobs[number].phase.value for number in todo]))

    def requeue(self, jobs: Sequence[int]) -> Sequence[JobView]:
        def one(job: Job) -> None:
            if job.phase in ENDED:
                self._emit("job.requeued", job.id, {})
            else:
                self._stop(job.id, EndReason.REQUEUED, None)
                self._end(job.id, EndReason.REQUEUED, Phase.QUEUED, exit_code=None)

        return self._each("requeue", jobs, one)

    def update(self, jobs: Sequence[int], changes: Mapping[str, Any]) -> Sequence[JobView]:
        def one(job: Job) -> None:
            refused = sorted(set(changes) - RUNNING_MAY_CHANGE)
            if job.phase in ACTIVE and refused:
                raise ConflictError(
                    f"job {job.id} is {job.phase}: its {' and '.join(refused)} can't change any more; "
                    f"{', '.join(sorted(RUNNING_MAY_CHANGE))} can"
                )
            spec = job_spec({**job.spec.to_json(), **changes}, source=f"job {job.id}").model_dump(mode="json")
            data = {
                "spec": spec,
                "estimate_s": spec["estimate"] or job.estimate_s,
                "estimate_from": "given" if spec["estimate"] else job.estimate_from,
                "after": [[o, "ok"] for o in spec["after"]] + [[o, "any"] for o in spec["after_any"]],
            }
            self._emit("job.updated", job.id, data)

        return self._each("update", jobs, one, changes=dict(changes))

    def move_to_top(self, jobs: Sequence[int]) -> Sequence[JobView]:
        def one(job: Job) -> None:
            others = [other.priority for other in self.book.jobs.values() if other.phase in WAITING and other != job]
            spec = replace(job.spec, priority=max([job.priority, *(other + 1 for other in others)]))
            if spec == job.spec:
                return
            data = {
                "spec": spec.to_json(),
                "estimate_s": job.estimate_s,
                "estimate_from": job.estimate_from,
                "after": [list(a) for a in job.after],
            }
            self._emit("job.updated", job.id, data)

        return self._each("move_to_top", jobs, one)

    def set_node(self, node: str, state: NodeState, *, reason: str = "") -> NodeView:
        with self._changed:
            self.calls.append(("set_node", {"node": node, "state": state, "reason": reason}))
            record = self.book.nodes.get(node)
            if record is None:
                raise NotFoundError(f"there is no node {node!r}; nodes: {', '.join(self.book.nodes)}")
            record = replace(record, state=state, reason=reason, since_s=self.clock())
            self._emit("node.changed", None, {"node": node_data(record)})
            return next(found for found in self.nodes() if found["name"] == node)

    def set_policy(self, written: str, *, interval_s: float | None = None) -> PolicyView:
        with self._changed:
            self.calls.append(("set_policy", {"written": written, "interval_s": interval_s}))
            create_policy(written)
            interval_s = self.book.settings["interval_s"] if interval_s is None else interval_s
            if interval_s <= 0:
                raise PolicyError(f"interval {interval_s} must be above 0")
            self._emit("policy.set", None, {"policy": written, "interval_s": interval_s})
            return self.policy()

    def stop(self, *, stop_jobs: bool) -> None:
        with self._changed:
            self.calls.append(("stop", {"stop_jobs": stop_jobs}))
            if stop_jobs:
                for job in list(self.book.attempts):
                    self._stop(job, EndReason.CANCELLED, 0.0)
                    self._end(job, EndReason.CANCELLED, Phase.CANCELLED, exit_code=None)
            self._emit("scheduler.stopped", None, {})
            self.stopped.set()

    # -- reading ------------------------------------------------------------------------------------------------------

    def job(self, job: int) -> JobView:
        with self._changed:
            return self._view(self._job(job))

    def jobs(self, query: JobQuery) -> Sequence[JobView]:
        with self._changed:
            found = sorted(self.book.jobs.values(), key=lambda job: job.id, reverse=not query.oldest_first)
            return [self._view(job) for job in found if matches(job, query)][: query.limit]

    def show(self, job: int) -> ShowView:
        with self._changed:
            record = self._job(job)
            log = str(self.log_path(job)) if record.attempts else ""
            attempts, events = self._attempts(job), self.events(job=job)
            return show_view(self._view(record), record.spec, ALIKE, attempts, events, log, now_s=self.clock())

    def why(self, job: int, *, forecast: bool = True) -> WhyView:
        with self._changed:
            return why_view(self._job(job), self.book.jobs.values(), self.clock(), forecast=forecast)

    def nodes(self) -> Sequence[NodeView]:
        with self._changed:
            held, now = cluster.holders(self.book.attempts.values()), self.clock()
            limits = {"memory": "cgroup v2", "time": "runner"}
            return [
                cluster.node_view(node, held, sample(node, now), {}, limits=limits) for node in self.book.nodes.values()
            ]

    def pilots(self) -> PilotsView:
        return self.pilots_now

    def policy(self, *, state: bool = False) -> PolicyView:
        with self._changed:
            written, interval_s = self.book.settings["policy"], self.book.settings["interval_s"]
            swaps = self.events(types=["policy.set"], limit=2, newest=True)
            return {
                "policy": written,
                "interval_s": interval_s,
                "since_s": swaps[-1].at_s if swaps else self._started_s,
                "previous": swaps[0].data["policy"] if len(swaps) > 1 else None,
                "serves": written,
                "failure": None,
                "parameters": parameters_of(create_policy(written)),
                "lacks": [],
                "state": {"kind": "none"} if state else None,
                "state_problem": "",
            }

    def events(
        self,
        *,
        after: int = 0,
        job: int | None = None,
        types: Sequence[str] = (),
        limit: int = 1000,
        newest: bool = False,
    ) -> Sequence[Event]:
        with self._changed:
            found = [
                event
                for event in self.log[after:]
                if (job is None or event.job == job or submits(event, job)) and (not types or event.type in types)
            ]
            return found[-limit:] if newest else found[:limit]

    def wait_for_events(self, after: int, timeout_s: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: len(self.log) > after, timeout_s)
            return len(self.log)

    def usage(self, *, since_s: float | None, until_s: float | None, by: str) -> Sequence[UsageRow]:
        keys: dict[str, Callable[[Job], str]] = {
            "user": lambda job: job.user,
            "name": lambda job: job.name,
            "day": lambda job: time.strftime("%Y-%m-%d", time.gmtime(job.submitted_s)),
            "node": lambda job: "node0",
        }
        if by not in keys:
            raise InputError(f"usage by {by!r} is not known: {', '.join(keys)}")
        with self._changed:
            rows: dict[str, dict[str, Any]] = {}
            zero: dict[str, Any]
            for job in self.book.jobs.values():
                if job.submitted_s < (since_s or 0.0) or (until_s is not None and job.submitted_s >= until_s):
                    continue
                zero = {"key": keys[by](job), "jobs": 0, "attempts": 0, "held_s": 0.0, "gpu_s": 0.0, "failed": 0}
                row = rows.setdefault(zero["key"], {**zero, "gpu_s_on": {}})
                row["jobs"] += 1
                row["attempts"] += job.attempts
                row["held_s"] += job.held_s
                row["gpu_s"] += job.held_gpu_s
                row["gpu_s_on"] = {"": row["gpu_s"]}
                row["failed"] += job.phase is Phase.FAILED
            return [cluster.usage_row(Usage(**row)) for row in rows.values()]

    def groups(self) -> list[GroupView]:
        return self.groups_now

    def stats(self, *, since_s: float | None, until_s: float | None, user: str | None) -> StatsView:
        return stats_view(self._records(), since_s, until_s, user, self.clock())

    def series(self, *, since_s: float | None, until_s: float | None, user: str | None) -> SeriesView:
        return series_view(self._records(), since_s, until_s, user, self.clock())

    def each_series(self, *, by: Of, name: str | None, since_s: float | None, until_s: float | None) -> EachSeriesView:
        return each_series_view(self._records(), by, name, since_s, until_s, self.clock())

    def _records(self) -> MemoryStore:
        """A store that holds what happened, and the samples."""
        store, book = MemoryStore(), Book()
        with self._changed:
            for event in self.log:
                changes = book.stage([event])
                store.append([event], changes)
                book.commit(changes)
            store.put_samples([row_of(WIDTHS_S[0], one) for one in self.samples], {})
        return store

    def history(self, *, since_s: float | None, until_s: float | None) -> str:
        with self._changed:
            out = io.StringIO()
            rows = csv.writer(out, lineterminator="\n")
            rows.writerow(["submit_s", "duration_s", "gpus"])
            for job in self.book.jobs.values():
                if job.phase is Phase.FINISHED and (since_s or 0.0) <= job.submitted_s < (until_s or float("inf")):
                    rows.writerow([job.submitted_s, job.work_s, job.gpus])
            return out.getvalue()

    def logs(self, job: int, attempt: int | None = None) -> Sequence[LogOf]:
        with self._changed:
            record = self._job(job)
            if attempt is not None and not 1 <= attempt <= record.attempts:
                raise NotFoundError(f"job {job} has no attempt {attempt}: it has had {record.attempts}")
            return [
                log
                for one in self._attempts(job)
                if attempt in (None, one.number)
                for log in logs_of(one, live=one.number == record.attempts and record.phase in ACTIVE)
            ]

    def files_of(self, log: LogOf) -> RunFiles:
        return Silent(log.node) if log.node in self.silent else self.files

    def status(self) -> StatusView:
        with self._changed:
            return cluster.status_view(
                home=self.home,
                started_s=self._started_s,
                now_s=self.clock(),
                store=cluster.store_view(str(self.home / "store.db"), 1, self.broken, Checked.WHOLE),
                executor=cluster.executor_view("fake", "", {}),
                monitor=cluster.monitor_view(""),
                policy=self.book.settings["policy"],
                policy_problem="",
                policy_failure=None,
                policy_lacks=(),
                interval_s=self.book.settings["interval_s"],
                sharing=cluster.sharing_view(on=False, gated=False, text="the scheduler of tests forms no pairs"),
                jobs=Counter(job.phase.value for job in self.book.jobs.values()),
                nodes=list(self.book.nodes.values()),
                attempts=list(self.book.attempts.values()),
                last_pass_s=0.0,
            )

    # -- inside -------------------------------------------------------------------------------------------------------

    def _emit(self, kind: str, job: int | None, data: Mapping[str, Any]) -> None:
        self._emit_all([(kind, job, data)])

    def _emit_all(self, entries: Sequence[tuple[str, int | None, Mapping[str, Any]]]) -> None:
        with self._changed:
            if self.broken:
                raise StoreError(self.broken)
            now, last = self.clock(), len(self.log)
            events = [Event(last + i, now, *entry) for i, entry in enumerate(entries, 1)]
            self.book.commit(self.book.stage(events))
            self.log += events
            self._changed.notify_all()

    def _job(self, job: int) -> Job:
        found = self.book.jobs.get(job)
        if found is None:
            raise NotFoundError(f"there is no job {job}; numbers up to {self.book.next_job - 1} have been given")
        return found

    def _each(
        self,
        name: str,
        jobs: Sequence[int],
        one: Callable[[Job], None],
        **more: Any,
    ) -> Sequence[JobView]:
        """All or nothing: every job is looked at before the first is changed."""
        with self._changed:
            self.calls.append((name, {"jobs": list(jobs), **more}))
            records = [self._job(job) for job in dict.fromkeys(jobs)]
            action = Action("top" if name == "move_to_top" else name)
            attempts = self.book.attempts
            for record in records:
                if refusal := impossible(action, record, attempts.get(record.id)):
                    raise ConflictError(refusal)
            todo = [record for record in records if not so_already(action, record, attempts.get(record.id))]
            for record in todo:
                one(record)
            views = [self._view(self._job(record.id)) for record in records]
            for view, before in zip(views, records, strict=True):
                view["changed"] = self._job(before.id) is not before
            return views

    def _stop(self, job: int, reason: EndReason, grace_s: float | None) -> None:
        grace_s = self._job(job).spec.grace if grace_s is None else grace_s
        self._emit("attempt.stopping", job, {"reason": reason, "deadline_s": self.clock() + grace_s})

    def _end(self, job: int, reason: EndReason, after: Phase, *, exit_code: int | None, message: str = "") -> None:
        with self._changed:
            record, attempt = self._job(job), self.book.attempts[job]
            data = {
                "reason": reason,
                "exit_code": exit_code,
                "signal": None,
                "message": message,
                "saved": reason is EndReason.PREEMPTED,
                "work_s": record.work_s + max(self.clock() - attempt.since_s, 0.0),
                "next": after,
                "not_before_s": 0.0,
                "failure": after is Phase.FAILED,
            }
            staged = self.book.stage([Event(len(self.log) + 1, self.clock(), "attempt.ended", job, data)])
            self._emit("attempt.ended", job, data)
            self.past.setdefault(job, []).extend(staged.attempts.values())

    def _attempts(self, job: int) -> list[Attempt]:
        present = self.book.attempts.get(job)
        return [*self.past.get(job, []), *([present] if present else [])]

    def _view(self, job: Job) -> JobView:
        return job_view(job, self._attempts(job.id), self.progress.get(job.id, {}), self.clock())
