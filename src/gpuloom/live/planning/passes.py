"""The passes of one decision with a new world: one for each priority, highest first; of a priority more than one where
jobs that can't be moved may not start on every node (`lasting.py`).

Such jobs are tied. The policy is first asked as if they were not. Of those that it would start now each is then placed
among the nodes that last long enough for it, in a pass for all that have the same ones; what they leave is for the
others. So a tied job goes by the policy's order like any other, and one that finds no room keeps none from others.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from gpuloom.core.commands import Command, Resize, Start, Stop
from gpuloom.core.decision import Reason, WaitCode
from gpuloom.core.job import Allocation, gpus_in
from gpuloom.core.snapshot import Sizing
from gpuloom.live.planning.candidates import Candidates
from gpuloom.live.planning.claims import State
from gpuloom.live.planning.held_gpus import HeldGpus, held_gpus, largest_part
from gpuloom.live.planning.lasting import Lasting, by_short, too_short
from gpuloom.live.planning.reserve import Reservation, reservation
from gpuloom.live.planning.scene import Scene
from gpuloom.live.planning.world import World
from gpuloom.live.planning.worlds import Worlds
from gpuloom.live.records.fleet import fleet_of, slots_of

_BEHIND = Reason(
    WaitCode.BEHIND_OTHERS, "Jobs of higher priority go first, and the remaining GPUs are not enough for this job."
)
KEPT = 8
"""Worlds that are kept to tell jobs why they wait."""


@dataclass(slots=True)
class Outcome:
    """What a pass wants beyond the grants that it gave: jobs that are to stop, in order."""

    stop: list[int] = field(default_factory=list)


class Ask(Protocol):
    """Has the policy decide in a world; when it wants to be asked again."""

    def __call__(self, world: World, now_s: float, *, may_preempt: bool) -> float: ...


def take(world: World, scene: Scene, candidates: Candidates, outcome: Outcome) -> None:
    """Take over what the policy has decided in a world."""
    claims = scene.claims
    commands: list[Command] = world.collector.take()
    for command in commands:
        job = world.jobs[command.job]
        if isinstance(command, Stop):
            if not claims.take_back(job):
                outcome.stop.append(job)
        elif isinstance(command, Start):
            candidates.lasts -= 1
            claims.give(job, world.fleet.allocation(command.placement))
        elif isinstance(command, Resize):
            outcome.stop.append(job)
            claims.give(job, world.fleet.allocation(command.placement))
    if world.state.layers > 1:
        for job, rate in world.shares():
            if job in claims.grants:
                claims.set_rate(job, rate)
            else:
                scene.work.rate(job, rate)


class Passes:
    """See the module. For one decision.

    Attributes:
        reasons: why jobs were not in the policy's sight. seen: worlds in which it was asked, by falling priority.
        yielding: jobs that were told to make way. wake_s: when the policy wants to be asked again. lasts: the last
            world shows all that there is to decide about, and goes on as things happen.
    """

    def __init__(
        self,
        scene: Scene,
        worlds: Worlds,
        candidates: Candidates,
        ask: Ask,
        ends: Lasting,
        *,
        now_s: float,
        may_preempt: bool,
    ) -> None:
        self._scene, self._worlds, self._candidates, self._ask, self._ends = scene, worlds, candidates, ask, ends
        self._now_s, self._may_preempt = now_s, may_preempt
        self._by_level: dict[int, set[int]] = {}
        self._hold: Reservation | None = None
        self._count = 0
        self._whole = True
        self._sizes_last = False
        self.outcome = Outcome()
        self.reasons: dict[int, Reason] = {}
        self.seen: list[World] = []
        self.yielding: set[int] = set()
        self.wake_s = math.inf

    @property
    def lasts(self) -> bool:
        """See the class."""
        return self._count <= 1 and self._whole

    def run(self, eligible: Set[int]) -> None:
        """All passes for these jobs that wait."""
        scene = self._scene
        for job in eligible:
            self._by_level.setdefault(scene.level(job), set()).add(job)
        if not self._by_level:
            levels = [scene.level(job) for job in scene.book.attempts]
            # Sizes are shared out with all jobs in sight.
            self._by_level[(max if scene.policy.resizes else min)(levels, default=0)] = set()
        self._sizes_last = self._of_several_levels()
        tried = False
        while self._by_level:
            level = max(self._by_level)
            waiting = self._by_level.pop(level)
            if tried and not self._anything_for(level, waiting):
                self.reasons |= dict.fromkeys(waiting, _BEHIND)
                self._whole = False
                continue
            tried = True
            self._level(level, waiting)
        if self._sizes_last:
            active = {**scene.book.attempts, **scene.claims.grants}
            highest = max((scene.level(job) for job in active if scene.book.jobs[job].spec.elastic), default=None)
            if highest is not None:
                self._pass(highest, set(), sizing=Sizing.NOW)
            self._whole = False
        self._who_stays()

    def _of_several_levels(self) -> bool:
        """Whether a policy that resizes jobs has elastic ones to decide about, and jobs of several priorities: sizes
        are shared out among all of them, once it is known who runs."""
        scene = self._scene
        jobs, there = scene.book.jobs, {**scene.book.attempts, **scene.claims.grants}
        if not scene.policy.resizes:
            return False
        levels = self._by_level.keys() | {scene.level(job) for job in there if jobs[job].spec.elastic}
        waiting = (job for waiting in self._by_level.values() for job in waiting)
        return len(levels) > 1 and any(jobs[job].spec.elastic for job in (*there, *waiting))

    def _lowest_first(self, lent: Mapping[int, Allocation]) -> None:
        """Borrowed GPUs that were given away are exchanged for such of jobs of a lower priority, where these have any
        on the same node: to the policy they were all alike. Not where jobs share GPUs: groups stay together."""
        scene, claims = self._scene, self._scene.claims
        if scene.policy.max_jobs_per_gpu > 1:
            return
        jobs, nodes = scene.book.jobs, scene.book.nodes
        owner = {slot: job for job, there in lent.items() for slot in slots_of(there)}
        model = {(name, gpu.index): gpu.model for name in {node for node, _ in owner} for gpu in nodes[name].gpus}
        given = {slot for there in claims.grants.values() for slot in slots_of(there)}
        kept = {s for job, there in lent.items() for s in largest_part(there, jobs[job].spec.sizes[0])}
        spare = sorted(owner.keys() - given - kept, key=lambda slot: (scene.level(owner[slot]), slot))
        for other, there in list(claims.grants.items()):
            if other in lent:
                continue
            slots = slots_of(there)
            for at, slot in enumerate(slots):
                level = scene.level(owner[slot]) if slot in owner else -math.inf
                better = next(
                    (s for s in spare if s[0] == slot[0] and model[s] == model[slot] and scene.level(owner[s]) < level),
                    None,
                )
                if better is not None:
                    spare.remove(better)
                    spare.append(slot)
                    slots[at] = better
            if slots != slots_of(there):
                claims.give(other, tuple((n, tuple(sorted(g for m, g in slots if m == n))) for n, _ in there))

    def _give_back(self, lent: Mapping[int, Allocation]) -> None:
        """Elastic jobs of higher priorities give what they borrowed and others were given, in whole replicas."""
        claims, jobs = self._scene.claims, self._scene.book.jobs
        for job, allocation in lent.items():
            replicas = jobs[job].spec.replicas
            given = {slot for other, there in claims.grants.items() if other != job for slot in slots_of(there)}
            taken = given.intersection(slots_of(allocation))
            if not taken or replicas is None:
                continue
            left = {node: tuple([gpu for gpu in gpus if (node, gpu) not in taken]) for node, gpus in allocation}
            kept = tuple((node, gpus) for node, gpus in left.items() if gpus)
            fewest = set(largest_part(allocation, replicas.sizes[0]))
            count = gpus_in(kept) // replicas.gpus * replicas.gpus
            slots = sorted(slots_of(kept), key=lambda slot: slot not in fewest)[:count]
            parts = [(node, tuple([gpu for gpu in gpus if (node, gpu) in slots])) for node, gpus in kept]
            claims.give(job, tuple((node, gpus) for node, gpus in parts if gpus))
            self.outcome.stop.append(job)

    def _who_stays(self) -> None:
        """One pass may take GPUs from an elastic job and a later one give it the same again: it goes on."""
        claims, attempts, jobs = self._scene.claims, self._scene.book.attempts, self._scene.book.jobs
        self.outcome.stop[:] = dict.fromkeys(self.outcome.stop)  # two passes may have resized one
        for job in [job for job in self.outcome.stop if jobs[job].spec.elastic]:
            attempt = attempts.get(job)
            if (
                attempt is None
                or attempt.stop_reason is not None
                or claims.state(job) not in (State.WRITTEN, State.ASKED, State.STARTING, State.RUNNING)
            ):
                continue
            given = claims.grants.get(job)
            if given is not None and set(slots_of(given)) == set(slots_of(attempt.allocation)):
                claims.take_back(job)
                self.outcome.stop.remove(job)

    def _level(self, level: int, waiting: set[int]) -> None:
        """The passes of a priority."""
        scene, grants = self._scene, self._scene.claims.grants
        if self._hold is not None:
            jobs = [scene.book.jobs[job] for job in sorted(waiting)]
            waiting, left_out = self._hold.admitted(jobs, scene.left_s)
            self.reasons |= left_out
            self._whole = self._whole and not left_out
        tied = {job for job in waiting if job in self._ends.tied}
        if not tied:
            self._pass(level, waiting)
        else:
            freed = self._tied(level, waiting, tied)
            self._pass(level, (waiting - tied) | freed)
            for job in tied - grants.keys():
                if (why := too_short(scene, scene.book.jobs[job], self._now_s)) is not None:
                    self.reasons[job] = why
        left = [job for job in waiting if job not in grants and (job not in tied or self._ends.tied[job].lasting)]
        if self._by_level and left:
            first = min(left, key=lambda job: (scene.book.jobs[job].submitted_s, job))
            short = self._ends.tied[first].short if first in tied else frozenset[str]()
            self._hold = reservation(scene, scene.book.jobs[first], self._hold, self._now_s, closed=short)

    def _tied(self, level: int, waiting: set[int], tied: Set[int]) -> set[int]:
        """Passes for tied jobs of a priority; jobs of it that were told to make way for them."""
        may = {job for job in tied if self._ends.tied[job].lasting}
        if not may:
            return set()
        self._whole = False  # the last world has not all jobs in it that could start there
        freed: set[int] = set()
        for short, jobs in by_short(self._ends.tied, self._would_start(level, waiting) & may):
            freed |= self._pass(level, jobs, closed=short)
        return freed

    def _would_start(self, level: int, waiting: set[int]) -> set[int]:
        """Jobs that the policy would start now, could they be on every node. Nothing comes of it."""
        twin = self._worlds.copy(self._scene)
        there = self._held(level)
        policy = self._scene.policy.twin()
        world, _ = twin.build(waiting, there, self._now_s, everyone=self._candidates.sees_all, aside=policy)
        if world is None:
            return set()
        self._ask(world, self._now_s, may_preempt=self._may_preempt)
        return {world.jobs[command.job] for command in world.collector.take() if isinstance(command, Start)}

    def _held(self, level: int, closed: Collection[str] = ()) -> HeldGpus:
        return held_gpus(self._scene, level, self.yielding, tied=self._ends.tied, closed=closed)

    def _pass(
        self, level: int, waiting: set[int], closed: Collection[str] = (), sizing: Sizing = Sizing.USUAL
    ) -> set[int]:
        """One pass, without the closed nodes. Jobs of this priority that it told to make way and that have not been
        given other GPUs."""
        scene, worlds, outcome = self._scene, self._worlds, self.outcome
        there = self._held(level, closed)
        world, never = worlds.build(waiting, there, self._now_s, everyone=self._candidates.sees_all)
        self.reasons |= never
        if world is None:
            return set()
        self._count += 1
        worlds.now = world
        if self._sizes_last and sizing is Sizing.USUAL:
            sizing = Sizing.LATER
        world.engine.snapshot.sizing = sizing
        before = len(outcome.stop)
        self.wake_s = min(self.wake_s, self._ask(world, self._now_s, may_preempt=self._may_preempt))
        take(world, scene, self._candidates, outcome)
        self._lowest_first(there.lent)
        self._give_back(there.lent)
        worlds.kept = worlds.memory()
        if len(self.seen) == KEPT:
            gone = self.seen.pop(0)
            self.reasons |= {job: _BEHIND for job in gone.jobs if gone.is_waiting(job)}
        self.seen.append(world)
        same: set[int] = set()
        for job in outcome.stop[before:]:
            self.yielding.add(job)
            if job in scene.claims.grants:
                continue
            if scene.level(job) < level:
                self._by_level.setdefault(scene.level(job), set()).add(job)
            elif scene.level(job) == level:
                same.add(job)
        return same

    def _anything_for(self, level: int, waiting: Collection[int]) -> bool:
        """Whether a pass for this priority could give anything away."""
        scene, policy = self._scene, self._scene.policy
        there = self._held(level)
        fleet = fleet_of(scene.book.nodes.values(), without=there.pinned)
        if fleet is None:
            return False
        if scene.preempts and self._may_preempt and there.jobs:
            return True
        if policy.max_jobs_per_gpu > 1:
            jobs = scene.book.jobs
            if not policy.pairs or any(jobs[job].spec.sharing_class for job in waiting):
                return True
        held = {slot for has in there.jobs.values() for slot in slots_of(has[0])}
        return any(slot not in held for slot in fleet.at)
