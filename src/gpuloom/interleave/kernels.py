"""How fast jobs run that share a GPU kernel by kernel (docs/sharing.md)."""

from __future__ import annotations

import numpy as np

from gpuloom.core.share_class import BEST_EFFORT
from gpuloom.core.workload import Workload


class KernelSharing:
    """A best-effort job beside another job runs at a share of its speed, its host as if alone. Implements `Sharing`.

    Args:
        speed: of a best-effort job beside a high one, relative to alone, 0 to 1. Beside services that are busy half of
            the time the shim gives it 0.5, the rule 0.55 simulated (docs/sharing-shim.md, docs/sharing.md, Pairs).
    """

    starts_together = False

    def __init__(self, workload: Workload, speed: float) -> None:
        labels = workload.share_class
        guests = (
            np.zeros(len(workload), dtype=bool)
            if labels is None
            else np.array([*labels.names])[labels.codes] == BEST_EFFORT
        )
        self._guest: list[bool] = guests.tolist()
        self._speed = speed

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]]) -> float:
        """Share of its solo speed that `job` gets."""
        return self._speed if neighbours and self._guest[job] else 1.0
