"""Runs that a trace tells of, as a simulation records them: segments, the cluster over time, moves and resizes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuloom.core.cluster import Cluster
from gpuloom.core.ran import Run, Runs
from gpuloom.core.sums import sum_floats
from gpuloom.core.workload import F8, Workload
from gpuloom.sim.result import Segments, Timeline

SAME_MOMENT_S = 0.001
"""A moment of overlap is the change from one job to the next."""
MOVED_WITHIN_S = 30.0
"""A job that was preempted and is on other GPUs after no longer than this was moved; after longer it had to wait."""


@dataclass(frozen=True, slots=True)
class RanOn:
    """What runs come to. busy_gpu_s: GPU-seconds for which GPUs were held, by however many jobs at once; shared_gpu_s:
    of these, by several. held_gpu_s: by job and GPU model of the cluster."""

    segments: Segments
    timeline: Timeline
    waited_s: float
    busy_gpu_s: float
    shared_gpu_s: float
    held_gpu_s: F8
    moves: int
    resizes: int


def ran_on(workload: Workload, runs: Runs, cluster: Cluster) -> RanOn | None:
    """Of a trace's jobs on the cluster where it was taken; None if a run was on GPUs that are not in it, or a job's
    runs are not told."""
    names = runs.nodes or tuple(node.name for node in cluster.nodes)
    if len(names) != len(cluster.nodes) or not all(runs.runs):
        return None
    at = {name: index for index, name in enumerate(names)}
    for each in runs.runs:
        for run in each:
            if any(node not in at or max(gpus) >= cluster.nodes[at[node]].gpus for node, gpus in run.parts):
                return None
    submitted = workload.submit_s.tolist()
    waited_s = sum_floats(gap for job, each in enumerate(runs.runs) for gap in _gaps(submitted[job], each))
    held = np.zeros((len(workload), len(cluster.models)))
    stays: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
    for job, each in enumerate(runs.runs):
        for run in each:
            for node, gpus in run.parts:
                model = cluster.models.index(cluster.nodes[at[node]].gpu_model)
                held[job, model] += len(gpus) * (run.end_s - run.start_s)
                for gpu in gpus:
                    stays[node, gpu].append((run.start_s, run.end_s))
    busy_s, shared_s, changes = 0.0, 0.0, []
    for spans in stays.values():
        steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
        holders, since = 0, 0.0
        for moment, step in steps:
            busy_s += moment - since if holders > 0 else 0.0
            shared_s += moment - since if holders > 1 else 0.0
            before, holders, since = holders, holders + step, moment
            if (before > 0) != (holders > 0):
                changes.append((moment, 0, 1 if holders else -1))
    for job, each in enumerate(runs.runs):
        changes.append((submitted[job], 1, 0))
        for run, after in zip(each, [*each[1:], None], strict=True):
            changes.append((run.start_s, -1, 0))
            if after is not None:
                changes.append((run.end_s, 1, 0))
    pairs = [(a, b) for each in runs.runs for a, b in pairwise(each)]
    return RanOn(
        _segments(runs, at),
        _timeline(changes),
        waited_s,
        busy_s,
        shared_s,
        held,
        sum(_was_moved(a, b) for a, b in pairs),
        sum(a.gpus != b.gpus for a, b in pairs),
    )


def _gaps(submitted_s: float, runs: tuple[Run, ...]) -> list[float]:
    ends = [submitted_s, *(run.end_s for run in runs[:-1])]
    return [max(run.start_s - end_s, 0.0) for end_s, run in zip(ends, runs, strict=True)]


def _was_moved(run: Run, after: Run) -> bool:
    elsewhere = run.gpus == after.gpus and run.parts != after.parts
    return run.ended_by == "preempted" and elsewhere and after.start_s - run.end_s <= MOVED_WITHIN_S


def _timeline(changes: list[tuple[float, int, int]]) -> Timeline:
    times, queue, busy = (np.array(column) for column in zip(*changes, strict=True))
    moments, place = np.unique(times, return_inverse=True)
    lengths, held = np.zeros(len(moments), dtype=np.int64), np.zeros(len(moments), dtype=np.int64)
    np.add.at(lengths, place, queue)
    np.add.at(held, place, busy)
    return Timeline(moments, lengths.cumsum().astype(np.int32), held.cumsum().astype(np.int32))


def _segments(runs: Runs, at: dict[str, int]) -> Segments:
    """Who shares a GPU with another is a layer above it."""
    ordered = sorted(((run.start_s, job, run) for job, each in enumerate(runs.runs) for run in each), key=_start)
    until: dict[tuple[str, int], list[float]] = defaultdict(list)
    rows: list[tuple[int, float, float, int, int, int]] = []
    for start_s, job, run in ordered:
        slots = [(node, gpu) for node, gpus in run.parts for gpu in gpus]
        layer = 0
        while any(layer < len(until[slot]) and until[slot][layer] > start_s + SAME_MOMENT_S for slot in slots):
            layer += 1
        for slot in slots:
            until[slot] += [-np.inf] * (layer + 1 - len(until[slot]))
            until[slot][layer] = run.end_s
        for node, gpus in run.parts:
            mask = 0
            for gpu in gpus:
                mask |= 1 << gpu
            rows.append((job, start_s, run.end_s, at[node], mask, layer))
    masks = np.empty(len(rows), dtype=object)
    masks[:] = [row[4] for row in rows]
    return Segments(
        job=np.array([row[0] for row in rows], dtype=np.int32),
        start_s=np.array([row[1] for row in rows]),
        end_s=np.array([row[2] for row in rows]),
        node=np.array([row[3] for row in rows], dtype=np.int32),
        gpu_mask=masks,
        layer=np.array([row[5] for row in rows], dtype=np.int32),
    )


def _start(row: tuple[float, int, Run]) -> tuple[float, int]:
    return row[0], row[1]
