"""What happened where a trace was taken: kept in the file, and shown beside what policies would have done."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.cluster import parse_cluster
from gpuloom.core.errors import InputError, MissingDependencyError, TraceError
from gpuloom.core.ran import Run, Runs, Together
from gpuloom.core.workload import Labels, Ran, Speeds, Workload
from gpuloom.report.as_it_ran import as_it_ran
from gpuloom.sim.simulator import simulate
from gpuloom.traces import read_trace, write_trace

SUFFIXES = (".csv", ".csv.gz", ".parquet")


def taken(cluster: str = "1x2:V100") -> Workload:
    """Two jobs of two GPUs that ran one after the other; the second was stopped for 20 s."""
    ran = Ran(np.array([5.0, 105.0]), np.array([105.0, 225.0]), np.array([100.0, 100.0]), np.array([1, 2], np.int32))
    return jobs([(0.0, 100.0, 2), (10.0, 90.0, 2)], ran=ran, cluster=cluster)


def run(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_it_is_written_and_read_back(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"t{suffix}"
    write_trace(taken(), file)
    found = read_trace(file).workload
    assert found.cluster == "1x2:V100"
    assert found.ran is not None
    assert found.ran.end_s.tolist() == [105.0, 225.0]
    assert found.ran.starts.tolist() == [1, 2]
    assert found.take([1]).ran.start_s.tolist() == [105.0]  # type: ignore[union-attr]
    write_trace(taken(""), file)
    assert read_trace(file).workload.cluster == ""


def test_of_several_files_the_cluster_is_known_if_it_is_one(tmp_path: Path) -> None:
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for file, cluster in zip(files, ("1x2", "1x2"), strict=True):
        write_trace(taken(cluster), file)
    both = read_trace(files).workload
    assert both.cluster == "1x2"
    assert both.ran is not None
    assert sorted(both.ran.end_s.tolist()) == [105.0, 105.0, 225.0, 225.0]
    write_trace(taken("1x4"), files[1])
    assert read_trace(files).workload.cluster == ""


@pytest.mark.parametrize(
    ("columns", "row", "reason"),
    [
        ("start_s,end_s", "1,2", "lacks held_s, starts"),
        ("start_s,end_s,held_s,starts", "5,2,1,1", "must follow each other"),
        ("start_s,end_s,held_s,starts", "1,2,1,0", "starts"),
        ("start_s,end_s,held_s,starts", "1,,1,1", "end_s"),
    ],
)
def test_what_is_refused(tmp_path: Path, columns: str, row: str, reason: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(f"submit_s,duration_s,gpus,{columns}\n0,1,1,{row}\n")
    with pytest.raises(TraceError, match=reason):
        read_trace(file)


def test_the_figures_of_what_happened() -> None:
    found = as_it_ran(taken(), parse_cluster("1x2:V100"))
    assert found is not None
    assert (found.avg_jct_s, found.makespan_s, found.restarts, found.finished) == (160.0, 225.0, 1, 2)
    assert (found.moves, found.resizes, found.events) == (0, 0, 0)
    assert found.utilization == pytest.approx(200 / 225)
    assert found.avg_queue_length == pytest.approx((5 + 95 + 20) / 225)
    assert found.timeline.time_s.tolist() == [0.0, 5.0, 10.0, 105.0, 225.0]
    assert found.timeline.queue_length.tolist() == [1, 0, 1, 0, 0]
    assert found.timeline.busy_gpus.tolist() == [0, 2, 2, 2, 0]
    assert as_it_ran(jobs([(0.0, 1.0, 1)]), parse_cluster("1x1")) is None


def test_where_one_policy_runs_alone_the_figures_are_those_of_the_simulation() -> None:
    """What a simulation did, told as what happened, gives its figures again."""
    rows = [(0.0, 100.0, 2), (10.0, 90.0, 2), (20.0, 30.0, 1), (500.0, 10.0, 1)]
    done = simulate(jobs(rows), "1x2", "fifo", restart_overhead_s=0.0)
    told = Ran(done.start_s, done.end_s, done.attained_gpu_s / done.job_gpus, done.starts)
    found = as_it_ran(
        jobs([(0.0, 100.0, 2), (10.0, 90.0, 2), (20.0, 30.0, 1), (500.0, 10.0, 1)], ran=told), parse_cluster("1x2")
    )
    assert found is not None
    for name in ("avg_jct_s", "median_jct_s", "p99_jct_s", "makespan_s", "avg_queue_length", "utilization", "restarts"):
        assert getattr(found, name) == pytest.approx(getattr(done, name)), name


def test_compare_takes_the_cluster_of_the_trace_and_shows_what_happened(tmp_path: Path) -> None:
    file = tmp_path / "week.csv"
    write_trace(taken(), file)
    shown = run(
        "compare", file, "--policies", "fifo,sjf", "--html", tmp_path / "r.html", "--jobs-csv", tmp_path / "j.csv"
    )
    assert shown.exit_code == 0, shown.output
    rows = [line.split()[0] for line in shown.stdout.splitlines()]
    assert rows[2:5] == ["as", "fifo", "sjf"]
    assert "cluster 1x2:V100" in shown.stdout
    assert "as it ran" in (tmp_path / "r.html").read_text()
    assert (tmp_path / "j.csv").read_text().count("as it ran") == 2
    found = json.loads(run("compare", file, "--policies", "fifo", "--cluster", "1x4", "--json", "-", "-q").stdout)
    assert [(row["policy"], row["cluster"]) for row in found] == [("as it ran", "1x2:V100"), ("fifo", "1x4")]
    assert json.loads(run("simulate", file, "--policy", "fifo", "--json", "-", "-q").stdout)["cluster"] == "1x2:V100"


def test_a_trace_that_does_not_say_needs_a_cluster(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    write_trace(jobs([(0.0, 1.0, 1)]), file)
    for words in (("compare", file), ("simulate", file), ("explain", file, "--job", "0")):
        error = run(*words).exception
        assert isinstance(error, InputError)
        assert "give --cluster, NODESxGPUS[:MODEL]" in str(error)


# -- on which GPUs, and together with whom ----------------------------------------------------------------------------


def woven() -> Workload:
    """Two jobs share a GPU for 40 s; the second then moves to the other node, and a third grows from one GPU to two."""
    here, there = (("a node", (0,)),), (("b", (1,)),)
    runs = (
        (Run(0.0, 60.0, "finished", here),),
        (Run(20.0, 60.0, "preempted", here), Run(61.0, 101.0, "finished", there)),
        (Run(10.0, 30.0, "resized", (("b", (0,)),)), Run(32.0, 50.0, "finished", (("b", (0, 1)),), 2.5, 3.0)),
    )
    group = Together(20.0, 60.0, ("2", "1"), True, 0.8)
    told = Runs(runs, ((group,), (group,), ()), ("a node", "b"))
    ran = Ran(
        np.array([0.0, 20.0, 10.0]),
        np.array([60.0, 101.0, 50.0]),
        np.array([60.0, 80.0, 56.0]),
        np.array([1, 2, 2], np.int32),
        told,
    )
    rows = [(0.0, 50.0, 1), (5.0, 60.0, 1), (10.0, 40.0, 1)]
    return jobs(rows, job_ids=("1", "2", "3"), ran=ran, cluster="1x1:V100,1x2:K80")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_runs_and_groups_are_written_and_read_back(tmp_path: Path, suffix: str) -> None:
    file, before = tmp_path / f"t{suffix}", woven()
    write_trace(before, file)
    found = read_trace(file).workload
    assert found.ran is not None
    assert before.ran is not None
    assert found.ran.runs == before.ran.runs
    kept = found.take([1]).ran
    assert kept is not None
    assert kept.runs is not None
    assert [one.members for one in kept.runs.groups()] == [("2", "1")]


def test_figures_are_of_the_runs_where_they_are_told() -> None:
    found = as_it_ran(woven(), parse_cluster("1x1:V100,1x2:K80"))
    assert found is not None
    assert found.segments is not None
    assert (found.moves, found.resizes, found.restarts) == (1, 1, 2)
    # GPU-seconds in use: 60 on the first node (40 of them by two jobs), 20 + 18 and 18 + 40 on the second.
    assert found.utilization == pytest.approx((60 + 20 + 18 + 18 + 40) / (3 * 101))
    assert found.avg_queue_length == pytest.approx((15 + 1 + 2) / 101)
    assert found.held_gpu_s.tolist() == [[60.0, 0.0], [40.0, 40.0], [0.0, 56.0]]
    assert (found.timeline.busy_gpus.max(), found.timeline.busy_gpus[-1], found.timeline.queue_length[-1]) == (3, 0, 0)
    rows = zip(found.segments.job.tolist(), found.segments.node.tolist(), found.segments.layer.tolist(), strict=True)
    assert list(rows) == [(0, 0, 0), (2, 1, 0), (1, 0, 1), (2, 1, 0), (1, 1, 0)]
    assert found.notes == ("as it ran: 26 % of the GPU time in use was shared, in 1 group of mean efficiency 0.80",)
    elsewhere = as_it_ran(woven(), parse_cluster("1x1"))
    assert elsewhere is not None
    assert elsewhere.segments is None


def test_where_runs_of_one_job_are_not_told_the_figures_do_without() -> None:
    some = replace(
        ran := taken().ran, runs=Runs(((), (Run(105.0, 225.0, "finished", (("node0", (0, 1)),)),)), ((), ()))
    )  # type: ignore[type-var]
    found = as_it_ran(replace(taken(), ran=some), parse_cluster("1x2:V100"))
    without = as_it_ran(replace(taken(), ran=ran), parse_cluster("1x2:V100"))
    assert found is not None
    assert without is not None
    assert found.segments is None
    assert found.utilization == without.utilization


def test_compare_says_what_sharing_came_to(tmp_path: Path) -> None:
    file = tmp_path / "week.csv"
    write_trace(woven(), file)
    shown = run("compare", file, "--policies", "fifo", "--html", tmp_path / "r.html")
    assert shown.exit_code == 0, shown.output
    assert "26 % of the GPU time in use was shared" in " ".join(shown.stdout.split())
    assert "a node" in (tmp_path / "r.html").read_text()
    write_trace(woven(), tmp_path / "again.csv")
    # Ids that are used twice don't say who was with whom any more.
    both = read_trace([file, tmp_path / "again.csv"]).workload
    assert both.ran is not None
    assert both.ran.runs is None


@pytest.mark.parametrize(
    ("runs", "together", "reason"),
    [
        ("0/1 finished", "", "must be START/END"),
        ("2/1 finished n0:0", "", "must be START/END"),
        ("0/1 finished n0:0|0", "", "must be START/END"),
        ("0/1 finished n0:9999999", "", "must be START/END"),
        ("0/1 finished n0:0 +1", "", "must be START/END"),
        ("0/1 finished n0:0 +-1/2", "", "must be START/END"),
        ("0/1 finished +1/2", "", "must be START/END"),
        ("0/1 finished n0:0", "0/1 1", "must be SINCE/UNTIL"),
        ("0/1 finished n0:0", "0/1 1+2 1.5", "must be SINCE/UNTIL"),
    ],
)
def test_runs_that_are_none_are_refused(tmp_path: Path, runs: str, together: str, reason: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(
        f"submit_s,duration_s,gpus,start_s,end_s,held_s,starts,runs,together\n0,1,1,0,1,1,1,{runs},{together}\n"
    )
    with pytest.raises(TraceError, match=reason):
        read_trace(file)


def test_runs_without_what_came_of_them_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("submit_s,duration_s,gpus,runs\n0,1,1,0/1 finished n0:0\n")
    with pytest.raises(TraceError, match="lacks start_s"):
        read_trace(file)
    file.write_text("submit_s,duration_s,gpus,start_s,end_s,held_s,starts,together\n0,1,1,0,1,1,1,\n")
    with pytest.raises(TraceError, match="lacks runs"):
        read_trace(file)


# -- GPU models of which nothing is said ------------------------------------------------------------------------------


def test_models_that_count_as_equally_fast_are_pointed_out(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    write_trace(jobs([(0.0, 100.0, 1), (1.0, 50.0, 2)]), file)
    asked = ("compare", file, "--cluster", "1x2:V100,1x2:K80", "--policies", "fifo")
    shown = run(*asked, "--html", tmp_path / "r.html")
    said = "V100 and K80 count as equally fast"
    assert said in " ".join(shown.stdout.split())
    assert said in shown.stderr
    assert said in (tmp_path / "r.html").read_text()
    (row,) = json.loads(run(*asked, "--json", "-", "-q").stdout)
    assert "--speeds facts" in row["notes"][0]
    assert "notes" in run(*asked, "--csv", "-", "-q").stdout
    told = run(*asked, "--speeds", "facts")
    assert said not in told.output
    assert said in run("explain", *asked[1:4], "--policy", "fifo", "--job", "0").stderr


def test_where_it_makes_no_difference_nothing_is_said() -> None:
    plain = [(0.0, 100.0, 1), (1.0, 50.0, 1)]
    assert not simulate(jobs(plain), "2x2:V100", "fifo").notes
    assert not simulate(jobs(plain), "1x2:V100,1x2", "fifo").notes
    pinned = jobs(plain, gpu_type=Labels.of(["V100", "k80"]))
    assert not simulate(pinned, "1x2:V100,1x2:K80", "fifo").notes
    either = jobs(plain, gpu_type=Labels.of(["V100|K80", "K80"]))
    assert simulate(either, "1x2:V100,1x2:K80", "fifo").notes
    measured = jobs(plain, speeds=Speeds(("V100", "K80"), np.array([[1.0, 0.2], [1.0, 0.3]])))
    assert not simulate(measured, "1x2:V100,1x2:K80", "fifo").notes
    (note,) = simulate(jobs(plain), "1x2:V100,1x2:NOSUCH", "fifo").notes
    assert "--speeds facts" not in note  # which would be refused


# -- what is missing is said before the work --------------------------------------------------------------------------


def test_a_missing_matplotlib_is_told_before_the_simulation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = run("compare", tmp_path / "not-even-there.csv", "--cluster", "1x1", "--plot", tmp_path / "p.png").exception
    assert isinstance(error, MissingDependencyError)
    assert "gpuloom[plot]" in str(error)
