"""Ranks agree on a step at which all of them save and leave.

Each sees the notice at a step of its own. The first steps after it, they tell each other through the store of
torch.distributed; before it, this costs nothing. Ranks that average gradients are never more than one step apart, so
all reach the step that comes two after the latest one told, and know of it by then.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

APART = 2
"""Steps from the latest that a rank has told to the one at which all leave."""


def world() -> int:
    """How many ranks there are."""
    distributed = _distributed()
    return 1 if distributed is None else int(distributed.get_world_size())


def rank() -> int:
    """Which of them this is, from 0."""
    distributed = _distributed()
    return 0 if distributed is None else int(distributed.get_rank())


def barrier() -> None:
    """Wait for the others."""
    distributed = _distributed()
    if distributed is not None:
        distributed.barrier()


def close_at_exit() -> None:
    """End the group of ranks when Python ends: threads of it that run on make Python abort now and then."""
    if _distributed() is not None:
        atexit.register(_close)


def _close() -> None:
    distributed = _distributed()
    if distributed is not None:
        with suppress(Exception):  # the process ends anyhow
            distributed.destroy_process_group()


def store() -> Any:
    """What all ranks read and write, where there are several."""
    return sys.modules["torch.distributed.distributed_c10d"]._get_default_store()


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    distributed = None if torch is None else torch.distributed
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


class Agreement:
    """Asked once at each step, by every rank. name: no other one's."""

    def __init__(self, name: str) -> None:
        restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # whose store may be the same
        self.name = f"gpuloom/{name}/{os.environ.get('GPULOOM_ATTEMPT', '')}/{restarts}"
        self.step = 0
        self.told = False
        self.last = None  # type: int | None

    def leaves(self, asked: bool) -> bool:
        """Whether all leave at this step. asked: this rank has seen the notice.

        Raises RuntimeError: this rank is beyond the step.
        """
        self.step += 1
        if self.last is None:
            if not asked:
                return False
            ranks = world()
            if ranks == 1:
                return True
            self.last = self._agreed(ranks)
        if self.last is not None and self.step > self.last:
            raise RuntimeError(f"step {self.step}: the other ranks leave at step {self.last}")
        return self.step == self.last

    def _agreed(self, ranks: int) -> int | None:
        shared = store()
        if not self.told:
            self.told = True
            shared.set(f"{self.name}/{rank()}", str(self.step))
            shared.add(f"{self.name}/told", 1)
        if shared.add(f"{self.name}/told", 0) < ranks:
            return None
        return max(int(shared.get(f"{self.name}/{one}")) for one in range(ranks)) + APART
