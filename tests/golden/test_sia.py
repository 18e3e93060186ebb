"""Sia's policy and ours on Sia's default cluster, beside what the artifact's code gives (docs/results/pollux.md)."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from gpuloom.files.load import load
from gpuloom.goodput import Cluster, PolluxResult, create_rule, load_models, parse_cluster, read_submissions, simulate

pytestmark = [pytest.mark.data, pytest.mark.slow]
DEFAULT = "6x4:aws,2x8:dgx-ext,3x8:rtx"


@cache
def run(data: Path, cluster: str, workload: str, rule: str) -> PolluxResult:
    folder = data / "sia"
    if not folder.is_dir():
        pytest.skip(f"no measurements of Sia in {folder}: docs/reference/data.md says where to get them")
    pytest.importorskip("scipy")
    nodes: Cluster = parse_cluster(cluster)
    source = load(f"{folder / 'workloads.tar.gz'}::workloads/{workload}/workload-1.csv")
    applications = load_models(folder / "profiles.tar.gz", [pool.model for pool in nodes.pools])
    if cluster != DEFAULT:  # the artifact's run on one model was without its calibration
        applications = {
            model: {name: replace(app, restart_s=30.0, slowdown=1.0) for name, app in known.items()}
            for model, known in applications.items()
        }
    return simulate(read_submissions(source.data, source.name), applications, create_rule(rule, nodes), nodes)


@pytest.mark.parametrize(("cluster", "theirs_s"), [(DEFAULT, 1950.0), ("16x4:aws", 2841.0)])
def test_sias_policy_is_within_3_percent_of_its_own_code(data: Path, cluster: str, theirs_s: float) -> None:
    """Equally good optima are broken by the solver, CBC there, so that two runs are not the same."""
    assert run(data, cluster, "philly", "sia").avg_jct_s == pytest.approx(theirs_s, rel=0.03)


def test_ours_is_below_sia_with_the_same_knowledge(data: Path) -> None:
    assert run(data, DEFAULT, "philly", "goodput").avg_jct_s < 1950


def test_told_is_better_than_learnt(data: Path) -> None:
    learnt, told = run(data, DEFAULT, "philly", "goodput"), run(data, DEFAULT, "philly", "goodput:know=told")
    assert told.avg_jct_s < learnt.avg_jct_s


def test_fractional_times_are_kept(data: Path) -> None:
    assert run(data, DEFAULT, "saturn", "goodput:know=told").submit_s[0] == 401.0
