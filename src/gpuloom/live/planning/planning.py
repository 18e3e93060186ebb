"""Asks the policy: builds worlds, runs scheduling passes, and says when the next one is due.

Priorities. Higher ones go first whatever the policy: with several among those that wait, there is one pass for each,
highest first. In the pass of a priority, jobs of a higher one that run are out of the policy's sight, with their GPUs:
it can't stop them for lower ones.

Out of sight ("pinned") are also running jobs that may not be stopped (`on_preempt: never`, under a policy that stops
jobs), and those on machines or GPUs that are out of service: they run to their end where they are. Of the former, those
that may share their GPU are seen by a policy that forms pairs: it may put another job beside them, and no more.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass, field

from gpuloom.core.book import Book
from gpuloom.core.commands import Command, Resize, Start, Stop
from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.errors import PolicyError
from gpuloom.core.job import ENDED, Allocation, Job
from gpuloom.engine.clockwork import Clockwork, overrun_s
from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.candidates import Candidates
from gpuloom.live.planning.chosen import read, recalled
from gpuloom.live.planning.claims import Claims
from gpuloom.live.planning.estimates import Estimates
from gpuloom.live.planning.held_gpus import held_gpus
from gpuloom.live.planning.reserve import Reservation, reservation
from gpuloom.live.planning.scene import Scene
from gpuloom.live.planning.seat import Seat
from gpuloom.live.planning.standby import FALLBACK
from gpuloom.live.planning.times import Times
from gpuloom.live.planning.world import Memory, World
from gpuloom.live.planning.worlds import Worlds
from gpuloom.live.records.fleet import fleet_of, slots_of
from gpuloom.live.records.work import WorkDone
from gpuloom.policies.base import Policy
from gpuloom.store.port import StoreError

LEAST_WAKE_S = 0.05
"""A policy is not asked again sooner, if nothing happens: one that wants to would keep the scheduler from all else."""

_BEHIND = Reason(
    WaitCode.BEHIND_OTHERS, "Jobs of higher priority go first, and the remaining GPUs are not enough for this job."
)


@dataclass(slots=True)
class Outcome:
    """What a pass wants beyond the grants that it gave: jobs that are to stop, in order."""

    stop: list[int] = field(default_factory=list)


class Planning:
    """Used by the scheduler's thread alone.

    Attributes:
        scene: what there is to decide about, as it is now. claims: of it, what each job has of GPUs.
        seat: the policy that was set, and who sits in for it. times: when it is asked next.
        reasons: why eligible jobs are not in the policy's sight.
    """

    def __init__(
        self,
        book: Book,
        work: WorkDone,
        estimates: Estimates,
        ended_gpu_s: Callable[[], Sequence[float]],
        *,
        policy: str,
        interval_s: float,
        overhead_s: float,
        beside: bool = True,
        stored: bool = False,
        saved: bytes | None = None,
        now_s: float = 0.0,
        timer: Callable[[], float] = time.perf_counter,
        claims: Claims | None = None,
    ) -> None:
        """stored: nobody has just asked for this policy, it was set before: if it can't be had any more the fallback
        decides. saved: its memory as it was written down last. beside: best-effort jobs may share GPUs with
        high-priority ones, if the policy's text does not say otherwise. ended_gpu_s: GPU-seconds of the last jobs that
        ended, for policies that go by their distribution. claims: None: those that the book tells of."""
        self.book = book
        self.seat = Seat(ended_gpu_s, written=policy, interval_s=interval_s, beside=beside, saved=saved)
        self.times = Times(timer)
        self.claims = Claims.of(book.attempts.values()) if claims is None else claims
        self.scene = Scene(book, work, estimates, self.claims, read(FALLBACK))
        self.yielding: set[int] = set()
        """Jobs that the pass under way has told to make way."""
        self.no_starts = ""
        """Why nothing can be started now, whatever is free."""
        self.reasons: dict[int, Reason] = {}
        self.worlds = Worlds(self.scene, overhead_s=overhead_s)
        self.candidates = Candidates(self.scene)
        self.seen: deque[World] = deque(maxlen=8)
        """Worlds of the last pass, by falling priority: who waits in them can be told why."""
        self.failed, self.failure = False, ""
        self._finished: list[int] = []
        self._asked = False
        """The pass under way has asked the policy."""
        try:
            chosen = self.seat.made(policy)
        except PolicyError as error:
            if isinstance(error, PolicyFailure) and not stored:
                raise PolicyError(f"policy {policy!r} can't start: {error}") from error
            if not stored:
                raise
            self._fall_back(error, now_s)
        else:
            self._install(chosen, recalled(chosen, saved))

    # -- the policy -----------------------------------------------------------------------------------------

    def use(self, policy: Policy, written: str, interval_s: float) -> None:
        """Go on with this policy, which the seat has made of what was written."""
        self.seat.set(written, interval_s)
        self._install(policy, Memory())

    def _install(self, policy: Policy, memory: Memory) -> None:
        self.scene.policy = policy
        self.worlds.begin(memory)
        self._finished.clear()
        self.stale()

    def _fall_back(self, error: Exception, now_s: float) -> None:
        """The policy has failed: the fallback decides in its place."""
        fallback = self.seat.fails(error, now_s, self._jobs())
        self.worlds.left.clear()
        self.claims.forget_rates()
        self._install(fallback, Memory())

    def _ask_again(self, now_s: float) -> None:
        """Have the policy that failed decide again."""
        try:
            policy, memory = self.seat.tries()
        except PolicyError as error:
            self._fall_back(error, now_s)
        else:
            self._install(policy, memory)

    def _jobs(self) -> frozenset[tuple[int, int]]:
        """What there is to decide about: jobs, and what they ask for."""
        return frozenset((n, job.spec_id) for n, job in self.book.jobs.items() if job.phase not in ENDED)

    @property
    def world(self) -> World | None:
        """The world that goes on incrementally; None: the next pass builds one."""
        return self.worlds.now

    @property
    def policy(self) -> Policy:
        """The policy that decides."""
        return self.scene.policy

    def copy(self) -> Planning:
        """All that a forecast goes by, as it is now, for another thread: nothing of it changes any more.

        Its policy is a twin of the one that decides, which no other thread may ask.
        """
        twin = copy(self)
        twin.scene = scene = self.scene.copy(self.policy.twin())
        twin.book, twin.claims = scene.book, scene.claims
        twin.seat, twin.times = copy(self.seat), copy(self.times)
        twin.worlds, twin.candidates = self.worlds.copy(scene), self.candidates.copy(scene)
        twin.yielding, twin.reasons = set(self.yielding), {}
        twin.seen, twin._finished = deque(), []
        return twin

    # -- what happened --------------------------------------------------------------------------------------

    def stale(self) -> None:
        """Something has changed that a built world can't take in."""
        self.worlds.close()
        self.times.again = True

    def rest(self, until_s: float, failure: str) -> None:
        """Ask the policy again at `until_s` only: it has failed, in this way."""
        self.failed, self.failure = True, failure
        self.seat.standby.nobody_serves()
        self.worlds.left.clear()
        self.claims.forget_rates()
        self.stale()
        self.times.rest(until_s)

    def asks_anew(self, job: int) -> None:
        """A waiting job asks for something else than before: to the policy it is a new one."""
        self.claims.take_back(job)
        self.worlds.met.discard(job)

    def job_left(self, job: Job, allocation: Allocation) -> None:
        """A running job has ended for good: its GPUs are free."""
        self.seat.ended()
        if self.world is None or not self.world.is_running(job.id):
            self.worlds.left[job.id] = job, allocation
            self.stale()
        else:
            self._finished.append(job.id)
            self.times.again = True

    def due_s(self) -> float:
        """When a pass is due; -infinity: now."""
        due_s = self.times.due_s(anew=self.world is None)
        return due_s if self.times.again else min(due_s, self.seat.standby.again_s)

    # -- a pass ---------------------------------------------------------------------------------------------

    def run(self, now_s: float) -> Outcome:
        """One scheduling pass."""
        with self.times.a_pass(now_s, anew=self.world is None):
            return self._served(now_s)

    def _served(self, now_s: float) -> Outcome:
        """A pass by the policy or, if it fails, by the fallback.

        Raises:
            StoreError: what is asked of the store can't be read. Exception: the fallback has failed as well.
        """
        standby = self.seat.standby
        if standby.serving and standby.asks_again(now_s, self._jobs()):
            self._ask_again(now_s)
        given = dict(self.claims.grants)
        try:
            outcome = self._run(now_s)
        except StoreError:
            raise
        except Exception as error:
            self.claims.put_back(given)
            if standby.serving:
                raise
            how = error if isinstance(error, PolicyFailure) else PolicyFailure(Call.DECIDE, error, self.policy)
            self._fall_back(how, now_s)
            return self._run(now_s)
        if self._asked:
            standby.decided(now_s)
        return outcome

    def _ask(self, world: World, now_s: float, *, may_preempt: bool) -> float:
        """Have the policy decide; when it wants to be asked again."""
        self._asked = True
        with Asking(Call.DECIDE, self.policy):
            return world.engine.decide(now_s, may_preempt=may_preempt)

    def _run(self, now_s: float) -> Outcome:
        times = self.times
        clockwork = Clockwork.of(self.policy, self.seat.interval_s, least_pause_s=LEAST_WAKE_S)
        may_preempt = bool(clockwork.may_preempt(now_s, times.next_s))
        self.failed = self._asked = False
        if now_s >= min(times.overrun_s, times.pause_s):
            self.stale()
        times.again = False
        outcome = Outcome()
        if self.world is None:
            self.seat.teach(self.policy)
            self.candidates.drop_grants(now_s)
            eligible, self.reasons, times.pause_s = self.candidates.first(now_s)
            # Who was held, or waited for something else, comes to the policy anew.
            self.worlds.met &= eligible | self.book.attempts.keys() | self.claims.grants.keys()
            wake, waiting = self._levels(eligible, outcome, now_s, may_preempt=may_preempt)
        else:
            world = self.world
            rows = [world.row_of[job] for job in self._finished]
            if rows:
                with Asking(Call.SHARING, self.policy):
                    world.engine.take_in(now_s, finished=rows)
            wake = self._ask(world, now_s, may_preempt=may_preempt)
            self._take(world, outcome)
            waiting = world.state.waiting
        self._finished.clear()
        if self.candidates.lasts <= 0:
            self.stale()
        running = len(self.book.attempts) + len(self.claims.grants)
        times.next_s = clockwork.due_s(now_s, wake, may_preempt, waiting, running)
        times.overrun_s = math.inf
        if self.world is not None and waiting:
            times.overrun_s = overrun_s(now_s, self.world.stands_until_s(), times.last_pass_s)
        return outcome

    def _levels(self, eligible: set[int], outcome: Outcome, now_s: float, *, may_preempt: bool) -> tuple[float, int]:
        """A pass for each priority, highest first: (when the policy wants to be asked again, jobs that wait then)."""
        by_level: dict[int, set[int]] = {}
        for job in eligible:
            by_level.setdefault(self.scene.level(job), set()).add(job)
        if not by_level:
            by_level[min((self.scene.level(job) for job in self.book.attempts), default=0)] = set()
        wake, passes, tried, whole = math.inf, 0, False, True
        hold: Reservation | None = None
        self.seen.clear()
        self.yielding = set()
        while by_level:
            level = max(by_level)
            waiting = by_level.pop(level)
            if tried and not self._anything_for(level, waiting, may_preempt):
                self.reasons |= dict.fromkeys(waiting, _BEHIND)
                whole = False
                continue
            if hold is not None:
                waiting, left_out = hold.admitted([self.book.jobs[job] for job in sorted(waiting)], self.scene.left_s)
                self.reasons |= left_out
                whole = whole and not left_out
            there = held_gpus(self.scene, level, self.yielding)
            world, never = self.worlds.build(waiting, there, now_s, everyone=self.candidates.sees_all)
            self.reasons, tried = self.reasons | never, True
            if world is None:
                continue
            passes += 1
            self.worlds.now = world
            before = len(outcome.stop)
            wake = min(wake, self._ask(world, now_s, may_preempt=may_preempt))
            self._take(world, outcome)
            self.worlds.kept = self.worlds.memory()
            if len(self.seen) == self.seen.maxlen:
                gone = self.seen[0]
                self.reasons |= {job: _BEHIND for job in gone.jobs if gone.is_waiting(job)}
            self.seen.append(world)
            if by_level and (left := [job for job in waiting if job not in self.claims.grants]):
                hold = reservation(self.scene, self.book.jobs[min(left, key=self._turn)], hold, now_s)
            for job in outcome.stop[before:]:
                self.yielding.add(job)
                if job not in self.claims.grants and self.scene.level(job) < level:
                    by_level.setdefault(self.scene.level(job), set()).add(job)
        if passes > 1 or not whole:
            self.worlds.now = None
        return wake, len(eligible.union(outcome.stop) - self.claims.grants.keys())

    def _turn(self, job: int) -> tuple[float, int]:
        return self.book.jobs[job].submitted_s, job

    def _anything_for(self, level: int, waiting: Collection[int], may_preempt: bool) -> bool:
        """Whether a pass for this priority could give anything away."""
        there = held_gpus(self.scene, level, self.yielding)
        fleet = fleet_of(self.book.nodes.values(), without=there.pinned)
        if fleet is None:
            return False
        if self.scene.preempts and may_preempt and there.jobs:
            return True
        if self.policy.max_jobs_per_gpu > 1:
            jobs = self.book.jobs
            if not self.policy.pairs or any(jobs[job].spec.sharing_class for job in waiting):
                return True
        held = {slot for has in there.jobs.values() for slot in slots_of(has[0])}
        return any(slot not in held for slot in fleet.at)

    def _take(self, world: World, outcome: Outcome) -> None:
        commands: list[Command] = world.collector.take()
        for command in commands:
            job = world.jobs[command.job]
            if isinstance(command, Stop):
                if not self.claims.take_back(job):
                    outcome.stop.append(job)
            elif isinstance(command, Start):
                self.candidates.lasts -= 1
                self.claims.give(job, world.fleet.allocation(command.placement))
            elif isinstance(command, Resize):
                outcome.stop.append(job)
                self.claims.give(job, world.fleet.allocation(command.placement))
        if world.state.layers > 1:
            for row in world.state.placements:
                job, rate = world.jobs[row], world.state.rate[row]
                if job in self.claims.grants:
                    self.claims.set_rate(job, rate)
                else:
                    self.scene.work.rate(job, rate)
