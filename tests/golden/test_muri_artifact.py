"""`--compat muri` against what the released Muri simulator computes (../shared/data/muri, docs/results/fidelity.md)."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest

from gpuloom.sim import simulate
from gpuloom.traces import read_trace
from tiers import slow

pytestmark = pytest.mark.data

TRACES = {
    "trace1": "trace1",
    "trace1_pr": "trace1_pr",
    "trace3": "trace3",
    "trace3_pr": "trace3_pr",
    "cluster_trace": "cluster_exp_400jobs",
    "job_type_1": "job_type_1",
    "job_type_2": "job_type_2",
    "job_type_3": "job_type_3",
}
NAMES = {"srtf": "shortest", "srsf": "shortest-gpu", "tiresias": "dlas-gpu", "antman": "antman", "themis": "themis"}


def reference(data: Path, trace: str, policy: str) -> dict[str, tuple[float, float]]:
    """(start, end) by job, as the artifact wrote them."""
    path = data / "muri" / "reference_runs" / f"{trace}__{NAMES[policy]}.csv.gz"
    if not path.is_file():
        pytest.skip(f"the artifact has no run of {NAMES[policy]} on {trace}")
    with gzip.open(path, "rt", encoding="utf-8") as rows:
        return {row["job_id"]: (float(row["start_time"]), float(row["end_time"])) for row in csv.DictReader(rows)}


RUNS = {
    "srtf": list(TRACES),
    "srsf": ["trace1", "trace1_pr", "trace3", "trace3_pr", "cluster_trace"],
    "tiresias": list(TRACES),
    "antman": ["trace1", "trace1_pr", "trace3", "trace3_pr", "cluster_trace"],
}


@pytest.mark.parametrize(
    ("policy", "trace"),
    [
        pytest.param(policy, trace, marks=() if trace == "cluster_trace" else pytest.mark.slow)
        for policy, traces in RUNS.items()
        for trace in traces
    ],
)
def test_every_job_ends_when_it_does_in_the_artifact(data: Path, policy: str, trace: str) -> None:
    workload = read_trace(data / "muri" / f"{TRACES[trace]}.csv.gz").workload
    expected = reference(data, trace, policy)
    result = simulate(workload, "8x8", policy, compat="muri")
    assert len(expected) == len(workload)
    jct = np.array([expected[job][1] for job in result.job_ids]) - workload.submit_s
    assert result.jct_s == pytest.approx(jct, rel=1e-6)
    assert result.start_s == pytest.approx(np.array([expected[job][0] for job in result.job_ids]), rel=1e-6)


@pytest.mark.parametrize("trace", ["cluster_trace", *slow("trace3")])
def test_themis_is_within_five_percent_of_the_artifact(data: Path, trace: str) -> None:
    workload = read_trace(data / "muri" / f"{TRACES[trace]}.csv.gz").workload
    expected = reference(data, trace, "themis")
    result = simulate(workload, "8x8", "themis", compat="muri")
    ends = np.array([expected[job][1] for job in result.job_ids])
    jct = np.sort(ends - workload.submit_s)
    assert result.avg_jct_s == pytest.approx(jct.mean(), rel=0.05)
    assert result.p99_jct_s == pytest.approx(jct[int(0.99 * len(jct))], rel=0.05)
    assert result.makespan_s == pytest.approx(ends.max(), rel=0.05)
