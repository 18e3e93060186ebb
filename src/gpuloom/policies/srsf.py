"""Shortest remaining service first: remaining solo time × GPUs, small first.

The two-dimensional form of SRTF: Tiresias (NSDI'19), section 3.1; Muri-S orders by it (SIGCOMM'22, section 4.2).
"""

from __future__ import annotations

from gpuloom.policies.base import Preemptive, Traits
from gpuloom.policies.remaining import ByRemaining


class Srsf(ByRemaining):
    """See the module."""

    id = "srsf"
    traits = Traits(
        summary="shortest remaining GPU-time first",
        knows="durations",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=False,
        paper="Tiresias NSDI'19 §3.1",
        weights="remaining GPU-time over weight",
    )
    by_gpus = True
