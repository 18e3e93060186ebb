"""The shape of a model of jobs that share GPUs."""

from __future__ import annotations

from typing import Protocol


class Sharing(Protocol):
    """How fast a job runs beside others on its GPUs. A policy that shares GPUs brings one.

    `starts_together`: jobs that share GPUs run in one process and start one after another in it, so that work goes on
    only once all of them have started; otherwise each starts by itself.
    """

    starts_together: bool

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]]) -> float:
        """Share of its solo speed that `job` gets; `layer` is its own, `neighbours` are (layer, job), sorted."""
        ...
