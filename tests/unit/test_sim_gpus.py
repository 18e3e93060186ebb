"""Facts of GPU models, what is estimated from them, prices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.cluster import Cluster, Node, parse_cluster
from gpuloom.core.errors import InputError
from gpuloom.core.workload import Speeds
from gpuloom.facts.gpus import all_gpus, find_gpu, gpus_named, measures, prices_usd_per_s, with_known_memory
from gpuloom.facts.inputs import load_policy
from gpuloom.facts.speeds import fill, from_facts, with_speeds
from gpuloom.report.metrics import cost_per_job_usd
from gpuloom.sim import simulate
from gpuloom.traces import read_trace


def test_every_row_is_complete_and_says_where_it_comes_from() -> None:
    assert len({gpu.model for gpu in all_gpus()}) == len(all_gpus())
    for gpu in all_gpus():
        assert min(gpu.memory_mib, gpu.fp16_tflops, gpu.fp32_tflops, gpu.memory_gbps) > 0
        assert gpu.fp16_tflops >= gpu.fp32_tflops
        assert gpu.source.startswith("NVIDIA")
        if gpu.price_usd_per_hour is not None:
            assert gpu.price_usd_per_hour > 0
            assert gpu.price_source
            assert gpu.price_date[:2] == "20"


@pytest.mark.parametrize(
    ("name", "model", "gib"),
    [
        ("v100", "V100", 16),
        ("Tesla-V100", "V100", 16),
        ("V100-32GB", "V100-32GB", 32),
        ("3090", "RTX-3090", 24),
        ("rtx 2080 Ti", "RTX-2080-TI", 11),
        ("A100-80GB", "A100-80GB", 80),
        ("h100", "H100", 80),
    ],
)
def test_names_are_found_whatever_their_case_and_hyphens(name: str, model: str, gib: int) -> None:
    found = find_gpu(name)
    assert found is not None
    assert (found.model, found.memory_mib) == (model, gib * 1024)


def test_what_is_unknown_is_none() -> None:
    assert find_gpu("Z9") is None
    assert prices_usd_per_s(["V100", "Z9"]) is None
    assert prices_usd_per_s(["V100", "M60"]) is None  # known, without a price
    assert prices_usd_per_s(["V100", "K80"]) == pytest.approx(np.array([2.48, 0.45]) / 3600)


def test_measures_go_by_every_name() -> None:
    fp16 = measures("fp16")
    assert (fp16["v100"], fp16["teslav100"], fp16["k80"]) == (125, 125, 4.37)
    assert measures("typical")["t4"] == pytest.approx((8.1 * 320) ** 0.5)


def test_memory_is_filled_in_where_the_cluster_does_not_tell() -> None:
    cluster = with_known_memory(Cluster((Node("a", 1, "K80"), Node("b", 1, "K80", 500), Node("c", 1, "Z9"))))
    assert [node.gpu_memory_mib for node in cluster.nodes] == [12288, 500, None]
    # V100 may be either; nothing is refused that might fit.
    assert [gpu.model for gpu in gpus_named("V100")][:2] == ["V100", "V100-32GB"]
    assert with_known_memory(parse_cluster("1x1:V100")).nodes[0].gpu_memory_mib == 32 * 1024
    plain = parse_cluster("2x2")
    assert with_known_memory(plain) is plain


def test_missing_entries_come_from_the_nearest_measured_model() -> None:
    factor = np.array([[1.0, np.nan, 0.1], [1.0, 0.5, np.nan], [1.0, 0.0, np.nan], [np.nan, np.nan, np.nan]])
    filled, estimated = fill(("V100", "P100", "K80"), factor)
    typical = {name: gpu.typical for name in ("V100", "P100", "K80") if (gpu := find_gpu(name))}
    assert filled[0, 1] == pytest.approx(typical["P100"] / typical["V100"])
    assert filled[1, 2] == pytest.approx(0.5 * typical["K80"] / typical["P100"])
    # 0 means that the job does not fit: it stays, and says nothing of other models.
    assert filled[2, 1] == 0.0
    assert filled[2, 2] == pytest.approx(typical["K80"] / typical["V100"])
    assert filled[3].tolist() == [1.0, 1.0, 1.0]
    assert estimated.tolist() == [[False, True, False], [False, False, True], [False, False, True], [True] * 3]


def test_estimates_are_not_built_on_estimates() -> None:
    speeds = Speeds(("V100", "K80"), np.array([[1.0, 0.3]]), np.array([[False, True]]))
    workload = with_speeds(jobs([(0, 10, 1)], speeds=speeds), parse_cluster("1x1:P4,1x1:V100"))
    found = workload.speeds
    assert found is not None
    p4, v100 = find_gpu("P4"), find_gpu("V100")
    assert p4 is not None
    assert v100 is not None
    assert found.models == ("V100", "K80", "P4")
    assert found.factor[0].tolist() == pytest.approx([1.0, 0.3, p4.typical / v100.typical])  # the K80 would be nearer
    assert found.estimated is not None
    assert found.estimated.tolist() == [[False, True, True]]
    assert "estimated" in workload.notes[-1]


def test_all_policies_see_the_same_estimated_physics() -> None:
    workload = jobs([(0, 1000, 1)], speeds=Speeds(("V100",), np.ones((1, 1))))
    a100, v100 = find_gpu("A100"), find_gpu("V100")
    assert a100 is not None
    assert v100 is not None
    for policy in ("fifo", "gavel", "hlas"):
        result = simulate(workload, "1x1:A100", policy, restart_overhead_s=0.0)
        assert result.jct_s[0] == pytest.approx(1000 * v100.typical / a100.typical)


def test_nothing_changes_without_speeds_or_facts() -> None:
    bare = jobs([(0, 10, 1)])
    assert with_speeds(bare, parse_cluster("1x1:V100,1x1:K80")) is bare
    known = jobs([(0, 10, 1)], speeds=Speeds(("V100",), np.ones((1, 1))))
    assert with_speeds(known, parse_cluster("1x1:V100,1x1:Z9,1x1")) is known


def test_speeds_from_facts_are_relative_to_the_reference() -> None:
    cluster = parse_cluster("1x1:V100,1x1:K80")
    v100, k80 = find_gpu("V100"), find_gpu("K80")
    assert v100 is not None
    assert k80 is not None
    ratio = v100.typical / k80.typical
    slowest = from_facts(jobs([(0, 10, 1)]), cluster).speeds
    assert slowest is not None
    assert slowest.factor.tolist() == [pytest.approx([ratio, 1.0])]
    on_v100 = from_facts(jobs([(0, 10, 1)]), cluster, "V100").speeds
    assert on_v100 is not None
    assert on_v100.factor.tolist() == [pytest.approx([1.0, 1 / ratio])]
    assert on_v100.estimated is not None
    assert on_v100.estimated.tolist() == [[False, True]]
    with pytest.raises(InputError, match="nothing is known of GPU model 'Z9'"):
        from_facts(jobs([(0, 10, 1)]), parse_cluster("1x1:Z9,1x1:V100"))
    with pytest.raises(InputError, match="GPU model of every node"):
        from_facts(jobs([(0, 10, 1)]), parse_cluster("1x1"))


def test_cost_is_price_times_time_held() -> None:
    result = simulate(jobs([(0, 3600, 2), (0, 7200, 1)]), "1x2:V100,1x1:K80", "fifo", restart_overhead_s=0.0)
    assert cost_per_job_usd(result) == pytest.approx((2 * 2.48 + 2 * 0.45) / 2)


def test_merged_traces_keep_their_marks(tmp_path: Path) -> None:
    rates = {m: {"('Toy', 1)": {"null": r}} for m, r in (("v100", 2.0), ("k80", 1.0))} | {"p100": {}}
    (tmp_path / "simulation_throughputs.json").write_text(json.dumps(rates))
    for name, at in (("a", 0), ("b", 5)):
        (tmp_path / f"{name}.trace").write_text(f"Toy\trun %s\tdir\t-n\t1\t100\t1\t1\t-1.0\t{at}\n")
    speeds = read_trace([tmp_path / "a.trace", tmp_path / "b.trace"]).workload.speeds
    assert speeds is not None
    assert speeds.estimated is not None
    assert speeds.estimated[:, speeds.models.index("P100")].tolist() == [True, True]
    assert speeds.factor[:, speeds.models.index("K80")].tolist() == [0.5, 0.5]


# -- commands ---------------------------------------------------------------------------------------------------------


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_gpus_prints_every_model_and_json_the_sources() -> None:
    table = run("gpus")
    assert all(gpu.model in table for gpu in all_gpus())
    rows = json.loads(run("gpus", "--json"))
    assert [row["model"] for row in rows] == [gpu.model for gpu in all_gpus()]
    assert all(row["source"] for row in rows)
    assert [row["model"] for row in json.loads(run("gpus", "k80", "--json"))] == ["K80"]


def test_gpus_of_an_unknown_model() -> None:
    with pytest.raises(InputError, match=r"nothing is known of GPU model 'Z9' \(known: K80"):
        CliRunner().invoke(cli, ["gpus", "Z9"], catch_exceptions=False)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    rows = "".join(f"j{i},{i * 50},{400 + 30 * i},1\n" for i in range(12))
    path.write_text("job_id,submit_s,duration_s,gpus\n" + rows)
    return str(path)


def test_speeds_option(trace: str) -> None:
    measured = json.loads(run("simulate", trace, "--cluster", "1x2:V100,1x2:K80", "-q", "--json", "-"))
    facts = json.loads(
        run("simulate", trace, "--cluster", "1x2:V100,1x2:K80", "--speeds", "facts", "-q", "--json", "-")
    )
    slow = json.loads(
        run(
            *("simulate", trace, "--cluster", "1x2:V100,1x2:K80", "--speeds", "facts"),
            *("--gpu-model", "H100", "-q", "--json", "-"),
        )
    )
    assert facts["avg_jct_s"] < measured["avg_jct_s"] < slow["avg_jct_s"]


def test_hlas_literal_option(trace: str) -> None:
    words = ("--cluster", "1x1:V100,1x1:K80", "--speeds", "facts", "-q", "--json", "-")
    option = json.loads(run("simulate", trace, "--policy", "hlas", "--hlas", "literal", *words))
    parameter = json.loads(run("simulate", trace, "--policy", "hlas:literal=yes", *words))
    default = json.loads(run("simulate", trace, "--policy", "hlas", *words))
    assert option["avg_jct_s"] == parameter["avg_jct_s"] != default["avg_jct_s"]
    with pytest.raises(InputError, match="--hlas is for hlas, which is not among srtf"):
        CliRunner().invoke(
            cli, ["simulate", trace, "--policy", "srtf", "--hlas", "literal", *words], catch_exceptions=False
        )


def test_facts_reach_policy_objects_too() -> None:
    policy = replace_performance("hlas")
    simulate(jobs([(0, 10, 1)]), "1x1:V100,1x1:K80", policy)
    assert policy.cache._performance == pytest.approx([125 / 4.37, 1.0])


def replace_performance(text: str):
    policy = load_policy(text)
    policy.values["performance"] = "fp16"  # as made without `load_policy`
    return policy
