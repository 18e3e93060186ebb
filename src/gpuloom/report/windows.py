"""Which part of a run a chart shows when it can't show all: the part with most activity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.core.cluster import ANY_MODEL, parse_cluster
from gpuloom.core.errors import ClusterError
from gpuloom.core.sums import sum_ints
from gpuloom.report.series import downsample, span
from gpuloom.sim.result import SimResult

BINS = 400
MOST_ROWS = 64
"""GPUs that a chart has room for."""
MOST_RUNS = 400
"""Runs on these GPUs that can be told apart."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A node of a chart. number: its index in the result. gpus: how many it has."""

    number: int
    name: str
    model: str
    gpus: int


def shown_nodes(results: Sequence[SimResult]) -> list[Shown]:
    """Nodes with together no more GPUs than there is room for, from all over the cluster."""
    result = next((r for r in results if r.segments is not None), None)
    if result is None or result.segments is None:
        return []
    names = result.node_names
    try:
        known = parse_cluster(result.cluster).nodes
    except ClusterError:
        known = ()
    if len(known) == len(names):
        sizes = [node.gpus for node in known]
        models = ["" if node.gpu_model == ANY_MODEL else node.gpu_model for node in known]
    else:  # of a cluster without a short form what ran tells how large its nodes are
        models, sizes = [""] * len(names), [1] * len(names)
        for node, mask in zip(result.segments.node.tolist(), result.segments.gpu_mask.tolist(), strict=True):
            if node < len(sizes):
                sizes[node] = max(sizes[node], int(mask).bit_length())
    count = min(len(names), MOST_ROWS)  # each has a GPU at least
    while count > 1 and sum_ints(sizes[i] for i in _spread(len(names), count)) > MOST_ROWS:
        count -= 1
    return [Shown(i, names[i], models[i], min(sizes[i], MOST_ROWS)) for i in _spread(len(names), count)]


def _spread(total: int, count: int) -> list[int]:
    return sorted({int(i) for i in np.linspace(0, total - 1, count).round()}) if total else []


def busiest(results: Sequence[SimResult], nodes: Sequence[Shown]) -> tuple[float, float]:
    """Begin and end, on the trace's clock, of the time in which most jobs wait, short enough to tell runs apart."""
    recorded = [result for result in results if result.segments is not None]
    if not recorded:
        return 0.0, 1.0
    spans = [span(result) for result in recorded]
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    queue, busy = np.zeros(BINS), np.zeros(BINS)
    for result in recorded:
        means = downsample(result.timeline, start, end, BINS)
        queue += means.queue_length
        busy += means.busy_gpus
    weight = queue if queue.max() > 0 else busy
    wide = BINS
    while True:
        total = np.convolve(weight, np.ones(wide), "valid")
        first = int(total.argmax())
        begin, until = start + (end - start) * first / BINS, start + (end - start) * (first + wide) / BINS
        if wide == 1 or max(_runs(result, nodes, begin, until) for result in recorded) <= MOST_RUNS:
            return begin, until
        wide = max(wide * 3 // 4, 1)


def _runs(result: SimResult, nodes: Sequence[Shown], begin: float, end: float) -> int:
    segments = result.segments
    if segments is None:
        return 0
    there = np.isin(segments.node, [node.number for node in nodes])
    return int((there & (segments.start_s < end) & ~(segments.end_s <= begin)).sum())


def most_different_jobs(results: Sequence[SimResult], count: int) -> int:
    """The first of `count` jobs in order of submission whose completion times differ most between the policies.

    Of one policy alone: of those that waited longest for what they ran.
    """
    if len({result.job_ids for result in results}) > 1:
        return 0
    jct = np.array([result.jct_s for result in results])
    if jct.size == 0 or jct.shape[1] <= count:
        return 0
    least = jct.min(axis=0)
    if len(results) == 1:
        waited = results[0].start_s - results[0].submit_s
        least = jct[0] - waited
    with np.errstate(divide="ignore", invalid="ignore"):
        differ = np.log(jct.max(axis=0) / np.maximum(least, 1.0))
    differ = np.where(np.isfinite(differ), np.maximum(differ, 0.0), 0.0)
    return int(np.convolve(differ, np.ones(count), "valid").argmax())
