"""Has the policy's will done: stops and starts attempts through the executor.

An attempt is written down before its process may start, so that none runs twice. A job starts when those who hold
its GPUs are gone, whatever the plan says.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gpuloom.core.errors import InputError
from gpuloom.core.faults import fault_text
from gpuloom.core.job import Allocation, Attempt, EndReason, Job, Phase
from gpuloom.core.share_class import is_pair, share_class_of
from gpuloom.executors.launch import blamed
from gpuloom.executors.port import Cause, ExecutorError, LiveExecutor, RunExit, RunPhase, RunRequest, RunStatus
from gpuloom.live.clock import ServiceClock
from gpuloom.live.dispatch.launch import run_directory, run_request
from gpuloom.live.dispatch.starts import Starts
from gpuloom.live.planning.eligible import blocked
from gpuloom.live.planning.fleet import slots_of
from gpuloom.live.planning.occupancy import open_slots
from gpuloom.live.planning.planning import Planning
from gpuloom.live.records.ledger import Draft, Ledger
from gpuloom.live.records.work import WorkDone
from gpuloom.sharing.start import NO_SHARING, Ability

FREEZE_S = 5.0
"""Time for a job to freeze; one that has not is told to end."""

IDENTITY_BYTES = 4
"""Of what makes the name of a run unlike that of any other with its number."""

RETRY_S = 1.0
"""After the store or the executor failed, when to try again."""


class Dispatch:
    """Used by the scheduler's thread alone.

    Attributes:
        strangers: runs that go on and that this store does not know as going on, as after it was put back to an older
            state. Nobody accounts for their GPUs: they were told to end, and nothing starts until they have.
        to_start: attempts that are written down and that the executor has not taken.
        retry_s: when to call `hand_over` again; infinity: nothing is left to say.
    """

    def __init__(
        self,
        ledger: Ledger,
        planning: Planning,
        work: WorkDone,
        executor: LiveExecutor,
        clock: ServiceClock,
        *,
        node: str,
        runs: Path,
        say: Callable[[RunStatus], None],
        sharing: Ability = NO_SHARING,
    ) -> None:
        """say: told of runs that could not even be asked for."""
        self.sharing = sharing
        self.ledger, self.planning, self.work, self.executor, self.clock = ledger, planning, work, executor, clock
        self.book, self.node, self.runs = ledger.book, node, runs
        self.say = say
        self.strangers: set[str] = set()
        self.starts = Starts()
        self.problem = ""
        """What the executor said when it could not be told something last; '' once it could."""
        self.to_start: dict[str, Attempt] = {}
        self._asked: set[str] = set()
        """Runs of `to_start` that the executor was asked for, and did not answer."""
        self._to_tell: list[Callable[[], None]] = []
        """What the executor could not be told yet."""
        self.retry_s = math.inf

    def directory_of(self, run: str) -> Path:
        """Where the files of a run are."""
        return run_directory(self.runs, run)

    def make_way(self, jobs: list[int], reason: EndReason, now: float) -> None:
        """Have these jobs leave their GPUs: they freeze, or are told to save and end."""
        drafts: list[Draft] = []
        stops: list[tuple[str, float]] = []
        for number in jobs:
            job, attempt = self.book.jobs[number], self.book.attempts.get(number)
            if attempt is None or attempt.stop_reason is not None:
                continue
            if number in self.planning.thawing:
                self.planning.refreeze.add(number)  # once it goes on: the executor has been told that it shall
                continue
            if job.spec.get("on_preempt") == "freeze" and attempt.phase is Phase.RUNNING:
                self.freeze(attempt, now)
                continue
            if attempt.phase is Phase.FROZEN:
                continue
            grace = float(job.spec.get("grace", 30.0))
            drafts.append(("attempt.stopping", number, {"reason": reason.value, "deadline_s": now + grace}))
            stops.append((attempt.run, grace))
        self._stop(drafts, stops, reason)

    def freeze(self, attempt: Attempt, now: float) -> None:
        """Stop a running job where it is."""
        self.planning.freezing[attempt.job] = now
        self.tell(partial(self.executor.freeze, attempt.run))

    def watch_freezes(self, now: float) -> None:
        """A job that was told to freeze and does not is told to save and end instead."""
        late = [job for job, told_s in self.planning.freezing.items() if now - told_s > FREEZE_S]
        drafts: list[Draft] = []
        stops: list[tuple[str, float]] = []
        for number in late:
            attempt = self.book.attempts.get(number)
            if attempt is None or attempt.stop_reason is not None:
                del self.planning.freezing[number]
                continue
            grace = float(self.book.jobs[number].spec.get("grace", 30.0))
            data = {"reason": EndReason.PREEMPTED.value, "deadline_s": now + grace}
            drafts.append(("attempt.stopping", number, data))
            stops.append((attempt.run, grace))
        self._stop(drafts, stops, EndReason.PREEMPTED)
        for number in late:
            self.planning.freezing.pop(number, None)
        if self.planning.freezing:
            self.retry_s = min(self.retry_s, now + FREEZE_S)

    def _stop(self, drafts: list[Draft], stops: list[tuple[str, float]], reason: EndReason) -> None:
        """Write down that attempts are told to end, and tell them."""
        self.ledger.write(drafts)
        for run, grace in stops:
            attempt = self.to_start.get(run)
            if attempt is not None and run not in self._asked:
                # The executor has never heard of it: it ends before it began.
                del self.to_start[run]
                self._never_began(run, reason)
            else:
                self.end_run(run, reason, grace)

    def _never_began(self, run: str, reason: EndReason) -> None:
        how = RunExit(None, None, reason.value, "it was stopped before it began", time.time())
        self.say(RunStatus(run, RunPhase.EXITED, exit=how))

    def end_attempts(self, jobs: list[int], reason: EndReason, grace_s: float | None) -> None:
        """End the runs of these active jobs for good, or to be queued again, as `reason` says."""
        now = self.clock.now()
        drafts: list[Draft] = []
        stops: list[tuple[str, float]] = []
        for number in jobs:
            job, attempt = self.book.jobs[number], self.book.attempts[number]
            grace = float(job.spec.get("grace", 30.0)) if grace_s is None else grace_s
            if attempt.stop_reason is reason and attempt.deadline_s is not None:
                grace = max(min(grace, attempt.deadline_s - now), 0.0)
            drafts.append(("attempt.stopping", number, {"reason": reason.value, "deadline_s": now + grace}))
            stops.append((attempt.run, grace))
        self._stop(drafts, stops, reason)
        for number in jobs:
            self.planning.grants.pop(number, None)
            self.planning.thawing.pop(number, None)
            self.planning.refreeze.discard(number)
            self.planning.freezing.pop(number, None)
        self.planning.stale()

    def stop_all(self) -> None:
        """Every active job makes way; it is queued again."""
        self.planning.grants.clear()
        active = [n for n, attempt in self.book.attempts.items() if attempt.stop_reason is None]
        if active:
            self.end_attempts(active, EndReason.PREEMPTED, None)

    def start_granted(self, now: float) -> None:
        """Start jobs whose GPUs are free by now."""
        planning, grants = self.planning, self.planning.grants
        allowed = self.starts.allowed(now)
        self.retry_s = min(self.retry_s, self.starts.next_s(waiting=bool(grants)))
        if not grants or self.strangers:
            return
        free_for_all, most = open_slots(self.book), planning.policy.max_jobs_per_gpu
        holders = self._holders()
        drafts: list[Draft] = []
        ready: list[int] = []
        for number, allocation in list(grants.items()):
            job, present = self.book.jobs[number], self.book.attempts.get(number)
            slots = slots_of(allocation)
            if not free_for_all.issuperset(slots) or (job.phase is Phase.QUEUED and blocked(job, self.book.jobs, now)):
                del grants[number]  # things have changed since it was given
                planning.stale()
                continue
            on_them = [[other for other in holders.get(slot, ()) if other != number] for slot in slots]
            if any(len(others) >= most or any(map(self._leaves, others)) for others in on_them):
                continue
            # A policy before may have given GPUs of which this one shares only those of pairs.
            if planning.policy.pairs and any(on_them) and not self._may_pair(number, on_them):
                continue
            if job.phase is Phase.QUEUED:
                if len(ready) >= allowed:
                    continue
                data = {
                    "attempt": job.attempts + 1,
                    "allocation": as_json(allocation),
                    "identity": secrets.token_hex(IDENTITY_BYTES),
                }
                drafts.append(("attempt.starting", number, data))
                ready.append(number)
            elif job.phase is Phase.FROZEN and present is not None:
                if self.book.nodes[self.node].kind == "cpu" or allocation == present.allocation:
                    planning.thawing[number] = grants.pop(number)
                    self.tell(partial(self.executor.thaw, present.run))
                else:  # what it has on its GPUs can't move with it
                    self._thaw_elsewhere(present, now)
                    continue
            else:
                continue
            for slot in slots:
                holders.setdefault(slot, []).append(number)
        self.ledger.write(drafts)
        for number in ready:
            del grants[number]
            begun = self.book.attempts[number]
            self.work.begin(number, now)
            self.work.rate(number, planning.rates.pop(number, 1.0))
            self.to_start[begun.run] = begun
            self.starts.asked(begun.run)

    def _holders(self) -> dict[tuple[str, int], list[int]]:
        """By GPU the jobs that have processes at work on it, or are about to."""
        holders: dict[tuple[str, int], list[int]] = {}
        thawing = self.planning.thawing
        for number, attempt in self.book.attempts.items():
            if attempt.phase is not Phase.FROZEN or number in thawing:
                for slot in slots_of(thawing.get(number, attempt.allocation)):
                    holders.setdefault(slot, []).append(number)
        return holders

    def _thaw_elsewhere(self, attempt: Attempt, now: float) -> None:
        grace = float(self.book.jobs[attempt.job].spec.get("grace", 30.0))
        data = {"reason": EndReason.PREEMPTED.value, "deadline_s": now + grace}
        self.ledger.write([("attempt.stopping", attempt.job, data)])
        self.end_run(attempt.run, EndReason.PREEMPTED, grace)

    def _may_pair(self, number: int, on_them: Sequence[Sequence[int]]) -> bool:
        """Whether a job and those on its GPUs are a pair."""
        others = {other for found in on_them for other in found}
        return len(on_them) == 1 and is_pair([share_class_of(self.book.jobs[n].spec) for n in (number, *others)])

    def _leaves(self, other: int) -> bool:
        """Whether a job that holds GPUs is about to leave them."""
        attempt = self.book.attempts.get(other)
        stopping = attempt is not None and attempt.stop_reason is not None
        leaves = other in self.planning.freezing or other in self.planning.refreeze
        return stopping or leaves or (attempt is not None and other in self.planning.grants)

    def end_run(self, run: str, reason: EndReason, grace_s: float) -> None:
        self.tell(partial(self.executor.stop, run, reason=reason.value, grace_s=grace_s))

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
        for run, attempt in list(self.to_start.items()):
            job = self.book.jobs[attempt.job]
            try:
                request = self._request(job, attempt)
            except InputError as error:
                self._not_started(run, Cause.JOB, str(error), now)
                continue
            except OSError as error:  # a venv on a dead disk, say
                where = f"can't use {error.filename}" if error.filename else "can't prepare it"
                self._not_started(run, blamed(error), fault_text(where, error), now)
                continue
            try:
                if run in self._asked and self._stopped(attempt):
                    # It was asked for and not answered: has it been begun?
                    if not any(status.run == run for status in self.executor.runs(patience_s=RETRY_S)):
                        stop_reason = self.book.attempts[attempt.job].stop_reason
                        self._never_began(run, stop_reason or EndReason.PREEMPTED)
                else:
                    self._asked.add(run)
                    self.executor.start(request)
            except ExecutorError as error:
                self.problem = str(error)
                self.retry_s = now + RETRY_S
                return
            self._asked.discard(run)
            del self.to_start[run]

    def _request(self, job: Job, attempt: Attempt) -> RunRequest:
        """Raises InputError, OSError."""
        # Attempts that were kept from starting have left nothing to go on from.
        before = self.ledger.store.attempts([job.id]) if attempt.number > 1 else ()
        ran = any(one.running_s is not None for one in before if one.number < attempt.number)
        environment = self.ledger.store.environment(job.spec_id) if job.spec.get("env") else None
        node = self.book.nodes[self.node]
        return run_request(job, attempt, node, self.runs, self.sharing, resumes=ran, environment=environment)

    def _not_started(self, run: str, cause: Cause, message: str, now: float) -> None:
        how = RunExit(None, None, EndReason.NOT_STARTED.value, message, time.time(), cause=cause)
        self.say(RunStatus(run, RunPhase.EXITED, exit=how))
        del self.to_start[run]
        self.retry_s = now

    def _stopped(self, attempt: Attempt) -> bool:
        present = self.book.attempts.get(attempt.job)
        return present is not None and present.stop_reason is not None


def as_json(allocation: Allocation) -> list[Any]:
    """An allocation as events hold it."""
    return [[node, list(gpus)] for node, gpus in allocation]
