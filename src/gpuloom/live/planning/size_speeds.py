"""How fast an elastic job is at each of its sizes, relative to the one that it asks for.

Measured: iterations per second that its own runs reported at a size, on the GPU model on which most sizes were
measured. Iterations have to mean the same at all sizes (one global batch, split among the replicas). Other sizes follow
Amdahl's law with the parallel share that is usual (`traces/elastic.py`, as in the simulator), bent through what was
measured: the logarithm of measured over usual speed is linear in log GPUs between two measured sizes, and stays as it
is beyond them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import numpy as np

from gpuloom.core import logs
from gpuloom.core.pace import ModelSpeed, SpeedSource
from gpuloom.traces.elastic import PARALLEL

KEEP = 5
"""Runs of which the median counts."""

Rates = Mapping[str, Mapping[int, Sequence[float]]]
"""Iterations per second by GPU model and GPUs, in the order of the runs."""


def size_speeds(asked: int, sizes: Sequence[int], rates: Rates) -> dict[int, ModelSpeed]:
    """By GPUs, for each of these sizes; `asked` is one of them."""
    by_size = max(rates.values(), key=lambda found: (len(found), sum(map(len, found.values()))), default={})
    at = np.array(sorted(by_size), dtype=np.float64)
    rate = np.array([median(by_size[int(gpus)][-KEEP:]) for gpus in at])
    wanted = np.array(sizes, dtype=np.float64)
    speed = _usual(wanted)
    if len(at):
        speed = speed * logs.exp(np.interp(logs.log(wanted), logs.log(at), logs.log(rate / _usual(at))))
    factors = (speed / speed[list(sizes).index(asked)]).tolist()
    return {
        gpus: ModelSpeed(factor, SpeedSource.MEASURED, median(runs[-KEEP:]), len(runs))
        if (runs := by_size.get(gpus))
        else ModelSpeed(factor, SpeedSource.USUAL)
        for gpus, factor in zip(sizes, factors, strict=True)
    }


def _usual(gpus: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Amdahl's law: speed on so many GPUs, one being 1."""
    return 1.0 / ((1.0 - PARALLEL) + PARALLEL / gpus)
