"""What the policy sees of the live scheduler: jobs as columns, a cluster of the GPUs to give away, an engine.

A world is built from the records whenever jobs are submitted or leave, estimates change, or GPUs come and go; between
two such moments the engine goes on incrementally, as it does in the simulator. All jobs that have not ended have a
row, so that the policy's memory of those that are held or wait for others is kept; only eligible ones are submitted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import floats
from gpuloom.core.commands import Command
from gpuloom.core.job import ENDED, Allocation, Job, Phase, gpus_in
from gpuloom.core.pairs import Apart
from gpuloom.core.profile import Profiles
from gpuloom.core.snapshot import Measured, Speed
from gpuloom.core.state import State
from gpuloom.core.workload import F8, I4, Workload
from gpuloom.engine.engine import Engine
from gpuloom.engine.progress import Progress
from gpuloom.facts.profiles import with_profiles
from gpuloom.facts.speeds import with_speeds
from gpuloom.interleave.worth import GroupSharing
from gpuloom.live.planning.asking import Asking, Call
from gpuloom.live.planning.estimates import left_s, stands_s
from gpuloom.live.planning.kernel_speeds import KernelSpeeds
from gpuloom.live.planning.ratios import with_communication
from gpuloom.live.planning.roster import Columns, Roster, alike
from gpuloom.live.records.fleet import Fleet, slots_of
from gpuloom.placement.shapes import impossible_jobs, shapes_of
from gpuloom.policies.base import Policy


@dataclass(frozen=True, slots=True)
class Placed:
    """A job that has GPUs: since when; work left, and done in this run.

    starting_s: it goes on starting up for so long. layer: its sharing layer. stands_s: so long after the end that is
    expected of it another one has to be.
    """

    allocation: Allocation
    since_s: float
    left_s: float
    done_s: float
    starting_s: float = 0.0
    layer: int = 0
    stands_s: float = math.inf


@dataclass(slots=True)
class Memory:
    """A policy's memory, the jobs and machines that its rows and nodes were, and the jobs that it has been told of.

    held: on which of these nodes jobs ran.
    """

    value: Any = None
    jobs: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    met: tuple[int, ...] = ()
    held: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(slots=True)
class Collector:
    """The engine's executor: keeps the commands for the scheduler to carry out."""

    commands: list[Command] = field(default_factory=list)

    def apply(self, commands: Sequence[Command], now_s: float) -> None:
        self.commands.extend(commands)

    def take(self) -> list[Command]:
        taken, self.commands = self.commands, []
        return taken


class _Stay(Container[int]):
    """The rows of jobs that stand still where they are when they make way."""

    def __init__(self, jobs: Sequence[int], stays: Callable[[int], bool]) -> None:
        self._jobs, self._stays = jobs, stays

    def __contains__(self, row: object) -> bool:
        return isinstance(row, int) and self._stays(self._jobs[row])


NEVER_APART = Apart()
RANK_S = 1e8
"""A rank counts as much earlier: three years."""


class World:
    """See the module.

    Attributes:
        jobs: numbers of the jobs by row; row_of: the other way.
        unplaceable: eligible jobs that don't fit the GPUs now in service.
    """

    def __init__(
        self,
        *,
        jobs: Sequence[Job],
        eligible: set[int],
        met: set[int],
        placed: Mapping[int, Placed],
        fixed: Collection[int] = (),
        left: Mapping[int, Placed],
        roster: Roster,
        rank: Mapping[int, int],
        fleet: Fleet,
        policy: Policy,
        memory: Memory,
        profiles: Profiles,
        kernels: KernelSpeeds,
        overhead_s: float,
        now_s: float,
        measured: Mapping[int, float] = MappingProxyType({}),
        going: Mapping[int, Speed] = MappingProxyType({}),
        freed: Collection[str] = (),
        apart: Apart = NEVER_APART,
        again_s: Mapping[int, float] = MappingProxyType({}),
        frozen: Mapping[int, Allocation] = MappingProxyType({}),
        moves: Collection[str] = (),
        stays: Callable[[int], bool] = lambda job: False,
    ) -> None:
        """eligible: those that wait; met: those that the policy knows. fixed: of `placed`, those that
        stay as they are. left: jobs (of `jobs`) that have ended since the world before this one: the policy has not
        been told yet, and learns from ends. rank: jobs that are to go first, the more the higher (0 where not named):
        they count as submitted long before. measured: of `left`, iterations per second of those that reported them.
        going: the same of `placed`.
        freed: nodes on which jobs that go on have lost GPUs.
        apart: groups that did not pay.
        again_s: by job, what stopping it and having it go on costs, seconds, where that is not `overhead_s`: policies
        reckon with it.
        frozen: where jobs stand still and can go on. moves: nodes on which those go on in any slots.
        stays: whether a job that makes way stands still where it is, as things are when it does."""
        ordered = sorted(jobs, key=lambda job: (-rank.get(job.id, 0), job.submitted_s, job.id))
        columns = roster.columns(ordered, profiles if profiles.own else ())
        self.fleet, self.policy = fleet, policy
        self.jobs = tuple([job.id for job in ordered])
        self.row_of = {job: row for row, job in enumerate(self.jobs)}
        cluster = fleet.cluster
        lefts, duration_s = _times_s(ordered, columns, placed, left)
        earlier_s = np.array([rank.get(job.id, 0) * RANK_S for job in ordered]) if rank else None
        gpus = {self.row_of[number]: gpus_in(has.allocation) for number, has in {**placed, **left}.items()}
        # Who learns where jobs run best has to see for itself that a placement is slow.
        workload = columns.workload(duration_s, earlier_s, cluster.gpus, gpus, slower=policy.rewarded)
        workload = _as_asked(workload, ordered, policy, profiles, fleet, apart)
        if policy.pairs:
            workload = replace(workload, kernel_pairs=kernels.of(self.jobs, *columns.kernels()))
        self.workload = workload = with_speeds(workload, cluster)
        self.state = State(workload, cluster, layers=policy.max_jobs_per_gpu)
        self._stands_s = {self.row_of[number]: has.stands_s for number, has in placed.items()}
        self.unplaceable = eligible & self._impossible()
        overheads = np.full(len(ordered), overhead_s)
        with Asking(Call.SHARING, policy):
            sharing = policy.sharing(workload)
        self.progress = progress = Progress(workload, cluster, overheads, sharing)
        ended = self._whole(left, placed)
        settled = self._fill(ordered, eligible & met, {**placed, **ended}, lefts, progress, now_s)
        self.collector = Collector()
        value = self._carried(memory, cluster)
        self.engine = Engine(self.state, policy, progress, self.collector, memory=value, memory_stays=True)
        if again_s:
            costs_s = overheads.copy()
            costs_s[[self.row_of[job] for job in again_s]] = list(again_s.values())
            self.engine.snapshot.again_s = floats(costs_s).toreadonly()
        self.engine.snapshot.fixed = frozenset(self.row_of[job] for job in fixed)
        self.state.moves_on = frozenset([at for at, name in enumerate(fleet.names) if name in moves])
        self.state.stay_away = _Stay(self.jobs, stays)
        for number in ((eligible & met) - self.unplaceable - placed.keys()) & frozen.keys():
            if (where := fleet.placement(frozen[number])) is not None:
                self.state.suspended(self.row_of[number], where)
        self._measured = {self.row_of[number]: speed for number, speed in measured.items() if number in self.row_of}
        self._going = {self.row_of[number]: speed for number, speed in going.items() if number in self.row_of}
        self.engine.snapshot.measured = Measured(self._measured, self._going, lambda row: alike(ordered[row]))
        if not settled:
            with Asking(Call.SHARING, policy):
                self.engine.settle(now_s)
        self.engine.came_back(self._freed(memory, placed.keys() | ended.keys(), freed))
        news = [self.row_of[job] for job in eligible - met - self.unplaceable - placed.keys()]
        with Asking(Call.SHARING, policy):
            self.engine.take_in(now_s, finished=sorted(self.row_of[job] for job in ended), arrived=sorted(news))
        self.collector.take()

    def _impossible(self) -> set[int]:
        """Jobs that don't fit the GPUs now in service, however small they are made."""
        smallest, cluster = self.workload, self.fleet.cluster
        if self.policy.resizes and smallest.scaling is not None:
            smallest = replace(smallest, gpus=smallest.scaling.min_gpus, scaling=None)
        return {self.jobs[row] for row in impossible_jobs(shapes_of(smallest, cluster), cluster).tolist()}

    def _whole(self, left: Mapping[int, Placed], placed: Mapping[int, Placed]) -> dict[int, Placed]:
        """Of the jobs that have ended those whose GPUs are still there, and nobody else's: they can be told as ends."""
        held = {slot for has in placed.values() for slot in slots_of(has.allocation)}
        ended: dict[int, Placed] = {}
        for number, was in left.items():
            slots = slots_of(was.allocation)
            if self.fleet.placement(was.allocation) is not None and held.isdisjoint(slots):
                ended[number] = was
                held.update(slots)
        return ended

    def goes(self, job: int, speed: Speed) -> None:
        """A job that runs has reported this."""
        if (row := self.row_of.get(job)) is not None:
            self._going[row] = speed

    def measured(self, job: int, it_per_s: float) -> None:
        """A job that runs has ended, and had reported so many iterations per second."""
        self._measured[self.row_of[job]] = it_per_s

    def memory(self) -> Memory:
        """The policy's memory as it is now."""
        held = {self.jobs[row]: placement.nodes for row, placement in self.state.placements.items()}
        return Memory(self.engine.memory, self.jobs, _machines(self.fleet), held=held)

    def stands_until_s(self) -> float:
        """When the end that is expected of a running job has to be set anew, as it has not come."""
        state, total_s = self.state, self.workload.duration_s
        known = self._stands_s
        return min(
            (
                state.predicted_end_s(row) + (known[row] if row in known else stands_s(total_s.item(row), 0.0))
                for row in state.placements
            ),
            default=math.inf,
        )

    def shares(self) -> list[tuple[int, float]]:
        """(job, part of its speed alone on its GPUs that it keeps beside its neighbours) of all that run."""
        rate, alone = self.state.rate, self.progress.solo_rate
        return [(self.jobs[row], rate[row] / alone(row, where)) for row, where in self.state.placements.items()]

    def woven(self, jobs: Sequence[int]) -> tuple[list[int] | None, float | None]:
        """The order in which the stages of jobs that share GPUs follow each other, and γ; None: not known."""
        sharing, rows = self.progress.sharing, [self.row_of.get(job) for job in jobs]
        known = [row for row in rows if row is not None]
        if not isinstance(sharing, GroupSharing) or len(known) < len(rows):
            return None, None
        order = sharing.order(known)
        return None if order is None else [self.jobs[row] for row in order], sharing.efficiency(known)

    def source(self, job: int, others: Sequence[int]) -> str | None:
        """Where it is known from how fast a job is beside these, in words; None: this world does not have them all."""
        row, rows = self.row_of.get(job), [self.row_of.get(other) for other in others]
        placements, sharing = self.state.placements, self.progress.sharing
        if sharing is None or row not in placements or any(other not in placements for other in rows):
            return None
        there = sorted((placements[other].layer, other) for other in rows if other is not None)
        return sharing.source(row, there, self.fleet.cluster.nodes[placements[row].nodes[0]].gpu_model)

    def is_waiting(self, job: int) -> bool:
        """Whether the policy has it among those that wait."""
        row = self.row_of.get(job)
        return row is not None and self.engine.snapshot.is_waiting(row)

    def is_running(self, job: int) -> bool:
        row = self.row_of.get(job)
        return row is not None and self.engine.snapshot.is_running(row)

    def _fill(
        self,
        ordered: Sequence[Job],
        waiting: set[int],
        placed: Mapping[int, Placed],
        lefts: np.ndarray[Any, np.dtype[np.float64]],
        progress: Progress,
        now_s: float,
    ) -> bool:
        """Put all jobs in their states; whether all run at the rates that their neighbours leave them."""
        state = self.state
        running = {job.id for job in ordered if job.phase in (Phase.STARTING, Phase.RUNNING) or job.phase in ENDED}
        tried = [(row, job) for row, job in enumerate(ordered) if job.attempts or job.id in placed]
        before = np.array([row for row, _ in tried], dtype=np.intp)
        state.restore(
            before,
            held_s=np.array([job.held_s for _, job in tried], dtype=np.float64),
            held_gpu_s=np.array([job.held_gpu_s for _, job in tried], dtype=np.float64),
            starts=np.array(
                [job.attempts + (job.id in placed and job.id not in running) for _, job in tried], dtype=np.int32
            ),
            first_start_s=np.array([job.first_start_s for _, job in tried], dtype=np.float64),
            remaining_s=lefts[before],
        )
        row_of, rows = self.row_of, waiting - self.unplaceable | placed.keys()
        state.submit_all(np.array([row_of[job] for job in rows], dtype=np.intp))
        placements = []
        # Of an elastic job the node that it had last goes first. Jobs that share GPUs name them in one order.
        shared = Counter(slot for has in placed.values() for slot in slots_of(has.allocation))
        for number, has in placed.items():
            elastic = ordered[row_of[number]].spec.elastic is not None
            alone = elastic and all(shared[slot] == 1 for slot in slots_of(has.allocation))
            placement = self.fleet.placement(has.allocation, has.layer, in_order=alone)
            assert placement is not None  # noqa: S101 - the caller pins jobs whose GPUs are not in the fleet
            placements.append(placement)
        held_by = [row_of[number] for number in placed]
        rate = np.array([progress.solo_rate(*pair) for pair in zip(held_by, placements, strict=True)], dtype=np.float64)
        models = [node.gpu_model for node in self.fleet.cluster.nodes]
        sharing = progress.sharing
        shares = sharing.rates(held_by, placements, models) if isinstance(sharing, GroupSharing) else None
        state.adopt(
            np.array(held_by, dtype=np.intp),
            placements,
            run_from_s=np.array([has.since_s for has in placed.values()], dtype=np.float64),
            work_from_s=now_s + np.array([has.starting_s for has in placed.values()], dtype=np.float64),
            rate=rate if shares is None else rate * np.array(shares),
        )
        return progress.sharing is None or shares is not None

    def _freed(self, memory: Memory, known: Collection[int], freed: Collection[str]) -> list[int]:
        """Nodes with GPUs that came free, or into service, in another way than by ends that the policy is told of: it
        would not look at them again otherwise."""
        if memory.value is None:
            return []
        left = {memory.nodes[node] for job, nodes in memory.held.items() if job not in known for node in nodes}
        machines = enumerate(_machines(self.fleet))
        names = self.fleet.names
        return [i for i, name in machines if name in left or name not in memory.nodes or names[i] in freed]

    def _carried(self, memory: Memory, cluster: Any) -> Any:
        if memory.value is None:
            with Asking(Call.NEW_MEMORY, self.policy):
                return self.policy.new_memory(self.workload, cluster)
        rows_before = {job: row for row, job in enumerate(memory.jobs)}
        rows = np.array([rows_before.get(job, -1) for job in self.jobs], dtype=np.intp)
        now_at = {name: index for index, name in enumerate(_machines(self.fleet))}
        nodes = np.array([now_at.get(name, -1) for name in memory.nodes], dtype=np.intp)
        with Asking(Call.CARRIED, self.policy):
            return self.policy.carried(memory.value, rows, nodes, self.workload, cluster)


def _times_s(
    jobs: Sequence[Job], columns: Columns, placed: Mapping[int, Placed], left: Mapping[int, Placed]
) -> tuple[F8, F8]:
    """What is left of the jobs, and their whole work, seconds; by row. Most have never run: their estimate is left. All
    of it is work (core/pace.py)."""
    lefts = columns.total_s.copy()
    duration_s = columns.total_s.copy()
    for row, job in enumerate(jobs):
        if job.attempts or job.id in placed:
            has = placed.get(job.id) or left.get(job.id)
            before_s = job.work_s if columns.paces is None else columns.paces[row].work_s(job.work_s, job.work_on)
            lefts[row] = has.left_s if has is not None else left_s(lefts.item(row), before_s)
            duration_s[row] = before_s + (has.done_s if has is not None else 0.0) + lefts[row]
    return lefts, duration_s


def _as_asked(
    workload: Workload, jobs: Sequence[Job], policy: Policy, profiles: Profiles, fleet: Fleet, apart: Apart
) -> Workload:
    """The workload with what the policy asks for: priorities, profiles, and who may share GPUs."""
    if policy.ranks_priorities:
        workload = replace(workload, priority=_ranked([job.priority for job in jobs]))
    if policy.uses_stages or policy.rewarded or profiles.own:
        workload = with_profiles(workload, profiles)
    if policy.rewarded:
        workload = with_communication(workload, profiles)
    if policy.weaves:
        workload = _alone_until_measured(workload, fleet.cluster)
        if apart and (pairs := apart.among([(alike(job), job.gpus) for job in jobs])) is not None:
            workload = replace(workload, pairs=pairs)
    if policy.max_jobs_per_gpu > 1 and not fleet.shares:
        workload = _whole_gpus(workload, fleet.cluster)
    return workload


def _alone_until_measured(workload: Workload, cluster: Cluster) -> Workload:
    """Jobs of unknown GPU memory count as jobs of unknown stages, which run alone: beside others they could fail, and
    make these fail. On CPU slots there is none to run out of."""
    if workload.stage_s is None or all(node.gpu_memory_mib is None for node in cluster.nodes):
        return workload
    memory_mib = workload.gpu_memory_mib
    unknown = np.ones(len(workload), dtype=bool) if memory_mib is None else np.isnan(memory_mib)
    return (
        replace(workload, stage_s=np.where(unknown[:, None], np.nan, workload.stage_s)) if unknown.any() else workload
    )


def _whole_gpus(workload: Workload, cluster: Cluster) -> Workload:
    """Jobs of which no two go on one GPU: their stages are unknown, and each needs a GPU's memory (of the smallest one,
    so that all GPUs that may run it still do)."""
    known = [float(mib) for node in cluster.nodes if (mib := node.gpu_memory_mib) is not None]
    memory_mib, stage_s = workload.gpu_memory_mib, workload.stage_s
    if known:
        own = np.full(len(workload), np.nan) if memory_mib is None else memory_mib
        memory_mib = np.fmax(own, min(known))
    return replace(
        workload, gpu_memory_mib=memory_mib, stage_s=None if stage_s is None else np.full_like(stage_s, np.nan)
    )


def _ranked(priorities: Sequence[int]) -> I4:
    """0 for the highest priority."""
    _, rank = np.unique(-np.array(priorities, dtype=np.int64), return_inverse=True)
    return rank.astype(np.int32)


def _machines(fleet: Fleet) -> tuple[str, ...]:
    """The fleet's nodes by name and GPUs. A memory numbers GPUs within a node: with other GPUs it is another node."""
    return tuple(
        f"{node.name}:{','.join(map(str, gpus))}" for node, gpus in zip(fleet.cluster.nodes, fleet.slots, strict=True)
    )
