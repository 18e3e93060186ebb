"""The earliest time at which a job that does not fit now will fit, by the predicted ends of running jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuloom.core.decision import Placement
from gpuloom.placement.pool import Pool


@dataclass(frozen=True, slots=True)
class Reservation:
    """`job` will have these GPUs of pool `pool` at `start_s`, if running jobs end as predicted."""

    job: int
    start_s: float
    pool: int
    placement: Placement


def reserve(
    job: int,
    gpus: int,
    pools: Sequence[Pool],
    allowed: Iterable[int],
    running: Iterable[tuple[float, Placement]],
    now_s: float,
) -> Reservation | None:
    """The earliest reservation over the allowed pools.

    Args:
        running: (predicted end, placement) of the running jobs.

    Returns:
        None if the job would not fit even when all of them have ended (nodes out of service).
    """
    best: Reservation | None = None
    ends = sorted(running, key=lambda entry: (entry[0], entry[1].nodes))
    for index in allowed:
        pool = pools[index].copy()
        start_s = now_s
        if not pool.fits(gpus):
            for end_s, placement in ends:
                if placement.nodes[0] not in pool.free:
                    continue
                pool.release(placement)
                start_s = end_s
                if pool.fits(gpus):
                    break
        found = pool.take(gpus)
        if found is not None and (best is None or start_s < best.start_s):
            best = Reservation(job, start_s, index, found)
    return best
