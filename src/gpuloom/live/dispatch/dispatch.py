"""Executes the plan: stops and starts attempts through the executor.

An attempt is recorded before its process may start, so that none runs twice. A job starts only when the previous
holders of its GPUs are gone, whatever the plan says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from gpuloom.core.errors import InputError
from gpuloom.core.job import Allocation, Attempt, EndReason, Job, Phase
from gpuloom.core.share_class import is_pair
from gpuloom.core.spec import OnPreempt
from gpuloom.executors.gangs import Gangs
from gpuloom.executors.node import RunSpec
from gpuloom.executors.port import Cause, ExecutorError, RunStatus, not_run
from gpuloom.live.clock import ServiceClock
from gpuloom.live.dispatch.in_place import goes_on, in_members, resizes_in_place
from gpuloom.live.dispatch.launch import OddPlaceError, run_specs
from gpuloom.live.dispatch.ports import identity_for
from gpuloom.live.dispatch.resizes import limit_left_s, resized_draft, resizes_of
from gpuloom.live.dispatch.starts import Starts
from gpuloom.live.planning.claims import Do, Step
from gpuloom.live.planning.eligible import blocked
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.fleet import model_of, shares_gpus
from gpuloom.live.records.ledger import Draft, Ledger
from gpuloom.live.records.rehearsals import AFTER_S, NO_SUSPENDING
from gpuloom.live.records.work import WorkDone

FREEZE_S = 5.0
"""Time for a job to freeze; a job that has not frozen by then is stopped."""
SUSPEND_S = 600.0
"""The same, where its GPU memory is moved: what moves it ends itself then (executors/suspending.py)."""

SUSPENDS = frozenset({OnPreempt.AUTO, OnPreempt.SUSPEND})
RETRY_S = 1.0
"""Time of the next try after the store or the executor failed."""


NO_RESIZES: Mapping[int, Mapping[str, Any]] = {}


class Dispatch:
    """Used by the scheduler's thread alone.

    Attributes:
        strangers: runs that go on and that this store does not know as going on, as after it was put back to an older
            state or on a node that was lost and is back; and their nodes. Nobody accounts for their GPUs: they were
            told to end, and nothing starts on these nodes until they have.
        retry_s: when to call `hand_over` again; infinity: nothing is left to say.
    """

    def __init__(
        self,
        ledger: Ledger,
        planning: Planning,
        work: WorkDone,
        gangs: Gangs,
        clock: ServiceClock,
        *,
        cut: Mapping[str, str],
        say: Callable[[RunStatus], None],
    ) -> None:
        """cut: nodes that can't be talked to now, and why. say: told of runs that could not even be asked for."""
        self.ledger, self.planning, self.work, self.gangs, self.clock = ledger, planning, work, gangs, clock
        self.book, self.claims, self.cut = ledger.book, planning.claims, cut
        self.rehearsals = planning.scene.rehearsals
        self.say = say
        self.strangers: dict[str, Collection[str]] = {}
        self.refused: set[int] = set()
        """Jobs that could not be suspended when they were to make way."""
        self.starts = Starts()
        self.problem = ""
        """What the executor said when it could not be told something last; '' once it could."""
        self._to_tell: list[Callable[[], None]] = []
        """Commands that have not reached the executor yet."""
        self.retry_s = math.inf

    def make_way(self, jobs: list[int], now: float) -> None:
        """Have these jobs leave their GPUs: they freeze, or are told to save and end. Elastic ones that were given
        another number of GPUs begin again there at once."""
        ends: list[int] = []
        for number in jobs:
            step = Step.MAKE_WAY_FROZEN if self._can_freeze(number) else Step.MAKE_WAY
            match self.claims.on(step, number, now_s=now):
                case Do.FREEZE:
                    self.freeze(number)
                case Do.WRITE_STOP:
                    ends.append(number)
        self.ledger.write(self._not_suspended(ends))
        resizes = resizes_of(self.book, self.claims, ends)
        self._end(ends, EndReason.PREEMPTED, now, resizes=resizes)

    def _keeps(self, job: int) -> int:
        """How many members of a job that is about to be resized go on in its next attempt, from the first on."""
        spec, attempt, given = self.book.jobs[job].spec, self.book.attempts[job], self.claims.grants[job]
        if spec.replicas is None or attempt.phase is not Phase.RUNNING:
            return 0
        if not resizes_in_place(spec, (*attempt.allocation, *given), self.gangs.capabilities):
            return 0
        return goes_on(attempt.allocation, given, spec.replicas.gpus)

    def suspend(self, jobs: Sequence[int], now: float) -> None:
        """Have running jobs freeze, and none of these go on, as somebody has said so (`Job.suspended`)."""
        for number in jobs:
            self.claims.take_back(number)
            if self.claims.on(Step.MAKE_WAY_FROZEN, number, now_s=now) is Do.FREEZE:
                self.freeze(number)

    def _not_suspended(self, ends: Sequence[int]) -> list[Draft]:
        """Of jobs that are told to end and were to be suspended: why they are not."""
        drafts: list[Draft] = []
        for job in ends:
            spec, attempt = self.book.jobs[job].spec, self.book.attempts.get(job)
            if spec.on_preempt not in SUSPENDS or attempt is None or job in self.refused:
                continue
            able = spec.on_preempt is OnPreempt.SUSPEND or self.rehearsals.able(attempt)
            if why := self._why_not_suspended(job) if able else "":
                drafts.append(("attempt.not_suspended", job, {"why": why}))
        return drafts

    def _can_freeze(self, job: int) -> bool:
        # One that was only given its GPUs has no attempt.
        return job in self.book.attempts and not self.why_not_frozen(job)

    def why_not_frozen(self, job: int) -> str:
        """Why a running job can't leave its GPUs and go on later in the same attempt; '' if it can.

        It must be to freeze or to be suspended, and every node on which it runs must stop processes where they are. One
        that is not there may when it is. To be suspended it must run on one node, which is known to do that, and
        outside of a container: what is in one is not among its processes.
        """
        spec = self.book.jobs[job].spec
        instead = f"after `gpuloom update {job} --on-preempt freeze` it can, and keeps its GPU memory"
        if spec.on_preempt is OnPreempt.AUTO:
            why = self._why_not_suspended(job)
            return f"{why}; {instead}" if why else ""
        if spec.on_preempt is OnPreempt.SUSPEND:
            return self._why_not_suspended(job)
        if spec.on_preempt is not OnPreempt.FREEZE:
            return f"its --on-preempt is {spec.on_preempt}; {instead}"
        found = {node: self.gangs.capabilities(node) for node, _ in self.book.attempts[job].allocation}
        stuck = [node for node, one in found.items() if one is not None and not one.freezes]
        return f"node {stuck[0]} can't stop processes where they are" if stuck else ""

    def _why_not_suspended(self, job: int) -> str:
        """Why a job that is to be suspended can't be where it runs; '' if it can."""
        record, attempt = self.book.jobs[job], self.book.attempts[job]
        if record.spec.on_preempt is OnPreempt.AUTO:
            why = self.rehearsals.why_not(record, attempt)
            return why or self.planning.scene.no_memory(record, attempt)
        if record.spec.container:
            return "it runs in a container"
        if len(attempt.allocation) > 1:
            return f"it runs on {len(attempt.allocation)} nodes"
        found = self.gangs.capabilities(attempt.nodes[0])
        if found is None or not found.suspends:
            return NO_SUSPENDING
        return self.planning.scene.no_memory(record, attempt)

    def keeps_limit(self, job: int) -> str:
        """The first node on which it runs that can't change the time limit of what runs; '' if all can."""
        attempt = self.book.attempts.get(job)
        for node, _ in () if attempt is None else attempt.allocation:
            one = self.gangs.capabilities(node)
            if one is not None and not one.limits:
                return node
        return ""

    def freeze(self, job: int) -> None:
        """Tell the executor to stop a running job where it is."""
        self.tell(partial(self.gangs.freeze, self.book.attempts[job].run))

    def watch_freezes(self, now: float) -> None:
        """A job that was told to freeze and does not is told to save and end instead."""
        freezing = self.claims.freezing()
        until_s = {
            job: told_s + (SUSPEND_S if self.book.jobs[job].spec.on_preempt in SUSPENDS else FREEZE_S)
            for job, told_s in freezing.items()
        }
        late = [job for job in freezing if now > until_s[job] or job in self.refused]
        self._end(late, EndReason.PREEMPTED, now)
        self.refused.difference_update(late)
        for job in self.claims.freezing():
            self.retry_s = min(self.retry_s, until_s[job])

    def _end(
        self,
        jobs: Sequence[int],
        reason: EndReason,
        now: float,
        grace_of: Callable[[int], float] | None = None,
        resizes: Mapping[int, Mapping[str, Any]] = NO_RESIZES,
        text: str = "",
    ) -> None:
        """Write down that the runs of these jobs are told to end, and tell them. grace_of: None: as their specs say.
        resizes: those of the jobs that end to go on at another size, and what is written down of that. text: why, where
        the reason does not say all."""
        graces = [self._grace(number) if grace_of is None else grace_of(number) for number in jobs]
        keeps = {number: self._keeps(number) for number in resizes}
        told = {number: {"reason": reason.value, **({"text": text} if text else {})} for number in jobs} | {
            number: {"reason": EndReason.RESIZED.value, **how} for number, how in resizes.items()
        }
        self.ledger.write(
            [
                ("attempt.stopping", number, {**told[number], "deadline_s": now + grace})
                for number, grace in zip(jobs, graces, strict=True)
            ]
        )
        for number, grace in zip(jobs, graces, strict=True):
            run = self.book.attempts[number].run
            if self.claims.on(Step.STOPPING, number) is Do.NEVER_BEGAN:
                self._never_began(run, reason)
            elif keep := keeps.get(number, 0):
                self.tell(partial(self.gangs.resize, run, keep=keep, grace_s=grace))
            else:
                self.end_run(run, reason, grace)

    def end(self, job: int, reason: EndReason, text: str, now: float) -> None:
        """End the run of an active job, with its notice. text: why, for people."""
        self._end([job], reason, now, text=text)

    def _grace(self, job: int) -> float:
        return self.book.jobs[job].spec.grace

    def _never_began(self, run: str, reason: EndReason) -> None:
        self.say(not_run(run, reason, "it was stopped before it started"))

    def end_attempts(self, jobs: list[int], reason: EndReason, grace_s: float | None) -> None:
        """End the runs of these active jobs for good, or to be queued again, as `reason` says."""
        now = self.clock.now()

        def grace_of(number: int) -> float:
            attempt = self.book.attempts[number]
            grace = self._grace(number) if grace_s is None else grace_s
            if attempt.stop_reason is reason and attempt.deadline_s is not None:
                return max(min(grace, attempt.deadline_s - now), 0.0)
            return grace

        self._end(jobs, reason, now, grace_of)
        for number in jobs:
            self.claims.take_back(number)
        self.planning.stale()

    def stop_all(self) -> None:
        """Every active job makes way; it is queued again."""
        self.claims.take_all_back()
        active = [n for n, attempt in self.book.attempts.items() if attempt.stop_reason is None]
        if active:
            self.end_attempts(active, EndReason.PREEMPTED, None)

    def look_at_nodes(self, now: float) -> None:
        """Have nothing planned where nothing can be started or stopped now."""
        shut = dict.fromkeys(self.gangs.waiting, "it has not come back since the scheduler began") | dict(self.cut)
        for run, there in self.strangers.items():
            shut |= dict.fromkeys(there, f"run {run}, which this store does not know, is being ended there")
        unclean = self.gangs.unclean()
        if unclean:  # nobody tells when that is over
            self.retry_s = min(self.retry_s, now + RETRY_S)
        self.planning.shut(shut | unclean)

    def start_granted(self, now: float) -> None:
        """Start jobs whose GPUs are free by now, and have frozen ones go on."""
        claims, policy, jobs = self.claims, self.planning.policy, self.book.jobs
        allowed = self.starts.allowed(now)
        self.retry_s = min(self.retry_s, self.starts.next_s(waiting=bool(claims.grants)))
        if not claims.grants:
            return
        nodes = self.book.nodes
        queued = [number for number in claims.grants if jobs[number].phase is Phase.QUEUED]
        due = claims.ready(
            in_service=self.planning.scene.open_slots,
            queued=queued,
            blocked=[number for number in queued if blocked(jobs[number], jobs, now)],
            most=policy.max_jobs_per_gpu if shares_gpus(nodes.values()) else 1,
            pair=self._may_pair if policy.pairs else None,
            moves=self.planning.scene.moves,
            starts=allowed,
        )
        begin: list[int] = []
        for do, number in due:
            match do:
                case Do.TAKE_BACK:  # things have changed since it was given
                    claims.take_back(number)
                    self.planning.stale()
                case Do.GO_ON:
                    claims.on(Step.GO_ON, number)
                    self.tell(partial(self.gangs.thaw, self.book.attempts[number].run))
                case Do.WRITE_STOP:
                    self._end([number], EndReason.PREEMPTED, now)
                case Do.WRITE_START:
                    begin.append(number)
        drafts: list[Draft] = []
        for number in begin:
            given = self._in_members(number)
            if (resized := resized_draft(self.ledger.store, jobs[number], given)) is not None:
                drafts.append(resized)
            drafts.append(
                (
                    "attempt.starting",
                    number,
                    {
                        "attempt": jobs[number].attempts + 1,
                        "allocation": as_json(given),
                        "identity": identity_for(self.book, number, given),
                        "gpu_model": model_of(nodes, given),
                    },
                )
            )
        self.ledger.write(drafts)
        for number in begin:
            claims.on(Step.STARTING, number)
            self.work.begin(number, now)
            self.work.rate(number, claims.take_rate(number))
            self.starts.asked(self.book.attempts[number].run)

    def _in_members(self, number: int) -> Allocation:
        """What a job was given, with the members that it is to have there."""
        job, given = self.book.jobs[number], self.claims.grants[number]
        if job.spec.adopted and job.spec.replicas is None:
            return in_members(given, job.spec.replica_gpus or 1)
        if job.spec.replicas is None or not resizes_in_place(job.spec, given, self.gangs.capabilities):
            return given
        before = self.ledger.store.attempts([number]) if job.attempts else ()
        last = before[-1] if before and before[-1].reason is EndReason.RESIZED else None
        return in_members(given, job.spec.replicas.gpus, () if last is None else last.allocation)

    def _may_pair(self, number: int, others: Collection[int]) -> bool:
        """Whether a job and those on its GPU are a pair."""
        return is_pair([self.book.jobs[n].spec.sharing_class for n in (number, *others)])

    def end_run(self, run: str, reason: EndReason, grace_s: float) -> None:
        if reason is EndReason.RESIZED:  # to whoever runs it that is the same, and nodes of before know no other word
            reason = EndReason.PREEMPTED
        self.tell(partial(self.gangs.stop, run, reason=reason, grace_s=grace_s))

    def set_limit(self, job: int) -> None:
        """Tell the executor the time limit of a job that runs, after it was changed."""
        attempt = self.book.attempts.get(job)
        if attempt is not None:
            record = self.book.jobs[job]
            before = self.ledger.store.attempts([job]) if record.spec.elastic and attempt.number > 1 else ()
            self.tell(partial(self.gangs.limit, attempt.run, limit_left_s(record, attempt.number, before)))

    def tell(self, message: Callable[[], None]) -> None:
        """Tell the executor, now or as soon as it listens again; in order."""
        if not self._to_tell:
            try:
                message()
                return
            except ExecutorError as error:
                self.problem = str(error)
        self._to_tell.append(message)
        self.retry_s = min(self.retry_s, self.clock.now() + RETRY_S)

    def hand_over(self, now: float) -> None:
        """Give the executor the attempts that are written down, and what it could not be told before."""
        waiting, self._to_tell, self.problem = self._to_tell, [], ""
        for message in waiting:
            self.tell(message)
        silent: set[str] = set()
        for number in self.claims.untold():
            job, attempt = self.book.jobs[number], self.book.attempts[number]
            nodes = {*attempt.nodes}
            if nodes & silent:  # it would say the same again
                continue
            try:
                specs = self._specs(job, attempt)
            except InputError as error:
                cause = Cause.PLACE if isinstance(error, OddPlaceError) else Cause.JOB
                self._not_started(attempt, cause, str(error), now)
                continue
            try:
                if self.claims.on(Step.ASK, number) is Do.ASK_FOR_IT:
                    self.gangs.start(specs)
                # It was asked for and not answered, and is to end: has it been begun?
                elif not self.gangs.runs(patience_s=RETRY_S, attempts=(attempt.run,)):
                    self._never_began(attempt.run, attempt.stop_reason or EndReason.PREEMPTED)
            except ExecutorError as error:
                self.problem = str(error)
                self.retry_s = now + RETRY_S
                silent |= nodes
                continue
            self.claims.on(Step.TAKEN, number)

    def _specs(self, job: Job, attempt: Attempt) -> Sequence[RunSpec]:
        """What each member is started with. Raises InputError."""
        # Attempts that were kept from starting have left nothing to go on from.
        before = self.ledger.store.attempts([job.id]) if attempt.number > 1 else ()
        ran = any(one.running_s is not None for one in before if one.number < attempt.number)
        environment = self.ledger.store.environment(job.spec_id) if job.spec.env else None
        limit_s = limit_left_s(job, attempt.number, before)
        return run_specs(
            job,
            attempt,
            self.book.nodes,
            resumes=ran,
            environment=environment,
            limit_s=limit_s,
            in_place=resizes_in_place(job.spec, attempt.allocation, self.gangs.capabilities),
            rehearse_s=AFTER_S if self.rehearsals.due(job, attempt) else None,
        )

    def _not_started(self, attempt: Attempt, cause: Cause, message: str, now: float) -> None:
        self.say(not_run(attempt.run, EndReason.NOT_STARTED, message, cause))
        self.claims.on(Step.TAKEN, attempt.job)  # nobody is asked for it any more
        self.retry_s = now


def as_json(allocation: Allocation) -> list[Any]:
    """An allocation as events hold it."""
    return [[node, list(gpus)] for node, gpus in allocation]
