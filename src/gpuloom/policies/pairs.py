"""Which jobs share a GPU kernel by kernel: a best-effort job beside a high-priority one.

A *pair* is a high and a best-effort job, of one GPU each, on one GPU that has memory for both, where the high one is
expected to keep its p99 (`pair_speeds.py`). Of several GPUs that a job could join it joins the one on which it is
fastest, and of these the one whose host loses least. The base policy, which
gives each job GPUs of its own, sees the one of them that it has placed, the *host*; the one that joined it is its
*guest*, and neither waits nor runs for the base. A GPU is free for the base when nobody is on it. So guests take
nothing from anybody, except:

    - When the host leaves, its guest keeps the GPU and is a job like any other from then on. Under a base that stops no
      jobs, that could keep jobs waiting that came before it. So a pair is formed only if no job waits that came before
      the one that joins, or if a best-effort one joins that is expected to end before its host.
    - Where the base stops a host and gives its GPU to a job that can't be the guest's partner, the guest waits again.
    - A high guest slows its best-effort host down, which is why it joins only if nobody waits that came before it.

Moving guests to GPUs of their own, where the base would give them one, was tried: restarts and the host's unused share
cost more than they bring (tiresias at 110 % load: average 0.95 of without pairs, against 0.86 as it is).

Jobs in `Snapshot.fixed` may be joined, and are otherwise left as they are: the base does not see them, nor their GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from types import MappingProxyType

from gpuloom.core.decision import Decision, Placement
from gpuloom.core.snapshot import Snapshot
from gpuloom.placement.shapes import shapes_of, speeds_on
from gpuloom.policies.pair_speeds import IS_BEST_EFFORT, IS_HIGH, Expected, pairable

Gpu = tuple[int, int]
"""(node, mask of one GPU)."""


class Hinders(Enum):
    """What keeps two jobs from being a pair."""

    NOTHING = auto()
    CLASS = auto()
    """Not of the two classes."""
    MEMORY = auto()
    """The GPU has no memory for both, or nobody knows."""
    PENDING = auto()
    """What to expect of the pair is being computed, and known in a moment."""
    LATENCY = auto()
    """The service's p99 is expected to grow by more than it may, or the two were measured not to fit together."""


class BesideView(Snapshot):
    """What the base policy sees: `hidden` jobs neither run nor wait; GPUs are free where nobody is.

    rate_alone: of jobs of one GPU that may share it, where they are: work per second without a guest.
    """

    __slots__ = ("_seen", "hidden", "rate_alone")

    def __init__(self, real: Snapshot) -> None:
        self._state = real._state
        self.cluster, self.workload = real.cluster, real.workload
        self.restart_overhead_s, self.resize_overhead_s = real.restart_overhead_s, real.resize_overhead_s
        self.again_s = real.again_s
        self._seen: dict[int, Placement] = {}
        self.placements = MappingProxyType(self._seen)
        self.hidden: set[int] = set()
        self.rate_alone: dict[int, float] = {}

    def alone_end_s(self, job: int) -> float:
        """A base that goes by the time left must not stop a host because of its guest, only to start it again."""
        alone = self.rate_alone.get(job)
        if alone is None or self.rate(job) >= alone:
            return self.predicted_end_s(job)
        return max(self.now_s, self.works_from_s(job)) + self.remaining_s(job) / alone

    def sync(self, real: Snapshot, finished: list[int]) -> None:
        """Take over the time and the events; of the ends those that the base knows of."""
        self.now_s, self.may_preempt = real.now_s, real.may_preempt
        self.arrived, self.finished, self.evicted = real.arrived, finished, real.evicted
        self.nodes_down, self.nodes_up, self.resized = real.nodes_down, real.nodes_up, real.resized
        self.measured = real.measured

    def show(self, job: int, placement: Placement) -> None:
        self._seen[job] = placement if placement.layer == 0 else Placement(placement.nodes, placement.masks)
        self.hidden.discard(job)

    def drop(self, job: int) -> None:
        self._seen.pop(job, None)

    def hide(self, job: int) -> None:
        self._seen.pop(job, None)
        self.hidden.add(job)

    def is_running(self, job: int) -> bool:
        return job not in self.hidden and super().is_running(job)

    def free_masks(self, layer: int = 0) -> list[int]:
        return self._state.idle


class Pairs:
    """Who shares a GPU with whom, and the plan of one call: `take_in` what happened, then `plan`.

    Args:
        guests: jobs that are guests, as the policy remembers.
        expected: how fast which job is beside which, and what p99 a service may have.
        stops: the base stops running jobs for others.

    Attributes:
        view: what the base sees.
        guests: jobs that are guests.
        stale: jobs have left or entered the base's sight in a way that its caches don't know.
    """

    def __init__(self, snapshot: Snapshot, guests: Iterable[int], *, expected: Expected, stops: bool) -> None:
        workload, cluster = snapshot.workload, snapshot.cluster
        self.expected, self._stops = expected, stops
        self._kind = pairable(workload)
        self._shapes = shapes_of(workload, cluster)
        self._models = cluster.models
        self._pool = [cluster.models.index(node.gpu_model) for node in cluster.nodes]
        self._rate = speeds_on(workload, cluster.models)
        self._room = [node.gpu_memory_mib for node in cluster.nodes]
        self._needs = None if workload.gpu_memory_mib is None else workload.gpu_memory_mib
        self.view = BesideView(snapshot)
        known = set(guests)
        self.guests: set[int] = set()
        self._on: dict[Gpu, list[int]] = {}
        """Jobs of one GPU that may share it, by the GPU that they run on."""
        self._place: dict[int, Gpu] = {}
        self._waiting: dict[int, None] = {}
        self.stale = True
        for job, placement in snapshot.placements.items():
            self.view.show(job, placement)
            if self._kind[job]:
                self._enter(job, placement)
        for job in snapshot.fixed:
            self.view.hide(job)
        for jobs in self._on.values():
            is_fixed = not snapshot.fixed.isdisjoint(jobs)
            there = [job for job in jobs if job in known]
            if len(jobs) > 1 and len(there) != 1:  # made by another policy
                there = [job for job in jobs if self._kind[job] == IS_BEST_EFFORT]
            if len(jobs) > 1:
                self.guests.update(there)
            for job in jobs:
                if is_fixed or job in self.guests:
                    self.view.hide(job)
        self._waiting = dict.fromkeys(job for job in snapshot.waiting() if self._kind[job])

    # -- what happened --------------------------------------------------------------------------------------

    def take_in(self, snapshot: Snapshot) -> None:
        """Events since the last call. Those that this was built with are in it already."""
        view = self.view
        known = [job for job in snapshot.finished if job not in view.hidden]
        # The base does not know of GPUs that fixed jobs leave: to it, they come back with their nodes.
        freed = {self._place[job][0] for job in snapshot.finished if job in snapshot.fixed and job in self._place}
        self.stale |= bool(freed) or any(job in view.hidden for job in snapshot.evicted)
        for job in (*snapshot.finished, *snapshot.evicted):
            view.hidden.discard(job)
            view.drop(job)
            self._leave(job, snapshot)
        for job in (*snapshot.arrived, *snapshot.evicted):
            if self._kind[job] and snapshot.is_waiting(job):
                self._waiting[job] = None
        view.sync(snapshot, known)
        view.nodes_up = (*view.nodes_up, *freed)

    def _enter(self, job: int, placement: Placement) -> None:
        gpu = placement.nodes[0], placement.masks[0]
        self._on.setdefault(gpu, []).append(job)
        self._place[job] = gpu
        self.view.rate_alone[job] = float(self._rate[job, self._pool[gpu[0]]])

    def _leave(self, job: int, snapshot: Snapshot) -> None:
        """It is on its GPU no more. A guest that is left there is a job like any other from now on."""
        self.guests.discard(job)
        gpu = self._place.pop(job, None)
        if gpu is None:
            return
        del self.view.rate_alone[job]
        left = self._on[gpu]
        left.remove(job)
        if not left:
            del self._on[gpu]
        for other in left:
            if other in self.view.hidden and other not in snapshot.fixed and other in snapshot.placements:
                self.view.show(other, snapshot.placements[other])
            self.stale = True  # it enters the base's sight, or runs at another speed than the base's caches hold
            self.guests.discard(other)

    # -- the plan -------------------------------------------------------------------------------------------

    def plan(self, snapshot: Snapshot, decision: Decision) -> Decision:
        """The base's decision with the guests that must leave for it, and those that may come."""
        run, wait = dict(decision.run), list(decision.wait)
        if run or wait:
            self._make_way(snapshot, run, wait)
        joined = self._join(snapshot, run, set(wait)) if self._waiting else False
        if not joined and len(run) == len(decision.run) and len(wait) == len(decision.wait):
            return decision if run == decision.run else Decision(run, wait, decision.wake_at_s, decision.why)
        self.stale = True
        return Decision(run, wait, decision.wake_at_s, decision.why)

    def _make_way(self, snapshot: Snapshot, run: dict[int, Placement], wait: list[int]) -> None:
        """Book the base's decision. Guests whose GPU it gives to others leave, unless they are a pair again."""
        guests: dict[Gpu, int] = {}
        for job in (*wait, *(job for job in run if job in self.view.placements)):
            gpu = self._place.get(job)
            if gpu is not None and len(self._on[gpu]) > 1:
                guests[gpu] = next(other for other in self._on[gpu] if other != job)
            self.view.drop(job)
            self._leave(job, snapshot)
        for job in wait:
            if self._kind[job]:
                self._waiting[job] = None
        for job, placement in list(run.items()):
            for gpu in [gpu for gpu in guests if _covers(placement, gpu)]:
                guest = guests.pop(gpu)
                if self._fit(job, guest, gpu[0]):
                    run[job] = Placement(placement.nodes, placement.masks, 1 - snapshot.placements[guest].layer)
                    self.view.hide(guest)
                    self.guests.add(guest)
                else:
                    wait.append(guest)
                    self.view.drop(guest)
                    self._leave(guest, snapshot)
                    self._waiting[guest] = None
            self._waiting.pop(job, None)
            self.view.show(job, placement)
            if self._kind[job]:
                self._enter(job, placement)

    def _fit(self, one: int, other: int, node: int) -> bool:
        """Whether two jobs can be a pair on a GPU of this node: of the two classes, memory for both, and the service
        is expected to keep its p99."""
        return self.hinders(one, other, node) is Hinders.NOTHING

    def hinders(self, one: int, other: int, node: int) -> Hinders:
        """What keeps two jobs from being a pair on a GPU of this node."""
        if {self._kind[one], self._kind[other]} != {IS_HIGH, IS_BEST_EFFORT}:
            return Hinders.CLASS
        if not self._has_room(one, other, node):
            return Hinders.MEMORY
        service, best_effort = (one, other) if self._kind[one] == IS_HIGH else (other, one)
        if self.expected.is_pending(service, best_effort):
            return Hinders.PENDING
        found = self.expected.pair(service, best_effort, self._model(node))
        return Hinders.NOTHING if found.speed > 0.0 and found.p99 <= self.expected.most_p99 else Hinders.LATENCY

    def _model(self, node: int) -> str:
        return self._models[self._pool[node]]

    def _speed(self, job: int, other: int, node: int) -> float:
        """Of a job beside another on a GPU of this node, relative to alone on it."""
        if self._kind[job] == IS_HIGH:
            return 1.0
        return self.expected.pair(other, job, self._model(node)).speed

    def _has_room(self, one: int, other: int, node: int) -> bool:
        room = self._room[node]
        if room is None:
            return True
        # What is not known may be anything: such jobs don't share.
        return self._needs is not None and bool(self._needs[one] + self._needs[other] <= room)

    def _join(self, snapshot: Snapshot, run: dict[int, Placement], leaving: set[int]) -> bool:
        """Jobs that wait join those that are alone on a GPU, in order; whether any did.

        leaving: jobs that are to stop now, and wait from the next call on.
        """
        alone = {gpu: jobs[0] for gpu, jobs in self._on.items() if len(jobs) == 1}
        kinds = {self._kind[job] for job in alone.values()}
        joined = False
        line: list[int] | None = None
        for job in sorted(self._waiting):
            if not alone or job in leaving or not (kinds - {self._kind[job]}):
                continue
            pools = self._shapes.shapes[self._shapes.of_job[job]].pools
            there = [gpu for gpu, host in alone.items() if self._pool[gpu[0]] in pools and self._fit(job, host, gpu[0])]
            if not there:
                continue
            if line is None and not self._stops:
                line = [other for other in snapshot.waiting() if other not in run]
            ends = {gpu: self._end_s(snapshot, run, alone[gpu], job) for gpu in there}
            if line and line[0] < job:
                # The one before it counts on the GPU when the job there ends.
                if self._kind[job] == IS_HIGH:  # slows its host, which then ends later
                    continue
                if not self.expected.by_pair:
                    there = [max(there, key=lambda gpu: (ends[gpu], (-gpu[0], -gpu[1])))]
                in_time = {g: snapshot.now_s + self._takes_s(snapshot, job, alone[g], g) <= ends[g] for g in there}
                there = [gpu for gpu in there if in_time[gpu]]
                if not there:
                    continue
            # Where it is fastest, and of these where a best-effort host is: who joins and who is joined lose least.
            best = max(
                there,
                key=lambda gpu: (
                    self._rate[job, self._pool[gpu[0]]] * self._speed(job, alone[gpu], gpu[0]),
                    self._speed(alone[gpu], job, gpu[0]),
                    ends[gpu],
                    (-gpu[0], -gpu[1]),
                ),
            )
            host = alone.pop(best)
            layer = run[host].layer if host in run else snapshot.placements[host].layer
            run[job] = Placement((best[0],), (best[1],), 1 - layer)
            del self._waiting[job]
            if line is not None:
                line.remove(job)
            self._enter(job, run[job])
            self.view.hide(job)
            self.guests.add(job)
            joined = True
        return joined

    def _takes_s(self, snapshot: Snapshot, job: int, other: int, gpu: Gpu) -> float:
        """Seconds until a job that starts there now would end, beside this other one."""
        rate = float(self._rate[job, self._pool[gpu[0]]]) * self._speed(job, other, gpu[0])
        return float(snapshot.restart_overhead_s[job]) + snapshot.remaining_s(job) / rate

    def _end_s(self, snapshot: Snapshot, run: dict[int, Placement], host: int, guest: int) -> float:
        if host in run:
            return snapshot.now_s + self._takes_s(snapshot, host, guest, self._place[host])
        return snapshot.predicted_end_s(host)

    def alone_beside(self, job: int) -> dict[int, Hinders]:
        """Jobs that are alone on a GPU on which this one could run, and what keeps it from joining them."""
        return {
            jobs[0]: self.hinders(job, jobs[0], gpu[0])
            for gpu, jobs in self._on.items()
            if len(jobs) == 1 and self._pool[gpu[0]] in self._shapes.shapes[self._shapes.of_job[job]].pools
        }


def _covers(placement: Placement, gpu: Gpu) -> bool:
    return any(node == gpu[0] and mask & gpu[1] for node, mask in zip(placement.nodes, placement.masks, strict=True))
