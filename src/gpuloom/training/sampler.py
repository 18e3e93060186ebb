"""Which samples each process takes, when the number of processes changes within an epoch. Standard library only.

    sampler = ElasticSampler(dataset, batch=64)                  # 64 in all processes together
    loader = DataLoader(dataset, batch_sampler=sampler)
    for epoch in range(sampler.epoch, epochs):
        sampler.set_epoch(epoch)
        for batch in loader:
            ...                                                  # backward, optimizer.step()
            sampler.advance()

Every sample is seen exactly once per epoch at any sequence of sizes, as the state has a cursor of samples, not of
steps: save `sampler.state_dict()` in the checkpoint of rank 0, and load it in every process. A step is the same samples
at every size, split among those that are there, so that gradients averaged by samples are the same as well.
"""

from __future__ import annotations

import hashlib
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Protocol

    class Sized(Protocol):
        """A dataset, as far as it matters here."""

        def __len__(self) -> int: ...


_ROUNDS = 6
_MASK = (1 << 64) - 1


class ElasticSampler:
    """Lists of indices, one for each step: the `batch_sampler` of a `DataLoader`.

    Attributes:
        epoch: that it is in. cursor: samples of this epoch that have been used, by all processes together.
        replicas, rank, most: the number of processes, which of them this is, and how many there may be at most.
    """

    def __init__(
        self,
        data: Sized | int,
        batch: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        replicas: int | None = None,
        rank: int | None = None,
        most: int | None = None,
    ) -> None:
        """Of an epoch 0 that nothing was used of.

        Args:
            data: the dataset, or its number of samples. batch: samples of a step in all processes together.
            shuffle: in an order that depends on seed and epoch alone; else in that of the dataset.
            replicas, rank: by default $WORLD_SIZE and $RANK, as every launcher sets them. most: processes that there
                may be when the job grows, so that the last step of an epoch is the same at every size; by default as
                gpuloom says.

        Raises:
            ValueError: batch or dataset can't be split among so many processes, or there is no such rank.
        """
        self.samples = data if isinstance(data, int) else len(data)
        self.batch, self.shuffle, self.seed = batch, shuffle, seed
        self.replicas = _number("WORLD_SIZE", 1) if replicas is None else replicas
        self.rank = _number("RANK", 0) if rank is None else rank
        self.epoch, self.cursor = 0, 0
        self.most = max(self.replicas, _most_processes(self.replicas) if most is None else most)
        if not 0 <= self.rank < self.replicas:
            raise ValueError(f"rank {self.rank} is none of {self.replicas} processes")
        for what, count in (("batch", batch), ("dataset", self.samples)):
            if count < self.most:
                raise ValueError(f"a {what} of {count} samples can't be split among {self.most} processes")

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the one that it is in goes on where it was."""
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0

    def advance(self, steps: int = 1) -> None:
        """So many steps more have been done, and count as done when the state is saved. To be told after each
        `optimizer.step()`: a `DataLoader` fetches ahead, so that what it asked for is not what was used.

        Raises:
            ValueError: the epoch has ended before.
        """
        for _ in range(steps):
            if self.cursor >= self.samples:
                raise ValueError(f"epoch {self.epoch} has no more steps: all of its {self.samples} samples were used")
            self.cursor = self._end_of(self.cursor)

    def __iter__(self) -> Iterator[list[int]]:
        """For each step from the cursor on, this process' samples of it."""
        order = _Order(self.samples, f"{self.seed}:{self.epoch}") if self.shuffle else None
        at = self.cursor
        while at < self.samples:
            end = self._end_of(at)
            mine = range(at + self.rank, end, self.replicas)
            yield list(mine) if order is None else [order.at(place) for place in mine]
            at = end

    def __len__(self) -> int:
        """Steps from the cursor to the end of the epoch."""
        left = self.samples - self.cursor
        whole, rest = divmod(left, self.batch)
        return whole + (rest >= self.most or (rest > 0 and not whole))

    def _end_of(self, at: int) -> int:
        """Where a step ends that begins there. What is left for a last one, and is not a sample for each process, goes
        to the step before it."""
        end = at + self.batch
        return self.samples if self.samples - end < self.most else end

    def state_dict(self) -> dict[str, int]:
        """For the checkpoint."""
        return {"epoch": self.epoch, "cursor": self.cursor, "seed": self.seed, "samples": self.samples}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on where this was saved, in whatever number of processes.

        Raises:
            ValueError: it is of another dataset.
        """
        if state["samples"] != self.samples:
            raise ValueError(f"the checkpoint is of {state['samples']} samples, and the dataset has {self.samples}")
        self.epoch, self.cursor, self.seed = state["epoch"], state["cursor"], state["seed"]


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


def _most_processes(now: int) -> int:
    """How many processes gpuloom may give the job at most; 0: it is not elastic."""
    replicas = _number("GPULOOM_REPLICAS", 0)
    return _number("GPULOOM_MAX_REPLICAS", 0) * (now // replicas) if replicas else 0


class _Order:
    """A shuffled order that is looked up place by place, without a list: a job that goes on within an epoch of a large
    dataset begins at once.

    A Feistel network permutes the numbers of an even number of bits; those beyond the samples are walked over.
    (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, method 2: cycle walking.)
    """

    def __init__(self, samples: int, seed: str) -> None:
        self.samples = samples
        self.half = max((max(samples - 1, 1).bit_length() + 1) // 2, 1)
        self.low = (1 << self.half) - 1
        digest = hashlib.sha512(seed.encode()).digest()
        self.keys = [int.from_bytes(digest[8 * one : 8 * one + 8], "little") for one in range(_ROUNDS)]

    def at(self, place: int) -> int:
        """The sample at a place of the order."""
        while True:
            left, right = place >> self.half, place & self.low
            for key in self.keys:
                mixed = ((right + 1) * 0x9E3779B97F4A7C15 + key) & _MASK
                mixed = ((mixed ^ (mixed >> 32)) * 0xD6E8FEB86659FD93) & _MASK
                left, right = right, left ^ ((mixed ^ (mixed >> 32)) & self.low)
            place = left << self.half | right
            if place < self.samples:
                return place
