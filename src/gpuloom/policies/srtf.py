"""Shortest remaining time first: at every moment the jobs with the least time left run.

Priority is remaining solo time (Schrage, "A proof of the optimality of the SRPT discipline", 1968: optimal for the
average completion time on one machine). As a baseline of GPU scheduling: Tiresias (NSDI'19), section 3; Muri
(SIGCOMM'22), section 6.1.
"""

from __future__ import annotations

from gpuloom.policies.base import Preemptive, Traits
from gpuloom.policies.remaining import ByRemaining


class Srtf(ByRemaining):
    """See the module."""

    id = "srtf"
    traits = Traits(
        summary="shortest remaining time first",
        knows="durations",
        preemptive=Preemptive.YES,
        heterogeneity=False,
        sharing=False,
        paper="Schrage 1968",
        weights="remaining time over weight (Smith)",
    )
    by_gpus = False
