"""PyTorch's communication: collectives that a script calls itself, and the gradient sync of DistributedDataParallel.

DDP's comes from its own logging; a communication hook would take the place of the script's own.
With NCCL a collective only begins when it is called: its time is then part of the device's.
"""

from __future__ import annotations

import weakref
from functools import wraps

from . import guarded, records, stages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "torch_comm"
COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "broadcast",
    "barrier",
)
EVERY = 8
"""DDP logs one of so many iterations, and is read as often: 0.1 ms; with CUDA it waits for the device besides."""

_models: list[weakref.ReferenceType[Any]] = []


def install_ddp(module: Any) -> None:
    """Have every model of DDP log its iterations. module: torch.nn.parallel.distributed."""
    ddp = module.DistributedDataParallel
    original = ddp.__init__
    made = guarded(HOOK, _made)

    @wraps(original)
    def __init__(self: Any, *args: Any, **more: Any) -> None:  # noqa: N807 - takes the place of one
        original(self, *args, **more)
        made(self)

    ddp.__init__ = __init__
    records.before.append(guarded(HOOK, _look))


def _made(model: Any) -> None:
    model._set_ddp_runtime_logging_sample_rate(EVERY)
    _models.append(weakref.ref(model))
    records.facts.flags |= records.SYNCED


def _look(number: int) -> None:
    if not _models or number % EVERY:
        return
    comm = overlap = 0
    for known in list(_models):
        model = known()
        if model is None:
            _models.remove(known)
            continue
        said = model._get_ddp_logging_data()
        comm += int(said.get("backward_comm_time", 0))
        overlap += int(said.get("backward_compute_comm_overlap_time", 0))
    records.facts.comm_us, records.facts.overlap_us = comm // 1000, min(overlap, comm) // 1000


def install_collectives(module: Any) -> None:
    """Time the collectives that are waited for. module: torch.distributed.distributed_c10d."""
    for name in COLLECTIVES:
        if hasattr(module, name):
            setattr(module, name, _timed(getattr(module, name)))


def _timed(original: Any) -> Any:
    begins, ends = guarded(HOOK, _begins), guarded(HOOK, _ends)

    @wraps(original)
    def collective(*args: Any, **more: Any) -> Any:
        timed = not more.get("async_op") and begins()
        try:
            return original(*args, **more)
        finally:
            if timed:
                ends()

    return collective


def _begins() -> bool:
    line = stages.thread()
    if line is None or not line.iterations:
        return False  # of the set-up, or of a thread that does not train
    line.begin(stages.NETWORK, stages.NETWORK)
    return True


def _ends() -> None:
    line = stages.thread()
    if line is not None:
        line.end()
