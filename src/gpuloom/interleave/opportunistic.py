"""How fast an opportunistic job runs beside others on its GPUs (AntMan's sharing).

A guaranteed job runs at full speed. An opportunistic job uses what is left over. If the stages of both are known, its
stages have to fit beside the other stages of the guaranteed job, and one of its iterations takes k of the guaranteed
job's (the rule of the released Muri simulator). If not, it gets `share` of its solo speed.
"""

from __future__ import annotations

from math import floor

from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import Workload

GUARANTEED_LAYER, OPPORTUNISTIC_LAYER = 0, 1


class OpportunisticSharing:
    """Jobs on layer 0 are guaranteed, all others opportunistic. Implements `Sharing`.

    Args:
        share: fraction of its solo speed that a job gets beside a guaranteed one of unknown stages, 0 to 1.
    """

    starts_together = False

    def __init__(self, workload: Workload, share: float) -> None:
        self._share = share
        known = workload.stage_s is not None and workload.iteration_s is not None
        self._stages: list[list[float]] | None = workload.stage_s.tolist() if known else None  # type: ignore[union-attr]
        self._iteration_s: list[float] = workload.iteration_s.tolist() if known else []  # type: ignore[union-attr]

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> float:
        """Share of its solo speed that `job` gets."""
        if layer == GUARANTEED_LAYER or not neighbours:
            return 1.0
        return 1.0 / max(1.0, *(self._slowdown(job, other) for _, other in neighbours))

    def source(self, job: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> str:
        """Where its rate is from."""
        known = all(self._known(job) and self._known(other) for _, other in neighbours)
        return "stage times" if known else "antman's parameter share"

    def _known(self, job: int) -> bool:
        return self._stages is not None and self._iteration_s[job] > 0 and sum_floats(self._stages[job]) > 0

    def most(self, job: int) -> int:
        """How many jobs may run on the GPUs of `job` at once."""
        return 2

    def _slowdown(self, job: int, other: int) -> float:
        if self._stages is not None:
            mine, its = self._stages[job], self._stages[other]
            own_s, its_s = self._iteration_s[job], self._iteration_s[other]
            if own_s > 0 and its_s > 0 and sum_floats(mine) > 0 and sum_floats(its) > 0:
                return iterations_spanned(mine, its) * its_s / own_s
        return 1.0 / self._share


def iterations_spanned(mine: list[float], its: list[float]) -> int:
    """Iterations of the guaranteed job over which one of the opportunistic job is spread.

    Args:
        mine, its: seconds of data loading, GPU compute and network per iteration, of the opportunistic and of the
            guaranteed job. The two are never in the same stage at a time.
    """
    load, compute, network = mine
    its_load, its_compute, its_network = its
    spans = 0
    beside_load, beside_compute, beside_network = (
        its_compute + its_network,
        its_load + its_network,
        its_load + its_compute,
    )
    if beside_load > 0:
        spans += floor(load / beside_load)
        rest = load % beside_load
        if rest > 0:
            spans += 1
            compute -= min(compute, its_network, beside_load - rest)
    if beside_compute > 0:
        spans += floor(compute / beside_compute)
        rest = compute % beside_compute
        if rest > 0:
            spans += 1
            if rest < its_load:
                network -= min(network, beside_network - rest)
    if beside_network > 0:
        spans += floor(network / beside_network)
        if network % beside_network > its_load:
            spans += 1
    return spans
