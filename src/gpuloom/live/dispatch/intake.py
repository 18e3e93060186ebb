"""Records the executor's reports on runs, before the executor may forget them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpuloom.core.book import node_data
from gpuloom.core.errors import InvalidTransition
from gpuloom.core.job import (
    ENDED,
    MAKES_WAY,
    Attempt,
    Condition,
    EndReason,
    Gpu,
    GpuState,
    Job,
    Phase,
    condition_of,
    gpus_in,
)
from gpuloom.core.progress import GPU_FULL, it_per_s, measured_s
from gpuloom.core.run_name import run_name_of
from gpuloom.core.snapshot import Speed
from gpuloom.executors.node import FilesOf
from gpuloom.executors.port import Cause, RunExit, RunPhase, RunStatus, RunUsage
from gpuloom.live.clock import ServiceClock
from gpuloom.live.dispatch.dispatch import Dispatch, as_json
from gpuloom.live.dispatch.ends import ended, kept_from_starting, reason_of
from gpuloom.live.dispatch.faults import MOST_CROWDED, fault_of, in_a_row
from gpuloom.live.dispatch.last_words import Words, words_of
from gpuloom.live.dispatch.peaks import Peaks
from gpuloom.live.dispatch.replicas import EVENT as REPLICAS_FAILED
from gpuloom.live.dispatch.replicas import RESTARTED, Dropped, dropped, goes_on_with, how_others_ended
from gpuloom.live.dispatch.resize_costs import begins, cost_draft, last_step
from gpuloom.live.dispatch.saved import saved
from gpuloom.live.planning.claims import ON_DISK, Do, State, Step
from gpuloom.live.planning.eligible import broken, throttle_of
from gpuloom.live.planning.estimates import Estimates, like_of
from gpuloom.live.planning.gpu_memory import raised_mib
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.fleet import Slot, gpu_memory_of, slots_of
from gpuloom.live.records.ledger import Draft, Ledger
from gpuloom.live.records.rehearsals import REHEARSED
from gpuloom.live.records.work import WorkDone

log = logging.getLogger("gpuloom.scheduler")

STRANGER_GRACE_S = 10.0
"""Between notice and end of a run that the store does not know."""


@dataclass(slots=True)
class _Found:
    """What reports of runs come to. ends: jobs as they are after it. done: runs that nobody need keep. free: of these,
    strangers that have left their GPUs."""

    drafts: list[Draft] = field(default_factory=list)
    exits: list[tuple[Job, Attempt, RunExit, float | None, Dropped | None]] = field(default_factory=list)
    ends: dict[int, Job] = field(default_factory=dict)
    frozen: list[int] = field(default_factory=list)
    thawed: list[int] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    gpus: dict[Slot, Condition] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)


class Intake:
    """Used by the scheduler's thread alone.

    Attributes:
        statuses: what the executor said and is not written down yet, by run.
    """

    def __init__(
        self,
        ledger: Ledger,
        planning: Planning,
        work: WorkDone,
        estimates: Estimates,
        dispatch: Dispatch,
        clock: ServiceClock,
        *,
        files: FilesOf,
        crowded: Callable[[int], Collection[int]] = lambda job: (),
    ) -> None:
        """files: of the runs of each node. crowded: told of a job that found no GPU memory left; the jobs that share
        its GPUs."""
        self._crowded = crowded
        self.ledger, self.planning, self.work, self.estimates = ledger, planning, work, estimates
        self.dispatch, self.clock, self.files = dispatch, clock, files
        self.book, self.claims = ledger.book, planning.claims
        self.peaks = Peaks()
        self.statuses: dict[str, RunStatus] = {}
        self.words: dict[str, Words] = {}
        """What runs left behind that have ended, where that was looked at before."""
        self._seen_gpus: dict[Slot, Condition] = {}
        self._costed: set[str] = set()
        """Runs of which it is written down what the resize before them cost, or that there was none."""
        self._seen_flags: dict[tuple[str, str], str] = {}
        """What the monitor has seen and is not written down yet."""
        self._unreleased: dict[str, set[Slot]] = {}
        """Runs that have ended and left something behind, and their GPUs."""

    def take_all(self, now: float) -> None:
        if not self.statuses:
            return
        statuses = list(self.statuses.values())
        try:
            self._take(statuses, now)
        except InvalidTransition:
            for status in statuses:
                try:
                    self._take([status], now)
                except InvalidTransition:  # a bug of ours or of the executor's; the others are right
                    log.exception("run %s: the executor's report can't be right", status.run)
                    self.statuses.pop(status.run, None)

    def _take(self, statuses: list[RunStatus], now: float) -> None:
        found = _Found()
        for status in statuses:
            attempt = self.attempt_of(status.run)
            if attempt is not None:
                self._look_at(self.book.jobs[attempt.job], attempt, status, now, found)
            elif status.phase is not RunPhase.EXITED:
                self._end_stranger(status)
            elif status.exit is None or status.exit.released:
                found.free.append(status.run)
                found.done.append(status.run)
        found.gpus |= self._released(found.free)
        # In one write: who can never start any more must not be left behind by a crash.
        drafts = [*found.drafts, *self.follow_up(found.ends)]
        self.ledger.write([*drafts, *self.gpu_states(found.gpus)])
        for kind, _, told_of in drafts:
            if kind == REHEARSED:
                self.dispatch.rehearsals.learn(told_of)
        for run in found.free:
            self._unreleased.pop(run, None)
        self._strangers_gone(statuses)
        for status in statuses:
            if self.statuses.get(status.run) is status:
                del self.statuses[status.run]
        for status in statuses:
            if status.phase is RunPhase.RUNNING and (begun := self.attempt_of(status.run)) is not None:
                self.dispatch.starts.began(status.run, begun.job)
        self._act_on(drafts, found, now)

    def _look_at(self, job: Job, attempt: Attempt, status: RunStatus, now: float, found: _Found) -> None:
        """What a run's report means for its attempt."""
        drafts = found.drafts
        drafts.extend(self._running(attempt, status))
        if status.rehearsal is not None:
            drafts.extend(self.dispatch.rehearsals.told(job, attempt, status.rehearsal))
        if status.restarts:
            drafts.extend(self._restarted(attempt, status))
        if status.phase is RunPhase.FROZEN:
            if attempt.phase in (Phase.STARTING, Phase.RUNNING):
                drafts.append(("attempt.frozen", job.id, _moved(status)))
            found.frozen.append(job.id)
        elif status.refused and attempt.phase is Phase.RUNNING and self.claims.state(job.id) is State.FREEZING:
            drafts.append(("attempt.not_suspended", job.id, {"why": status.refused}))
            self.dispatch.refused.add(job.id)
        elif status.phase is RunPhase.RUNNING and attempt.phase is Phase.FROZEN:
            where = as_json(self.claims.where(job.id))
            drafts.append(("attempt.thawed", job.id, {"allocation": where, **_moved(status)}))
            found.thawed.append(job.id)
        elif status.phase is RunPhase.EXITED and status.exit is not None:
            self._look_at_end(job, attempt, status, status.exit, now, found)

    def _look_at_end(
        self, job: Job, attempt: Attempt, status: RunStatus, how: RunExit, now: float, found: _Found
    ) -> None:
        words = self.words.get(attempt.run) or words_of(self.files(attempt.nodes[0]), attempt.run)
        data, failed = self._end(job, attempt, status, how, words, now)
        found.drafts.extend(self._resize_cost(job, attempt, words.progress))
        found.exits.append((job, attempt, how, data.get("it_per_s"), failed))
        if failed is not None:
            found.drafts.append((REPLICAS_FAILED, job.id, failed.event(attempt.number)))
        found.drafts.append(("attempt.ended", job.id, data))
        found.ends[job.id] = replace(job, phase=Phase(data["next"]))
        if how.released:
            found.done.append(status.run)
        else:  # it is told again once nothing is left
            found.gpus |= self._not_released(attempt, status, how)

    def _act_on(self, drafts: list[Draft], found: _Found, now: float) -> None:
        """What is on disk now has its consequences."""
        told = [(job, self.claims.on(Step(kind), job, now_s=now)) for kind, job, _ in drafts if job and kind in ON_DISK]
        for job_id in found.frozen:
            self.work.pause(job_id, now)
        # It went on by itself, or its scheduler was killed before it told it to freeze.
        running = [job for job in found.thawed if self.book.jobs[job].suspended]
        self.dispatch.suspend(running, now)
        for job_id in found.thawed:
            self.work.resume(job_id, now)
            self.work.rate(job_id, self.claims.take_rate(job_id))
        for job_id in [job for job, do in told if do is Do.FREEZE]:
            self.dispatch.freeze(job_id)
        for job, attempt, how, speed, failed in found.exits:
            self._left(job, attempt, how, speed, now)
            if failed is not None and self.book.jobs[job.id].reason is EndReason.RESIZED:
                self._goes_on(job.id, attempt, failed, now)
        for run in found.done:
            self.dispatch.tell(partial(self.dispatch.gangs.acknowledge, run))

    def _running(self, attempt: Attempt, status: RunStatus) -> list[Draft]:
        """The event that a run has begun, if it is not written down yet."""
        self.claims.on(Step.TAKEN, attempt.job)
        began = (status.pid is not None or bool(status.pod)) and status.phase is not RunPhase.STARTING
        if attempt.phase is not Phase.STARTING or not began:
            return []
        if status.exit is not None and status.exit.reason is EndReason.NOT_STARTED:
            return []
        identity = {"pid": status.pid, "start_ticks": status.start_ticks, "boot_id": status.boot_id}
        if not attempt.members:
            return [("attempt.running", attempt.job, identity)]
        begun = [(one.status.pid, one.status.start_ticks, one.status.boot_id) for one in status.members]
        return [("attempt.running", attempt.job, {**identity, "members": begun})]

    def _restarted(self, attempt: Attempt, status: RunStatus) -> list[Draft]:
        """Members that were begun anew while the others ran on, as events; those that are written down are left out."""
        found = self.ledger.store.events(job=attempt.job, types=(RESTARTED,))
        # Of several that nobody saw come the last one is told of.
        written = {one.data["member"]: one.data["times"] for one in found if one.data["attempt"] == attempt.number}
        drafts: list[Draft] = []
        for one in status.members:
            if (times := one.status.restarts) > written.get(one.rank, 0):
                data = {"attempt": attempt.number, "member": one.rank, "node": one.node, "times": times}
                drafts.append((RESTARTED, attempt.job, {**data, "why": one.status.restarted}))
        return drafts

    def _end(
        self, job: Job, attempt: Attempt, status: RunStatus, how: RunExit, words: Words, now: float
    ) -> tuple[dict[str, Any], Dropped | None]:
        """Data of the event `attempt.ended`, and the replicas that failed while others of the job were well."""
        told = words.progress
        complete = told.get("fraction") == 1.0
        if isinstance(first := told.get("first_s"), float):
            self.work.started_up(job.id, self.clock.from_wall(first))
        at = min(max(self.clock.from_wall(how.at_s), attempt.since_s), now)
        # One that was stopped and never said when its work began may have been starting up all the time.
        worked = self.work.of if attempt.stop_reason is None else self.work.expected
        notice_s = words.noticed_s
        if notice_s is None and attempt.deadline_s is not None:  # it could not be written; the signal was sent
            notice_s = time.time() - (now - attempt.deadline_s) - job.spec.grace
        saves = saved(how, told, notice_s=notice_s, checkpoint_s=words.checkpoint_s)
        before_it = self.ledger.store.attempts([job.id]) if how.reason is EndReason.LOST and attempt.number > 1 else ()
        fault = fault_of(attempt, how, self.book.nodes, before=before_it)
        failed = None
        if job.spec.replicas is not None and fault is None:
            others = how_others_ended(status, how)
            theirs = saved(others, told, notice_s=notice_s, checkpoint_s=words.checkpoint_s)
            before, ran_s = self._failed_before(job), at - attempt.since_s
            failed = dropped(job, attempt, status, told=told, before=before, saves=theirs, ran_s=ran_s)
            saves = saves if failed is None else theirs
        pause_s = self.dispatch.starts.pause_s(attempt.run, job.id, everywhere=how.cause is Cause.EXECUTOR)
        work_s = worked(job.id, at)
        full = told.get(GPU_FULL) is True and how.exit_code not in (None, 0)
        if full and in_a_row(EndReason.OUT_OF_MEMORY, attempt, self.ledger.store.attempts([job.id])) >= MOST_CROWDED:
            full = False
        beside = self._crowded(job.id) if full else ()
        data = ended(
            job,
            attempt,
            how,
            work_s=work_s,
            complete=complete,
            now_s=now,
            saves=saves,
            pause_s=pause_s,
            failed=failed,
            beside=beside,
            apart=self.planning.policy.weaves,
            fault=fault,
            told=self._told(attempt),
        )
        mib = self.peaks.of(attempt.run) if not beside else self._needs_more(job, attempt, beside)
        if mib is not None:
            data["gpu_memory_mib"] = mib
        if attempt.gpu_model and self.work.was_alone(job.id) and (speed := it_per_s(told)) is not None:
            data["it_per_s"] = speed
        if attempt.members:
            # Of one that nobody began its members are not told of.
            ends = [one.status for one in status.members] or [status] * len(attempt.members)
            data["members"] = [self._member_end(attempt, one) for one in ends]
        return {**data, **last_step(told, self.clock.from_wall), "ended_s": at}, failed

    def _told(self, attempt: Attempt) -> str:
        """Why a run that made way was told to, where that was written down."""
        if attempt.stop_reason is not EndReason.PREEMPTED:
            return ""
        found = self.ledger.store.events(job=attempt.job, types=("attempt.stopping",), limit=1, newest=True)
        return str(found[-1].data.get("text", "")) if found else ""

    def _needs_more(self, job: Job, attempt: Attempt, beside: Collection[int]) -> float | None:
        """MiB on one GPU that a job is taken to need from now on which found too little beside these."""
        memory = self.planning.scene.memory
        needs = [memory.of_job(self.book.jobs[number]) for number in (job.id, *beside)]
        own, *others = [None if need is None else float(need.mib) for need in needs]
        found = raised_mib(own or 0.0, others, gpu_memory_of(self.book.nodes, attempt.allocation))
        if found is not None:
            memory.saw(job.id, found)
        return found

    def _failed_before(self, job: Job) -> Mapping[str, Any] | None:
        """Data of the event of the last failure of replicas of an elastic job; None: there was none."""
        if job.attempts < 2:
            return None
        found = self.ledger.store.events(job=job.id, types=(REPLICAS_FAILED,), limit=1, newest=True)
        return found[-1].data if found and found[-1].at_s >= job.submitted_s else None

    def _goes_on(self, number: int, attempt: Attempt, failed: Dropped, now: float) -> None:
        """A job of which replicas failed keeps its other GPUs: it starts there again at once."""
        job, planning = self.book.jobs[number], self.planning
        # Of one that was told to go others may have been given the GPUs.
        if number in self.claims.grants or job.not_before_s > now or attempt.stop_reason is not None:
            planning.stale()
            return
        resizes, usable = planning.policy.resizes, planning.scene.open_slots
        if allocation := goes_on_with(job, attempt, failed, resizes=resizes, usable=usable):
            planning.goes_on(number, allocation, {node for node, _ in failed.gpus})

    def _resize_cost(self, job: Job, attempt: Attempt, told: Mapping[str, object]) -> list[Draft]:
        """What the resize cost with which an attempt began, once in its life."""
        if attempt.run in self._costed or not job.spec.elastic:
            return []
        found = cost_draft(self.ledger.store, job, attempt, told, self.clock.from_wall)
        return [] if found is None else [found]

    def _member_end(self, attempt: Attempt, status: RunStatus) -> dict[str, Any]:
        how = status.exit
        if how is None:  # its node was lost with the gang's end
            return {"reason": EndReason.LOST.value}
        at = min(max(self.clock.from_wall(how.at_s), attempt.since_s), self.clock.now())
        told = {"exit_code": how.exit_code, "signal": how.signal, "message": how.message, "released": how.released}
        return {"reason": reason_of(how, attempt).value, "ended_s": at, **told}

    def _end_stranger(self, status: RunStatus) -> None:
        run = status.run
        if run not in self.dispatch.strangers:
            self.dispatch.strangers[run] = [one.node for one in status.members]
            log.error("run %s is running, which this store does not expect: it is stopped", run)
            self.dispatch.end_run(run, EndReason.CANCELLED, STRANGER_GRACE_S)

    def _strangers_gone(self, statuses: Iterable[RunStatus]) -> None:
        strangers = self.dispatch.strangers
        gone = strangers.keys() & {status.run for status in statuses if status.phase is RunPhase.EXITED}
        if gone:
            for run in gone:
                del strangers[run]
            self.planning.stale()
            log.warning("%s ended, which this store did not know to be running", ", ".join(sorted(gone)))

    @property
    def strangers_text(self) -> str:
        """What is said of them; '' if there are none."""
        if not self.dispatch.strangers:
            return ""
        some = sorted(self.dispatch.strangers)
        named = ", ".join(some[:5]) + (f" and {len(some) - 5} more" if len(some) > 5 else "")
        return (
            f"runs that this store does not know to be running (an older backup was restored): {named}; they were "
            f"told to stop, which takes at most {STRANGER_GRACE_S:g} s; no job starts on their nodes before they have"
        )

    def _not_released(self, attempt: Attempt, status: RunStatus, how: RunExit) -> dict[Slot, Condition]:
        """GPUs that something of the run still holds are given to nobody."""
        free = {one.node for one in status.members if one.status.exit is not None and one.status.exit.released}
        held = {slot for slot in slots_of(attempt.allocation) if slot[0] not in free}
        self._unreleased[attempt.run] = held
        return dict.fromkeys(held, Condition(GpuState.UNHEALTHY, how.message or "still in use after its job ended"))

    def _released(self, runs: list[str]) -> dict[Slot, Condition]:
        """GPUs that ended runs held on to are free after all."""
        freed = {gpu for run in runs for gpu in self._unreleased.get(run, ())}
        held = {gpu for run, gpus in self._unreleased.items() if run not in runs for gpu in gpus}
        return dict.fromkeys(freed - held, Condition(GpuState.OK))

    def remember_unreleased(self, statuses: Iterable[RunStatus]) -> None:
        """Runs that had ended before this scheduler began, and have left something behind."""
        for status in statuses:
            name = run_name_of(status.run)
            if status.exit is None or status.exit.released or name is None:
                continue
            for attempt in self.ledger.store.attempts([name.job]):
                if attempt.run == status.run and attempt.phase is None:
                    self._not_released(attempt, status, status.exit)

    def gpu_states(self, states: Mapping[Slot, Condition]) -> list[Draft]:
        """The events that GPUs are in another state, one for each machine that has some of them."""
        now = self.clock.now()
        drafts: list[Draft] = []
        for name in sorted({name for name, _ in states}):
            node = self.book.nodes[name]
            gpus = tuple(
                replace(gpu, **found._asdict(), since_s=now)
                if (found := states.get((name, gpu.index))) is not None and found != condition_of(gpu)
                else gpu
                for gpu in node.gpus
            )
            if gpus != node.gpus:
                drafts.append(("node.changed", None, {"node": node_data(replace(node, gpus=gpus))}))
        if drafts:
            self.planning.stale()
        return drafts

    def sampled(
        self, node: str, runs: Mapping[str, RunUsage], gpus: Sequence[Gpu], flags: Sequence[tuple[str, str, str]]
    ) -> None:
        """The monitor of a node has looked. Raises StoreError: it can't be written down."""
        costs: list[Draft] = []
        costed: set[str] = set()
        holders: Mapping[Slot, Collection[int]] | None = None
        for run, usage in runs.items():
            self._goes(run, usage.progress)
            if begins(usage.progress) and (attempt := self.attempt_of(run)) is not None:
                costs += self._resize_cost(self.book.jobs[attempt.job], attempt, usage.progress)
                costed.add(attempt.run)
            if usage.gpu_memory_mib is not None:
                holders = self.claims.holders() if holders is None else holders
                self._uses(run, usage, holders)
            fraction = usage.progress.get("fraction")
            if isinstance(fraction, float) and (attempt := self.attempt_of(run)) is not None:
                first, at = usage.progress.get("first_s"), usage.progress.get("at_s")
                if isinstance(first, float):
                    self.work.started_up(attempt.job, self.clock.from_wall(first))
                told_s = self.clock.from_wall(at) if isinstance(at, float) else self.clock.now()
                job = self.book.jobs[attempt.job]
                scene = self.planning.scene
                # In seconds at its present speed, as what it does now.
                before_s = scene.done_s(job) / scene.speed(job, attempt.allocation)
                self.work.report(attempt.job, fraction, told_s, before_s, again=attempt.number > 1)
        if jump := self.clock.jumped_s():
            log.warning("the machine's clock was changed by %+.1f s; the scheduler's own time is unaffected", jump)
            self.ledger.write([("clock.jumped", None, {"seconds": jump})])
        # Each change is told once: what can't be written now is written with the next sample.
        self._seen_gpus |= {(node, gpu.index): condition_of(gpu) for gpu in gpus}
        self._seen_flags |= {(run, flag): text for run, flag, text in flags}
        drafts = [*costs, *self.gpu_states(self._seen_gpus)]
        for (run, flag), text in self._seen_flags.items():
            attempt = self.attempt_of(run)
            if attempt is not None:
                drafts.append(("job.flagged", attempt.job, {"flag": flag, "text": text}))
        self.ledger.write(drafts)
        self._costed |= costed
        self._seen_gpus.clear()
        self._seen_flags.clear()

    def _uses(self, run: str, usage: RunUsage, holders: Mapping[Slot, Collection[int]]) -> None:
        """How much GPU memory a run uses. holders: jobs with processes on each GPU."""
        attempt = self.attempt_of(run)
        if attempt is None:
            return
        beside = {job for slot in slots_of(attempt.allocation) for job in holders.get(slot, ()) if job != attempt.job}
        mib = self.peaks.take(attempt, run, usage, beside=beside, now_s=self.clock.now())
        if mib is None or self.book.jobs[attempt.job].spec.gpu_memory is not None:
            return
        if self.planning.scene.memory.saw(attempt.job, mib) and self.planning.policy.max_jobs_per_gpu > 1:
            self.planning.stale()

    def _goes(self, run: str, told: Mapping[str, object]) -> None:
        """How fast a run is says most where it has its GPUs for itself."""
        attempt = self.attempt_of(run)
        if attempt is None or not attempt.gpu_model or not self.work.was_alone(attempt.job):
            return
        if (speed := it_per_s(told)) is not None:
            self.planning.goes(attempt.job, Speed(speed, measured_s(told)))

    def _left(self, before: Job, attempt: Attempt, how: RunExit, speed: float | None, now: float) -> None:
        """An attempt has ended, and it is written down. speed: iterations per second that it reported."""
        job = self.book.jobs[before.id]
        attempted_s = self.work.of(job.id, now)
        self.work.end(job.id)
        self.words.pop(attempt.run, None)
        memory, used = self.planning.scene.memory, self.peaks.ended(attempt.run)
        self.planning.attempt_left(job.id)

        self._costed.discard(attempt.run)
        starts = self.dispatch.starts
        if kept_from_starting(how):
            everywhere = how.cause is Cause.EXECUTOR
            starts.failed(attempt.run, job.id, now, everywhere=everywhere, why=how.message)
        elif how.reason is EndReason.NOT_STARTED or (how.exit_code, how.signal) != (None, None):
            starts.began(attempt.run, job.id)
        else:
            starts.gone(attempt.run, job.id)
        log.info("run %s ended: %s %s", attempt.run, job.reason, job.message)
        like = like_of(job.spec, job.user, job.gpus, job.array_id)
        if speed is not None:
            stored = job.phase is Phase.FINISHED
            on = gpus_in(attempt.allocation) if job.spec.elastic else 0
            self.planning.scene.speeds.measured(like, attempt.gpu_model, speed, stored=stored, on_gpus=on)
        if job.phase in ENDED:
            memory.ended(job.id)
            if used is not None and job.phase is Phase.FINISHED:
                memory.finished(like, attempt.gpu_model, used)
            self.claims.take_back(job.id)
            self.planning.job_left(job, attempt.allocation, speed)
            if job.phase is Phase.FINISHED:
                self.estimates.finished(like, max(job.work_s, attempted_s), given_s=job.spec.estimate, on=job.work_on)
                self.planning.scene.speeds.finished(like)
            if throttle_of(job) or self.ledger.waits_for(job.id):
                self.planning.stale()
            return
        # One whose pod somebody else has deleted was not told to.
        made_way = job.reason in MAKES_WAY and how.released and attempt.stop_reason is not None
        if self.planning.world is None or not made_way or how.exit_code is None or job.phase is Phase.HELD:
            self.planning.stale()

    def follow_up(self, gone: Mapping[int, Job], besides: Collection[int] = ()) -> list[Draft]:
        """What has to be written with these ends (jobs as they will be): those that waited and never can start.

        besides: jobs that end as well, for which nothing has to be written.
        """
        drafts: list[Draft] = []
        ends = {number: job for number, job in gone.items() if job.phase in ENDED}
        while ends:
            badly: dict[int, Job] = {}
            for number, end in ends.items():
                for waiting in self.ledger.waits_for(number):
                    job = self.book.jobs.get(waiting)
                    if (
                        job is None
                        or job.phase not in (Phase.QUEUED, Phase.HELD)
                        or waiting in badly
                        or waiting in gone
                        or waiting in besides
                    ):
                        continue
                    how = next((h for other, needs in job.after if other == number and (h := broken(end, needs))), "")
                    if how:
                        message = f"cancelled, as job {number}, which it waits for, {how}"
                        data = {"message": message, "reason": EndReason.CANCELLED.value}
                        drafts.append(("job.cancelled", waiting, data))
                        badly[waiting] = replace(job, phase=Phase.CANCELLED)
            gone = {**gone, **badly}
            ends = badly
        return drafts

    def attempt_of(self, run: str) -> Attempt | None:
        """The open attempt that is this run, or of which this run is a member."""
        name = run_name_of(run)
        attempt = None if name is None else self.book.attempts.get(name.job)
        if attempt is None or name is None or name.member >= max(len(attempt.allocation), 1):
            return None
        return attempt if str(name._replace(member=0)) == attempt.run else None


def _moved(status: RunStatus) -> dict[str, float]:
    """Of an event: how much GPU memory went to the machine's memory, and what moving it took; {} if none was moved."""
    found = {"suspended_mib": status.suspended_mib, "moved_s": status.moved_s}
    return {} if status.moved_s is None else {key: value for key, value in found.items() if value is not None}
