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
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy

from gpuloom.core.book import Book
from gpuloom.core.decision import Reason
from gpuloom.core.errors import PolicyError
from gpuloom.core.job import ENDED, Allocation, Job
from gpuloom.core.snapshot import Speed
from gpuloom.engine.clockwork import Clockwork, overrun_s
from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.candidates import Candidates
from gpuloom.live.planning.chosen import read, recalled
from gpuloom.live.planning.claims import Claims
from gpuloom.live.planning.estimates import Estimates
from gpuloom.live.planning.gpu_memory import GpuMemory
from gpuloom.live.planning.kernel_speeds import KernelSpeeds
from gpuloom.live.planning.lasting import lasting
from gpuloom.live.planning.model_speeds import ModelSpeeds
from gpuloom.live.planning.passes import Outcome, Passes, take
from gpuloom.live.planning.scene import Coming, Scene
from gpuloom.live.planning.seat import Seat
from gpuloom.live.planning.standby import FALLBACK
from gpuloom.live.planning.times import Times
from gpuloom.live.planning.world import Memory, World
from gpuloom.live.planning.worlds import Worlds
from gpuloom.live.records.rehearsals import Rehearsals
from gpuloom.live.records.work import WorkDone
from gpuloom.policies.base import Policy
from gpuloom.store.errors import StoreError

LEAST_WAKE_S = 0.05
"""A policy is not asked again sooner, if nothing happens: one that wants to would keep the scheduler from all else."""


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
        speeds: ModelSpeeds,
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
        kernels: KernelSpeeds | None = None,
        memory: GpuMemory | None = None,
        rehearsals: Rehearsals | None = None,
    ) -> None:
        """stored: nobody has just asked for this policy, it was set before: if it can't be had any more the fallback
        decides. saved: its memory as it was written down last. beside: best-effort jobs may share GPUs with
        high-priority ones, if the policy's text does not say otherwise. ended_gpu_s: GPU-seconds of the last jobs that
        ended, for policies that go by their distribution. claims: None: those that the book tells of.
        kernels: what is expected of pairs by kernel profiles; None: nothing is known of any."""
        self.book = book
        self.seat = Seat(ended_gpu_s, written=policy, interval_s=interval_s, beside=beside, saved=saved)
        self.times = Times(timer)
        self.claims = Claims.of(book.attempts.values()) if claims is None else claims
        self.scene = Scene(book, work, estimates, speeds, self.claims, read(FALLBACK), kernels or KernelSpeeds())
        if memory is not None:
            self.scene.memory = memory
        if rehearsals is not None:
            self.scene.rehearsals = rehearsals
        self.yielding: set[int] = set()
        """Jobs that the pass under way has told to make way."""
        self.no_starts = ""
        """Why nothing can be started now, whatever is free."""
        self.reasons: dict[int, Reason] = {}
        self.engine_says: Mapping[int, str] = {}
        """What the engine below has to say of jobs that wait, in sentences."""
        self.watches = False
        """It decides nothing: another scheduler starts jobs, and keeps them back."""
        self.worlds = Worlds(self.scene, overhead_s=overhead_s)
        self.candidates = Candidates(self.scene)
        self.seen: list[World] = []
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

    def source(self, job: int, others: Sequence[int]) -> str | None:
        """Where it is known from how fast a job is beside these; None: the worlds of the last pass don't tell."""
        worlds = [world for world in (self.world, *self.seen) if world is not None]
        return next((found for world in worlds if (found := world.source(job, others)) is not None), None)

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
        twin.seen, twin._finished = [], []
        return twin

    # -- what happened --------------------------------------------------------------------------------------

    def shut(self, nodes: Mapping[str, str]) -> None:
        """On these nodes nothing can be started or stopped now, and why."""
        before, self.scene.shut = self.scene.shut, nodes
        if before.keys() != nodes.keys():
            self.stale()

    def stale(self) -> None:
        """Something has changed that a built world can't take in."""
        self.worlds.close()
        self.times.again = True

    def comes(self, coming: Coming) -> None:
        """What is known of nodes that are asked for."""
        before, self.scene.coming = self.scene.coming, coming
        if before.last_s != coming.last_s:
            self.stale()

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

    def goes(self, job: int, speed: Speed) -> None:
        """A job that runs has reported its speed on the GPUs that it has."""
        self.worlds.going[job] = speed
        if self.world is not None:
            self.world.goes(job, speed)

    def attempt_left(self, job: int) -> None:
        """An attempt has ended: what it reported is not of the next one."""
        self.worlds.going.pop(job, None)

    def job_left(self, job: Job, allocation: Allocation, it_per_s: float | None = None) -> None:
        """A running job has ended for good: its GPUs are free. it_per_s: what it reported of its speed on them."""
        self.seat.ended()
        self.worlds.told += it_per_s is not None
        self.worlds.silent += it_per_s is None
        if self.world is None or not self.world.is_running(job.id):
            self.worlds.left[job.id] = job, allocation
            if it_per_s is not None:
                self.worlds.measured[job.id] = it_per_s
            self.stale()
        else:
            if it_per_s is not None:
                self.world.measured(job.id, it_per_s)
            self._finished.append(job.id)
            self.times.again = True

    def goes_on(self, job: int, allocation: Allocation, freed: Collection[str]) -> None:
        """A job that has ended its run keeps these GPUs, and begins there again. freed: nodes on which it lost some."""
        self.claims.give(job, allocation)
        self.worlds.freed.update(freed)
        self.stale()

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
        if self.world is None:
            self.seat.teach(self.policy)
            self.candidates.drop_grants(now_s)
            eligible, self.reasons, times.pause_s = self.candidates.first(now_s)
            # Who was held, or waited for something else, comes to the policy anew.
            self.worlds.met &= eligible | self.book.attempts.keys() | self.claims.grants.keys()
            outcome, wake = self._passes(eligible, now_s, may_preempt=may_preempt)
            waiting = len(eligible.union(outcome.stop) - self.claims.grants.keys())
        else:
            world = self.world
            rows = [world.row_of[job] for job in self._finished]
            if rows:
                with Asking(Call.SHARING, self.policy):
                    world.engine.take_in(now_s, finished=rows)
            wake, outcome = self._ask(world, now_s, may_preempt=may_preempt), Outcome()
            take(world, self.scene, self.candidates, outcome)
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

    def _passes(self, eligible: set[int], now_s: float, *, may_preempt: bool) -> tuple[Outcome, float]:
        """Passes with new worlds: what they want, and when the policy wants to be asked again."""
        ends = lasting(self.scene, eligible | self.claims.grants.keys(), now_s)
        self.times.pause_s = min(self.times.pause_s, ends.next_s)
        passes = Passes(self.scene, self.worlds, self.candidates, self._ask, ends, now_s=now_s, may_preempt=may_preempt)
        passes.run(eligible)
        self.reasons |= passes.reasons
        self.seen, self.yielding = passes.seen, passes.yielding
        if not passes.lasts:
            self.worlds.now = None
        return passes.outcome, passes.wake_s
