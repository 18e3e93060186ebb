"""Tiresias and Optimus in Pollux' simulation: all averages that its artifact published, to the digit.

Source: github.com/petuum/adaptdl, branch osdi21-artifact, `simulator/README.md` and
`simulator/results-jobload/*/summary.json` (16 nodes of 4 GPUs, steps of 60 s).
"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpuloom.files.load import load
from gpuloom.goodput import NODES, Application, PolluxResult, create_rule, load_applications, read_submissions, simulate

pytestmark = pytest.mark.data
PUBLISHED = Path(__file__).parents[2] / "bench" / "pollux_published.csv"
FOLDERS = {"1.0": "workloads", "0.5": "workloads-0.5", "1.5": "workloads-1.5", "2.0": "workloads-2.0"}


@cache
def applications(data: Path) -> dict[str, Application]:
    return load_applications(data / "pollux" / "profiles_traces.tar.gz")


@cache
def run(data: Path, folder: str, workload: str, rule: str) -> PolluxResult:
    source = load(f"{data / 'pollux' / 'workloads.tar.gz'}::{folder}/{workload}.csv")
    return simulate(read_submissions(source.data, source.name), applications(data), create_rule(rule, NODES))


def published(policy: str, load_: str) -> list[tuple[str, float]]:
    rows = csv.DictReader(PUBLISHED.read_text().splitlines())
    return [(r["workload"], float(r["avg_jct_s"])) for r in rows if (r["policy"], r["load"]) == (policy, load_)]


@pytest.mark.parametrize(
    ("rule", "avg_jct_s"), [("tiresias", 3469.69375), pytest.param("optimus", 5301.875, marks=pytest.mark.slow)]
)
def test_workload_6_as_in_the_artifacts_readme(data: Path, rule: str, avg_jct_s: float) -> None:
    pytest.importorskip("scipy")
    assert run(data, "workloads", "workload-6", rule).avg_jct_s == pytest.approx(avg_jct_s, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("load_", FOLDERS)
@pytest.mark.parametrize("rule", ["tiresias", "optimus"])
def test_every_published_average(data: Path, rule: str, load_: str) -> None:
    """Of Optimus, which takes long, a quarter of the workloads of each heavy load; `make pollux` has all."""
    pytest.importorskip("scipy")
    expected = published(rule, load_)
    assert len(expected) == 8
    if rule == "optimus" and float(load_) > 1:
        expected = expected[::4]
    found = [run(data, FOLDERS[load_], workload, rule).avg_jct_s for workload, _ in expected]
    assert found == pytest.approx([value for _, value in expected], abs=1e-6)


@pytest.mark.slow
def test_single_jobs_of_workload_2(data: Path) -> None:
    """Completion times from `results-jobload/{tiresias,optimus}-1.0/summary.json`."""
    pytest.importorskip("scipy")
    for rule, jobs in {
        "tiresias": {
            "cifar10-0": 982,
            "imagenet-7": 51537,
            "yolov3-144": 20852,
            "deepspeech2-157": 9994,
            "ncf-97": 2915,
        },
        "optimus": {
            "cifar10-0": 937,
            "imagenet-7": 61888,
            "yolov3-144": 21538,
            "deepspeech2-157": 16403,
            "ncf-97": 125,
        },
    }.items():
        result = run(data, "workloads", "workload-2", rule)
        of = dict(zip(result.names, result.jct_s.tolist(), strict=True))
        assert {name: of[name] for name in jobs} == jobs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "most"),
    [("goodput", 0.93), ("goodput:ends=known", 0.85), ("goodput:explore=doubling", 0.97)],
)
def test_the_own_rule_is_ahead_of_the_published_pollux(data: Path, rule: str, most: float) -> None:
    """Mean of workloads 6, 1 and 3, and workload 6 by itself (Pollux: 2,446.1)."""
    of = dict(published("pollux", "1.0"))
    ratios = [
        run(data, "workloads", name, rule).avg_jct_s / of[name] for name in ("workload-6", "workload-1", "workload-3")
    ]
    assert ratios[0] < most
    assert np.mean(ratios) < most


@pytest.mark.slow
def test_the_own_rule_needs_no_scipy(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It only gives placements that were measured."""

    def fails(*_: object) -> None:
        raise AssertionError("asked for a placement between measured ones")

    monkeypatch.setattr("gpuloom.goodput.applications.Interpolation", fails)
    fresh = load_applications(data / "pollux" / "profiles_traces.tar.gz")
    source = load(f"{data / 'pollux' / 'workloads.tar.gz'}::workloads-0.5/workload-6.csv")
    result = simulate(read_submissions(source.data, source.name), fresh, create_rule("goodput", NODES))
    assert result.avg_jct_s < 1826
