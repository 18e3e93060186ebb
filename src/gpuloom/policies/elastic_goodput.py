"""Elastic training by marginal throughput: GPUs that no job needs go where they bring most progress.

All jobs that the base policy runs have their smallest size. What is left of each GPU model is lent so that

    Σ weight · u(speed(size) / speed(smallest size)),   u(s) = s^alpha / alpha   (log s for alpha = 0)

is as large as possible (`scaling/choose.py`). alpha = 1 is throughput alone; below 1 a job that is fast already
gains less from being faster (alpha-fairness: Mo and Walrand, 2000); -1 is least total time if nothing changed any more.
The weight goes by what is known:
    asked: speed at the smallest size / speed at the size that the user asked for: who asks for many GPUs has much
        work, and little is gained by finishing it soon.
    remaining: (time left at the smallest size + `floor`)^-`power`: the shorter the more (Berg, Vesilo, Harchol-Balter,
        "heSRPT: parallel scheduling to minimize mean slowdown", 2020).
Either is multiplied by the job's own weight, where the trace has any.

A change of size costs `resize_overhead_s` of work. It is made only if the gain of `horizon` exceeds that (or of the
time for which the job is expected to go on, if that is shorter: as long as it has run so far, unless ends are known).
A running job grows only if that makes it faster by `least`. GPUs are taken from a job for another only once in a
`period`, and if the gain exceeds what both lose. A job grows on its own nodes; where its curve says that it runs faster
together elsewhere, or on another GPU model, it goes there, a restart counted.
"""

from __future__ import annotations

from typing import ClassVar

from gpuloom.policies.base import Parameter, Preemptive, Traits
from gpuloom.policies.composed import BASE
from gpuloom.policies.growth import GOODPUT, Growing


class ElasticGoodput(Growing):
    """See the module."""

    id = "elastic-goodput"
    traits = Traits(
        summary="elastic jobs borrow free GPUs where they gain most",
        knows="speeds by size, and what the base knows",
        preemptive=Preemptive.AS_BASE,
        heterogeneity=True,
        sharing=False,
        paper="gpuloom",
        weights="growth by weight, else as the base",
    )
    parameters: ClassVar[tuple[Parameter, ...]] = (BASE, *GOODPUT)
