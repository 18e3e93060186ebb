"""Edges of figures, axes and marks of reports, each on its own."""

from __future__ import annotations

import math
from io import BytesIO, StringIO
from typing import Any

import numpy as np
import pytest

from builders import jobs
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.workload import Ran
from gpuloom.facts.gpus import prices_usd_per_s
from gpuloom.report import axis, export, metrics, svg, table, weaving
from gpuloom.report.as_it_ran import as_it_ran
from gpuloom.report.gantt import Bar, right_edge, thin_out
from gpuloom.report.gpu_chart import _pieces, _Stay, _together
from gpuloom.report.picture import _on_canvas, picture
from gpuloom.report.series import class_means, gpu_classes
from gpuloom.report.weaving import time_text
from report_builders import make_result


def test_numbers_as_they_are_written() -> None:
    values = (0.004, 99.994, 100.0, 999.94, 1000.0, -1234.5, math.nan, math.inf)
    assert [metrics.number(v) for v in values] == ["0.00", "99.99", "100.0", "999.9", "1,000", "-1,234", "-", "-"]
    assert [metrics.percent(v) for v in (0.12345, math.nan)] == ["12.3", "-"]
    assert [metrics.whole(v) for v in (1234.5, math.nan)] == ["1,234", "-"]
    assert [time_text(s) for s in (0.01234, 0.9994, 0.9995, 9.876, 99.9, 100.0, 1234.5)] == [
        "12.3 ms", "999 ms", "1 s", "9.88 s", "99.9 s", "100 s", "1,234 s",
    ]  # fmt: skip
    assert metrics.escape("<a>\x1b\n\"'") == "&lt;a&gt;�\n&quot;&#x27;"


def test_what_jobs_cost() -> None:
    held = np.array([[3600.0, 0.0], [0.0, 7200.0], [0.0, 0.0]])
    assert not metrics.priced(make_result(gpu_models=("V100", "X")))
    mixed = make_result(gpu_models=("V100", "K80"), held_gpu_s=held)
    prices = prices_usd_per_s(("V100", "K80"))
    assert prices is not None
    assert metrics.cost_per_job_usd(mixed) == pytest.approx((3600 * prices[0] + 7200 * prices[1]) / 3)
    assert [metrics.priced(make_result(gpu_models=models)) for models in (("V100", "K80"), ("V100",))] == [True, False]
    assert math.isnan(metrics.cost_per_job_usd(make_result(gpu_models=("V100", "X"), held_gpu_s=held)))
    assert math.isnan(metrics.cost_per_job_usd(make_result(gpu_models=("V100",), finished=0)))
    assert math.isnan(metrics.over_bound(make_result(lower_bound_avg_jct_s=0.0)))
    assert math.isnan(metrics.over_bound(make_result(interrupted=True)))
    assert metrics.over_bound(make_result(lower_bound_avg_jct_s=1.0)) == make_result().avg_jct_s


def test_what_results_have_in_common() -> None:
    assert metrics.facts([]) == ["no results"]
    one, two = make_result(), make_result(policy="b", lower_bound_avg_jct_s=60.0, gpus=1)
    assert metrics.facts([one, two, make_result(policy="c")]) == [
        "trace tiny", "cluster 2x4", "3 jobs", "8 GPUs and 1 GPU",
        "lower bound of the average JCT 1m 50s (1m 00s for b)",
    ]  # fmt: skip
    assert metrics.facts([one, make_result(trace="x")])[0] == "trace tiny and x"
    assert len(metrics.facts([one, make_result(trace="x")])) == len(metrics.facts([one, make_result(cluster="x")])) == 4
    assert len(metrics.facts([make_result(lower_bound_avg_jct_s=math.nan)])) == 4


def test_lines_beyond_the_colours_are_dashed() -> None:
    assert [svg.stroke(n) for n in (0, 7, 8, 17, 32)] == [
        'stroke="var(--s0)"', 'stroke="var(--s7)"', 'stroke="var(--s0)" stroke-dasharray="6 2.5"',
        'stroke="var(--s1)" stroke-dasharray="1.8 2.2"', 'stroke="var(--s0)"',
    ]  # fmt: skip
    assert svg.stroke(25) == 'stroke="var(--s1)" stroke-dasharray="8 2.5 1.8 2.5"'
    assert [svg.fill(n) for n in (3, 11)] == ['fill="var(--s3)"'] * 2
    assert [axis.line_width(n, count) for n, count in ((0, 1), (0, 2), (1, 2), (1, 3))] == pytest.approx(
        [2, 3, 1.4, 2.2]
    )
    assert [svg.shorten("abcd", n) for n in (4, 3)] == ["abcd", "ab…"]


def test_ticks_and_units() -> None:
    assert axis.time_ticks(119.0).unit == "s"
    assert [axis.time_ticks(s).unit for s in (120.0, 7199.0, 7200.0, 259_199.0, 259_200.0)] == [
        "min", "min", "h", "h", "days",
    ]  # fmt: skip
    assert axis.time_ticks(480.0).text == ("0", "2", "4", "6", "8")
    assert axis.time_ticks(7 * 3600.0).text == ("0", "1", "2", "3", "4", "5", "6", "7")
    assert axis.time_ticks(8 * 3600.0).at == (0.0, 7200.0, 14400.0, 21600.0, 28800.0)
    assert axis.log_time_ticks(1.0, 40.0).text == ("1 s", "2 s", "5 s", "10 s", "20 s", "30 s")
    assert axis.log_time_ticks(0.001, 1e6).text == (
        "1 ms", "10 ms", "100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 d", "10 d",
    )  # fmt: skip
    assert axis.log_time_ticks(3600.0, 86_400.0).text == ("1 h", "2 h", "4 h", "8 h", "12 h", "1 d")
    assert axis.log_time_ticks(86_400.0, 8.64e6).text == ("1 d", "2 d", "5 d", "10 d", "20 d", "50 d", "100 d")
    assert axis.percent_ticks().text == ("0%", "20%", "40%", "60%", "80%", "100%")
    assert axis.linear_ticks(0, 3, whole=True).text == ("0", "1", "2", "3")
    assert axis.linear_ticks(0, 3).text == ("0.0", "0.5", "1.0", "1.5", "2.0", "2.5", "3.0")
    assert [axis.nice_step(length, 5) for length in (5.0, 5.1, 11.0, 26.0, 0.0, math.inf)] == [1, 2, 5, 10, 1, 1]
    assert [axis.time_text(s) for s in (0.5, 1.0, 59.0, 90.0, 5400.0, 129_600.0)] == [
        "500 ms", "1 s", "59 s", "1.5 min", "1.5 h", "1.5 d",
    ]  # fmt: skip


def test_scales_meet_their_ends() -> None:
    frame = svg.Frame(width=200, height=100, left=10, right=20, top=5, bottom=15)
    x, y, log = frame.x(0, 4), frame.y(0, 2), frame.x(1, 100, log=True)
    assert [x(v) for v in (0, 1, 4)] == [10, 52.5, 180]
    assert [y(v) for v in (0, 1, 2)] == [85, 45, 5]
    assert [log(v) for v in (0.5, 1, 10, 100)] == pytest.approx([10, 10, 95, 180])


def test_runs_are_joined_while_there_are_too_many() -> None:
    runs = [Bar(0, 0, 1, {0: 1}), Bar(0, 1.4, 2, {0: 2, 1: 1}), Bar(0, 9, 10, {0: 1}), Bar(1, 10, 11, {0: 1})]
    assert thin_out(runs, 4, 1000) == runs
    (first, *others) = thin_out(runs, 3, 1000)
    assert (first.start_s, first.end_s, first.nodes, first.runs) == (0, 2, {0: 2, 1: 1}, 2)
    assert others == runs[2:]
    assert [(bar.job, bar.runs) for bar in thin_out(runs, 1, 100)] == [(0, 3), (1, 1)]


def test_stragglers_run_past_the_right_edge() -> None:
    ends = [10.0] * 39 + [25.0]
    quick = make_result(submit_s=[0.0] * 40, start_s=[0.0] * 40, end_s=ends)
    assert right_edge([quick], range(40)) == 25.0
    assert (
        right_edge([make_result(submit_s=[0.0] * 40, start_s=[0.0] * 40, end_s=[*ends[:-1], 25.1])], range(40)) == 12.5
    )
    assert right_edge([], range(3)) == 1.0
    assert right_edge([make_result(submit_s=[0.0], start_s=[0.0], end_s=[0.1])], range(1)) == 1.0


def test_parts_of_a_gpus_row() -> None:
    assert [list(_together(mask)) for mask in (0, 0b1, 0b1101, 0b110)] == [[], [(0, 1)], [(0, 1), (2, 2)], [(1, 2)]]
    run, beside, elsewhere = _Stay(0, 0, 10, 0b11, 0), _Stay(1, 4, 6, 0b10, 1), _Stay(2, 1, 2, 0b100, 0)
    everyone = [run, beside, elsewhere]
    assert list(_pieces(run, everyone, 0, 20)) == [(0, 4, 0, 1), (4, 6, 0, 2), (6, 10, 0, 1)]
    assert list(_pieces(beside, everyone, 0, 20)) == [(4, 6, 1, 2)]
    assert list(_pieces(run, everyone, 5, 8)) == [(5, 6, 0, 2), (6, 8, 0, 1)]
    assert list(_pieces(run, [run, _Stay(1, 10, 12, 0b11, 1)], 0, 20)) == [(0, 10, 0, 1)]


def test_classes_of_many_sizes_are_powers_of_two() -> None:
    sizes = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9], np.int32)
    many = make_result(submit_s=[0.0] * 9, start_s=[0.0] * 9, end_s=np.arange(1.0, 10.0), job_gpus=sizes)
    assert gpu_classes([many]) == [(1, 1), (2, 2), (3, 4), (5, 8), (9, 16)]
    assert class_means(many, [(3, 4), (10, 16)])[0] == (2, 3.5)
    assert math.isnan(class_means(many, [(10, 16)])[0][1])
    few = make_result(submit_s=[0.0] * 8, start_s=[0.0] * 8, end_s=[1.0] * 8, job_gpus=sizes[1:])
    assert gpu_classes([few]) == [(n, n) for n in range(2, 10)]


def test_fields_of_files() -> None:
    given: list[Any] = [None, math.nan, math.inf, 0.1, 1e-7, True, {"a": 1}, [1], 3, "x"]
    assert [export._field(value) for value in given] == [
        "",
        "",
        "",
        "0.1",
        "1e-07",
        "true",
        '{"a": 1}',
        "[1]",
        "3",
        "x",
    ]
    data = {1: (np.float64(math.nan), np.arange(2), {2}), "b": [None, True, 1.5, -math.inf, parse_cluster("1x1")]}
    assert export.plain(data) == {"1": [None, [0, 1], [2]], "b": [None, True, 1.5, None, "1x1"]}


def test_what_happened_to_two_hundred_jobs() -> None:
    count = 200
    end = np.arange(1.0, count + 1)
    ran = Ran(np.zeros(count), end, end / 2, np.full(count, 2, np.int32))
    found = as_it_ran(jobs([(0.0, 1.0, 2)] * count, ran=ran), parse_cluster("1x4:V100,1x4:K80"))
    assert found is not None
    assert (found.p99_jct_s, found.median_jct_s, found.restarts, found.moves, found.events) == (199.0, 100.5, 200, 0, 0)
    assert found.utilization == pytest.approx(2 * end.sum() / 2 / (8 * 200))
    assert found.avg_queue_length == pytest.approx(end.sum() / 2 / 200)
    assert np.isnan(found.held_gpu_s).all()
    assert (found.held_gpu_s.shape, found.interrupted) == ((200, 2), False)
    four = np.array([4.0])
    one = as_it_ran(
        jobs([(0.0, 1.0, 3)], ran=Ran(0 * four, four, four / 2, np.ones(1, np.int32))), parse_cluster("1x4")
    )
    assert one is not None
    assert one.held_gpu_s.tolist() == [[6.0]]
    assert one.timeline.busy_gpus.tolist() == [3, 0]


def test_nothing_but_the_picture_is_on_a_canvas() -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    pixels = imread(BytesIO(_on_canvas(picture(120, 60, ['<rect x="30" y="15" width="60" height="30"/>']), "png")))
    assert pixels.shape[:2] == (81, 162)
    dark = np.argwhere(pixels[:, :, 0] < 0.5)
    assert (dark.min(axis=0).tolist(), dark.max(axis=0).tolist()) == ([20, 41], [60, 121])
    assert (pixels[:15] == 1).all()
    assert (pixels[:, :30] == 1).all()


@pytest.mark.parametrize(("columns", "width"), [("0", 120), ("x", 120), ("", 120), ("90", 90), ("3", 24)])
def test_how_wide_a_table_may_be(columns: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    asked: list[int] = []
    right = table.comparison_table

    def seen(results: Any, *, width: int) -> Any:
        asked.append(width)
        return right(results, width=width)

    monkeypatch.setattr(table, "comparison_table", seen)
    table.print_comparison([make_result()], StringIO())
    assert asked == [width]


def test_a_slower_round_leaves_resources_idle_and_a_faster_one_shortens_all() -> None:
    spans = [weaving.Span(0, 1, 2, 3.0, 0.5)]
    assert weaving.stretched(spans, 2.0, 1.0) == [weaving.Span(0, 1, 2, 1.5, 0.25)]
    assert weaving.stretched(spans, 1.0, 2.0) == [weaving.Span(0, 1, 2, 6.0, 0.5)]
    assert weaving.stretched(spans, 0.0, 2.0) == spans
    assert weaving.window(spans, 3.25, 9.0) == [weaving.Span(0, 1, 2, 0.0, 0.25)]
    assert weaving.window(spans, 1.0, 3.25) == [weaving.Span(0, 1, 2, 2.0, 0.25)]
    assert weaving.window(spans, 3.5, 9.0) == weaving.window(spans, 0.0, 3.0) == []
