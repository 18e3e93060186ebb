"""Corners of pictures and of the numbers beside them, each on its own."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gpuloom.report.gantt import Bar, _mark
from gpuloom.report.metrics import METRICS
from gpuloom.sharing import report
from gpuloom.sharing.profiles import KernelRecord, collect
from gpuloom.sharing.shipped import _pointwise, shipped
from gpuloom.sharing.simulate import Pair, Span
from gpuloom.traces.elastic import _by_model
from report_builders import make_result


def test_a_bar_is_as_wide_as_its_run_and_never_too_narrow_to_be_seen() -> None:
    def width(left: float, right: float) -> str:
        mark = _mark(Bar(0, 10.0, 20.0, {0: 1}), make_result(), 20, left, right, 0.0)
        found = re.search(r'x="([^"]*)".* width="([^"]*)"', mark)
        assert found is not None
        assert found[1] == f"{left:.1f}"
        return found[2]

    assert width(100.0, 130.5) == "30.5"
    assert width(100.0, 100.2) == "0.8"


def test_the_blocking_index_stays_less_long_than_what_matters_more() -> None:
    keep = {metric.title: metric.keep for metric in METRICS}
    assert keep["avg queue"] > keep["blocking index"]
    assert len(set(keep.values())) == len(keep)


class Axes:
    """Notes what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **_: self.drawn.append((name, args))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [args for drawn, args in self.drawn if drawn == name]


def test_a_panel_shows_its_window_from_zero_in_milliseconds() -> None:
    spans = (
        Span("high", 2.000e9, 2.001e9, 40),
        Span("hold", 2.001e9, 2.0015e9, "price"),
        Span("hold", 2.002e9, 2.0025e9, "window"),
    )
    outcome: Any = SimpleNamespace(
        spans=spans,
        served=((2.001e9, 2.002e9, 2.004e9),),
        rule="gpuloom",
        p99_over_alone=1.0,
        best_effort_over_alone=0.5,
    )
    axes = Axes()
    report._panel(axes, outcome, (2.0, 2.01), 80)
    (waits, rows), (queued, _) = axes.of("broken_barh")
    assert waits == [pytest.approx((1.0, 0.5))]
    assert queued == [pytest.approx((2.0, 0.5))]
    assert rows == pytest.approx((80 * 1.03, 80 * 0.07)), "a strip above the SMs"
    ((waiting, _), (running, _)) = axes.of("plot")
    assert waiting == pytest.approx([1.0, 2.0])
    assert running == pytest.approx([2.0, 4.0])
    (limits,) = axes.of("set_xlim")
    assert limits == pytest.approx((0, 10.0))
    ((times, high, _),) = axes.of("stackplot")
    assert times[0] == 0.0
    assert high[times < 0.99] == pytest.approx(40.0)
    assert not high[times > 1.01].any()


# -- kernels ---------------------------------------------------------------------------------------------------


def test_the_mean_of_sms_goes_by_time_and_no_kernel_holds_more_than_there_are() -> None:
    profile = collect("p", 80, [KernelRecord("a", 20, 3000), KernelRecord("b", 500, 1000)])
    assert profile.mean_sm == (20 * 3000 + 80 * 1000) / 4000


def test_an_elementwise_kernel_reads_and_writes_each_value_once_per_pass() -> None:
    values = 4096.0 * 4000
    two, three = _pointwise("x", values, 2), _pointwise("x", values, 3)
    assert (two.blocks, two.klass) == (4000, "memory")
    assert two.duration_ns == pytest.approx(2 * 4.0 * values / (0.65 * 900e9) * 1e9, abs=1)
    assert three.duration_ns == pytest.approx(1.5 * two.duration_ns, abs=1)
    assert two.compute_util == pytest.approx(4.0 * values / 15.7e12 / (two.duration_ns / 1e9), rel=1e-5)


def test_training_alone_makes_an_iteration_in_the_time_that_one_takes() -> None:
    pair = Pair(shipped("resnet50"), shipped("resnet50-train"), np.array([0.01, 0.05]), seed=1)
    outcome = pair.outcome("none")
    assert outcome.best_effort_alone_it_per_s * pair.iteration_ns == pytest.approx(1e9)
    assert outcome.best_effort_over_alone == pytest.approx(
        outcome.best_effort_it_per_s / outcome.best_effort_alone_it_per_s
    )


# -- inputs ----------------------------------------------------------------------------------------------------


def test_of_several_batch_sizes_the_middle_one_speaks_for_a_model() -> None:
    tables = {("BERT", batch): np.array([float(batch)]) for batch in (64, 16, 32)} | {("VGG", 8): np.array([8.0])}
    tables[("VGG", 4)] = np.array([4.0])
    assert {model: curve.tolist() for model, curve in _by_model(tables).items()} == {"bert": [32.0], "vgg": [8.0]}
