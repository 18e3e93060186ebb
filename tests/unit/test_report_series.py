"""Downsampling, distributions, quantiles, classes and axes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuloom.report.axis import linear_ticks, log_time_ticks, nice_step, time_text, time_ticks
from gpuloom.report.gantt import Bar, bars, thin_out
from gpuloom.report.series import (
    class_means,
    distribution,
    downsample,
    gpu_classes,
    labels,
    quantiles,
    relative_jct,
    span,
)
from report_builders import make_result, make_segments, make_timeline

steps = st.lists(st.tuples(st.integers(-50, 200), st.integers(0, 1000), st.integers(0, 64)), max_size=30)


def brute_force_mean(times: list[float], values: list[int], low: float, high: float) -> float:
    """Σ value · time it holds within [low, high], over high − low."""
    total = 0.0
    for index, value in enumerate(values):
        begins = times[index]
        ends = times[index + 1] if index + 1 < len(times) else math.inf
        total += value * max(0.0, min(ends, high) - max(begins, low))
    return total / (high - low)


@given(steps, st.integers(-60, 200), st.integers(1, 300), st.integers(1, 40))
@example([(0, 5, 1), (0, 7, 2)], 0, 10, 1)
def test_downsample_is_the_time_weighted_mean(
    changes: list[tuple[int, int, int]], start: int, length: int, bins: int
) -> None:
    changes = sorted(changes, key=lambda change: change[0])
    times = [time / 7 for time, _, _ in changes]
    queue, busy = [change[1] for change in changes], [change[2] for change in changes]
    found = downsample(make_timeline(times, queue, busy), start / 7, (start + length) / 7, bins)
    assert len(found.queue_length) == len(found.busy_gpus) == bins
    assert len(found.edges_s) == bins + 1
    for index in range(bins):
        low, high = found.edges_s[index], found.edges_s[index + 1]
        assert found.queue_length[index] == pytest.approx(brute_force_mean(times, queue, low, high), abs=1e-6)
        assert found.busy_gpus[index] == pytest.approx(brute_force_mean(times, busy, low, high), abs=1e-6)


def test_a_bin_without_a_change_holds_the_running_value_exactly() -> None:
    found = downsample(make_timeline([0.0, 0.1], [3, 7], [1, 2]), 0.0, 0.7, 13)
    assert found.queue_length[2:].tolist() == [7.0] * 11
    one = downsample(make_timeline([0.0], [5], [2]), -10.0, 10.0, 4)
    assert (one.queue_length.tolist(), one.busy_gpus.tolist()) == ([0.0, 0.0, 5.0, 5.0], [0.0, 0.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("start", "end", "bins"), [(0, 1, 0), (1, 1, 5), (2, 1, 5), (0, math.nan, 5), (0, math.inf, 5)]
)
def test_downsample_refuses_an_empty_range(start: float, end: float, bins: int) -> None:
    with pytest.raises(ValueError, match="bins"):
        downsample(make_timeline([0.0], [1], [1]), start, end, bins)


def test_a_million_changes_keep_their_integral() -> None:
    generator = np.random.default_rng(1)
    times = np.cumsum(generator.exponential(3.0, 1_000_000)) + 1e8
    timeline = make_timeline(times, generator.integers(0, 5000, 1_000_000), generator.integers(0, 64, 1_000_000))
    found = downsample(timeline, times[0], times[-1], 2000)
    assert len(found.queue_length) == 2000
    mean = float(np.sum(np.diff(times) * timeline.queue_length[:-1]) / (times[-1] - times[0]))
    assert found.queue_length.mean() == pytest.approx(mean, rel=1e-6)


def test_distribution_counts_all_jobs_and_keeps_its_ends() -> None:
    end = np.arange(1, 1001, dtype=float)
    end[-200:] = np.nan
    result = make_result(submit_s=np.zeros(1000), start_s=np.zeros(1000), end_s=end)
    found = distribution(result, 400)
    assert len(found.jct_s) <= 400
    assert (found.jct_s[0], found.share[0]) == (1.0, 0.001)
    assert (found.jct_s[-1], found.share[-1]) == (800.0, 0.8)
    assert np.all(np.diff(found.share) > 0)
    for jct, share in zip(found.jct_s, found.share, strict=True):
        assert share == np.sum(end <= jct) / 1000


def test_quantiles_are_sorted_at_int_q_n_and_agree_with_the_summary() -> None:
    jct = np.arange(100, dtype=float)[::-1]
    result = make_result(submit_s=np.zeros(100), start_s=np.zeros(100), end_s=jct)
    assert quantiles(result) == [10, 25, 49.5, 75, 90, 99, 99]
    nothing = make_result(end_s=[np.nan] * 3)
    assert [math.isnan(value) for value in quantiles(nothing)[:2]] == [True, True]
    assert len(quantiles(nothing)) == len(quantiles(result))


def test_classes_are_gpu_counts_or_powers_of_two() -> None:
    few = make_result()
    assert gpu_classes([few]) == [(1, 1), (4, 4), (8, 8)]
    assert class_means(few, [(1, 1), (4, 4), (8, 8), (2, 2)])[:3] == [(1, 60.5), (1, 100.0), (1, 390.0)]
    assert math.isnan(class_means(few, [(2, 2)])[0][1])
    zeros = np.zeros(12)
    many = make_result(submit_s=zeros, start_s=zeros, end_s=zeros + 5, job_gpus=np.arange(1, 13, dtype=np.int32))
    assert gpu_classes([many]) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]
    assert [count for count, _ in class_means(many, gpu_classes([many]))] == [1, 1, 2, 4, 4]


def test_relative_jct_leaves_interrupted_runs_out() -> None:
    good, bad = make_result(avg_jct_s=10.0, p99_jct_s=40.0), make_result(avg_jct_s=30.0, p99_jct_s=20.0)
    cut = make_result(avg_jct_s=1.0, p99_jct_s=1.0, interrupted=True)
    found = relative_jct([good, bad, cut])
    assert found[:2] == [(1.0, 2.0), (3.0, 1.0)]
    assert all(math.isnan(value) for value in found[2])


def test_labels_differ() -> None:
    assert labels([make_result(), make_result(), make_result(policy="sjf")]) == ["fifo", "fifo (2)", "sjf"]
    assert labels([make_result(trace="a"), make_result(trace="b")]) == ["fifo · a", "fifo · b"]


def test_span_is_never_empty() -> None:
    empty = make_timeline([], [], [])
    none = make_result(submit_s=[], start_s=[], end_s=[], timeline=empty, avg_jct_s=math.nan)
    assert span(none) == (0.0, 1.0)
    assert span(make_result()) == (0.0, 400.0)
    start, end = span(make_result(submit_s=[1e17], start_s=[1e17], end_s=[1e17], timeline=empty))
    assert end > start


@given(st.floats(1e-6, 1e12), st.integers(2, 12))
def test_nice_step_is_1_2_or_5(length: float, most: int) -> None:
    step = nice_step(length, most)
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-9), 6) in (1, 2, 5)
    assert length / step <= most * (1 + 1e-6)


@given(st.floats(1.0, 1e9))
def test_time_ticks_are_few_increasing_and_different(high: float) -> None:
    ticks = time_ticks(high)
    assert 2 <= len(ticks.at) <= 9
    assert len(set(ticks.text)) == len(ticks.text)
    assert ticks.at[0] == 0
    assert ticks.at[-1] <= high * (1 + 1e-9)


@given(st.floats(1e-3, 1e7), st.floats(1.5, 1e7))
def test_log_ticks_lie_in_the_range_and_differ(low: float, factor: float) -> None:
    ticks = log_time_ticks(low, low * factor)
    assert 1 <= len(ticks.at) <= 14
    assert len(set(ticks.text)) == len(ticks.text)
    assert all(low * (1 - 1e-6) <= at <= low * factor * (1 + 1e-6) for at in ticks.at)


def test_ticks_read_as_people_write() -> None:
    assert (time_ticks(3 * 3600).unit, time_ticks(3 * 3600).text) == ("h", ("0", "1", "2", "3"))
    assert (time_ticks(100).unit, time_ticks(100).text) == ("s", ("0", "20", "40", "60", "80", "100"))
    assert time_ticks(86400 * 10).unit == "days"
    assert linear_ticks(0, 230, 6, whole=True).text == ("0", "50", "100", "150", "200")
    assert linear_ticks(0, 2, 6, whole=True).text == ("0", "1", "2")
    assert [time_text(value) for value in (0.01, 1, 30, 60, 7200, 864000)] == [
        "10 ms",
        "1 s",
        "30 s",
        "1 min",
        "2 h",
        "10 d",
    ]


def test_a_gang_is_one_bar_with_its_nodes() -> None:
    segments = make_segments([(0, 0.0, 5.0, 0, 15), (0, 0.0, 5.0, 1, 3), (1, 2.0, math.nan, 0, 1), (7, 0.0, 9.0, 0, 1)])
    assert bars(segments, range(5), still_running_until=8.0) == [
        Bar(0, 0.0, 5.0, {0: 4, 1: 2}),
        Bar(1, 2.0, 8.0, {0: 1}),
    ]


def test_thinning_joins_close_runs_and_keeps_the_ends() -> None:
    many = [Bar(job, i * 10.0, i * 10.0 + 9.0, {0: 1}) for job in range(2) for i in range(1000)]
    few = thin_out(many, 100, 10_000.0)
    assert len(few) <= 100
    for job in range(2):
        own = [bar for bar in few if bar.job == job]
        assert (own[0].start_s, own[-1].end_s, sum(bar.runs for bar in own)) == (0.0, 9999.0, 1000)
    assert thin_out(many, 5000, 10_000.0) == many
