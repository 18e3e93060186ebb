"""The series of charts and tables, computed from a `SimResult` and reduced to as many points as can be drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuloom.sim.result import F8, SimResult, Timeline

QUANTILES = ((10, "p10"), (25, "p25"), (50, "p50"), (75, "p75"), (90, "p90"), (99, "p99"), (100, "max"))
MAX_CLASSES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Binned:
    """A timeline as means over bins: value i is the mean from `edges_s[i]` to `edges_s[i + 1]`."""

    edges_s: F8
    queue_length: F8
    busy_gpus: F8


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """Part `share[i]` of all jobs had a JCT of at most `jct_s[i]`."""

    jct_s: F8
    share: F8


def downsample(timeline: Timeline, start: float, end: float, bins: int) -> Binned:
    """Time-weighted means of a timeline in `bins` equal bins from `start` to `end`.

    A value holds until the next change, the last one to `end`; before the first change it is 0. Of several
    changes at one instant the last one counts.

    Raises:
        ValueError: no bins, or the range is empty or not finite.
    """
    if bins < 1 or not (math.isfinite(start) and math.isfinite(end) and start < end):
        raise ValueError(f"can't cut the time from {start} to {end} into {bins} bins")
    edges = np.linspace(start, end, bins + 1)
    inside = timeline.time_s[(timeline.time_s > start) & (timeline.time_s < end)]
    # Pieces of constant value: the range cut at every edge and every change.
    cuts = np.unique(np.concatenate([edges, inside]))
    held = np.searchsorted(timeline.time_s, cuts[:-1], side="right") - 1
    length = np.diff(cuts)
    first = np.minimum(np.searchsorted(cuts, edges[:-1]), len(length) - 1)
    last = np.minimum(np.searchsorted(cuts, edges[1:]), len(length))
    weight = np.add.reduceat(length, first)

    def means(values: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> F8:
        if len(values) == 0:
            return np.zeros(bins)
        piece = np.where(held >= 0, values[held], 0).astype(np.float64)
        mean: F8 = np.add.reduceat(piece * length, first) / weight
        whole: F8 = np.where(last - first <= 1, piece[first], mean)  # no change inside: the value itself
        return whole

    return Binned(edges, means(timeline.queue_length), means(timeline.busy_gpus))


def span(result: SimResult) -> tuple[float, float]:
    """From the first submission to the last thing that happened; never empty."""
    times = np.concatenate([result.submit_s, result.start_s, result.end_s, result.timeline.time_s])
    times = times[np.isfinite(times)]
    if len(times) == 0:
        return 0.0, 1.0
    start = float(np.min(result.submit_s)) if len(result.submit_s) else float(times.min())
    end = float(times.max())
    return start, max(end, start + 1.0, math.nextafter(start, math.inf))


def distribution(result: SimResult, points: int) -> Distribution:
    """The cumulative distribution of JCT over all jobs: below 1 at its end if jobs had not ended."""
    jct = np.sort(result.jct_s[np.isfinite(result.jct_s)])
    if len(jct) == 0:
        return Distribution(jct, jct)
    rank = np.unique(np.linspace(0, len(jct) - 1, min(points, len(jct))).round().astype(np.int64))
    return Distribution(jct[rank], (rank + 1) / max(len(result.jct_s), 1))


def quantiles(result: SimResult) -> list[float]:
    """The JCT at each of `QUANTILES`: sorted[int(q n)]; p50 and p99 as the summary has them."""
    jct = np.sort(result.jct_s[np.isfinite(result.jct_s)])
    found = []
    for percent, _ in QUANTILES:
        if percent == 50:
            found.append(result.median_jct_s)
        elif percent == 99:
            found.append(result.p99_jct_s)
        elif len(jct) == 0:
            found.append(math.nan)
        else:
            found.append(float(jct[min(percent * len(jct) // 100, len(jct) - 1)]))
    return found


def gpu_classes(results: Sequence[SimResult]) -> list[tuple[int, int]]:
    """Classes of jobs by GPU count, as (lowest, highest): each count its own, or powers of two if many."""
    counts = np.unique(np.concatenate([result.job_gpus for result in results])).tolist() if results else []
    if len(counts) <= MAX_CLASSES:
        return [(count, count) for count in counts]
    classes = []
    for power in sorted({max(count - 1, 0).bit_length() for count in counts}):
        classes.append((2 ** (power - 1) + 1 if power > 0 else min(counts[0], 1), 2**power))
    return classes


def class_means(result: SimResult, classes: Sequence[tuple[int, int]]) -> list[tuple[int, float]]:
    """Per class the number of its jobs, and the mean JCT of those that ended (NaN if none)."""
    ended = np.isfinite(result.jct_s)
    rows = []
    for lowest, highest in classes:
        within = (result.job_gpus >= lowest) & (result.job_gpus <= highest)
        jct = result.jct_s[within & ended]
        rows.append((int(within.sum()), float(jct.mean()) if len(jct) else math.nan))
    return rows


def relative_jct(results: Sequence[SimResult]) -> list[tuple[float, float]]:
    """Average and p99 JCT of each result over the least of all; NaN for interrupted runs (see `best`)."""
    columns = []
    for values in ([result.avg_jct_s for result in results], [result.p99_jct_s for result in results]):
        rated = [math.nan if r.interrupted else value for r, value in zip(results, values, strict=True)]
        least = min((value for value in rated if value > 0), default=math.nan)
        columns.append([value / least for value in rated])
    return list(zip(*columns, strict=True))


def labels(results: Sequence[SimResult]) -> list[str]:
    """A name per result, each different: the policy, with trace, cluster or a number where that isn't enough."""
    names = [result.policy for result in results]
    if len({result.trace for result in results}) > 1:
        names = [f"{name} · {result.trace}" for name, result in zip(names, results, strict=True)]
    if len({result.cluster for result in results}) > 1:
        names = [f"{name} · {result.cluster}" for name, result in zip(names, results, strict=True)]
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique
