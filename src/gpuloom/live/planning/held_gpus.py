"""Who has which GPUs: what a policy is shown, and what is kept from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from gpuloom.core.job import MAKES_WAY, Allocation
from gpuloom.core.share_class import BEST_EFFORT, is_pair
from gpuloom.core.spec import OnPreempt
from gpuloom.live.planning.claims import State
from gpuloom.live.planning.scene import Scene
from gpuloom.live.records.fleet import Slot, slots_of


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """Running jobs in the policy's sight (GPUs, since when, sharing layer), and GPUs out of its sight.

    fixed: of those jobs, the ones that it may put others beside, and must leave as they are otherwise. leaving: those
    that are about to end, and are shown so that what is kept for others does not shrink meanwhile. lent: elastic jobs
    of a higher priority, with all their GPUs: those beyond their fewest replicas are borrowed, and shown as free.
    """

    jobs: Mapping[int, tuple[Allocation, float, int]]
    pinned: set[Slot]
    fixed: frozenset[int]
    leaving: frozenset[int] = frozenset()
    lent: Mapping[int, Allocation] = field(default_factory=dict)


def held_gpus(
    scene: Scene,
    priority: float,
    yielding: Collection[int],
    *,
    tied: Collection[int] = (),
    closed: Collection[str] = (),
) -> HeldGpus:
    """Who has which GPUs, for a pass of this priority.

    Args:
        yielding: jobs that the passes before it have told to leave. tied: jobs that must not start on just any node
            (`lasting.py`): where they were given GPUs, they keep these. closed: nodes that are out of sight altogether.
    """
    book, claims, policy, pairs = scene.book, scene.claims, scene.policy, scene.policy.pairs
    fixed: set[int] = set()
    leaving: set[int] = set()
    lent: dict[int, Allocation] = {}
    free_for_all = scene.open_slots
    found: dict[int, tuple[Allocation, float]] = {}
    pinned = {(name, gpu.index) for name in scene.shut if name in book.nodes for gpu in book.nodes[name].gpus}
    pinned |= {slot for slot in free_for_all if slot[0] in closed}
    free_for_all -= pinned
    for number in {**claims.grants, **book.attempts}:
        job, attempt, state = book.jobs[number], book.attempts.get(number), claims.state(number)
        if state is State.REFREEZING and number not in claims.grants:
            continue
        target = claims.target(number)
        if target is not None:
            allocation, since_s = target, scene.work.since(number)
        elif attempt is None or number in yielding or state in (State.FROZEN, State.FREEZING):
            continue
        elif attempt.stop_reason is not None:
            if attempt.stop_reason in MAKES_WAY:
                continue
            if scene.preempts or (policy.max_jobs_per_gpu > 1 and not pairs):  # who might start it again
                pinned.update(slots_of(attempt.allocation))
                continue
            leaving.add(number)
            allocation, since_s = attempt.allocation, attempt.since_s
        else:
            allocation, since_s = attempt.allocation, attempt.since_s
        slots = slots_of(allocation)
        stays = scene.preempts and job.spec.on_preempt is OnPreempt.NEVER and (target is None or number in tied)
        is_fixed = stays or scene.level(number) > priority
        replicas = job.spec.replicas
        if is_fixed and not stays and policy.resizes and replicas is not None and free_for_all.issuperset(slots):
            pinned.update(largest_part(allocation, replicas.sizes[0]))
            lent[number] = allocation
            continue
        if not free_for_all.issuperset(slots) or (is_fixed and not (pairs and job.spec.sharing_class)):
            pinned.update(slots)
            continue
        found[number] = (allocation, since_s)
        if is_fixed:
            fixed.add(number)
    jobs = _on_layers(scene, found, pinned)
    return HeldGpus(jobs, pinned, frozenset(fixed & jobs.keys()), frozenset(leaving & jobs.keys()), lent)


def _on_layers(
    scene: Scene, found: dict[int, tuple[Allocation, float]], pinned: set[Slot]
) -> dict[int, tuple[Allocation, float, int]]:
    """The jobs found, each with its sharing layer. Who shares a GPU with a pinned job is pinned as well; so is who
    finds no layer (the policy before may have shared more). Who was on which layer is not written down; AntMan's
    opportunistic jobs are never on the first."""
    book, policy, pairs = scene.book, scene.policy, scene.policy.pairs
    layers = policy.max_jobs_per_gpu
    while True:
        layer_of: dict[int, int] = {}
        on: dict[Slot, str] = {}
        used: dict[Slot, int] = {}
        out: set[int] = set()
        for number, (allocation, _) in found.items():
            slots = slots_of(allocation)
            job_class = book.jobs[number].spec.sharing_class if pairs else ""
            taken = 0
            for slot in slots:
                taken |= used.get(slot, 0)
            behind = book.jobs[number].priority < 0 or book.jobs[number].spec.sharing_class == BEST_EFFORT
            first = int(layers > 1 and policy.own_priorities and behind)
            free = [layer for layer in (*range(first, layers), *range(first)) if not taken >> layer & 1]
            if not free or not pinned.isdisjoint(slots) or (pairs and taken and not _is_pair(on, job_class, slots)):
                out.add(number)
                continue
            layer_of[number] = free[0]
            for slot in slots:
                on[slot] = job_class
                used[slot] = used.get(slot, 0) | 1 << free[0]
        if not out:
            return {number: (*has, layer_of[number]) for number, has in found.items()}
        for number in out:
            pinned.update(slots_of(found.pop(number)[0]))


def largest_part(allocation: Allocation, gpus: int) -> list[Slot]:
    """So many of these GPUs, on the nodes with most of them."""
    by_node = sorted(allocation, key=lambda part: -len(part[1]))
    return [(node, gpu) for node, there in by_node for gpu in there][:gpus]


def _is_pair(on: Mapping[Slot, str], job_class: str, slots: Sequence[Slot]) -> bool:
    """Whether a job of this class and the one that is there may share a GPU."""
    return len(slots) == 1 and is_pair([on[slots[0]], job_class])
