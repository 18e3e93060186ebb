"""The sizes of elastic jobs as policies and the simulator read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gpuloom.core.pace import Pace
from gpuloom.core.replicas import Replicas
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.workload import F8


def scaling_of(
    sizes: Sequence[tuple[int, Replicas | None]],
    paces: Sequence[Pace],
    most_gpus: int | None = None,
    *,
    held: Mapping[int, int] = MappingProxyType({}),
    slower: bool = False,
) -> Scaling | None:
    """The sizes and curves of these jobs; None if no job is elastic.

    A curve has a speed for each size of its job, relative to the one that it asks for, on however many nodes: what
    nodes cost is not known. Sizes beyond the fastest one are left out: no job is made slower.

    Args:
        sizes: of each job the GPUs that it asks for, and what it may have. most_gpus: no job may have more.
        held: by row, GPUs that a job has now: this size is there, however slow it has turned out to be.
        slower: sizes beyond the fastest one are there as well, and speeds are to one percent: those who learn fit a
            model to each curve that is new, and measured speeds are never quite the same.
    """
    if all(replicas is None for _, replicas in sizes):
        return None
    count = len(sizes)
    each, least, most = np.ones(count, dtype=np.int32), np.zeros(count, np.int32), np.zeros(count, np.int32)
    curve = np.full(count, NO_CURVE, dtype=np.int32)
    curves: list[F8] = []
    places: dict[tuple[int, int, Replicas, int], tuple[int, int]] = {}
    for row, ((asked, replicas), pace) in enumerate(zip(sizes, paces, strict=True)):
        if replicas is None:
            least[row] = most[row] = asked
            continue
        has = asked if slower else max(asked, held.get(row, 0))
        key = id(pace), asked, replicas, has
        if key not in places:
            allowed = [
                size for size in replicas.sizes if most_gpus is None or size <= max(most_gpus, has, held.get(row, 0))
            ]
            fastest = max(allowed, key=lambda size: (pace.at_size(size), -size))
            allowed = [size for size in allowed if slower or size <= max(fastest, has)]
            table = np.zeros((allowed[-1] + 1, 1))
            speeds = [pace.at_size(size) for size in allowed]
            table[allowed, 0] = [max(round(speed, 2), 0.01) for speed in speeds] if slower else speeds
            places[key] = len(curves), allowed[-1]
            curves.append(table)
        curve[row], largest = places[key]
        each[row], least[row], most[row] = replicas.gpus, replicas.least, replicas.of(largest)
    return Scaling(each, least, most, curve, np.ones(count), tuple(curves))
