"""PyTorch's backward passes and optimizers: computing, and what counts as an iteration."""

from __future__ import annotations

import weakref
from functools import wraps

from . import guarded, records, stages, torch_gpu

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "torch_steps"
PATIENCE, AT_FIRST = 100, 20
"""So many steps of others in a row: the first optimizer does no more steps, or never did one, and another counts."""


class First:
    """The optimizer whose steps are the iterations: the first that was made, as long as it does steps.

    It need not be the first that does one: a scaler of gradients skips steps to begin with.
    """

    def __init__(self) -> None:
        self.made: list[weakref.ReferenceType[Any]] = []
        """The one that counts, and those that were made after it."""
        self.steps = self.others = 0

    def seen(self, optimizer: Any) -> None:
        """It has been made."""
        self.made.append(weakref.ref(optimizer))

    def stepped(self, optimizer: Any) -> bool:
        """Whether the step that this one did is an iteration."""
        while self.made and self.made[0]() is None:
            self.made.pop(0)
            self.steps = 0
        if not self.made:
            self.seen(optimizer)
        if self.made[0]() is not optimizer:
            self.others += 1
            if self.others <= (PATIENCE if self.steps else AT_FIRST):
                return False
            self.made = [weakref.ref(optimizer)]
        self.steps, self.others = self.steps + 1, 0
        return True


first = First()


def install(module: Any) -> None:
    """Hear of every optimizer and its steps. module: torch.optim.optimizer."""
    module.register_optimizer_step_pre_hook(guarded(HOOK, _step_begins))
    module.register_optimizer_step_post_hook(guarded(HOOK, _step_ends))
    optimizer = module.Optimizer
    original, seen = optimizer.__init__, guarded(HOOK, first.seen)

    @wraps(original)
    def __init__(self: Any, *args: Any, **more: Any) -> None:  # noqa: N807 - takes the place of one
        original(self, *args, **more)
        seen(self)

    optimizer.__init__ = __init__
    torch_gpu.install()


def _step_begins(optimizer: Any, args: Any, more: Any) -> None:
    line = stages.thread()
    if line is not None:
        line.begin(stages.GPU, stages.GPU, id(optimizer))


def _step_ends(optimizer: Any, args: Any, more: Any) -> None:
    mine = first.stepped(optimizer)
    if mine and stages.counted_elsewhere:
        mine = False  # a framework above this one tells of its iterations itself
    line = stages.thread(steps=mine)
    if line is None:
        return
    line.end_of(id(optimizer))
    if mine:
        records.begin("pytorch")
        line.iteration()


def install_backward(module: Any) -> None:
    """Time backward passes. module: torch.autograd."""
    original = module.backward
    begins, ends = guarded(HOOK, _backward_begins), guarded(HOOK, _backward_ends)

    @wraps(original)
    def backward(*args: Any, **more: Any) -> Any:
        timed = begins()
        try:
            return original(*args, **more)
        finally:
            if timed:
                ends()

    module.backward = backward


def _backward_begins() -> bool:
    line = stages.thread()
    if line is None:
        return False
    line.begin(stages.GPU, stages.GPU)
    return True


def _backward_ends() -> None:
    line = stages.thread()
    if line is not None:
        line.end()
