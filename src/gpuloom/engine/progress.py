"""How fast a job runs: the one model that simulation, predictions and plans share."""

from __future__ import annotations

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.columns import floats, ints
from gpuloom.core.decision import Placement
from gpuloom.core.scaling import NO_CURVE
from gpuloom.core.sharing import Sharing
from gpuloom.core.workload import F8, Workload


class Progress:
    """Speed on a GPU model and at a size, costs of restarts and resizes, slow-down beside neighbours.

    Args:
        restart_overhead_s: per job, seconds that every start costs before work goes on.
        sharing: model of shared GPUs, where the policy shares them.
        resize_overhead_s: per job, seconds that a change of its size costs (default: as a start).
    """

    def __init__(
        self,
        workload: Workload,
        cluster: Cluster,
        restart_overhead_s: F8,
        sharing: Sharing | None = None,
        resize_overhead_s: F8 | None = None,
    ) -> None:
        self.restart_overhead_s = restart_overhead_s
        self.resize_overhead_s = restart_overhead_s if resize_overhead_s is None else resize_overhead_s
        self.overhead_of = floats(self.restart_overhead_s)
        self.resize_of = floats(self.resize_overhead_s)
        self.sharing = sharing
        self._model_of = [node.gpu_model for node in cluster.nodes]
        scaling = workload.scaling
        self._curve = None if scaling is None else ints(scaling.curve)
        if scaling is not None:
            self._reference = floats(scaling.reference)
            self._curves = [curve.tolist() for curve in scaling.curves]
        self._factors: dict[int, memoryview[float]] = {}
        if workload.speeds is not None:
            known = {name.lower(): column for column, name in enumerate(workload.speeds.models)}
            for index, node in enumerate(cluster.nodes):
                column = known.get(node.gpu_model.lower())
                if column is not None:
                    factor = np.ascontiguousarray(workload.speeds.factor[:, column])
                    self._factors[index] = floats(factor)

    def solo_rate(self, job: int, placement: Placement) -> float:
        """Work per second alone on these GPUs; 1 on a GPU model for which nothing is known."""
        factor = self._factors.get(placement.nodes[0])
        speed = 1.0 if factor is None else factor[job]
        if self._curve is not None and (index := self._curve[job]) != NO_CURVE:
            # `Scaling.speed`, on plain numbers.
            by_nodes = self._curves[index][placement.gpus]
            speed *= by_nodes[min(len(placement.nodes), len(by_nodes)) - 1] / self._reference[job]
        return speed

    def share(self, job: int, placement: Placement, neighbours: list[tuple[int, int]]) -> float:
        """Share of its solo speed that a job gets beside these (layer, job) on its GPUs; 1 where nobody shares."""
        if self.sharing is None:
            return 1.0
        return self.sharing.rate(job, placement.layer, neighbours, self._model_of[placement.nodes[0]])
