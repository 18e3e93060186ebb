"""How fast two jobs are expected to be beside each other on one GPU, kernel by kernel, and the p99 of the service.

Sources of a best-effort job's speed, the best first: what was measured of such jobs beside each other
(`Workload.pairs`), what their kernel profiles lead to expect (`Workload.kernel_pairs`), a number for all.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from gpuloom.core.pairs import NO_KIND
from gpuloom.core.share_class import BEST_EFFORT, HIGH
from gpuloom.core.workload import Workload

NONE, IS_HIGH, IS_BEST_EFFORT = 0, 1, 2


def pairable(workload: Workload) -> list[int]:
    """By job NONE, IS_HIGH or IS_BEST_EFFORT; jobs of several GPUs are NONE, as such are not gated."""
    labels = workload.share_class
    if labels is None:
        return [NONE] * len(workload)
    code_of = {HIGH: IS_HIGH, BEST_EFFORT: IS_BEST_EFFORT}
    codes = np.array([code_of.get(name, NONE) for name in labels.names])[labels.codes]
    found: list[int] = np.where(workload.gpus == 1, codes, NONE).tolist()
    return found


class PairSource(StrEnum):
    """Where a pair's speed is known from."""

    MEASURED = "measured"
    PROFILES = "kernel profiles"
    DEFAULT = "the default"


class ExpectedPair(NamedTuple):
    """speed: of the best-effort job, relative to alone; 0: the two don't fit together. p99: of the service's requests
    over theirs alone; 1 where nothing is known of it. source: of the speed. known_p99: p99 is from kernel profiles."""

    speed: float
    p99: float
    source: PairSource
    known_p99: bool


class Expected:
    """What is expected of the pairs of a workload.

    Args:
        speed: of a best-effort job where nothing is known of the pair. Beside services that are busy half of the time
            the shim gives it 0.5, the rule 0.55 simulated (docs/results/sharing.md, Pairs).
        most_p99: pairs whose service is expected to have a higher p99 over alone are not formed.

    Attributes:
        by_pair: not all pairs are expected to be equal.
    """

    def __init__(self, workload: Workload, speed: float, most_p99: float) -> None:
        self.speed, self.most_p99 = speed, most_p99
        self._measured, self._profiles = workload.pairs, workload.kernel_pairs
        self._is_high = [kind == IS_HIGH for kind in pairable(workload)]
        self.by_pair = self._measured is not None or self._profiles is not None

    def pair(self, service: int, best_effort: int, gpu_model: str) -> ExpectedPair:
        """Of two jobs, by their rows, on one GPU of this model."""
        expected = None
        if self._profiles is not None and self._is_high[service]:
            expected = self._profiles.beside(service, best_effort)
        p99 = 1.0 if expected is None else expected.p99
        measured = self._measured_speed(service, best_effort, gpu_model)
        if measured is not None:
            return ExpectedPair(measured, p99, PairSource.MEASURED, expected is not None)
        if expected is not None:
            return ExpectedPair(expected.speed, p99, PairSource.PROFILES, True)
        return ExpectedPair(self.speed, p99, PairSource.DEFAULT, False)

    def is_pending(self, service: int, best_effort: int) -> bool:
        """Whether more is known of two jobs in a moment."""
        return self._profiles is not None and self._profiles.is_pending(service, best_effort)

    def _measured_speed(self, service: int, best_effort: int, gpu_model: str) -> float | None:
        """A service keeps its speed under the shim, so only that of the other counts; 0: they don't fit together."""
        if self._measured is None:
            return None
        one, two = int(self._measured.of_job[service]), int(self._measured.of_job[best_effort])
        share = self._measured.on(gpu_model)
        if share is None or NO_KIND in (one, two) or math.isnan(share[two, one]):
            return None
        return min(float(share[two, one]), 1.0)

    def words(self, service: int, best_effort: int, gpu_model: str) -> str:
        """The source, for people."""
        found = self.pair(service, best_effort, gpu_model)
        if found.source is PairSource.MEASURED and self._measured is not None:
            text = f"measured, {self._measured.source}"
        elif found.source is PairSource.DEFAULT:
            text = "the default of beside_speed: no kernel profiles of both"
        else:
            text = found.source.value
        return f"{text}; p99 of the service {found.p99:.3f} of alone" if found.known_p99 else text


class KernelSharing:
    """A best-effort job beside another job runs at a share of its speed, its host as if alone. Implements `Sharing`."""

    starts_together = False

    def __init__(self, workload: Workload, expected: Expected) -> None:
        kinds = pairable(workload)
        self._guest = [kind == IS_BEST_EFFORT for kind in kinds]
        self._classed = [kind != NONE for kind in kinds]
        self._expected = expected

    def rate(self, job: int, layer: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> float:
        """Share of its solo speed that `job` gets."""
        if not (neighbours and self._guest[job]):
            return 1.0
        expected = self._expected
        return expected.pair(neighbours[0][1], job, gpu_model).speed or expected.speed  # they are there, so they fit

    def source(self, job: int, neighbours: list[tuple[int, int]], gpu_model: str = "") -> str:
        """Where its rate is from."""
        if not (neighbours and self._guest[job]):
            return "kernel-level sharing: a service keeps its speed"
        return self._expected.words(neighbours[0][1], job, gpu_model)

    def most(self, job: int) -> int:
        """How many jobs may run on the GPUs of `job` at once."""
        return 2 if self._classed[job] else 1
