"""Nodes that fail and come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.errors import InputError


@dataclass(frozen=True, slots=True)
class Failure:
    """Node `node` (its index) is out of service from `start_s` to `end_s`."""

    node: int
    start_s: float
    end_s: float


def random_failures(
    cluster: Cluster, *, mtbf_s: float, repair_s: float, start_s: float, until_s: float, seed: int
) -> list[Failure]:
    """Failures with exponential times between failures (per node) and exponential repair times, both in seconds."""
    if mtbf_s <= 0 or repair_s <= 0:
        raise InputError("the mean time between failures and the mean repair time must be above 0")
    rng = np.random.default_rng(seed)
    failures: list[Failure] = []
    for node in range(len(cluster.nodes)):
        now = start_s
        while True:
            now += float(rng.exponential(mtbf_s))
            if now >= until_s:
                break
            end = now + float(rng.exponential(repair_s))
            failures.append(Failure(node, now, end))
            now = end
    return failures


def failure_events(failures: Sequence[Failure], cluster: Cluster) -> list[tuple[float, int, int]]:
    """(time, 0 lost or 1 back, node), in order of time; at equal times losses first.

    Raises:
        InputError: a node that does not exist, an end before its start, or overlapping failures of a node.
    """
    last: dict[int, float] = {}
    for failure in sorted(failures, key=lambda f: (f.node, f.start_s)):
        if not 0 <= failure.node < len(cluster.nodes):
            raise InputError(f"failure of node {failure.node}: the cluster has nodes 0 to {len(cluster.nodes) - 1}")
        if not failure.end_s > failure.start_s or failure.start_s < last.get(failure.node, -np.inf):
            raise InputError(f"{failure}: must end after it starts, and after the node's failure before it")
        last[failure.node] = failure.end_s
    events = [(failure.start_s, 0, failure.node) for failure in failures]
    events += [(failure.end_s, 1, failure.node) for failure in failures]
    return sorted(events)
