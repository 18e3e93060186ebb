"""Jobs of several sizes from files: ranges, curves, gpuloom's own columns, ElasticFlow's tables, the policy's YAML."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import jobs
from gpuloom.core.errors import InputError, PolicyError, TraceError
from gpuloom.core.scaling import NO_CURVE, Scaling
from gpuloom.core.workload import Labels, Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.elastic import Elastic
from gpuloom.policies.elastic_goodput import ElasticGoodput
from gpuloom.sim import simulate
from gpuloom.traces import read_trace, write_trace
from gpuloom.traces.elastic import PARALLEL, amdahl_curve, make_elastic, parse_range, trimmed
from gpuloom.traces.own import curve_of, curve_text
from scaling import scaling_of

ROOT = Path(__file__).resolve().parents[2]

# -- ranges and curves ------------------------------------------------------------------------------------------------


def test_ranges() -> None:
    assert parse_range("1-8").of(2) == (1, 8)
    assert parse_range("2-4").of(8) == (2, 8)  # what it asks for is always a size
    assert parse_range("2-4").of(1) == (1, 4)
    assert parse_range("0.5x-4x").of(3) == (2, 12)
    assert parse_range("0.5x-4x").of(1) == (1, 4)


@pytest.mark.parametrize("text", ["", "8", "8-1", "1.5-4", "0-4", "1x-4", "a-b", "1-inf", "nan-4"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a range of sizes"):
        parse_range(text)


def test_the_default_curve_is_amdahls_law() -> None:
    curve = amdahl_curve(4, 0.5)
    assert curve[:, 0].tolist() == pytest.approx([0.0, 1.0, 1 / 0.75, 1.5, 1.6])


def test_the_default_share_is_that_of_elasticflows_tables(data: Path) -> None:
    from gpuloom.facts.scaling import elasticflow_curves

    found = []
    for folder in ("throughputs_A100", "throughputs_T4"):
        for curve in elasticflow_curves(data / "elasticflow" / folder).values():
            speed = curve[:, 0]
            gpus = np.array([g for g in (1, 2, 4, 8, 16, 32, 64) if g <= int(speed.argmax())])
            shares = np.linspace(0, 1, 1001)
            model = 1 / ((1 - shares[:, None]) + shares[:, None] / gpus)
            error = (np.log(speed[gpus] / speed[1]) - np.log(model)) ** 2
            found.append(shares[error.sum(axis=1).argmin()])
    assert len(found) == 26
    assert np.median(found) == pytest.approx(PARALLEL, abs=0.005)


def test_jobs_are_made_elastic_by_the_best_source_there_is(tmp_path: Path) -> None:
    (tmp_path / "vgg.csv").write_text("global_batch_size,1,2,4,8\n64,1,1.8,3,2\n128,2,3.8,7,9\n256,1,1.9,3.6,6\n")
    workload = jobs([(0, 10, 2), (1, 10, 1), (2, 10, 100)], model=Labels.of(["VGG", "bert", "bert"]))
    found = make_elastic(workload, parse_range("1-8"), tmp_path)
    scaling = found.scaling
    assert scaling is not None
    assert list(zip(scaling.min_gpus.tolist(), scaling.max_gpus.tolist(), strict=True)) == [(1, 8), (1, 8), (100, 100)]
    assert scaling.speed(0, 8, 1) == pytest.approx(9 / 3.8)  # the middle batch size
    assert scaling.speed(1, 8, 1) == pytest.approx(1 / ((1 - PARALLEL) + PARALLEL / 8))
    assert scaling.curve[2] == NO_CURVE
    assert "rigid: 1 job" in found.notes[-1]


def test_sizes_beyond_the_fastest_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "vgg.csv").write_text("global_batch_size,1,2,4,8\n64,1,1.8,3,2\n")
    made = make_elastic(jobs([(0, 10, 1)], model=Labels.of(["vgg"])), parse_range("1-8"), tmp_path).scaling
    assert made is not None
    assert made.max_gpus.tolist() == [4]


def test_a_trace_that_has_sizes_keeps_its_curves() -> None:
    curve = np.array([[0.0], [1.0], [1.5], [2.0], [2.4]])
    ones = np.ones(1, dtype=np.int32)
    workload = jobs([(0, 10, 2)], scaling=Scaling(ones, ones, 3 * ones, 0 * ones, np.array([1.5]), (curve,)))
    made = make_elastic(workload, parse_range("1x-2x")).scaling
    assert made is not None
    assert (made.min_gpus.tolist(), made.max_gpus.tolist()) == ([2], [4])
    assert made.speed(0, 4, 1) == pytest.approx(1.6)


# -- gpuloom's own columns --------------------------------------------------------------------------------------------


@given(
    points=st.dictionaries(
        st.integers(1, 20), st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=4), min_size=1, max_size=6
    )
)
def test_curves_go_through_text(points: dict[int, list[float]]) -> None:
    width = max(map(len, points.values()))
    curve = np.zeros((max(points) + 1, width))
    for gpus, values in points.items():
        curve[gpus] = [*values, *[values[-1]] * (width - len(values))]
    again = curve_of(curve_text(curve))
    for gpus in range(len(curve)):
        assert [again[gpus, min(n, again.shape[1] - 1)] for n in range(width)] == curve[gpus].tolist()


def same(one: Workload, two: Workload) -> None:
    a, b = one.scaling, two.scaling
    assert a is not None
    assert b is not None
    for name in ("min_gpus", "max_gpus", "replica_gpus"):
        assert getattr(a, name).tolist() == getattr(b, name).tolist()
    for job in range(len(one)):
        for gpus in range(1, int(a.max_gpus[job]) + 1):
            assert a.allows(job, gpus) == b.allows(job, gpus)
            assert [a.speed(job, gpus, n) for n in (1, 2, 9)] == [b.speed(job, gpus, n) for n in (1, 2, 9)]


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet"])
def test_sizes_go_through_a_trace(suffix: str, tmp_path: Path) -> None:
    curve = np.array([[0.0, 0.0], [0.1, 0.1], [0.19, 0.15], [0.0, 0.0], [0.33, 0.2]])
    scaling = Scaling(
        np.array([1, 2, 1], dtype=np.int32),
        np.array([1, 1, 3], dtype=np.int32),
        np.array([4, 2, 3], dtype=np.int32),
        np.array([0, 0, NO_CURVE], dtype=np.int32),
        np.array([0.15, 0.19, 1.0]),
        (curve,),
    )
    workload = jobs([(0, 10, 2), (1, 20, 2), (2, 30, 3)], scaling=scaling)
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    write_trace(workload, tmp_path / f"jobs{suffix}")
    same(workload, read_trace(tmp_path / f"jobs{suffix}").workload)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2,1,4,1,1:1/2:x", r"'2:x' must be GPUs, a colon and throughputs above 0"),
        ("2,1,4,1,1:1/2:1.9/2:2", "2 GPUs are given twice"),
        ("2,1,4,1,1:1/2:1.9", "max_gpus is 4, but 'scaling' ends at 2 GPUs"),
        ("2,1,4,1,1:1/4:3", "'scaling' has no throughput for the 2 GPUs of the job"),
        ("2,1,4,1,", "a job of several sizes needs its throughputs"),
        ("5,1,4,1,1:1/5:3", r"gpus \(5\) must lie between min_gpus and max_gpus"),
        ("2,1,3,2,1:1/2:1.9/3:2", "must be multiples of replica_gpus"),
        ("2,0,4,1,1:1/2:1.9/4:3", "min_gpus is '0'"),
    ],
)
def test_bad_sizes_name_the_row_and_the_reason(row: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    head = "submit_s,duration_s,gpus,min_gpus,max_gpus,replica_gpus,scaling"
    file.write_text(f"{head}\n0,10,1,1,1,1,\n0,10,{row}\n")
    with pytest.raises(TraceError, match=f"jobs.csv:3.*{why}"):
        read_trace(file)
    skipped = read_trace(file, skip_bad_rows=True)
    assert (len(skipped.workload), len(skipped.bad_rows)) == (1, 1)


def test_elasticflows_trace_finds_its_throughputs(data: Path) -> None:
    workload = read_trace(data / "elasticflow" / "philly_103959.csv.gz").workload
    assert any(note.endswith(f" for {len(workload):,} jobs") for note in workload.notes), workload.notes
    scaling = workload.scaling
    assert scaling is not None
    assert (scaling.curve != NO_CURVE).all()
    assert (scaling.max_gpus > workload.gpus).any()
    # Job 0: vgg16, batch 256, 1 GPU: 1.313656 it/s alone, 2.5226867 on two GPUs.
    assert scaling.speed(0, 2, 1) == pytest.approx(2.5226867651439044 / 1.313656050830868)
    # The trace's own duration is iterations over throughput at the size asked for.
    assert 1282877 / scaling.reference[0] == pytest.approx(workload.duration_s[0], rel=1e-3)


# -- the policy's file ------------------------------------------------------------------------------------------------


def test_the_example_file_and_the_patents_names_say_the_same(tmp_path: Path) -> None:
    patent = tmp_path / "patent.yaml"
    patent.write_text(
        "elasticConfig:\n  elasticProportion: 0.3\n  expandThreshold: 0.3\n  expandPolicy: fail\n"
        "  scalingThreshold: 0.9\n  scalingPolicy: priority\n  hpaCheckMinutes: 5\n"
    )
    found = [load_policy(f"elastic:literal;config={file}") for file in (patent, ROOT / "examples" / "elastic.yaml")]
    assert all(isinstance(policy, Elastic) for policy in found)
    rules = [policy.rules() for policy in found if isinstance(policy, Elastic)]
    assert rules[0] == rules[1] == Elastic(literal=True).rules()
    assert rules[0][0].expand_policy == "fair"


def test_what_is_written_goes_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "e.yaml"
    file.write_text("elastic: {proportion: 0.5, check_minutes: 1, count_elastic_usage: false}\n")
    policy = load_policy(f"elastic:config={file};proportion=0.25")
    assert isinstance(policy, Elastic)
    rules, period_s = policy.rules()
    assert (rules.proportion, rules.count_elastic_usage, period_s) == (0.25, False, 60.0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("elastic: {expand_threshold: 0.9, shrink_threshold: 0.3}", "shrink_threshold is 0.3, must be above"),
        ("elastic: {proportion: 1.5}", "key 'proportion' is 1.5: must be above 0 and at most 1"),
        ("elastic: {elasticProportion: half}", "key 'elasticProportion' is 'half': must be a number"),
        ("elastic: {expandThreshold: 0.2, expand_threshold: 0.2}", "expand_threshold is given twice"),
        ("elastic: {treshold: 0.2}", "unknown key 'treshold'"),
        ("elastic: {shrink_policy: fast}", "key 'shrink_policy' is 'fast': must be one of fair, priority"),
        ("elastic: {proportion: [1]}", "must be one value"),
        ("[1, 2]", "must hold 'elastic:'"),
        ("elastic: {", "is not YAML"),
    ],
)
def test_a_bad_file_is_refused_with_file_key_and_reason(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(PolicyError, match=rf"config=.*bad\.yaml: .*{why}"):
        load_policy(f"elastic:config={file}")


@pytest.mark.parametrize(
    ("base", "why"),
    [
        ("antman", "lets jobs share GPUs"),
        ("elastic", "chooses sizes itself"),
        ("nobody", "unknown policy 'nobody'"),
        ("tiresias:promote=-1", "promote"),
    ],
)
def test_a_base_that_does_not_do_is_refused(base: str, why: str) -> None:
    for policy in (Elastic, ElasticGoodput):
        with pytest.raises(PolicyError, match=f"base={base}: .*{why}"):
            policy(base=base)


def test_a_base_takes_parameters_and_files(tmp_path: Path) -> None:
    policy = load_policy("elastic:base=tiresias:promote=2&scatter=yes;check_minutes=1")
    assert policy.inner is not None
    assert (policy.inner.values["promote"], policy.inner.values["scatter"]) == (2.0, True)
    samples = tmp_path / "samples.csv"
    samples.write_text("10\n20\n")
    policy = load_policy(f"elastic-goodput:base=gittins:samples={samples}")
    assert policy.inner is not None
    assert policy.inner.values["samples"].tolist() == [10.0, 20.0]


# -- what the policies do ---------------------------------------------------------------------------------------------

LINEAR = np.arange(9, dtype=np.float64)[:, None]


def linear(n: int, most: int = 8) -> Scaling:
    ones = np.ones(n, dtype=np.int32)
    return Scaling(ones, ones, most * ones, 0 * ones, np.ones(n), (LINEAR,))


def test_a_waiting_job_makes_borrowers_shrink_at_once() -> None:
    """Job 0 has all 8 GPUs; job 1 is rigid, needs 6, and starts when it comes. Job 0 goes on with 2."""
    scaling = linear(2)
    ones = np.ones(2, dtype=np.int32)
    mixed = Scaling(
        ones,
        np.array([1, 6], dtype=np.int32),
        np.array([8, 6], dtype=np.int32),
        0 * ones,
        np.array([1.0, 6.0]),
        scaling.curves,
    )
    workload = jobs([(0, 8000, 1), (100, 50, 6)], scaling=mixed)
    result = simulate(workload, "1x8", "elastic-goodput:least=0", restart_overhead_s=0.0)
    assert result.start_s.tolist() == [0, 100]
    # 800 done by 100 s, 50 s at 2 GPUs, the rest at 8.
    assert result.end_s.tolist() == pytest.approx([150 + (8000 - 800 - 100) / 8, 150])


def test_a_job_that_starts_gets_its_larger_size_for_nothing() -> None:
    result = simulate(jobs([(0, 800, 1)], scaling=linear(1)), "1x8", "elastic-goodput", restart_overhead_s=10)
    assert (result.end_s.tolist(), result.resizes) == ([110.0], 0)


def test_a_resize_that_does_not_pay_is_not_made() -> None:
    """Four GPUs are free for the last 100 s of work: not worth 1,000 s of standing still."""
    ones = np.ones(2, dtype=np.int32)
    scaling = Scaling(ones, 4 * ones, 8 * ones, 0 * ones, np.array([4.0, 4.0]), (LINEAR,))
    workload = jobs([(0, 500, 4), (0, 400, 4)], scaling=scaling)
    dear = simulate(workload, "1x8", "elastic-goodput", restart_overhead_s=0.0, resize_overhead_s=1000)
    cheap = simulate(workload, "1x8", "elastic-goodput", restart_overhead_s=0.0, resize_overhead_s=1)
    assert (dear.resizes, dear.end_s.tolist()) == (0, [500, 400])
    assert (cheap.resizes, cheap.end_s.tolist()) == (1, [400 + 1 + 50, 400])


def test_a_control_step_in_the_simulator() -> None:
    """Eight GPUs, one job at 1: M = (8 - 1)·0.5 = 3.5, t = 0.29, EM = (0.6 - t)·M = 1.1: one replica at 300 s."""
    policy = "elastic:literal;proportion=0.5;base=fifo"
    result = simulate(jobs([(10, 1000, 1)], scaling=linear(1)), "1x8", policy, restart_overhead_s=0.0)
    # 290 s at 1 GPU; at 2 GPUs M = 3 and t = 0.67: hold.
    assert result.resizes == 1
    assert result.end_s.tolist() == pytest.approx([300 + (1000 - 290) / 2])


# -- the command line -------------------------------------------------------------------------------------------------


def run(*words: str) -> tuple[int, str]:
    from click.testing import CliRunner

    from gpuloom.cli.main import cli

    found = CliRunner().invoke(cli, list(words))
    return found.exit_code if found.exception is None or isinstance(found.exception, SystemExit) else 2, (
        found.output + str(found.exception or "")
    )


def test_options_make_a_trace_elastic_and_choose_the_base(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("submit_s,duration_s,gpus\n0,1000,1\n0,1000,2\n")
    out = tmp_path / "out.json"
    words = ["compare", str(file), "--cluster", "1x8", "--policies", "tiresias,elastic-goodput", "--json", str(out)]
    code, text = run(*words, "--elastic", "1-8", "--base", "srtf")
    assert code == 0, text
    assert "by Amdahl's law with a parallel share of 0.86 for 2 jobs" in text
    fixed, elastic = (entry["avg_jct_s"] for entry in json.loads(out.read_text()))
    assert elastic < 0.6 * fixed


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--policy", "srtf", "--base", "fifo"), "--base is for elastic, elastic-goodput"),
        (("--policy", "elastic", "--elastic", "8-1"), "is not a range of sizes"),
        (("--policy", "elastic", "--scaling-profiles", "."), "needs --elastic"),
        (("--policy", "elastic", "--elastic-config", "none.yaml"), "none.yaml"),
        (("--policy", "srtf", "--elastic-config", "none.yaml"), "--elastic-config is for elastic"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: tuple[str, ...], why: str, tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text("submit_s,duration_s,gpus\n0,1000,1\n")
    code, text = run("simulate", str(file), "--cluster", "1x8", *words)
    assert code == 2
    assert why in text


def test_generated_jobs_may_be_elastic(tmp_path: Path) -> None:
    file = tmp_path / "jobs.csv"
    code, text = run("trace", "generate", "--jobs", "20", "--gpus", "16", "--elastic", "0.5x-2x", "--output", str(file))
    assert code == 0, text
    workload = read_trace(file).workload
    assert workload.scaling is not None
    assert workload.scaling.max_gpus.tolist() == (2 * workload.gpus).tolist()


def test_large_sizes_are_told_in_full() -> None:
    elastic = make_elastic(jobs([(0, 100, 1)]), parse_range("1-99999999"))
    assert "1 to 99,999,999 GPUs" in elastic.notes[-1]


def test_curves_are_cut_at_the_largest_size_of_each_job() -> None:
    """Two jobs of up to two GPUs share what is left of their curve; one of up to three has its own; one is rigid."""
    curve = np.array([[0.0], [1.0], [2.0], [3.0], [4.0]])
    gpus = np.array([1, 1, 1, 1], dtype=np.int32)
    scaling = scaling_of(gpus, [curve], np.array([0, 0, 0, NO_CURVE], np.int32), gpus, np.array([2, 3, 2, 1], np.int32))
    workload = replace(jobs([(0, 1, 1)] * 4), scaling=scaling)
    found = trimmed(workload).scaling
    assert found is not None
    assert found.curve.tolist() == [0, 1, 0, NO_CURVE]
    assert [one[:, 0].tolist() for one in found.curves] == [[0, 1, 2], [0, 1, 2, 3]]
    rigid = jobs([(0, 1, 1)])
    assert trimmed(rigid) is rigid


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([[0, 0], [1, 1], [2, 2]], "1:1.0/2:2.0"),
        ([[0, 0, 0], [1, 1, 1], [2, 1, 1]], "1:1.0/2:2.0|1.0"),
        ([[0, 0], [0, 0], [3, 2]], "2:3.0|2.0"),
        ([[0], [1]], "1:1.0"),
        ([[0, 0]], ""),
    ],
)
def test_a_curve_as_text_says_nothing_twice(values: list[list[float]], text: str) -> None:
    assert curve_text(np.array(values, dtype=float)) == text
