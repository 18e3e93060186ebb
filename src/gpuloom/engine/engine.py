"""One step of the scheduler: events in, commands out. The same engine runs in the simulator and on a cluster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpuloom.core.commands import Command, Resize, Retime, Start, Stop
from gpuloom.core.decision import NOTHING, Decision, Place, Placement, is_resize, place_of
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.state import State
from gpuloom.core.sums import sum_floats, sum_ints
from gpuloom.engine.check import PlanCheck, checked_answer
from gpuloom.engine.ports import CommandSink
from gpuloom.engine.progress import Progress
from gpuloom.engine.suspending import Suspending, goes_on, homed
from gpuloom.policies.base import Policy


class Engine:
    """Holds the state, asks the policy, checks its plan, applies it and tells the executor.

    Args:
        charge_every_step: charge every running job its restart overhead at every step, preempted or not (the
            Muri artifact's rule) instead of at real (re)starts.
        checkpoint_s: a job that loses its node falls back to its last checkpoint, one every so many seconds
            of its work; 0: nothing is lost.
        memory_stays: see `Snapshot.memory_stays`; no plan may then put jobs of unknown memory beside others.
        saves: whether jobs save before they make way; else they fall back to their last checkpoint, too.
        suspending: jobs that make way are suspended where they may be; None: the executor knows how they make way.
    """

    def __init__(
        self,
        state: State,
        policy: Policy,
        progress: Progress,
        executor: CommandSink,
        *,
        charge_every_step: bool = False,
        checkpoint_s: float = 0.0,
        memory: Any = None,
        memory_stays: bool = False,
        saves: bool = True,
        suspending: Suspending | None = None,
    ) -> None:
        self.state, self.policy, self.progress, self.executor = state, policy, progress, executor
        policy.forget()  # of an earlier run
        self.charge_every_step, self.checkpoint_s = charge_every_step, checkpoint_s
        again_s = progress.restart_overhead_s if saves else progress.restart_overhead_s + checkpoint_s
        if suspending is not None:
            again_s = suspending.again_s(again_s)
        self.snapshot = Snapshot(state, progress.restart_overhead_s, progress.resize_overhead_s, again_s)
        self.snapshot.memory_stays = memory_stays
        self.memory = memory if memory is not None else policy.new_memory(state.workload, state.cluster)
        sharing = progress.sharing
        self._together = sharing is not None and sharing.starts_together
        self._check = PlanCheck(
            state,
            spills_memory=policy.spills_memory,
            memory_stays=memory_stays,
            resizes=policy.resizes,
            in_groups=self._together,
        )
        self._saves, self._suspending = saves, suspending
        if suspending is not None:
            state.moves_on = frozenset(suspending.moves)
        self._step_overhead_s = progress.restart_overhead_s.copy() if charge_every_step else None
        self._arrived: list[int] = []
        self._finished: list[int] = []
        self._evicted: list[int] = []
        self._changed: dict[int, None] = {}
        """Nodes lost or back since the policy was last asked."""
        self._resized: list[int] = []
        self.moves = self.resizes = 0
        """Running jobs that were moved, and resized, so far."""

    def take_in(
        self,
        now_s: float,
        *,
        finished: Sequence[int] = (),
        down: Sequence[int] = (),
        up: Sequence[int] = (),
        arrived: Sequence[int] = (),
    ) -> None:
        """Apply what happened at `now_s`. Order at equal times: ends, nodes back, nodes lost, arrivals.

        Args:
            finished: running jobs that have ended, in whatever way.
        """
        state = self.state
        state.step += 1
        if self._step_overhead_s is not None and state.placements:
            running = np.fromiter(state.placements, dtype=np.intp, count=len(state.placements))
            state.charge_every_step(running, now_s, self._step_overhead_s[running])
        retime: set[int] = set()
        for job in finished:
            if state.layers > 1:
                retime |= self._partners(job)
            state.finish(job, now_s)
            self._finished.append(job)
        commands: list[Command] = []
        for node in up:
            state.node_up(node)
            self._changed[node] = None
        for node in down:
            for job in state.jobs_on(node):
                if (rest := self._rest(job, node)) is not None:
                    self._goes_on(job, rest, now_s)
                    commands.append(Resize(job, rest))
                    continue
                if state.layers > 1:
                    retime |= self._partners(job)
                state.stop(job, now_s, lost_s=self._lost(job, now_s))
                self._evicted.append(job)
                commands.append(Stop(job))
            for job in [job for job, place in state.away.items() if node in place.nodes]:
                self._give_up(job, now_s)
            state.node_down(node)
            self._changed[node] = None
        for job in arrived:
            state.submit(job, now_s)
            self._arrived.append(job)
        if retime:
            self._retime(retime, now_s, commands)
        if commands:
            self.executor.apply(commands, now_s)

    def came_back(self, nodes: Sequence[int]) -> None:
        """Of the state that this engine began with, these nodes are told to the policy as back in service."""
        self._changed.update(dict.fromkeys(nodes))

    def settle(self, now_s: float) -> None:
        """Set the rates of all running jobs by who shares their GPUs: of a state that began with running jobs."""
        commands: list[Command] = []
        self._retime(set(self.state.placements), now_s, commands)
        if commands:
            self.executor.apply(commands, now_s)

    def decide(self, now_s: float, *, may_preempt: bool = True) -> float:
        """Ask the policy, apply its decision. Returns when it wants to be asked again (infinity: at events)."""
        snapshot = self.snapshot
        snapshot.now_s, snapshot.may_preempt = now_s, may_preempt
        snapshot.arrived, snapshot.finished, snapshot.evicted = self._arrived, self._finished, self._evicted
        snapshot.resized = self._resized
        changed, down = self._changed, self.state.down
        snapshot.nodes_down = [node for node in changed if node in down] if changed else []
        snapshot.nodes_up = [node for node in changed if node not in down] if changed else []
        decision, self.memory = checked_answer(self.policy.decide(snapshot, self.memory))
        if self._arrived:
            self._arrived = []
        if self._finished:
            self._finished = []
        if self._evicted:
            self._evicted = []
        if self._changed:
            self._changed = {}
        if self._resized:
            self._resized = []
        if decision is NOTHING:
            return math.inf
        if decision.run or decision.wait:
            self._apply(decision, now_s)
        return decision.wake_at_s

    def _apply(self, decision: Decision, now_s: float) -> None:
        state, overhead_of, suspending = self.state, self.progress.overhead_of, self._suspending
        commands: list[Command] = []
        touched: set[int] = set()
        on: dict[Place, list[tuple[int, int]]] = {}
        shared = state.layers > 1
        moved = [job for job in decision.run if job in state.placements]
        stops = [*decision.wait, *moved]
        self._check.plan(decision, stops)
        if state.away and (better := homed(state, decision)) is not decision:
            decision = better
            self._check.plan(decision, stops)
            self.policy.forget()  # it knows of the GPUs that it gave
        resized = (
            {job: None for job in moved if is_resize(state.placements[job], decision.run[job])}
            if self.policy.resizes
            else {}
        )
        costs: dict[int, float] = {}
        """Seconds until jobs do work, where that is not what a start costs."""
        places: set[Place] = set()
        for job in stops:
            if shared:
                places.add(place_of(state.placements[job]))
            if job in resized:
                state.vacate(job, now_s)
            else:
                self._make_way(job, now_s, moves=job in decision.run)
                commands.append(Stop(job))
        self.moves += len(moved) - len(resized)
        self.resizes += len(resized)
        self._resized.extend(resized)
        for job in resized:
            placement = decision.run[job]
            rate = self.progress.solo_rate(job, placement)
            state.resize(job, placement, now_s, self.progress.resize_of[job], rate)
            commands.append(Resize(job, placement))
        for job, placement in decision.run.items():
            if job in resized:
                continue
            overhead = 0.0 if self.charge_every_step else overhead_of[job]
            resumes = job in state.away and goes_on(state, job, placement)
            if suspending is not None:
                wait_s = max(suspending.free_from_s(placement) - now_s, 0.0)
                if resumes:
                    overhead = suspending.back_s(job, placement)
                    suspending.dropped(job, state.away[job])
                elif job in state.away:
                    self._give_up(job, now_s)
                costs[job] = overhead = overhead + wait_s
            rate = self.progress.solo_rate(job, placement)
            state.start(job, placement, now_s, overhead, rate, anew=not resumes)
            commands.append(Start(job, placement, resumes))
        if shared:
            places.update([place_of(placement) for placement in decision.run.values()])
            on = {place: self._on(place) for place in places}
            for everyone in on.values():
                touched.update([job for _, job in everyone])
            if self._together and not self.charge_every_step:
                works_from_s = {
                    place: now_s + sum_floats([costs.get(other, overhead_of[other]) for _, other in everyone])
                    for place, everyone in on.items()
                }
                for job, placement in decision.run.items():
                    place = place_of(placement)
                    if job in resized and len(on[place]) == 1:
                        continue
                    state.postpone(job, works_from_s[place])
        if touched:
            self._retime(touched, now_s, commands, on)
        self.executor.apply(commands, now_s)

    def _make_way(self, job: int, now_s: float, *, moves: bool) -> None:
        """A running job stops, and is suspended where that can be and it does not go elsewhere at once."""
        state, suspending = self.state, self._suspending
        placement = state.placements[job]
        state.stop(job, now_s, lost_s=0.0 if self._saves else self._lost(job, now_s))
        if moves:
            return
        if suspending is not None and suspending.may(job, placement):
            suspending.leaves(job, placement, now_s)
            state.suspended(job, placement)
        elif job in state.stay_away:
            state.suspended(job, placement)

    def _give_up(self, job: int, now_s: float) -> None:
        """A suspended job begins anew from its last checkpoint."""
        if self._suspending is not None:
            self._suspending.dropped(job, self.state.away[job])
        self.state.give_up(job, self._lost(job, now_s))

    def _rest(self, job: int, node: int) -> Placement | None:
        """The largest size that an elastic job has left without this node; None: it stops, as any other job does.

        Where it has too many GPUs for a size it leaves those on the nodes of which it holds fewest, of equal ones on
        the node that it had last.
        """
        state, scaling = self.state, self.state.workload.scaling
        if not self.policy.resizes or scaling is None or (state.layers > 1 and self._partners(job)):
            return None
        held = state.placements[job]
        pieces = {n: mask for n, mask in zip(held.nodes, held.masks, strict=True) if n != node}
        left = sum_ints([mask.bit_count() for mask in pieces.values()])
        size = next((gpus for gpus in range(left, 0, -1) if scaling.allows(job, gpus)), 0)
        if not size:
            return None
        came = {n: at for at, n in enumerate(pieces)}
        for n in sorted(pieces, key=lambda n: (pieces[n].bit_count(), -came[n])):
            while left > size and pieces[n]:
                pieces[n] &= ~(1 << (pieces[n].bit_length() - 1))
                left -= 1
        kept = {n: mask for n, mask in pieces.items() if mask}
        return Placement(tuple(kept), tuple(kept.values()), held.layer)

    def _goes_on(self, job: int, rest: Placement, now_s: float) -> None:
        """A job that has lost a node goes on from its last checkpoint with the replicas that it has left."""
        state = self.state
        lost_s = self._lost(job, now_s)
        state.vacate(job, now_s)
        state.remaining_s[job] = min(state.remaining_s[job] + lost_s, state.workload.duration_s.item(job))
        state.resize(job, rest, now_s, self.progress.resize_of[job], self.progress.solo_rate(job, rest))
        self._resized.append(job)
        self.resizes += 1

    def _lost(self, job: int, now_s: float) -> float:
        """Work since the last checkpoint, seconds."""
        if self.checkpoint_s <= 0:
            return 0.0
        done = self.state.workload.duration_s.item(job) - self.state.remaining_at(job, now_s)
        return done % self.checkpoint_s

    def _partners(self, job: int) -> set[int]:
        """Jobs that share a GPU with a running job."""
        return {other for _, other in self._on(place_of(self.state.placements[job])) if other != job}

    def _on(self, place: Place) -> list[tuple[int, int]]:
        """(layer, job) of everyone who holds one of these GPUs, sorted."""
        placements, frees = self.state.placements, self.state.free
        found: set[tuple[int, int]] = set()
        for node, mask in zip(*place, strict=True):
            for layer, by_node in enumerate(self.state.owners):
                by_gpu, left = by_node[node], mask & ~frees[layer][node]
                while left and by_gpu:
                    owner = by_gpu.get((left & -left).bit_length() - 1)
                    if owner is None:
                        left &= left - 1
                        continue
                    found.add((layer, owner))
                    held = placements[owner]
                    left &= ~held.masks[held.nodes.index(node)]
        return sorted(found)

    def _retime(
        self,
        jobs: set[int],
        now_s: float,
        commands: list[Command],
        on: dict[Place, list[tuple[int, int]]] | None = None,
    ) -> None:
        """Set the rates of jobs whose neighbours changed. `on`: what `_on` says of places, as far as known."""
        progress = self.progress
        if progress.sharing is None:
            return
        on = {} if on is None else on
        for job in sorted(jobs):
            placement = self.state.placements.get(job)
            if placement is None:
                continue
            place = place_of(placement)
            everyone = on.get(place)
            if everyone is None:
                everyone = on[place] = self._on(place)
            neighbours = [entry for entry in everyone if entry[1] != job]
            rate = progress.solo_rate(job, placement) * progress.share(job, placement, neighbours)
            if self._together and self._step_overhead_s is not None:
                overhead_of = progress.overhead_of
                self._step_overhead_s[job] = overhead_of[job] + sum_floats(
                    overhead_of[other] for _, other in neighbours
                )
            if rate != self.state.rate[job]:
                self.state.retime(job, now_s, rate)
                commands.append(Retime(job))
