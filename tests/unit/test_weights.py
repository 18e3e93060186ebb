"""What the weight of a job means to each policy, and that it is said where it means nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import jobs
from gpuloom.cli.main import cli
from gpuloom.core.scaling import Scaling
from gpuloom.core.workload import Workload
from gpuloom.facts.inputs import load_policy
from gpuloom.policies.registry import BUILT_IN, policy_class
from gpuloom.sim import SimResult, simulate
from gpuloom.sim.rebuilt import Rebuilt
from tiers import examples, mostly_slow

HEEDING = [name for name in BUILT_IN if policy_class(name).traits.weights]


def run(workload: Workload, policy: str, cluster: str = "1x1", **settings: object) -> SimResult:
    return simulate(workload, cluster, policy, **{"restart_overhead_s": 0.0, "interval_s": 60.0, **settings})


def mixed_jobs(**columns: object) -> Workload:
    rng = np.random.default_rng(3)
    rows = [
        (float(s), float(d), int(g))
        for s, d, g in zip(
            np.sort(rng.integers(0, 4000, 60)), rng.integers(100, 9000, 60), rng.choice([1, 1, 2, 4], 60), strict=True
        )
    ]
    return jobs(rows, **columns)


@pytest.mark.parametrize("policy", mostly_slow(BUILT_IN, "srtf", "themis", "gavel", "elastic", "muri-xs"))
def test_with_equal_weights_nothing_is_decided_otherwise(policy: str) -> None:
    """Neither with weights of 1 nor, for those that order by ratios, with weights of 2."""
    plain = run(mixed_jobs(), policy, "2x4")
    assert run(mixed_jobs(weight=np.ones(60)), policy, "2x4").end_s.tolist() == plain.end_s.tolist()


@pytest.mark.parametrize(
    "policy",
    mostly_slow(
        [name for name in HEEDING if name not in ("elastic", "elastic-goodput", "rl")],
        "srtf",
        "tiresias",
        "muri-s",
        "weave",
    ),
)
def test_heavy_jobs_end_sooner_on_average(policy: str) -> None:
    """The same jobs, every third of them of weight 6."""
    heavy = np.arange(60) % 3 == 0
    plain = run(mixed_jobs(), policy, "2x4").jct_s[heavy].mean()
    weighed = run(mixed_jobs(weight=np.where(heavy, 6.0, 1.0)), policy, "2x4").jct_s[heavy].mean()
    assert weighed < plain * 0.97


@pytest.mark.parametrize("policy", [name for name in BUILT_IN if name not in HEEDING])
def test_those_that_ignore_weights_do(policy: str) -> None:
    heavy = np.where(np.arange(60) % 3 == 0, 6.0, 1.0)
    assert (
        run(mixed_jobs(weight=heavy), policy, "2x4").end_s.tolist() == run(mixed_jobs(), policy, "2x4").end_s.tolist()
    )


@pytest.mark.parametrize("policy", ["sjf", "srtf", "srtf:placement=repack", "srsf", "muri-s:group_size=1"])
def test_the_shortest_weighted_job_is_first(policy: str) -> None:
    """300 s at weight 6 is less than 100 s at weight 1 (Smith's rule)."""
    workload = jobs([(0, 100, 1), (0, 300, 1)], weight=np.array([1.0, 6.0]))
    assert run(workload, policy).end_s.tolist() == [400, 300]


def test_a_running_job_falls_behind_at_the_pace_of_its_weight() -> None:
    """900 s at weight 9 (100) runs before 200 s at weight 1; after 60 s a job of 50 s at weight 1 is ahead of both."""
    workload = jobs([(0, 900, 1), (0, 200, 1), (60, 50, 1), (60, 700, 1)], weight=np.array([9.0, 1.0, 1.0, 10.0]))
    assert run(workload, "srtf").end_s.tolist() == [1650, 1850, 110, 810]


@pytest.mark.parametrize(("weight", "ends"), [(1.0, [2, 1]), (4.0, [1, 2])])
def test_a_heavy_job_sinks_later_under_tiresias(weight: float, ends: list[int]) -> None:
    """The first has 600 of its 1,000 s when the other comes: beyond a limit of 500, but not of 4 times that."""
    workload = jobs([(0, 1000, 1), (600, 400, 1)], weight=np.array([weight, 1.0]))
    result = run(workload, "tiresias:thresholds=500")
    assert np.argsort(np.argsort(result.end_s)).tolist() == [end - 1 for end in ends]


def test_a_share_of_the_cluster_goes_by_weight_under_themis() -> None:
    """Of two jobs of 6,000 s on one GPU, alone on two thirds and one third: 9,000 and 18,000 s. Both at 2/3 of that."""
    workload = jobs([(0, 6000, 1), (0, 6000, 1)], weight=np.array([1.0, 2.0]))
    assert run(workload, "themis:lease=60s").end_s.tolist() == [12000, 6000]


@pytest.mark.parametrize("policy", ["elastic-goodput:base=fifo", "weave"])
def test_the_heavier_of_two_elastic_jobs_gets_more_gpus(policy: str) -> None:
    """Alike jobs of 1 to 6 GPUs, of which there are six."""
    ones = np.ones(2, dtype=np.int32)
    scaling = Scaling(ones, ones, 6 * ones, 0 * ones, np.ones(2), (np.sqrt(np.arange(7))[:, None],))
    workload = jobs([(0, 20_000, 1), (0, 20_000, 1)], scaling=scaling, weight=np.array([1.0, 8.0]))
    result = run(workload, policy, "1x6")
    assert result.end_s[1] < result.end_s[0] * 0.9


@pytest.mark.parametrize(
    ("policy", "heeds"),
    [
        ("fifo", False),
        ("srtf", True),
        ("gavel", True),
        ("gavel:objective=makespan", False),
        ("gavel:objective=allox", False),
        ("themis", True),
        ("themis:mode=muri", False),
        ("elastic:base=fifo", False),
        ("elastic:base=srtf", True),
        ("elastic-goodput:base=fifo", True),
        ("weave", True),
        ("fifo:beside=yes", False),
        ("srtf:beside=yes", True),
    ],
)
def test_whether_weights_mean_something_is_known_of_a_policy_as_set_up(policy: str, heeds: bool) -> None:
    assert load_policy(policy).heeds_weights is heeds


def trace(path: Path, weights: tuple[float, ...]) -> Path:
    rows = "".join(f"{n},{n},100,1,{weight}\n" for n, weight in enumerate(weights))
    path.write_text("job_id,submit_s,duration_s,gpus,weight\n" + rows)
    return path


def test_policies_that_ignore_weights_are_named_where_jobs_have_any(tmp_path: Path) -> None:
    command = ["compare", str(trace(tmp_path / "jobs.csv", (1, 2))), "--cluster", "1x2", "--policies"]
    told = CliRunner().invoke(cli, [*command, "fifo,srtf,antman"]).stderr
    assert "note: fifo, antman ignore the weights of jobs\n" in told
    assert "weights" not in CliRunner().invoke(cli, [*command, "srtf,tiresias"]).stderr
    trace(tmp_path / "jobs.csv", (1, 1))
    assert "weights" not in CliRunner().invoke(cli, [*command, "fifo"]).stderr


def test_the_list_of_policies_says_what_a_weight_means() -> None:
    assert "weights:       it ignores them" in CliRunner().invoke(cli, ["policies", "fifo"]).stdout
    assert "weights:       remaining time over weight (Smith)" in CliRunner().invoke(cli, ["policies", "srtf"]).stdout


@settings(deadline=None, max_examples=examples(60))
@given(rows=st.lists(st.tuples(st.integers(1, 900), st.sampled_from([1.0, 2.0, 3.5, 9.0])), min_size=1, max_size=9))
@pytest.mark.parametrize("policy", ["sjf", "srtf", "srsf"])
def test_the_weighted_sum_of_times_is_least_on_one_gpu(policy: str, rows: list[tuple[int, float]]) -> None:
    """Smith (1956)."""
    work, weight = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    result = run(jobs([(0, s, 1) for s in work.tolist()], weight=weight), policy)
    order = np.argsort(work / weight)
    assert weight @ result.end_s == pytest.approx(weight[order] @ np.cumsum(work[order]))


@pytest.mark.parametrize(
    "policy",
    mostly_slow([name for name in HEEDING if name not in ("rl", "weave", "muri-xl")], "srsf", "hlas", "elastic"),
)
def test_weights_are_heeded_alike_by_a_scheduler_that_is_built_anew(policy: str) -> None:
    """At every decision: what a live scheduler does after a restart."""
    heavy = mixed_jobs(weight=np.where(np.arange(60) % 3 == 0, 6.0, np.where(np.arange(60) % 5 == 0, 0.5, 1.0)))
    again = simulate(heavy, "2x4", Rebuilt(policy, compact=True), restart_overhead_s=0.0, interval_s=60.0)
    assert again.end_s.tolist() == pytest.approx(run(heavy, policy, "2x4").end_s.tolist())
