"""Corners of pictures and of the numbers beside them, each on its own."""

from __future__ import annotations

import re
from xml.etree.ElementTree import Element

import numpy as np
import pytest

from gpuloom.report import picture
from gpuloom.report.gantt import Bar, _mark
from gpuloom.report.metrics import METRICS
from gpuloom.sharing.profiles import KernelRecord, collect
from gpuloom.sharing.shipped import _pointwise, shipped
from gpuloom.sharing.simulate import Pair
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


def test_what_stands_within_shifted_elements_is_shifted_by_all_of_them() -> None:
    at = picture._Place(10.0, 20.0, {}).within(Element("g", transform="translate(3 4)"))
    assert (at.x, at.y) == (13.0, 24.0)
    at = at.within(Element("svg", x="5", y="6")).within(Element("g", {"fill": "red"}))
    assert (at.x, at.y, at.said["fill"]) == (18.0, 30.0, "red")
