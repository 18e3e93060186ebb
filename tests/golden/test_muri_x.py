"""Muri-XS and Muri-XL against Muri-S and Muri-L, all under `--compat muri` (docs/results/weaving.md)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuloom.sim import SimResult, simulate
from gpuloom.traces import read_trace
from made_once import MuriRuns

pytestmark = pytest.mark.data

TRACES = ("trace3", "cluster_exp_400jobs", "job_type_1")
"""docs/results/weaving.md has others, too."""
PAIRS = pytest.mark.parametrize(
    ("ours", "theirs"), [("muri-xs", "muri-s"), pytest.param("muri-xl", "muri-l", marks=pytest.mark.slow)]
)


def pair(muri: MuriRuns, trace: str, ours: str, theirs: str) -> tuple[SimResult, SimResult]:
    return muri(trace, ours), muri(trace, f"{theirs}:matcher=exact")


@pytest.mark.slow
@PAIRS
@pytest.mark.parametrize("trace", TRACES)
def test_better_on_every_trace(muri: MuriRuns, trace: str, ours: str, theirs: str) -> None:
    """At least 5 % sooner on average, and the slowest jobs not later; the cluster does as much in the time."""
    one, other = pair(muri, trace, ours, theirs)
    assert one.avg_jct_s <= 0.95 * other.avg_jct_s
    assert one.p99_jct_s <= other.p99_jct_s
    assert one.makespan_s <= 1.03 * other.makespan_s


@pytest.mark.slow
@PAIRS
def test_a_good_deal_better_on_average(muri: MuriRuns, ours: str, theirs: str) -> None:
    ratios = [one.avg_jct_s / other.avg_jct_s for one, other in (pair(muri, t, ours, theirs) for t in TRACES)]
    assert np.mean(ratios) <= 0.9


@pytest.mark.slow
def test_with_one_kind_of_bottleneck_not_worse_than_the_best_plain_policy(muri: MuriRuns) -> None:
    """Where weaving gains nothing: the released Muri-L loses 45 % to Tiresias there."""
    plain = [muri("job_type_1", policy) for policy in ("srtf", "srsf")]
    xs, xl = muri("job_type_1", "muri-xs"), muri("job_type_1", "muri-xl")
    assert xs.avg_jct_s <= min(result.avg_jct_s for result in plain)
    assert xs.p99_jct_s <= min(result.p99_jct_s for result in plain)
    tiresias = muri("job_type_1", "tiresias")
    assert xl.avg_jct_s <= tiresias.avg_jct_s
    assert xl.p99_jct_s <= tiresias.p99_jct_s


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["muri-xs", "muri-xl"])
def test_what_weaving_itself_brings(muri: MuriRuns, policy: str) -> None:
    """The same policy without sharing is far behind."""
    assert muri("trace3", policy).avg_jct_s < 0.75 * muri("trace3", f"{policy}:group_size=1").avg_jct_s


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "plain"), [("muri-xs", "srsf"), ("muri-xl", "tiresias")])
def test_under_gpuloom_s_own_rules_too(data: Path, policy: str, plain: str) -> None:
    """Intervals, restarts that cost, partners that restart."""
    workload = read_trace(data / "muri" / "trace3.csv.gz").workload
    woven, alone = (simulate(workload, "8x8", name) for name in (policy, plain))
    assert woven.avg_jct_s < 0.8 * alone.avg_jct_s
