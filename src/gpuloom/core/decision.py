"""A policy's answer: the wanted states of jobs, and why the others wait."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gpuloom.core.sums import sum_ints


@dataclass(frozen=True, slots=True)
class Placement:
    """The GPUs of one job, node by node.

    `nodes[i]` is the index of a node of the cluster, `masks[i]` the GPUs on it as a bit mask (bit 0: GPU 0).
    `layer` is the sharing layer: one GPU serves at most one job in each layer. Jobs that don't share use
    layer 0 and nothing else; a policy that shares GPUs puts the partners of a job on layers 1, 2, …
    """

    nodes: tuple[int, ...]
    masks: tuple[int, ...]
    layer: int = 0

    @property
    def gpus(self) -> int:
        """GPUs in all."""
        masks = self.masks
        return masks[0].bit_count() if len(masks) == 1 else sum_ints([mask.bit_count() for mask in masks])

    def slots(self) -> list[tuple[int, int]]:
        """(node, GPU) of each."""
        found = []
        for node, mask in zip(self.nodes, self.masks, strict=True):
            found += [(node, gpu) for gpu in range(mask.bit_length()) if mask >> gpu & 1]
        return found


Place = tuple[tuple[int, ...], tuple[int, ...]]
"""(nodes, masks) of a placement, whatever its layer."""


def place_of(placement: Placement) -> Place:
    """The GPUs of a placement, whatever its layer."""
    return placement.nodes, placement.masks


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes to make, relative to the snapshot. A job that is not named keeps what it has.

    run: jobs and the GPUs to run them on. A waiting job starts. A running job moves, and pays its restart. If it gets
        another number of GPUs of the same model and keeps some, it is resized, and pays for that.
    wait: running jobs to stop; they wait again.
    wake_at_s: ask again at this time even if nothing happens; infinity: only at the next event.
    why: the policy's reasons, for jobs that it was asked to explain (`Policy.explains`).
    """

    run: Mapping[int, Placement] = field(default_factory=dict)
    wait: tuple[int, ...] | list[int] = ()
    wake_at_s: float = math.inf
    why: Mapping[int, Reason] = field(default_factory=dict)


NOTHING = Decision()
"""Change nothing."""


class WaitCode(StrEnum):
    """Codes of the live scheduler's own reasons; policies have further ones."""

    HELD = "held"
    SUSPENDED = "suspended"
    DEPENDENCY = "dependency"
    DEPENDENCY_FAILED = "dependency_failed"
    START_FAILED = "start_failed"
    PAUSE_BEFORE_RETRY = "pause_before_retry"
    ARRAY_THROTTLE = "array_throttle"
    EXECUTOR_IN_TROUBLE = "executor_in_trouble"
    POLICY_FAILED = "policy_failed"
    QUEUED = "queued"
    RESERVATION = "reservation"
    BEHIND_EQUALS = "behind_equals"
    BEHIND_OTHERS = "behind_others"
    NOT_ENOUGH_FREE_GPUS = "not_enough_free_gpus"
    GPUS_BEING_VACATED = "gpus_being_vacated"
    GPUS_OUT_OF_SERVICE = "gpus_out_of_service"
    NO_GPU_IN_SERVICE = "no_gpu_in_service"
    NODES_END_TOO_SOON = "nodes_end_too_soon"
    ENGINE_DECIDES = "engine_decides"
    """Of a cluster that is watched only: there is room for the job, and who decides there has not started it yet."""


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a job waits, or why it is moved: a stable code, the numbers behind it, sentences for people."""

    code: str
    text: str
    numbers: Mapping[str, float] = field(default_factory=dict)


def is_resize(before: Placement, after: Placement) -> bool:
    """Whether a running job is resized: its new placement has another size and keeps a GPU of the present one.

    Else it is moved, which restarts it. For policies that resize jobs.
    """
    if before.layer != after.layer or before.gpus == after.gpus:
        return False
    for node, mask in zip(before.nodes, before.masks, strict=True):
        for other, theirs in zip(after.nodes, after.masks, strict=True):
            if node == other and mask & theirs:
                return True
    return False
