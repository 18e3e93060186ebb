"""`gpuloom explain`: the story of a job under every policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from builders import POLICIES, jobs, with_stages
from gpuloom.cli.main import cli
from gpuloom.core.decision import Decision, Placement
from gpuloom.core.errors import InputError
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Labels, Speeds, Workload
from gpuloom.facts.gpus import with_known_memory
from gpuloom.facts.inputs import load_cluster, load_policy
from gpuloom.policies.base import Policy
from gpuloom.sim import Failure, simulate
from gpuloom.sim.explain import Watched, explain, find_job, plain
from gpuloom.traces.elastic import make_elastic, parse_range
from tiers import mostly_slow

CLUSTER = "1x2:V100,1x2:K80"


def mixed(n: int = 24) -> Workload:
    rng = np.random.default_rng(1)
    speeds = Speeds(("V100", "K80"), np.column_stack([np.ones(n), rng.uniform(0.1, 0.8, n)]))
    return jobs([(float(i * 60), float(rng.uniform(100, 3000)), 1 + i % 2) for i in range(n)], speeds=speeds)


@pytest.mark.parametrize(
    "policy",
    mostly_slow(
        [*POLICIES, "muri-s", "muri-xl"], "fifo:backfill=easy", "srtf", "tiresias", "gavel", "hlas", "rl", "muri-s"
    ),
)
def test_the_story_is_what_happened(policy: str) -> None:
    workload, cluster = mixed(), with_known_memory(load_cluster(CLUSTER))
    plainly = simulate(workload, cluster, policy, record_segments=True)
    segments = plainly.segments
    assert segments is not None
    for job in (0, 7, 20):
        story = explain(workload, cluster, load_policy(policy, seed=0), str(job))
        assert story.result.end_s.tolist() == plainly.end_s.tolist()  # watching changes nothing
        assert story.result.saved == plainly.saved
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


@pytest.mark.parametrize("policy", ["antman", "muri-s"])
def test_who_shares_is_slowed_down_in_the_story_too(policy: str) -> None:
    """On one GPU, two at a time."""
    workload, cluster = with_stages(jobs([(0, 1000, 1), (0, 1000, 1)])), load_cluster("1x1")
    workload = replace(workload, priority=np.array([0, 1], np.int32))
    plainly = simulate(workload, cluster, policy)
    assert plainly.start_s[1] < plainly.end_s[0]
    story = explain(workload, cluster, load_policy(policy, seed=0), "1")
    assert story.result.end_s.tolist() == plainly.end_s.tolist()


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


# -- the options of `simulate` ----------------------------------------------------------------------------------------


def explained(*words: object) -> tuple[str, dict[str, object]]:
    given = ["explain", *map(str, words), "-q"]
    text = CliRunner().invoke(cli, given, catch_exceptions=False).stdout
    return text, json.loads(CliRunner().invoke(cli, [*given, "--json"], catch_exceptions=False).stdout)


OPTIONS = [
    ("elastic", ["--elastic", "1-4", "--base", "fifo", "--resize-overhead", "1h"]),
    ("elastic-goodput", ["--elastic", "1-4", "--seed", "3"]),
    ("hlas", ["--hlas", "literal", "--speeds", "facts"]),
    ("tiresias", ["--mtbf", "30m", "--repair", "5m", "--checkpoint", "4m", "--seed", "5"]),
    ("muri-l", ["--group-size", "2", "--interleave-overhead", "1.5"]),
    ("srtf", ["--compat", "muri", "--restart-overhead", "30"]),
]


@pytest.mark.parametrize(("policy", "options"), OPTIONS)
def test_any_run_can_be_explained(tmp_path: Path, policy: str, options: list[str]) -> None:
    trace = tmp_path / "plain.csv"
    rows = "".join(f"j{i},{i * 50},{400 + 130 * i},{1 + i % 2},0.1,0.2,0.1\n" for i in range(16))
    trace.write_text("job_id,submit_s,duration_s,gpus,load_s,compute_s,network_s\n" + rows)
    cluster = "2x2:V100" if policy in {"srtf", "muri-l"} else "1x2:V100,1x2:K80"
    words = [str(trace), "--cluster", cluster, "--policy", policy, *options]
    done = CliRunner().invoke(cli, ["simulate", *words, "--jobs-csv", "-", "-q"], catch_exceptions=False).stdout
    ends = {row.split(",")[1]: float(row.split(",")[5]) for row in done.splitlines()[1:]}
    for job in ("j0", "j9", "j15"):
        steps = explained(*words, "--job", job)[1]["steps"]
        assert isinstance(steps, list)
        assert steps[-1] == {"time_s": ends[job], "what": "end"}


def test_options_for_other_policies_are_refused(trace: str) -> None:
    with pytest.raises(InputError, match="--base is for elastic"):
        explained(trace, "--cluster", "1x1", "--policy", "fifo", "--base", "srtf", "--job", "j1")


def test_an_interrupted_story_says_so(trace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly = Watched.decide

    def decide(self: Watched, snapshot: Snapshot, memory: object) -> object:
        if snapshot.now_s > 500:
            raise KeyboardInterrupt
        return plainly(self, snapshot, memory)

    monkeypatch.setattr(Watched, "decide", decide)
    words = ["explain", trace, "--cluster", "1x1", "--policy", "fifo", "--job", "j0", "-q"]
    for json_too in ([], ["--json"]):
        done = CliRunner().invoke(cli, [*words, *json_too], catch_exceptions=False)
        assert done.exit_code == 1
        assert "interrupted" in done.stderr
        if json_too:
            assert json.loads(done.stdout)["interrupted"] is True


def test_a_job_that_was_left_out(tmp_path: Path) -> None:
    trace = tmp_path / "two.csv"
    trace.write_text("submit_s,duration_s,gpus\n0,10,8\n1,20,1\n")
    words = [trace, "--cluster", "1x2", "--policy", "fifo", "--skip-impossible", "--job"]
    with pytest.raises(InputError, match="job 0 can never be placed, and is left out: job 0 asks for 8 GPUs"):
        explained(*words, 0)
    text, found = explained(*words, 1)
    assert found["job_id"] == "1"  # not renamed by what was left out
    assert "job 1 (1 GPU)" in text
    with pytest.raises(InputError, match=r"has no job '2'; its 2 jobs are named 0, 1$"):
        explained(*words, 2)


def test_jobs_by_number(trace: str) -> None:
    assert explained(trace, "--cluster", "1x1", "--job", "3")[1]["job_id"] == "j3"
    assert find_job(jobs([(0, 1, 1), (1, 1, 1)], job_ids=("1", "x")), "1") == 0  # an id goes before a number


def sources(words: list[object]) -> dict[str, str]:
    steps = explained(*words)[1]["steps"]
    assert isinstance(steps, list)
    start = next(step for step in steps if step["what"] == "start")
    return {a["gpu_model"]: a["source"] for a in start["alternatives"]}


def test_where_speeds_are_from(tmp_path: Path) -> None:
    plainly = tmp_path / "plain.csv"
    plainly.write_text("submit_s,duration_s,gpus\n0,1000,1\n")
    words: list[object] = [plainly, "--job", "0", "--policy", "fifo", "--cluster"]
    assert sources([*words, "1x1:V100"]) == {"V100": "reference"}
    assert sources([*words, "1x1:V100,1x1:K80"]) == {"V100": "assumed", "K80": "assumed"}
    facts = ["1x1:V100,1x1:K80", "--speeds", "facts"]
    assert sources([*words, *facts]) == {"V100": "estimated", "K80": "reference"}
    assert sources([*words, *facts, "--gpu-model", "V100"]) == {"V100": "reference", "K80": "estimated"}
    grown = [*words, "1x4:V100", "--policy", "elastic-goodput", "--elastic", "1-4"]
    assert sources(grown) == {"V100": "reference, by its curve"}
    curves = tmp_path / "curves.csv"
    curves.write_text("submit_s,duration_s,gpus,speed:V100,speed:K80,scaling\n0,1000,2,1,0.5,2:2|1\n")
    words = [curves, "--job", "0", "--policy", "fifo", "--cluster"]
    assert sources([*words, "1x2:V100,1x2:K80"]) == {"V100": "measured", "K80": "measured"}
    assert set(sources([*words, "2x1:V100,2x1:K80"]).values()) == {"measured, by its curve"}


def test_a_new_size_elsewhere_is_a_move() -> None:
    class Mover(Policy):
        id = "mover"
        traits = load_policy("fifo").traits
        resizes = True
        plan = ((0.0, Placement((0,), (1,))), (10.0, Placement((0,), (3,))), (20.0, Placement((1,), (7,))))

        def decide(self, snapshot: Snapshot, memory: object) -> tuple[Decision, object]:
            times = [time_s for time_s, _ in self.plan]
            if snapshot.now_s not in times:
                return Decision(), memory
            at = times.index(snapshot.now_s)
            wake_s = times[at + 1] if at + 1 < len(times) else float("inf")
            return Decision(run={0: self.plan[at][1]}, wake_at_s=wake_s), memory

    workload = make_elastic(jobs([(0, 1000, 1)]), parse_range("1-4"))
    story = explain(workload, load_cluster("2x4"), Mover(), "0", interval_s=0.0)
    assert [step.what for step in story.steps] == ["submit", "start", "resize", "move", "end"]
    assert (story.result.moves, story.result.resizes) == (1, 1)


def test_a_long_story_is_cut(trace: str, tmp_path: Path) -> None:
    many = tmp_path / "many.csv"
    rows = "".join(f"s{i},{100 + i * 40},10,1\n" for i in range(60))
    many.write_text("job_id,submit_s,duration_s,gpus\nlong,0,9000,1\n" + rows)
    words = [many, "--cluster", "1x1:V100", "--policy", "srtf", "--interval", "0", "--job", "long"]
    text, found = explained(*words)
    steps = found["steps"]
    assert isinstance(steps, list)
    assert len(steps) == 2 + 2 * 60 + 1
    assert f"… {len(steps) - 50} of {len(steps)} steps are left out here (--json has all)" in text
    assert text.count("\n+") == 50
    short = explained(trace, "--cluster", "1x1:V100,1x1:K80", "--job", "j5")[0]
    assert "left out" not in short
    assert "moves on" not in short
