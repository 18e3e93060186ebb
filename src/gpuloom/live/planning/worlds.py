"""The worlds that the policy is shown, one after the other, and what it knows from those before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace

from gpuloom.core.decision import Reason
from gpuloom.core.job import ENDED, Allocation, Job, Phase
from gpuloom.core.pairs import Apart
from gpuloom.core.profile import Profiles
from gpuloom.core.snapshot import Speed
from gpuloom.facts.profiles import load_profiles
from gpuloom.live.planning.asking import Asking, Call, PolicyFailure
from gpuloom.live.planning.estimates import NOW_S, left_s, stands_s
from gpuloom.live.planning.held_gpus import HeldGpus
from gpuloom.live.planning.roster import Roster
from gpuloom.live.planning.scene import Scene
from gpuloom.live.planning.shortage import nothing_to_give, unplaceable
from gpuloom.live.planning.world import Memory, Placed, World
from gpuloom.live.records.fleet import fleet_of, models_of
from gpuloom.policies.base import Policy

LEAST_HELD_S = 60.0
"""From this time with GPUs on, earlier attempts of which nothing was kept say that a job keeps nothing."""


class Worlds:
    """Used by the scheduler's thread alone.

    Attributes:
        now: the world that goes on incrementally; None: things have changed that it could not take in.
        kept: the policy's memory while there is none. met: jobs that the policy has been told of.
        left: jobs that ended while there was no world to tell of it, and the GPUs that they had.
        measured: of these, iterations per second of those that reported them. going: the same of jobs that run.
        told, silent: jobs that ended with and without such a report, since the scheduler began.
        freed: nodes on which jobs that go on lost GPUs while there was no world to tell of it.
        overhead_s: what a start costs, as long as no run has said.
    """

    def __init__(self, scene: Scene, *, overhead_s: float) -> None:
        self.scene, self._overhead_s = scene, overhead_s
        self.now: World | None = None
        self.kept = Memory()
        self.met: set[int] = set()
        self.left: dict[int, tuple[Job, Allocation]] = {}
        self.measured: dict[int, float] = {}
        self.going: dict[int, Speed] = {}
        self.freed: set[str] = set()
        self.silent = self.told = 0
        self.profiles = load_profiles()
        self.apart: Callable[[], Apart] = Apart
        """Groups that did not pay when they were measured."""
        self._roster = Roster(scene.estimates, scene.speeds, scene.memory)

    @property
    def profiles(self) -> Profiles:
        """Of stages, by which jobs are put together, and of speeds by GPU model."""
        return self._profiles

    @profiles.setter
    def profiles(self, profiles: Profiles) -> None:
        self._profiles = profiles
        self.scene.speeds.profiled(profiles)

    @property
    def overhead_s(self) -> float:
        """What a start costs."""
        usual_s = self.scene.work.usual_s
        return self._overhead_s if usual_s is None else usual_s

    def begin(self, memory: Memory) -> None:
        """Another policy decides from now on, which remembers this."""
        self.now, self.kept, self.met = None, memory, set(memory.met)

    def memory(self) -> Memory:
        """The policy's memory as it is now."""
        if self.now is None:
            return self.kept
        return replace(self.now.memory(), met=tuple(sorted(self.met)))

    def close(self) -> None:
        """Something has changed that the present world can't take in: the next pass builds another one."""
        if self.now is not None:
            self.kept, self.now = self.memory(), None

    def copy(self, scene: Scene) -> Worlds:
        """All that a world needs that is looked at only, of a copy of the scene, for another thread."""
        twin = Worlds.__new__(Worlds)
        twin.scene, twin._overhead_s, twin.profiles = scene, self._overhead_s, self.profiles
        twin.now, twin.kept, twin.met, twin.left = None, Memory(), set(self.met), {}
        twin.freed = set(self.freed)
        twin.measured, twin.told, twin.silent = {}, self.told, self.silent
        twin.going = dict(self.going)
        apart = self.apart()
        twin.apart = lambda: apart
        twin._roster = self._roster.copy(scene.estimates, scene.speeds, scene.memory)
        with suppress(PolicyFailure), Asking(Call.WRITE_MEMORY, self.scene.policy):
            twin.kept = deepcopy(self.memory())
        return twin

    def build(
        self,
        waiting: set[int],
        there: HeldGpus,
        now_s: float,
        *,
        everyone: bool = True,
        aside: Policy | None = None,
        rank: Mapping[int, int] | None = None,
    ) -> tuple[World | None, dict[int, Reason]]:
        """A world in which `waiting` are to be placed, and who can't be whatever is free.

        Args:
            there: who has which GPUs, for a pass of their priority. everyone: the policy is shown all jobs, not those
                alone that it has to see. aside: another policy object, for a world that is looked at and not acted on.
            rank: as in `World`.
        """
        book, work = self.scene.book, self.scene.work
        self.scene.speeds.see(models_of(book.nodes.values()))
        placements = {}
        fleet = fleet_of(book.nodes.values(), without=there.pinned)
        if fleet is not None:
            for job, (allocation, since_s, layer) in there.jobs.items():
                known = self.scene.known(book.jobs[job], allocation, now_s)
                leaves = job in there.leaving
                placements[job] = Placed(
                    allocation,
                    since_s,
                    NOW_S if leaves else left_s(*known[:3]),
                    work.expected(job, now_s) * known.speed,
                    work.starting_s(job, now_s),
                    layer,
                    math.inf if leaves else stands_s(*known[:3]) / known.speed,
                )
        if fleet is None:
            return None, dict.fromkeys(waiting, nothing_to_give(book, self.scene.shut))
        seen = waiting | placements.keys()
        # A policy that need not see all is shown those that it has to, and those of whom it may remember something.
        numbers = book.jobs.keys() if aside is not None or everyone else (seen | self.met) & book.jobs.keys()
        active = [record for n in numbers if (record := book.jobs[n]).phase not in ENDED]
        if not active:
            return None, {}
        there_again = {job.id for job in active}  # requeued since they ended
        ended = {n: left for n, left in self.left.items() if n not in there_again} if aside is None else {}
        world = World(
            jobs=[*active, *(job for job, _ in ended.values())],
            eligible=waiting,
            met=self.met,
            placed=placements,
            fixed=there.fixed,
            # What they did and held is in their records already: here they end at once.
            left={
                n: Placed(where, now_s, max(self.scene.estimate(j).total_s - self.scene.done_s(j), 0.0), 0.0)
                for n, (j, where) in ended.items()
            },
            roster=self._roster,
            rank=rank or {},
            fleet=fleet,
            policy=self.scene.policy if aside is None else aside,
            memory=self.memory(),
            profiles=self.profiles,
            kernels=self.scene.kernels,
            overhead_s=self.overhead_s,
            now_s=now_s,
            measured={n: self.measured[n] for n in ended if n in self.measured},
            going={n: self.going[n] for n in placements if n in self.going},
            freed=self.freed,
            apart=self.apart(),
            again_s=self._again_s(
                [*placements, *(n for n in waiting if book.jobs[n].phase is Phase.FROZEN)], placements
            ),
            stays=lambda number: number in book.jobs and self.scene.stays(book.jobs[number]),
            frozen={n: where for n in waiting if (where := self.scene.claims.stands(n)) is not None},
            moves=self.scene.moves,
        )
        if aside is not None:
            return world, {}
        self.met = (self.met | seen) & {job.id for job in active}
        self.left.clear()
        self.measured.clear()
        self.freed.clear()
        return world, {job: unplaceable(book, self.scene.shut, book.jobs[job], world) for job in world.unplaceable}

    def _again_s(self, jobs: Iterable[int], placements: Mapping[int, Placed]) -> dict[int, float]:
        """What stopping each of these jobs and having it go on costs, where it is not what a start does."""
        found: dict[int, float] = {}
        for number in jobs:
            job = self.scene.book.jobs[number]
            if (known := self.scene.again_s(job)) is not None:
                found[number] = known
            elif number in placements and self._keeps_nothing(job):
                found[number] = self.overhead_s + placements[number].done_s
        return found

    def _keeps_nothing(self, job: Job) -> bool:
        """Whether a job that makes way begins anew, as far as is known: of its earlier attempts nothing was kept."""
        return job.attempts > 1 and job.work_s == 0.0 and job.held_s > LEAST_HELD_S and not self.scene.stays(job)
