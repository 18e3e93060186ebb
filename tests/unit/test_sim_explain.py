"""`gpuloom explain`: the story of a job under every policy."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from builders import POLICIES, jobs
from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.sim import Failure, simulate
from gpuloom.sim.explain import explain, plain
from gpuloom.sim.gpus import with_known_memory
from gpuloom.sim.inputs import load_cluster, load_policy

CLUSTER = "1x2:V100,1x2:K80"


def mixed(n: int = 24) -> Workload:
    rng = np.random.default_rng(1)
    speeds = Speeds(("V100", "K80"), np.column_stack([np.ones(n), rng.uniform(0.1, 0.8, n)]))
    return jobs([(float(i * 60), float(rng.uniform(100, 3000)), 1 + i % 2) for i in range(n)], speeds=speeds)


@pytest.mark.parametrize("policy", [*POLICIES, "muri-s", "muri-xl"])
def test_the_story_is_what_happened(policy: str) -> None:
    workload, cluster = mixed(), with_known_memory(load_cluster(CLUSTER))
    plainly = simulate(workload, cluster, policy, record_segments=True)
    segments = plainly.segments
    assert segments is not None
    for job in (0, 7, 20):
        story = explain(workload, cluster, load_policy(policy, seed=0), str(job))
        assert story.result.end_s.tolist() == plainly.end_s.tolist()  # watching changes nothing
        assert [step.what for step in story.steps][:2] == ["submit", "start"]
        assert story.steps[-1].what == "end"
        placed = [step for step in story.steps if step.alternatives]
        rows = np.flatnonzero(segments.job == job)
        assert [step.time_s for step in placed] == segments.start_s[rows].tolist()
        assert [cluster.nodes[node].gpu_model for node in segments.node[rows]] == [step.model for step in placed]
        for step in placed:
            chosen = [a for a in step.alternatives if a.chosen]
            assert [a.model for a in chosen] == [step.model]
            assert [a.model for a in step.alternatives] == ["V100", "K80"]
            speeds = workload.speeds
            assert speeds is not None
            assert [a.speed for a in step.alternatives] == speeds.factor[job].tolist()


def test_stops_and_failures_are_told() -> None:
    workload = jobs([(0, 2000, 1), (10, 500, 1)])
    cluster = load_cluster("1x1:V100,1x1:V100")
    story = explain(workload, cluster, load_policy("fifo"), "0", failures=(Failure(0, 100.0, 200.0),))
    assert [step.what for step in story.steps] == ["submit", "start", "lose", "restart", "end"]
    short = jobs([(0, 50_000, 1), (10, 500, 1)])
    stopped = explain(short, load_cluster("1x1"), load_policy("srtf"), "0", interval_s=0.0)
    assert [step.what for step in stopped.steps] == ["submit", "start", "stop", "restart", "end"]
    assert stopped.steps[3].waited_s == pytest.approx(510.0)


def test_hlas_says_why() -> None:
    workload, cluster = mixed(40), with_known_memory(load_cluster(CLUSTER))
    codes = set()
    for job in range(40):
        for step in explain(workload, cluster, load_policy("hlas"), str(job)).steps:
            if step.why is not None:
                codes.add(step.why.code)
                assert step.why.text.endswith(".")
            else:
                assert not step.alternatives
    assert {"placed_from_q1", "swapped_in", "swapped_out", "demoted"} <= codes


def test_alternatives_say_why_not() -> None:
    workload = jobs(
        [(0, 100, 1), (0, 100, 1)],
        gpu_type=Labels.of(["V100", ""]),
        gpu_memory_mib=np.array([1.0, 14_000.0]),
    )
    cluster = with_known_memory(load_cluster(CLUSTER))
    first, second = (explain(workload, cluster, load_policy("fifo"), job).steps[1].alternatives for job in "01")
    assert [a.cant for a in first] == ["", "asks for V100"]
    assert second[1].cant == "needs 14000 MiB, it has 12288"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    rows = "".join(f"j{i},{i * 50},{400 + 30 * i},1,1,{0.1 + i % 5 / 10:g},0.5\n" for i in range(12))
    path.write_text("job_id,submit_s,duration_s,gpus,speed:V100,speed:K80,iteration_s\n" + rows)
    return str(path)


@pytest.mark.parametrize("policy", ["hlas", "tiresias", "gavel"])
def test_the_command(trace: str, policy: str) -> None:
    words = ["explain", trace, "--cluster", "1x1:V100,1x1:K80,1x1:A100", "--policy", policy, "--job", "j5"]
    text = CliRunner().invoke(cli, [*words, "-q"], catch_exceptions=False).stdout
    assert "job j5 (1 GPU) of jobs" in text
    assert "(estimated)" in text
    assert "2 it/s (measured)" in text
    found = json.loads(CliRunner().invoke(cli, [*words, "-q", "--json"], catch_exceptions=False).stdout)
    start = next(step for step in found["steps"] if step["what"] == "start")
    assert {a["gpu_model"]: a["estimated"] for a in start["alternatives"]} == {
        "V100": False,
        "K80": False,
        "A100": True,
    }


def test_an_unknown_job(trace: str) -> None:
    with pytest.raises(InputError, match="has no job 'x'; its 12 jobs are named j0, j1, j2"):
        CliRunner().invoke(cli, ["explain", trace, "--cluster", "1x1", "--job", "x", "-q"], catch_exceptions=False)


def test_json_is_plain() -> None:
    story = explain(mixed(), with_known_memory(load_cluster(CLUSTER)), load_policy("hlas"), "3")
    assert json.loads(json.dumps(plain(story)))["steps"][0]["what"] == "submit"
