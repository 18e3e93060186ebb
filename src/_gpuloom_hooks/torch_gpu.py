"""CUDA in a PyTorch job: how long the device computes, by its own clock, and the most memory that PyTorch has taken.

CUDA runs behind the Python that drives it. So an event is recorded where computing begins and where it ends, and the
time between them is read once the device has passed both; nothing waits for the device.
"""

from __future__ import annotations

import sys
from collections import deque
from importlib import import_module

from . import guarded, records, stages

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HOOK = "torch_gpu"
EARLY = 16
EVERY = 50
"""Memory is looked at after each of the first EARLY iterations, then after each EVERY: it costs about 0.1 ms."""
MOST_OPEN = 256


def install() -> None:
    """Listen to the stages, and look at the device before each row; nothing where PyTorch is built for CPUs alone."""
    version = import_module("torch.version")
    if not (getattr(version, "cuda", None) or getattr(version, "hip", None)):
        return
    clock = DeviceClock()
    stages.listeners.append(clock)
    records.before.append(guarded(HOOK, clock.look))


class DeviceClock:
    """Pairs of events around what computes."""

    def __init__(self) -> None:
        self.depth = 0
        self.start: Any = None
        self.open: deque[tuple[Any, Any]] = deque()
        self.spare: list[Any] = []
        self.ms = 0.0
        """Of this iteration's pairs, as far as the device has passed them."""

    def begin(self, resource: int) -> None:
        if resource != stages.GPU:
            return
        self.depth += 1
        if self.depth == 1 and len(self.open) < MOST_OPEN:
            self.start = self._recorded()

    def end(self, resource: int) -> None:
        if resource != stages.GPU or not self.depth:
            return
        self.depth -= 1
        if not self.depth and self.start is not None:
            self.open.append((self.start, self._recorded()))
            self.start = None

    def iteration(self) -> None:
        """Nothing more is to be done: `look` is called before."""

    def _recorded(self) -> Any:
        cuda = _cuda()
        if cuda is None:
            return None
        event = self.spare.pop() if self.spare else cuda.Event(enable_timing=True)
        event.record()
        return event

    def look(self, number: int) -> None:
        """Before a row: the device's time of what it has passed since; it may be of the iteration before."""
        cuda = _cuda()
        if cuda is None:
            return
        while self.open and self.open[0][1].query():
            start, end = self.open.popleft()
            self.ms += start.elapsed_time(end)
            self.spare += (start, end)
        records.facts.flags |= records.DEVICE_CLOCK
        records.facts.device_us, self.ms = int(self.ms * 1000.0), 0.0
        if number <= EARLY or not number % EVERY:
            records.facts.memory_bytes = int(cuda.max_memory_reserved())


def _cuda() -> Any:
    """torch.cuda once the job uses it; None before: that it is not initialised by us."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else None
