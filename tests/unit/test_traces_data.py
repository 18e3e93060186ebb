"""The real traces of ../shared/data: job counts and a few figures that don't come from the readers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gpuloom.core.errors import TraceError
from gpuloom.traces import read_trace

DATA = Path(os.environ.get("GPULOOM_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no public traces in {DATA}: see docs/reference/data.md"),
]


@pytest.mark.parametrize(
    ("path", "format_id", "jobs"),
    [
        ("muri/trace1.csv.gz", "muri", 1494),
        pytest.param("muri/trace1_pr.csv.gz", "muri", 1494, marks=pytest.mark.slow),
        ("muri/trace3.csv.gz", "muri", 992),
        pytest.param("muri/trace3_pr.csv.gz", "muri", 992, marks=pytest.mark.slow),
        ("muri/job_type_2.csv.gz", "muri", 992),
        ("muri/cluster_exp_400jobs.csv.gz", "muri", 400),
        pytest.param("philly/philly_jobs_pollux.csv.gz", "philly", 82_247, marks=pytest.mark.slow),
        ("itp/cluster01.csv.gz", "itp", 1595),
        ("itp/elasticflow_195job.csv.gz", "elasticflow", 195),
        ("elasticflow/philly_103959.csv.gz", "elasticflow", 876),
        pytest.param("elasticflow", "elasticflow", 876, marks=pytest.mark.slow),
        ("tiresias/60_job.csv", "tiresias", 60),
        ("tiresias", "tiresias", 60),
        ("synergy/deploy_trace_static_100job.csv", "synergy", 100),
        pytest.param("synergy", "synergy", 200, marks=pytest.mark.slow),
        ("gavel/traces_physical/max_min_fairness.trace", "gavel", 96),
        pytest.param("gavel/traces_physical", "gavel", 287, marks=pytest.mark.slow),
        ("gavel/traces_msr_seed0/ed69ec.trace.gz", "gavel", 951),
        pytest.param("shockwave", "shockwave", 2600, marks=pytest.mark.slow),
        ("alibaba/openb_pod_list_default.csv.gz", "alibaba", 7064),
        pytest.param("alibaba/openb_pod_list_gpuspec33.csv.gz", "alibaba", 7064, marks=pytest.mark.slow),
        ("alibaba/disaggregated_DLRM_trace.csv.gz", "alibaba", 3218),
        pytest.param("pollux/workloads.tar.gz::workloads/workload-6.csv", "pollux", 160, marks=pytest.mark.slow),
    ],
)
def test_jobs_of_the_real_traces(path: str, format_id: str, jobs: int) -> None:
    result = read_trace(f"{DATA}/{path}")
    assert (result.format, len(result.workload), result.bad_rows) == (format_id, jobs, ())


@pytest.mark.slow
def test_the_ten_itp_clusters() -> None:
    result = read_trace(DATA / "itp", format="itp")
    assert (len(result.workload), len(result.files)) == (69_351, 10)
    assert len(set(result.workload.job_ids or ())) == 69_351
    assert any("elasticflow_195job.csv.gz (format elasticflow)" in note for note in result.workload.notes)


@pytest.mark.slow
def test_philly_gpu_time_matches_its_own_column() -> None:
    import gzip

    with gzip.open(DATA / "philly/philly_jobs_pollux.csv.gz", "rt") as file:
        gpu_time = sum(float(line.split(",")[3]) for line in list(file)[1:] if line.strip())
    w = read_trace(DATA / "philly", format="philly").workload
    assert float(w.duration_s @ w.gpus) == pytest.approx(gpu_time, rel=1e-9)


def test_durations_of_muri_are_the_solo_times_of_its_reference_runs() -> None:
    """In the released simulator's SRTF run an undisturbed job's JCT is its time alone, to the last digit."""
    import csv
    import gzip

    w = read_trace(DATA / "muri/trace3.csv.gz").workload
    duration = dict(zip(w.job_ids or (), w.duration_s.tolist(), strict=True))
    with gzip.open(DATA / "muri/reference_runs/trace3__shortest.csv.gz", "rt") as file:
        ran = {row["job_id"]: float(row["JCT"]) for row in csv.DictReader(file)}
    assert set(ran) == set(duration)
    ratio = np.asarray([ran[job] / duration[job] for job in ran])
    assert ratio.min() > 1 - 1e-9  # none ends before its work is done
    # Some ran at once and undisturbed; their time is the solo time exactly.
    assert (np.abs(ratio - 1) < 1e-9).sum() > 100


def test_gavel_rows_without_a_measurement_are_named() -> None:
    trace = DATA / "gavel/traces_msr_seed0/0e4a51.trace.gz"
    with pytest.raises(TraceError, match="no throughput of 'Recommendation"):
        read_trace(trace)
    result = read_trace(trace, skip_bad_rows=True)
    assert len(result.workload) + len(result.bad_rows) == 1181


def test_shockwave_job_types_that_do_not_fit_are_kept() -> None:
    w = read_trace(DATA / "shockwave").workload
    assert w.speeds is not None
    assert w.speeds.models == ("V100", "P100", "K80")
    assert (w.speeds.factor[:, 0] == 1).all()


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("alibaba/openb_pod_list_multigpu50.csv.gz", "holds no times"),
        ("alibaba/openb_node_list_gpu_node.csv.gz", "a list of nodes"),
        ("tiresias/yarn-gput1000.csv.gz", "gittins:samples=FILE"),
        ("muri/n8g8.csv", "a description of a cluster"),
        ("muri/model_stage_profiles.csv", "has no known trace format"),
        ("muri/reference_runs/trace1__antman.csv.gz", "has no known trace format"),
        ("muri/testbed_results/SRSF_job.csv.gz", "has no known trace format"),
        ("pollux/workloads.tar.gz", r"one of its files\n(  \S+::workloads-0\.5/workload-\d\.csv\n){8}  and 32 more$"),
        ("gavel/simulation_throughputs.json.gz", "has no known trace format"),
        ("kubernetes/contract.jsonl", "has no known trace format"),
    ],
)
def test_files_beside_the_traces_are_refused(path: str, reason: str) -> None:
    with pytest.raises(TraceError, match=reason):
        read_trace(DATA / path)
