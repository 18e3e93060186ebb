"""The scheduler's thread: takes in what happened, records it, asks the policy, and executes its plan.

Rules that keep jobs safe:
- An event is recorded before anything is done because of it: an attempt is on disk before its process may start,
  so that no job runs twice; a run's end is acknowledged to the executor when it is on disk, so that none is lost.
- If the store can't be written nothing is started or stopped; ends are kept and written once it can be.
- A job starts when those who hold its GPUs are gone and the GPUs are verified free, whatever the plan says.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from gpuloom.core.errors import PolicyError
from gpuloom.core.job import Attempt, Gpu, Job, Phase, gpus_in
from gpuloom.core.profile import Profiles
from gpuloom.core.script_key import script_key
from gpuloom.core.waiting import one_wait_s
from gpuloom.executors.gangs import Gangs, expected_of
from gpuloom.executors.port import ExecutorError, RunStatus, RunUsage
from gpuloom.live.arrivals import Arrivals
from gpuloom.live.clock import ServiceClock
from gpuloom.live.dispatch.dispatch import RETRY_S, Dispatch
from gpuloom.live.dispatch.intake import Intake
from gpuloom.live.dispatch.last_words import LastWords, Where, Words
from gpuloom.live.dispatch.let_go import LetGo
from gpuloom.live.dispatch.meeting import Meeting
from gpuloom.live.dispatch.node_states import NodeStates
from gpuloom.live.dispatch.recovery import take_up
from gpuloom.live.dispatch.room import Room
from gpuloom.live.figures.sampler import Sampler
from gpuloom.live.forecasts.left import Left, left_of
from gpuloom.live.planning.asking import PolicyFailure
from gpuloom.live.planning.estimates import Estimates
from gpuloom.live.planning.gpu_memory import GpuMemory
from gpuloom.live.planning.kernel_speeds import KernelSpeeds
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.planning import Planning
from gpuloom.live.planning.record import PolicyRecord
from gpuloom.live.planning.standby import FALLBACK
from gpuloom.live.records.forgetting import Forgetting
from gpuloom.live.records.ledger import Ledger
from gpuloom.live.records.online import Watched
from gpuloom.live.records.rehearsals import LOOKED_THROUGH, REHEARSED, Rehearsals
from gpuloom.live.records.work import WorkDone
from gpuloom.live.sharers import Sharers
from gpuloom.live.sights import Sights
from gpuloom.policies.blame import said
from gpuloom.sharing.loads import request_rates
from gpuloom.sharing.start import NO_SHARING, Ability
from gpuloom.store.errors import StoreError
from gpuloom.store.port import JobQuery, Loaded, Store

log = logging.getLogger("gpuloom.scheduler")

T = TypeVar("T")

MEET_S = 3.0
"""How long the executor may take to answer before the scheduler is there without it."""

SLOW_PASS_S = 10.0
"""A pass that lasts longer than this is said to, as it keeps everything else waiting."""


class Scheduler:
    """Owns book, policy and executor; `do` runs a function in its thread.

    Args:
        gangs: the nodes, and what runs there. sights: what was seen last of them.
        sharing: whether jobs may share GPUs here, and how.
        timer: measures how long a pass takes.
        policy, interval_s: to begin with. overhead_s: what a start costs, as far as the policy is told.
        on_up: called when a person opens a node again; GPUs whose state changes by that. here: this machine's name
            as a node; '' if it is none. runs: where the files of runs on this machine are.
    """

    def __init__(
        self,
        *,
        store: Store,
        loaded: Loaded,
        gangs: Gangs,
        sights: Sights,
        clock: ServiceClock,
        here: str,
        runs: Path,
        policy: str,
        interval_s: float,
        overhead_s: float = 1.0,
        on_up: Callable[[str], Sequence[Gpu]] = lambda name: (),
        sharing: Ability = NO_SHARING,
        timer: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.sharing = sharing
        self.store, self.gangs, self.clock, self.here, self.runs = store, gangs, clock, here, runs
        self.ledger = Ledger(store, loaded, clock)
        self.book = self.ledger.book
        self.work = WorkDone()
        self.estimates = Estimates(store.ended_runs)
        self.speeds = ModelSpeeds(store.measured_runs, self.estimates)
        folder = sharing.environment.get("GPULOOM_SHARE_DIR") if sharing.gated else None
        self.kernels = KernelSpeeds(
            lambda: self.post(self.planning.stale),
            rates=dict if folder is None else partial(request_rates, Path(folder)),
        )
        self.planning = Planning(
            self.book,
            self.work,
            self.estimates,
            self.speeds,
            self._ended_gpu_s,
            policy=policy,
            interval_s=interval_s,
            overhead_s=overhead_s,
            beside=sharing.able,
            stored=loaded.settings.get("policy") == policy,
            saved=loaded.memory[1] if loaded.memory is not None and loaded.memory[0] == policy else None,
            now_s=clock.now(),
            timer=timer,
            kernels=self.kernels,
            memory=GpuMemory(store.measured_runs, store.attempts),
            rehearsals=Rehearsals(gangs.driver, store.events(types=(REHEARSED,), limit=LOOKED_THROUGH, newest=True)),
        )
        self.problems: dict[str, str] = {}
        """What is wrong now with 'store', 'executor' or 'policy'; '' or not there: nothing."""
        self.dispatch = Dispatch(
            self.ledger,
            self.planning,
            self.work,
            gangs,
            clock,
            cut=sights.cut,
            say=self.on_status,
        )
        self.planning.scene.free_mib = sights.free_mib
        self.room = Room(self.ledger, self.planning, self.dispatch, sights)
        self.let_go = LetGo(self.ledger, self.planning, self.dispatch, sights)
        self.intake = Intake(
            self.ledger,
            self.planning,
            self.work,
            self.estimates,
            self.dispatch,
            clock,
            files=gangs.files,
            crowded=lambda job: self.sharers.crowded(job),
        )
        self.nodes = NodeStates(self.ledger, self.planning, self.dispatch, self.intake, clock.now, on_up)
        self.arrivals = Arrivals(
            self.ledger,
            self.planning,
            gangs,
            sights,
            now=clock.now,
            set_node=self.nodes.set,
            empty_node=lambda name: self.nodes.empty(name, everyone=True),
            met=self._met_node,
        )
        self._last_words = LastWords(lambda run: self._where_of(run))
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._blocked_until_s = -math.inf
        self.policy_record = PolicyRecord(self.planning, self.ledger, lambda: self._inbox.put(lambda: None))
        self.forgetting = Forgetting(self.ledger)
        self.sharers = Sharers(store, self.ledger, self.planning, self.work, self.speeds, gangs, clock)
        self.sampler = Sampler(self.ledger, self.planning.scene, sights)
        self._early: dict[str, RunStatus] = {}
        """News that came before it was known what runs."""
        self.meeting = Meeting(
            gangs, self.on_status, lambda known: self.do(partial(self._recover, known)), self._not_met
        )
        self._stop = False
        self._leaving = False
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self.may_come: Callable[[], float] = lambda: 0.0
        """GPUs of nodes that are not known yet and may join."""
        self.failed: BaseException | None = None
        self._ended: Callable[[], None] = lambda: None
        jobs = self.book.jobs
        gangs.expect(expected_of(one, jobs[one.job].spec) for one in self.book.attempts.values())

    # -- from other threads -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up what was left, then begin. Returns when the scheduler is ready."""
        try:
            known = self.meeting.now(MEET_S)
        except ExecutorError as error:  # jobs wait, and what runs goes on: no reason not to be there
            self.meeting.later(error, self._thread.start)
            return
        self._recover(known)
        self._thread.start()

    def do(self, function: Callable[[], T]) -> T:
        """Run a function in the scheduler's thread; its result or error.

        Raises:
            StoreError: the scheduler ends, or its policy does not come back from a decision; nothing was changed.
        """
        if threading.current_thread() is self._thread:
            return function()
        future: Future[T] = Future()

        def call() -> None:
            if not future.set_running_or_notify_cancel():
                return  # whoever asked has given up
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._inbox.put(call)
        while True:
            try:
                return future.result(timeout=1.0)
            except TimeoutError:
                if not self._thread.is_alive() and not future.done():
                    raise StoreError("the scheduler is stopping") from None
                if self.planning.times.deciding_s() >= SLOW_PASS_S and future.cancel():
                    raise StoreError(self.policy_problem()) from None

    def on_status(self, status: RunStatus) -> None:
        """The executor reports (in a thread of its own)."""
        self._last_words.first_look(status, self._take_status)

    def _take_status(self, status: RunStatus, words: Words | None) -> None:
        def take() -> None:
            if words is not None:
                self.intake.words[status.run] = words
            (self._early if self.meeting.unmet else self.intake.statuses)[status.run] = status

        self._inbox.put(take)

    def _where_of(self, run: str) -> Where | None:
        """Where an open attempt leaves what is looked at when it ends: on its master's node. From any thread."""
        attempt = self.intake.attempt_of(run)
        job = None if attempt is None else self.book.jobs.get(attempt.job)
        if job is None or attempt is None:
            return None
        node = attempt.nodes[0]
        return Where(
            self.gangs.files(node),
            node == self.here,
            job.spec.checkpoint,
            job.spec.workdir,
            job.spec.replicas is not None,
        )

    def post(self, call: Callable[[], None]) -> None:
        """Have this done in the scheduler's thread, without waiting for it. From any thread."""
        self._inbox.put(call)

    def take_profiles(self, profiles: Profiles) -> None:
        """Decide by these from now on."""

        def take() -> None:
            self.planning.worlds.profiles = profiles
            self.planning.stale()

        self.post(take)

    def watched(self) -> list[Watched]:
        """Runs whose stages may be measured. From any thread."""
        found = []
        for attempt in list(self.book.attempts.values()):
            job = self.book.jobs.get(attempt.job)
            if job is not None and attempt.phase is Phase.RUNNING and attempt.stop_reason is None:
                key = job.spec.model or script_key(job.spec.command)
                gpus, alone = gpus_in(attempt.allocation), self.work.was_alone(job.id)
                found.append(Watched(attempt.run, attempt.nodes[0], key, gpus, attempt.gpu_model, alone))
        return found

    def checked(self, problem: str) -> None:
        """The store has been checked (in a thread of its own): what is wrong with it."""
        self._inbox.put(partial(self._trouble, "check", problem))

    def stop(self, *, stop_jobs: bool) -> None:
        """End; with `stop_jobs`, when all running jobs have been stopped. They go on when the scheduler is back."""

        def ask() -> None:
            if not stop_jobs:
                self._stop = True
                return
            self._leaving = True  # from now on each turn has them make way

        self._inbox.put(ask)

    def sampled(
        self, node: str, runs: Mapping[str, RunUsage], gpus: Sequence[Gpu], flags: Sequence[tuple[str, str, str]]
    ) -> None:
        """The monitor of a node has looked: progress of runs, GPUs whose state changed, flags (run, name, text) of
        jobs."""

        def safely() -> None:
            try:
                self.intake.sampled(node, runs, gpus, flags)
                known = ((self.intake.attempt_of(run), usage) for run, usage in runs.items())
                self.sharers.sampled((attempt, usage) for attempt, usage in known if attempt is not None)
            except StoreError as error:
                self._trouble("store", str(error))

        self._inbox.put(safely)

    def busy(self) -> bool:
        """Whether there is something left to do now. In the scheduler's thread."""
        now = self.clock.now()
        return (
            bool(self.intake.statuses or self.planning.claims.untold())
            or not self._inbox.empty()
            or self.planning.due_s() <= max(now, self.planning.times.quiet_until_s)
        )

    @property
    def problem(self) -> str:
        """All that is wrong now, in one line; '' if nothing is."""
        return "; ".join(text for text in self.problems.values() if text)

    def policy_problem(self) -> str:
        """What is wrong with the policy, '' if nothing is. From any thread."""
        return "; ".join(text for text in (self.stuck(), self.problems.get("policy", "")) if text)

    def stuck(self) -> str:
        """A message if the policy takes too long to decide; else ''. From any thread."""
        lasts_s = self.planning.times.deciding_s()
        if lasts_s < SLOW_PASS_S:
            return ""
        return (
            f"policy {self.planning.seat.written} has been deciding for {lasts_s:.0f} s, and the scheduler does "
            f"nothing else until it answers; to go on without it, kill process {os.getpid()} (SIGKILL: jobs keep "
            f"running) and start the scheduler with another one (gpuloom up --policy {FALLBACK})"
        )

    def on_end(self, call: Callable[[], None]) -> None:
        """Called when the scheduler's thread has ended, for whatever reason."""
        self._ended = call

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the end of the thread; whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # -- the loop ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stop:
                self._turn()
        except BaseException as error:
            self.failed = error
            log.critical("the scheduler stops because of an internal error", exc_info=True)
        finally:
            self.meeting.end()
            self.kernels.close()
            try:
                self._save_memory(force=True)
            except Exception as error:  # whatever it is, whoever waits for the end is told of it
                self.failed = self.failed or error
                log.critical("the policy's memory could not be saved", exc_info=True)
            finally:
                self._ended()

    def _turn(self) -> None:
        now = self.clock.now()
        passes = not (self._leaving or self.meeting.unmet)
        due = min(self.planning.due_s() if passes else math.inf, self.dispatch.retry_s)
        due = min(due, self.policy_record.due_s(), self.planning.seat.standby.settles_s, self.sampler.due_s)
        due = max(due, self._blocked_until_s)
        wait = None if due == math.inf else one_wait_s(due - now)
        with suppress(queue.Empty):
            self._do_one(self._inbox.get(timeout=wait))
            for _ in range(4096):
                self._do_one(self._inbox.get_nowait())
        now = self.clock.now()
        self.work.at(now)
        if now < self._blocked_until_s:
            return
        self.dispatch.retry_s = math.inf
        try:
            writes = self.ledger.writes
            self._act(now)
            if self.ledger.writes > writes:
                self._trouble("store", "")
            self._trouble("policy", self.policy_record.news(now))
        except StoreError as error:
            self._trouble("store", str(error))
            self._blocked_until_s = now + RETRY_S
            self.dispatch.retry_s = now + RETRY_S
            self.planning.claims.take_all_back()
            self.planning.stale()
        if self._leaving and not self.book.attempts:
            self._stop = True
        self._save_memory()
        if problem := self.sampler.look(now):
            self._trouble("store", problem)
        self.forgetting.jobs()
        self.forgetting.environments(now)

    def _act(self, now: float) -> None:
        """Take in what happened, decide, and do it. Raises StoreError."""
        self.arrivals.write()
        self.intake.take_all(now)
        self.sharers.judge()
        self.dispatch.watch_freezes(now)
        if self._leaving:
            self.dispatch.stop_all()
        elif not self.meeting.unmet:
            self.dispatch.look_at_nodes(now)
            self.let_go.look(now)
            self.room.look(now)
            self._pass(now)
            self.dispatch.start_granted(now)
        self.dispatch.hand_over(now)
        self.sharers.together.look()
        if not self.meeting.unmet:
            self.sharers.write()
            self.sharers.turns.tell()
        problem = self.meeting.unmet or self.dispatch.problem or self.dispatch.starts.problem
        self._trouble("executor", problem)
        self.planning.no_starts = problem

    @staticmethod
    def _do_one(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # a bug of ours; what it was about is lost, all else goes on
            log.exception("a message could not be handled")

    def _trouble(self, part: str, problem: str) -> None:
        if problem != self.problems.get(part, ""):
            if problem:
                log.error("%s: %s", part, problem)
            else:
                log.warning("%s: works again", part)
            self.problems[part] = problem

    def _pass(self, now: float) -> None:
        if now < self.planning.due_s():
            return
        try:
            outcome = self.planning.run(now)
        except StoreError:
            raise
        except Exception as error:  # a bug of ours: the jobs that run go on, and a pass is tried again
            failure = said(error)
            if failure != self.planning.failure:  # told once; the status goes on saying it
                log.exception("neither policy %s nor the fallback could decide", self.planning.seat.written)
            self.planning.claims.take_all_back()
            self.planning.rest(now + 10 * RETRY_S, failure)
            return
        self.policy_record.unsaved = True
        if outcome.stop:
            self.dispatch.make_way(outcome.stop, now)

    # -- beginning and care -------------------------------------------------------------------------------------

    def _not_met(self, why: str) -> None:
        self._trouble("executor", why)
        self.planning.no_starts = why

    def _recover(self, known: Mapping[str, RunStatus]) -> None:
        """Take up the runs that went on while no scheduler was there."""
        self.work.at(self.clock.now())
        for attempt in self.book.attempts.values():
            # What it did before it was last frozen; start-up included, which is not known any more.
            self.work.begin(attempt.job, self.clock.now(), attempt.since_s, done_s=attempt.held_s)
            if attempt.phase is Phase.FROZEN:
                self.work.pause(attempt.job, attempt.since_s)
        self._take_up(known, list(self.book.attempts.values()))
        self.meeting.unmet = ""
        self.intake.statuses |= self._early
        self._early.clear()
        self._inbox.put(lambda: None)

    def _met_node(self, name: str) -> None:
        """A node has come that records know, after the scheduler began: its runs are taken up."""
        self.sharers.turns.forget(name)
        there = [one for one in self.book.attempts.values() if name in one.nodes]
        self._take_up({status.run: status for status in self.gangs.heard([one.run for one in there])}, there)

    def _take_up(self, known: Mapping[str, RunStatus], attempts: Sequence[Attempt]) -> None:
        """Those whose nodes are all there: who waits for a node goes on waiting, until it comes or is lost."""
        waiting = self.gangs.waiting
        ready = [one for one in attempts if waiting.isdisjoint(one.nodes)]
        take_up(known, ready, self.dispatch, self.intake)
        self.intake.remember_unreleased(known.values())
        for status in known.values():
            if self._last_words.wants(status):
                self.on_status(status)
            else:  # at once: what the executor has said since then is newer, and waits in the inbox
                self.intake.statuses[status.run] = status

    # -- changes from outside, in the scheduler's thread ---------------------------------------------------------

    def set_policy(self, written: str, interval_s: float | None) -> None:
        """Go on with another policy. Jobs that run keep running until it decides otherwise.

        Raises:
            PolicyError: no such policy or parameter; StoreError: it can't be written down. The one before goes on.
        """
        interval = self.planning.seat.interval_s if interval_s is None else interval_s
        try:
            policy = self.planning.seat.made(written)
        except PolicyFailure as failure:
            raise PolicyError(f"policy {written!r} can't start: {failure}") from failure
        self.ledger.write([("policy.set", None, {"policy": written, "interval_s": interval})])
        self.planning.use(policy, written, interval)
        self.policy_record.begin()

    def left(self, job: Job) -> Left:
        """What is known of the time that a job which has not ended still takes: where it is or, if it waits, on the
        slowest GPU model that it accepts."""
        scene, attempt = self.planning.scene, self.book.attempts.get(job.id)
        known = scene.known(job, () if attempt is None else attempt.allocation, self.clock.now())
        speed = scene.pace(job).slowest(job.spec.gpu_types) if attempt is None else known.speed
        return left_of(scene.estimate(job), known.done_s, known.told_s).at_speed(speed)

    def _ended_gpu_s(self) -> list[float]:
        ended = self.store.jobs(JobQuery(phases=(Phase.FINISHED.value,), limit=1000))
        return [job.held_gpu_s for job in ended if job.held_gpu_s > 0]

    def _save_memory(self, *, force: bool = False) -> None:
        if problem := self.policy_record.save(self.clock.now(), force=force):
            self._trouble("store", problem)
