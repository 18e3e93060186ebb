"""Figures over time and of a span of time, as the API shows them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, cast

import numpy as np

from gpuloom.core.errors import NotFoundError
from gpuloom.core.workload import F8
from gpuloom.live.figures.each import COLUMNS, Of
from gpuloom.live.figures.sample import Figures, UserFigures
from gpuloom.live.figures.stats import Stats, checked_span, checked_user, series_of, stats_of
from gpuloom.live.views.cluster_answers import EachSeriesView, PointView, SeriesView, StatsView, UserPointView
from gpuloom.store.port import Store

HOUR_S = 3600.0


def stats_view(store: Store, since_s: float | None, until_s: float | None, user: str | None, now_s: float) -> StatsView:
    """Figures of what ran in a span, by default the last day.

    Raises:
        InputError: no such span. NotFoundError: no such user. StoreError: the store can't be read.
    """
    span = checked_span(since_s, until_s, now_s)
    checked_user(store, user)
    return _stats(stats_of(store, *span, user, now_s))


def _stats(found: Stats) -> StatsView:
    return cast("StatsView", asdict(found))  # the same fields: tests/contract/test_answers.py


def series_view(
    store: Store, since_s: float | None, until_s: float | None, user: str | None, now_s: float
) -> SeriesView:
    """The samples of a span, by default of the last day. Raises: as `stats_view`."""
    since, until = checked_span(since_s, until_s, now_s)
    checked_user(store, user)
    points = _points(series_of(store, since, until), user)
    return {"since_s": since, "until_s": until, "user": user, "points": points}


def each_series_view(
    store: Store, by: Of, name: str | None, since_s: float | None, until_s: float | None, now_s: float
) -> EachSeriesView:
    """What each node, GPU, user or job used in a span, by default the last hour; name: that one alone.

    Raises:
        InputError: no such span. NotFoundError: nothing is known of that one then. StoreError: the store can't be read.
    """
    if since_s is None:
        since_s = min(now_s if until_s is None else until_s, now_s) - HOUR_S
    since, until = checked_span(since_s, until_s, now_s)
    samples = series_of(store, since, until, each=True)
    tables = [(place, sample.each[by]) for place, sample in enumerate(samples) if by in sample.each]
    names = sorted({one for _, found in tables for one in found.names if name in (None, one)}, key=_natural)
    line_of = {one: line for line, one in enumerate(names)}
    values = np.full((len(names), len(COLUMNS[by]), len(samples)), np.nan)
    for place, found in tables:
        rows = [row for row, one in enumerate(found.names) if one in line_of]
        values[[line_of[found.names[row]] for row in rows], :, place] = found.values[rows]
    if name is not None and not names:
        raise NotFoundError(f"there are no figures of {by} {name!r} in that time (GPUs are named NODE:INDEX)")
    answer: dict[str, Any] = {
        "since_s": since,
        "until_s": until,
        "by": by.value,
        "from_s": [sample.from_s for sample in samples],
        "span_s": [sample.span_s for sample in samples],
        "lines": [
            {"name": one, "figures": dict(zip(COLUMNS[by], told, strict=True))}
            for one, told in zip(names, _with_none(values), strict=True)
        ],
    }
    return cast("EachSeriesView", answer)  # the columns are FigureOfEach: tests/contract/test_answers.py


def _with_none(values: F8) -> list[Any]:
    """As lists; None for NaN."""
    told = values.astype(object)
    told[np.isnan(values)] = None
    found: list[Any] = told.tolist()
    return found


def _natural(name: str) -> list[tuple[int, str]]:
    """node9 before node10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _points(samples: Iterable[Figures], user: str | None) -> list[PointView]:
    found: list[PointView] = []
    ended, jct_s = 0, 0.0
    for sample in samples:
        one = sample.of(user)
        ended, jct_s = ended + one.ended, jct_s + one.jct_s
        machines = sample.machines
        found.append(
            {
                "from_s": sample.from_s,
                "span_s": sample.span_s,
                "queue_length": one.queue_length,
                "running": one.running,
                "busy_gpus": one.busy_gpus,
                "gpus": sample.gpus,
                "utilization": one.busy_gpus / sample.gpus if sample.gpus else None,
                "blocking_index": one.blocking_index,
                "ended": one.ended,
                "avg_jct_s": _jct_s(one),
                "avg_jct_so_far_s": jct_s / ended if ended else None,
                "users": sample.users,
                "nodes": sample.nodes,
                "nodes_up": sample.nodes_up,
                "gpu_utilization": machines.gpu_utilization,
                "gpu_memory_used_mib": machines.gpu_memory_used_mib,
                "gpu_memory_mib": machines.gpu_memory_mib,
                "cpu_percent": machines.cpu_percent,
                "memory_used_mib": machines.memory_used_mib,
                "memory_mib": machines.memory_mib,
                "disk_free_mib": machines.disk_free_mib,
                "read_mib_per_s": machines.read_mib_per_s,
                "write_mib_per_s": machines.write_mib_per_s,
                "received_mib_per_s": machines.received_mib_per_s,
                "sent_mib_per_s": machines.sent_mib_per_s,
                "by_user": [
                    _of_user(name, figures) for name, figures in sample.of_users.items() if user in (None, name)
                ],
            }
        )
    return found


def _of_user(name: str, one: UserFigures) -> UserPointView:
    return {
        "user": name,
        "queue_length": one.queue_length,
        "running": one.running,
        "busy_gpus": one.busy_gpus,
        "blocking_index": one.blocking_index,
        "ended": one.ended,
        "avg_jct_s": _jct_s(one),
    }


def _jct_s(one: UserFigures) -> float | None:
    return one.jct_s / one.ended if one.ended else None
