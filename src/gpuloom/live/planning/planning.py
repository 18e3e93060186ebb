"""Asks the policy: builds worlds, runs scheduling passes, and says when the next one is due.

Priorities. Higher ones go first whatever the policy: with several among those that wait, there is one pass for each,
highest first. In the pass of a priority, jobs of a higher one that run are out of the policy's sight, with their GPUs:
it can't stop them for lower ones.

Out of sight ("pinned") are also running jobs that may not be stopped (`on_preempt: never`, under a policy that stops
jobs), and those on machines or GPUs that are out of service: they run to their end where they are. Of the former, those
that may share their GPU are seen by a policy that forms pairs: it may put another job beside them, and no more.
"""

from __future__ import annotations

import gc
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace

from gpuloom.core.book import Book
from gpuloom.core.commands import Command, Resize, Start, Stop
from gpuloom.core.decision import Reason
from gpuloom.core.errors import PolicyError
from gpuloom.core.job import ENDED, MAKES_WAY, Allocation, Job, Phase
from gpuloom.core.profile import Profiles
from gpuloom.engine.clockwork import Clockwork, overrun_s
from gpuloom.facts.inputs import load_policy
from gpuloom.facts.profiles import load_profiles
from gpuloom.live.forecasts.estimates import NOW_S, Estimates, left_s, stands_s
from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.chosen import learn, made, recalled
from gpuloom.live.planning.claims import Claims, State
from gpuloom.live.planning.eligible import Throttles, blocked, throttle_of
from gpuloom.live.planning.fleet import fleet_of, slots_of
from gpuloom.live.planning.lines import Lines
from gpuloom.live.planning.occupancy import occupancy
from gpuloom.live.planning.reserve import Reservation, reservation
from gpuloom.live.planning.roster import Roster, kind_of
from gpuloom.live.planning.scene import Scene
from gpuloom.live.planning.shortage import nothing_to_give, unplaceable
from gpuloom.live.planning.standby import FALLBACK, Standby
from gpuloom.live.planning.world import Memory, Placed, World
from gpuloom.live.records.work import WorkDone
from gpuloom.policies.base import Policy
from gpuloom.store.port import StoreError

log = logging.getLogger("gpuloom.scheduler")

LEAST_WAKE_S = 0.05
"""A policy is not asked again sooner, if nothing happens: one that wants to would keep the scheduler from all else."""

LEARN_EVERY = 20
"""After so many ends the policy is told anew what jobs that ended took."""

QUIET = 9.0
"""After a pass with a new world so many times its duration go by before the next such one: a stream of single
submissions is worked off in batches, and the API stays quick."""


SPARE = 256
"""Of equal jobs that wait so many more are shown than the policy has to see: a world lasts until they have started."""

_BEHIND = Reason(
    "behind_others", "Jobs of higher priority go first, and the remaining GPUs are not enough for this job."
)


@dataclass(slots=True)
class Outcome:
    """What a pass wants beyond the grants that it gave: jobs that are to stop, in order."""

    stop: list[int] = field(default_factory=list)


class Planning:
    """Used by the scheduler's thread alone.

    Attributes:
        scene: what there is to decide about, as it is now. claims: of it, what each job has of GPUs.
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
        self.book, self.work, self.estimates, self._ended_gpu_s = book, work, estimates, ended_gpu_s
        self.overhead_s, self.beside = overhead_s, beside
        self.claims = Claims.of(book.attempts.values()) if claims is None else claims
        self.scene = Scene(book, work, estimates, self.claims, load_policy(FALLBACK))
        self.yielding: set[int] = set()
        """Jobs that the pass under way has told to make way."""
        self.no_starts = ""
        """Why nothing can be started now, whatever is free."""
        self.reasons: dict[int, Reason] = {}
        self.world: World | None = None
        self.kept = Memory()
        self._met: set[int] = set()
        self.seen: deque[World] = deque(maxlen=8)
        """Worlds of the last pass, by falling priority: who waits in them can be told why."""
        self.failed, self.failure = False, ""
        self.last_pass_s = 0.0
        self.quiet_until_s = -math.inf
        self._finished: list[int] = []
        self._ends = 0
        """Ends since the policy was told what jobs that ended took."""
        self._left: dict[int, tuple[Job, Allocation]] = {}
        """Jobs that ended while there was no world to tell of it."""
        self._again = False
        self._due_s = math.inf
        self._overrun_s = math.inf
        self._pause_s = math.inf
        self._roster = Roster(estimates)
        self.lines = Lines(kind_of, lambda job: job.array_id if throttle_of(job) else None)
        book.watch(self.lines.take)
        self._sees_all = True
        """Whether the policy is shown all jobs, or the first of those that are alike only."""
        self._lasts = math.inf
        """So many jobs may start until the next ones of their lines have to be shown."""
        self.profiles: Profiles = load_profiles()
        self.standby, self.saved = Standby(), saved
        self._timer = timer
        self.caught: PolicyFailure | None = None
        """The last failure, with its traceback, for whoever logs it."""
        self._asked = False
        """The pass under way has asked the policy."""
        self._pass_since_s: float | None = None
        self.written, self.interval_s = policy, interval_s
        try:
            chosen = self.made(policy)
        except PolicyError as error:
            if isinstance(error, PolicyFailure) and not stored:
                raise PolicyError(f"policy {policy!r} can't start: {error}") from error
            if not stored:
                raise
            self.fall_back(error, now_s)
        else:
            self._install(chosen, recalled(chosen, saved))

    # -- the policy -----------------------------------------------------------------------------------------

    def made(self, written: str) -> Policy:
        """A policy to go on with. Raises PolicyError: no such policy, a bad parameter, or it fails to begin."""
        return made(written, beside=self.beside, ended_gpu_s=self._ended_gpu_s())

    def use(self, policy: Policy, written: str, interval_s: float) -> None:
        """Go on with this policy, which `made` has made of what was written."""
        self.standby.reset()
        self.standby.unwritten = None
        self.written, self.interval_s, self.saved = written, interval_s, None
        self._install(policy, Memory())

    def _install(self, policy: Policy, memory: Memory) -> None:
        self.world, self.scene.policy, self.kept, self._ends = None, policy, memory, 0
        self._met = set(memory.met)
        self._finished.clear()
        self.stale()

    def fall_back(self, error: Exception, now_s: float) -> None:
        """The policy has failed: the fallback decides in its place."""
        how = error if isinstance(error, PolicyFailure) else PolicyFailure(Call.BEGIN, error, None)
        self.caught = how
        self.standby.fails(self.written, how, now_s, self._jobs())
        self._left.clear()
        self.claims.forget_rates()
        self._install(load_policy(FALLBACK), Memory())

    def _ask_again(self, now_s: float) -> None:
        """Have the policy that failed decide again. The second time it begins anew, without what it remembered."""
        failure = self.standby.failure
        try:
            policy = self.made(self.written)
        except PolicyError as error:
            self.fall_back(error, now_s)
            return
        again = failure is not None and failure.times == 1 and failure.call is not Call.CARRIED
        self.standby.tries()
        self._install(policy, recalled(policy, self.saved) if again else Memory())

    def _jobs(self) -> frozenset[tuple[int, int]]:
        """What there is to decide about: jobs, and what they ask for."""
        return frozenset((n, job.spec_id) for n, job in self.book.jobs.items() if job.phase not in ENDED)

    def deciding_s(self) -> float:
        """For how long the pass under way has lasted; 0: there is none. From any thread."""
        since_s = self._pass_since_s
        return 0.0 if since_s is None else self._timer() - since_s

    @property
    def policy(self) -> Policy:
        """The policy that decides."""
        return self.scene.policy

    def memory(self) -> Memory:
        """The policy's memory as it is now."""
        if self.world is None:
            return self.kept
        return replace(self.world.memory(), met=tuple(sorted(self._met)))

    def copy(self) -> Planning:
        """All that a forecast goes by, as it is now, for another thread: nothing of it changes any more.

        Of the policy only `twin`s may be asked.
        """
        twin = copy(self)
        twin.scene = scene = self.scene.copy()
        twin.book, twin.work, twin.estimates, twin.claims = scene.book, scene.work, scene.estimates, scene.claims
        twin._roster = self._roster.copy(twin.estimates)
        twin.yielding, twin._met = set(self.yielding), set(self._met)
        twin.reasons, twin._left = {}, {}
        twin.world, twin.kept = None, Memory()
        with suppress(PolicyFailure), Asking(Call.WRITE_MEMORY, self.policy):
            twin.kept = deepcopy(self.memory())
        twin.seen, twin._finished = deque(), []
        return twin

    # -- what happened --------------------------------------------------------------------------------------

    def stale(self) -> None:
        """Something has changed that a built world can't take in."""
        if self.world is not None:
            self.kept = self.memory()
            self.world = None
        self._again = True

    def rest(self, until_s: float, failure: str) -> None:
        """Ask the policy again at `until_s` only: it has failed, in this way."""
        self.failed, self.failure = True, failure
        self.standby.nobody_serves()
        self._left.clear()
        self.claims.forget_rates()
        self.stale()
        self._again = False
        self._due_s, self._overrun_s, self._pause_s = until_s, math.inf, math.inf

    def asks_anew(self, job: int) -> None:
        """A waiting job asks for something else than before: to the policy it is a new one."""
        self.claims.take_back(job)
        self._met.discard(job)

    def job_left(self, job: Job, allocation: Allocation) -> None:
        """A running job has ended for good: its GPUs are free."""
        self._ends += 1
        if self.world is None or not self.world.is_running(job.id):
            self._left[job.id] = job, allocation
            self.stale()
        else:
            self._finished.append(job.id)
            self._again = True

    def next_s(self) -> float:
        """When the policy is asked next if nothing happens; infinity: not before something does."""
        return self._due_s

    def due_s(self) -> float:
        """When a pass is due; -infinity: now."""
        if self._again:
            return -math.inf if self.world is not None else self.quiet_until_s
        return min(self._due_s, self._overrun_s, self._pause_s, self.standby.again_s)

    # -- a pass ---------------------------------------------------------------------------------------------

    def run(self, now_s: float) -> Outcome:
        """One scheduling pass."""
        begun, anew = self._timer(), self.world is None
        collects = gc.isenabled()
        gc.disable()  # a pass makes thousands of objects and hardly any cycles: looking for them takes a third of it
        self._pass_since_s = begun
        try:
            outcome = self._served(now_s)
        finally:
            self._pass_since_s = None
            if collects:
                gc.enable()
        self.last_pass_s = self._timer() - begun
        if anew:
            self.quiet_until_s = now_s + (1 + QUIET) * self.last_pass_s
        return outcome

    def _served(self, now_s: float) -> Outcome:
        """A pass by the policy or, if it fails, by the fallback.

        Raises:
            StoreError: what is asked of the store can't be read. Exception: the fallback has failed as well.
        """
        if self.standby.serving and self.standby.asks_again(now_s, self._jobs()):
            self._ask_again(now_s)
        given = dict(self.claims.grants)
        try:
            outcome = self._run(now_s)
        except StoreError:
            raise
        except Exception as error:
            self.claims.put_back(given)
            if self.standby.serving:
                raise
            how = error if isinstance(error, PolicyFailure) else PolicyFailure(Call.DECIDE, error, self.policy)
            self.fall_back(how, now_s)
            return self._run(now_s)
        if self._asked:
            self.standby.decided(now_s)
        return outcome

    def _ask(self, world: World, now_s: float, *, may_preempt: bool) -> float:
        """Have the policy decide; when it wants to be asked again."""
        self._asked = True
        with Asking(Call.DECIDE, self.policy):
            return world.engine.decide(now_s, may_preempt=may_preempt)

    def _run(self, now_s: float) -> Outcome:
        clockwork = Clockwork.of(self.policy, self.interval_s, least_pause_s=LEAST_WAKE_S)
        may_preempt = bool(clockwork.may_preempt(now_s, self._due_s))
        self.failed = self._asked = False
        if now_s >= min(self._overrun_s, self._pause_s):
            self.stale()
        self._again = False
        outcome = Outcome()
        if self.world is None:
            if self._ends >= LEARN_EVERY:
                learn(self.policy, self._ended_gpu_s())
                self._ends = 0
            self._drop_grants(now_s)
            eligible, self.reasons, self._pause_s = self._first(now_s)
            # Who was held, or waited for something else, comes to the policy anew.
            self._met &= eligible | self.book.attempts.keys() | self.claims.grants.keys()
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
        if self._lasts <= 0:
            self.stale()
        running = len(self.book.attempts) + len(self.claims.grants)
        self._due_s = clockwork.due_s(now_s, wake, may_preempt, waiting, running)
        self._overrun_s = math.inf
        if self.world is not None and waiting:
            self._overrun_s = overrun_s(now_s, self.world.stands_until_s(), self.last_pass_s)
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
            world, tried = self.build(waiting, level, now_s), True
            if world is None:
                continue
            passes += 1
            self.world = world
            before = len(outcome.stop)
            wake = min(wake, self._ask(world, now_s, may_preempt=may_preempt))
            self._take(world, outcome)
            self.kept = self.memory()
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
            self.world = None
        return wake, len(eligible.union(outcome.stop) - self.claims.grants.keys())

    def _turn(self, job: int) -> tuple[float, int]:
        return self.book.jobs[job].submitted_s, job

    def _anything_for(self, level: int, waiting: Collection[int], may_preempt: bool) -> bool:
        """Whether a pass for this priority could give anything away."""
        there = occupancy(self.scene, level, self.yielding)
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
                self._lasts -= 1
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
                    self.work.rate(job, rate)

    def _drop_grants(self, now_s: float) -> None:
        """Take back what was given to jobs that may not start any more (held, waiting again for others, …)."""
        for number in list(self.claims.grants):
            job = self.book.jobs[number]
            if job.phase in ENDED or (job.phase in (Phase.QUEUED, Phase.HELD) and blocked(job, self.book.jobs, now_s)):
                self.claims.take_back(number)

    def eligible(self, now_s: float) -> tuple[set[int], dict[int, Reason], float]:
        """Jobs for the policy; why others that wait are not; when the first pause before a retry ends."""
        jobs = self.book.jobs
        throttles = Throttles(jobs[number] for number in self.book.attempts)
        return self._looked_at(jobs, [], set(), throttles, now_s)

    def _looked_at(
        self, numbers: Iterable[int], special: list[int], found: set[int], throttles: Throttles, now_s: float
    ) -> tuple[set[int], dict[int, Reason], float]:
        """What `eligible` says of these jobs. special, found: others, to be looked at more closely, or not."""
        jobs, grants = self.book.jobs, self.claims.grants
        reasons: dict[int, Reason] = {}
        pause = math.inf
        for number in grants:
            throttles.take(jobs[number])
        for number in numbers:
            job = jobs[number]
            if job.phase in ENDED:
                continue
            if job.phase is Phase.QUEUED:
                if number in grants:
                    continue
                if not job.after and job.not_before_s <= now_s and not throttle_of(job):
                    found.add(number)
                    continue
                special.append(number)
            elif number not in grants and self._makes_way(job):
                found.add(number)
            elif job.phase is Phase.HELD:
                reasons[number] = blocked(job, jobs, now_s) or Reason("held", "It is held.")
        for number in sorted(special):
            if number in grants:
                continue
            reason = blocked(jobs[number], jobs, now_s) or throttles.take(jobs[number])
            if reason is None:
                found.add(number)
                continue
            reasons[number] = reason
            if jobs[number].not_before_s > now_s:
                pause = min(pause, jobs[number].not_before_s)
        return found, reasons, pause

    def _first(self, now_s: float) -> tuple[set[int], dict[int, Reason], float]:
        """As `eligible`, but of jobs that are alike only as many as the policy has to see, and some more."""
        jobs, policy = self.book.jobs, self.policy
        with Asking(Call.SEES, policy):
            sees = policy.sees(sum(len(node.gpus) for node in self.book.nodes.values()))
        self._lasts = math.inf
        self._sees_all = sees is None or (policy.pairs and any(line.shares for line in self.lines))
        if sees is None or self._sees_all:
            return self.eligible(now_s)
        throttles = Throttles(jobs[number] for number in self.book.attempts)
        found: set[int] = set()
        special: list[int] = []
        for line in self.lines:
            if line.throttle is not None:
                special += line.first(throttle_of(jobs[line.one()]) + len(self.claims.grants))
                continue
            if len(line) > sees + SPARE:
                self._lasts = SPARE
            found.update(line.first(sees + SPARE + len(self.claims.grants)))
        found -= self.claims.grants.keys()
        return self._looked_at(self.lines.others, special, found, throttles, now_s)

    def _makes_way(self, job: Job) -> bool:
        """Whether an active job waits, as the policy sees it."""
        attempt = self.book.attempts.get(job.id)
        stopping = job.phase is Phase.STOPPING and attempt is not None and attempt.stop_reason in MAKES_WAY
        return stopping or self.claims.state(job.id) in (State.FREEZING, State.FROZEN, State.REFREEZING)

    def build(
        self,
        waiting: set[int],
        priority: float,
        now_s: float,
        aside: Policy | None = None,
        rank: Mapping[int, int] | None = None,
    ) -> World | None:
        """A world in which `waiting` are to be placed, and running jobs of no higher priority may be stopped.

        aside: another policy object, for a world that is looked at and not acted on. rank: as in `World`.
        """
        book = self.book
        there = occupancy(self.scene, priority, self.yielding)
        placements = {}
        fleet = fleet_of(book.nodes.values(), without=there.pinned)
        if fleet is not None:
            for job, (allocation, since_s, layer) in there.jobs.items():
                record = book.jobs[job]
                done = self.work.expected(job, now_s)
                known = self.scene.estimate(record).total_s, record.work_s + done, self.work.told_s.get(job)
                leaves = job in there.leaving
                placements[job] = Placed(
                    allocation,
                    since_s,
                    NOW_S if leaves else left_s(*known),
                    done,
                    self.work.starting_s(job, now_s),
                    layer,
                    math.inf if leaves else stands_s(*known),
                )
        if fleet is None:
            if aside is None:
                self.reasons |= dict.fromkeys(waiting, nothing_to_give(book))
            return None
        seen = waiting | placements.keys()
        # A policy that need not see all is shown those that it has to, and those of whom it may remember something.
        numbers = book.jobs.keys() if aside is not None or self._sees_all else (seen | self._met) & book.jobs.keys()
        active = [record for n in numbers if (record := book.jobs[n]).phase not in ENDED]
        if not active:
            return None
        there_again = {job.id for job in active}  # requeued since they ended
        ended = {n: left for n, left in self._left.items() if n not in there_again} if aside is None else {}
        world = World(
            jobs=[*active, *(job for job, _ in ended.values())],
            eligible=waiting,
            met=self._met,
            placed=placements,
            fixed=there.fixed,
            # What they did and held is in their records already: here they end at once.
            left={
                n: Placed(where, now_s, max(self.scene.estimate(j).total_s - j.work_s, 0.0), 0.0)
                for n, (j, where) in ended.items()
            },
            roster=self._roster,
            rank=rank or {},
            fleet=fleet,
            policy=self.policy if aside is None else aside,
            memory=self.memory(),
            profiles=self.profiles,
            overhead_s=self.overhead_s if self.work.usual_s is None else self.work.usual_s,
            now_s=now_s,
        )
        if aside is not None:
            return world
        self._met = (self._met | seen) & {job.id for job in active}
        self._left.clear()
        for job in world.unplaceable:
            self.reasons[job] = unplaceable(book, book.jobs[job], world)
        return world
