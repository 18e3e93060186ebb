"""The shape of a model of jobs that share GPUs."""

from __future__ import annotations

from typing import Protocol


class Sharing(Protocol):
    """How fast a job runs beside others on its GPUs. A policy that shares GPUs brings one.

    `starts_together`: jobs that share GPUs run in one process and start one after another in it. Work goes on only once
    all of them have started. Otherwise each starts by itself.
    """

    starts_together: bool

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> float:
        """Share of its solo speed on its GPUs that `job` gets.

        Args:
            layer: its own.
            neighbours: (layer, job), sorted.
            gpu_model: of the GPUs.
        """
        ...

    def source(self, job: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> str:
        """Where it is known from how fast `job` runs beside these: words for people, such as 'stage times'."""
        ...

    def most(self, job: int) -> int:
        """How many jobs may run on the GPUs of `job` at once, itself included: 1 if nobody can share them."""
        ...
