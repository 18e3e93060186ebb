"""Three lines that make a PyTorch loop preemptible, alone or in several ranks (`gpuloom.training.torch.Training`)."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

from gpuloom.training import job

# PyTorch is imported where it is needed: the module can be read without it.


class Training:
    """A training whose state lies in a file: what is given by name (`model=net, optimizer=adam, sampler=…`), the step,
    and the random states of this rank.

        training = Training("runs/net.pt", model=net, optimizer=optimizer)
        for step in training.steps(1000):
            ...

    Each of them has `state_dict` and `load_state_dict`; a wrapper of DDP is looked through. Where the file is there,
    all is loaded at once, on the CPU first. Rank 0 writes it, atomically (`job.save_atomically`).
    """

    def __init__(self, path: str | os.PathLike[str], **parts: Any) -> None:
        """Raises KeyError: the file has no such part. What `torch.load` and `load_state_dict` raise."""
        job.should_stop()  # from here on a notice is heard
        self.path, self.step = os.fspath(path), 0
        self.parts = {name: getattr(part, "module", part) for name, part in parts.items()}
        if os.path.exists(self.path):
            import torch

            # With the states of random generators, which are no tensors. The file is our own.
            state = torch.load(self.path, map_location="cpu", weights_only=False)
            for name, part in self.parts.items():
                part.load_state_dict(state[name])
            self.step = state["step"]
            if _rank() < len(state["chance"]):
                _restore(state["chance"][_rank()])

    def steps(self, total: int, *, every_s: float | None = 600.0) -> Iterator[int]:
        """The steps that are left of `total`, each reported when its body is done.

        Saves every `every_s` seconds (None: never), at the end, and on notice, whereupon the process exits with 85. All
        ranks do so at the same step: before each, they agree by one `all_reduce` of two numbers.
        """
        job.progress(self.step, total)
        saved_s, saved_step = time.monotonic(), self.step
        while self.step < total:
            due = every_s is not None and time.monotonic() - saved_s >= every_s
            leaves, due = self._agreed(job.should_stop(), due)
            if (leaves or due) and saved_step != self.step:
                self.save()
                saved_s, saved_step = time.monotonic(), self.step
            if leaves:
                job.exit_preempted()
            yield self.step
            self.step += 1
            job.progress(self.step, total)
        if saved_step != self.step:
            self.save()

    def save(self) -> None:
        """Write the file, now. Called by every rank. Raises what `job.save_atomically` does."""
        import torch
        import torch.distributed as dist

        chance = [_chance()]
        if _several():
            gathered: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(gathered, chance[0])
            chance = gathered
        if _rank() == 0:
            state = {name: part.state_dict() for name, part in self.parts.items()}
            folder = os.path.dirname(os.path.abspath(self.path))
            os.makedirs(folder, exist_ok=True)
            job.save_atomically(
                self.path, lambda file: torch.save({**state, "step": self.step, "chance": chance}, file)
            )
            job.saved(self.step)
        if _several():
            dist.barrier()

    def _agreed(self, leaves: bool, due: bool) -> tuple[bool, bool]:
        """Whether any rank has seen the notice, and whether rank 0 wants to save."""
        if not _several():
            return leaves, due
        import torch
        import torch.distributed as dist

        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        flags = torch.tensor([int(leaves), int(due and _rank() == 0)], device=device)
        dist.all_reduce(flags, dist.ReduceOp.MAX)
        return bool(flags[0]), bool(flags[1])


def _several() -> bool:
    import torch.distributed as dist

    return bool(dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1)


def _rank() -> int:
    import torch.distributed as dist

    return int(dist.get_rank()) if _several() else 0


def _chance() -> dict[str, Any]:
    """The states of random generators."""
    import torch

    found: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if "numpy" in sys.modules:
        found["numpy"] = sys.modules["numpy"].random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def _restore(found: dict[str, Any]) -> None:
    import torch

    random.setstate(found["python"])
    torch.set_rng_state(found["torch"])
    if "numpy" in found:
        import numpy as np

        np.random.set_state(found["numpy"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"])
