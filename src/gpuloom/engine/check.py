"""The check that every plan passes before anything is applied."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gpuloom.core.columns import floats, ints
from gpuloom.core.decision import NOTHING, Decision, Place, Placement
from gpuloom.core.errors import PlanError
from gpuloom.core.state import State
from gpuloom.core.sums import sum_floats
from gpuloom.placement.shapes import Shapes, shapes_of

_WHOLE, _NUMBER = (int, np.integer), (int, float, np.number)
"""What job numbers and times may be; to ask for the plain type first is faster."""


def checked_answer(answer: Any) -> tuple[Decision, Any]:
    """What `decide` has returned, if it has the form that it must have. Raises PlanError."""
    if type(answer) is not tuple or len(answer) != 2 or not isinstance(answer[0], Decision):
        what = [type(part).__name__ for part in answer] if type(answer) is tuple else type(answer).__name__
        raise PlanError(f"decide must return (Decision, memory), but returned {what}")
    if answer[0] is not NOTHING:
        wake_s = answer[0].wake_at_s
        if (type(wake_s) is not float and not isinstance(wake_s, _NUMBER)) or math.isnan(wake_s):
            raise PlanError(f"wake_at_s must be a time in seconds, but is {wake_s!r}")
    return answer


class PlanCheck:
    """Checks that jobs may start or stop, gangs are whole, and GPUs exist, are free, large enough and usable."""

    def __init__(
        self,
        state: State,
        *,
        spills_memory: bool = False,
        memory_stays: bool = False,
        resizes: bool = False,
        in_groups: bool = False,
    ) -> None:
        """memory_stays: whatever the policy assumes, memory is not exceeded, and unknown memory fits beside nobody."""
        self._in_groups = in_groups and state.layers > 1
        """Jobs that share a GPU share all of theirs."""
        workload, cluster = state.workload, state.cluster
        self._state, self._workload, self._cluster, self._layers = state, workload, cluster, state.layers
        self._gpus = ints(workload.gpus)
        self._scaling = workload.scaling if resizes else None
        if self._scaling is not None:
            scaling = self._scaling
            self._kind = [ints(c) for c in (scaling.replica_gpus, scaling.min_replicas, scaling.max_replicas)]
            self._kind.append(ints(scaling.curve))
        self._allowed: dict[tuple[int, ...], bool] = {}
        """By (GPUs, replica, fewest and most replicas, curve): whether such a job may have so many."""
        self._full = [(1 << node.gpus) - 1 for node in cluster.nodes]
        self._any_model = len(cluster.models) == 1 and workload.gpu_type is None and workload.speeds is None
        self._shapes: Shapes | None = None
        memory = workload.gpu_memory_mib
        self._memory: memoryview[float] | None = None
        """Memory of each job on each of its GPUs, where jobs may share one; where not known 0, or NaN if it counts."""
        if state.layers > 1 and memory_stays:
            self._memory = floats(np.full(len(workload), np.nan) if memory is None else memory)
        elif state.layers > 1 and memory is not None and not spills_memory:
            self._memory = floats(np.nan_to_num(memory))

    def plan(self, decision: Decision, stops: Sequence[int]) -> None:
        """Check a decision against the state as it is. Nothing has been applied yet.

        Args:
            stops: running jobs that give their GPUs back: those to stop, and those that move.

        Raises:
            PlanError: a placement breaks a rule, or a GPU is given twice.
            InvalidTransition: a job to stop does not run, or a job to start does not wait.
        """
        state = self._state
        jobs = len(state.status)
        for job, placement in decision.run.items():
            if not isinstance(placement, Placement):
                raise PlanError(f"the plan gives job {job!r} a {type(placement).__name__}, and not a Placement")
        for job in (*decision.wait, *decision.run):
            if type(job) is not int and (not isinstance(job, _WHOLE) or isinstance(job, bool)):
                raise PlanError(f"the plan names {job!r}, which is not a job number")
            if not 0 <= job < jobs:
                raise PlanError(f"the plan names job {job}; there are jobs 0 to {jobs - 1}")
        freed: dict[tuple[int, int], int] = {}
        for job in stops:
            if job not in state.placements:
                state.require(job, "stop")
            placement = state.placements[job]
            layer = placement.layer
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                key = (layer, node)
                freed[key] = freed.get(key, 0) | mask
        if len(set(stops)) != len(stops):
            raise PlanError(f"the plan stops a job twice, or both runs and stops it: {sorted(stops)}")
        for job, placement in decision.run.items():
            if job not in state.placements:
                state.require(job, "start")
            self.placement(job, placement)
            layer = placement.layer
            free = state.free[layer]
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                left = freed.get((layer, node), 0) | free[node] if freed else free[node]
                if mask & ~left:
                    self._fail(
                        job, placement, f"of node {self._cluster.nodes[node].name} only GPUs {left:#x} are free for it"
                    )
        if len(decision.run) > 1:
            self._not_twice(decision)
        if self._in_groups and decision.run:
            self._same_places(decision, freed)
        if self._memory is not None and decision.run:
            self._memory_holds(decision, set(stops), self._memory)

    def _not_twice(self, decision: Decision) -> None:
        given: dict[tuple[int, int], int] = {}
        for job, placement in decision.run.items():
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                key = (placement.layer, node)
                before = given.get(key, 0)
                if before & mask:
                    self._fail(job, placement, f"GPUs {before & mask:#x} of node {node} are given to two jobs")
                given[key] = before | mask

    def _same_places(self, decision: Decision, freed: dict[tuple[int, int], int]) -> None:
        """Jobs that share GPUs share exactly the same ones."""
        state, run = self._state, decision.run
        if self._plainly_same(run, freed):
            return
        given: dict[tuple[int, int], list[int]] = {}
        for job, placement in run.items():
            for node in placement.nodes:
                given.setdefault((placement.layer, node), []).append(job)
        for job, placement in run.items():
            place = placement.nodes, placement.masks
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                for layer, free in enumerate(state.free):
                    if layer == placement.layer:
                        continue
                    key = (layer, node)
                    held = mask & ~free[node] & ~freed.get(key, 0)
                    others = (
                        [state.placements[state.owners[layer][node][(held & -held).bit_length() - 1]]] if held else []
                    )
                    others += [run[other] for other in given.get(key, ())]
                    for other in others:
                        shared = mask & other.masks[other.nodes.index(node)]
                        if shared and (other.nodes, other.masks) != place:
                            self._fail(
                                job, placement, f"it shares GPUs {shared:#x} of node {node} with a job on {other}"
                            )

    def _plainly_same(self, run: Mapping[int, Placement], freed: dict[tuple[int, int], int]) -> bool:
        """Whether no two different places overlap; each place is looked at once, however many jobs share it."""
        state = self._state
        at: dict[tuple[int, int], Place] = {}
        for placement in run.values():
            place = placement.nodes, placement.masks
            for piece in zip(placement.nodes, placement.masks, strict=True):
                if at.setdefault(piece, place) != place:
                    return False
        covered: dict[int, int] = {}
        for (node, mask), place in at.items():
            before = covered.get(node, 0)
            if before & mask:
                return False
            covered[node] = before | mask
            for layer, free in enumerate(state.free):
                held = mask & ~free[node]
                if held and (held := held & ~freed.get((layer, node), 0)):
                    other = state.placements[state.owners[layer][node][(held & -held).bit_length() - 1]]
                    if (other.nodes, other.masks) != place:
                        return False
        return True

    def _memory_holds(self, decision: Decision, stops: set[int], memory: memoryview[float]) -> None:
        """No GPU on which a job starts beside others is given more than its memory."""
        nodes, owners = self._cluster.nodes, self._state.owners
        needed: dict[tuple[int, int], float] = {}
        sharers: dict[tuple[int, int], int] = {}
        for job, placement in decision.run.items():
            for node, mask in zip(placement.nodes, placement.masks, strict=True):
                # Jobs that share one GPU share all of theirs, so one GPU stands for the others.
                left = mask & -mask if self._in_groups else mask
                while left:
                    gpu = (left & -left).bit_length() - 1
                    left &= left - 1
                    needed[node, gpu] = needed.get((node, gpu), 0.0) + memory[job]
                    sharers[node, gpu] = sharers.get((node, gpu), 0) + 1
        for (node, gpu), total in needed.items():
            limit = nodes[node].gpu_memory_mib
            if limit is None:
                continue
            others = [layer[node][gpu] for layer in owners if gpu in layer[node] and layer[node][gpu] not in stops]
            total += sum_floats([memory[other] for other in others])
            # A job that alone is too large for the GPU is not the plan's fault.
            if total <= limit or sharers[node, gpu] + len(others) == 1:
                continue
            where = f"together on GPU {gpu} of node {nodes[node].name}"
            if math.isnan(total):
                raise PlanError(f"the plan puts jobs {where}, and how much GPU memory one of them needs is unknown")
            raise PlanError(f"the plan puts jobs that need {total:g} MiB {where}, which has {limit} MiB")

    def placement(self, job: int, placement: Placement) -> None:
        """Raises PlanError when the placement breaks a rule by itself."""
        nodes, masks = placement.nodes, placement.masks
        if len(nodes) != len(masks):
            self._fail(job, placement, f"it names {len(nodes)} nodes and {len(masks)} masks")
        total, full = 0, self._full
        there = len(full)
        for node, mask in zip(nodes, masks, strict=True):
            if not 0 <= node < there or not 0 < mask <= full[node]:
                self._fail(job, placement, f"node {node} has no GPUs {mask:#x}")
            total += mask.bit_count()
        if total != self._gpus[job] and not self._allows(job, total):
            self._fail(job, placement, f"it needs {self._needs(job)} GPUs at once and was given {total}")
        if len(nodes) > 1 and len(set(nodes)) != len(nodes):
            self._fail(job, placement, "a node is named twice")
        if not 0 <= placement.layer < self._layers:
            self._fail(job, placement, f"the policy declared {self._layers} sharing layers")
        if not self._any_model:
            self._check_model(job, placement)

    def _allows(self, job: int, gpus: int) -> bool:
        """Whether a job may have this size, which is not the one that it asks for."""
        scaling = self._scaling
        if scaling is None:
            return False
        replica, low, high, curve = self._kind
        key = (gpus, replica[job], low[job], high[job], curve[job])
        known = self._allowed.get(key)
        if known is None:
            known = self._allowed[key] = scaling.allows(job, gpus)
        return known

    def _needs(self, job: int) -> str:
        scaling = self._scaling
        if scaling is None:
            return str(self._gpus[job])
        return f"{scaling.min_gpus[job]} to {scaling.max_gpus[job]} (in steps of {scaling.replica_gpus[job]})"

    def _check_model(self, job: int, placement: Placement) -> None:
        models = {self._cluster.nodes[node].gpu_model for node in placement.nodes}
        if len(models) > 1:
            self._fail(job, placement, f"a job must stay on one GPU model, not {sorted(models)}")
        if self._shapes is None:
            self._shapes = shapes_of(self._workload, self._cluster)
        pools = self._shapes.shapes[int(self._shapes.of_job[job])].pools
        names = [self._cluster.models[pool] for pool in pools]
        if models.pop() not in names:
            self._fail(job, placement, f"it can run on {' or '.join(names) or 'no GPU model here'} only")

    def _fail(self, job: int, placement: Placement, why: str) -> None:
        raise PlanError(f"bad plan for job {self._workload.job_id(job)}, {placement}: {why}")
