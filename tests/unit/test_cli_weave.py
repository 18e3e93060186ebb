"""`gpuloom weave` and `gpuloom profiles`, run in this process, and the timeline that `weave --plot` draws."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from gpuloom.cli.main import cli
from gpuloom.core.errors import InputError, TraceError
from gpuloom.interleave.efficiency import MEASURED_OVERHEAD, Interleaving
from gpuloom.report.weaving import lanes, stretched, timeline, window
from tiers import slow

FOUR = "job,storage_s,cpu_s,gpu_s,network_s\n"
THREE = "job,load_s,compute_s,network_s\n"
COMPLEMENTS = FOUR + "a,4,1,1,1\nb,1,4,1,1\nc,1,1,4,1\nd,1,1,1,4\n"


def run(*args: object, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], input=stdin, catch_exceptions=False)


def woven(*args: object, stdin: str) -> dict[str, Any]:
    result = run("weave", "-", "--json", "-", *args, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, "")
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# -- weave ------------------------------------------------------------------------------------------------------------


PAIRS = "model_a,model_b,gpu_model,speed_a,speed_b\n"


def test_measured_pairs_go_before_the_model(tmp_path: Path) -> None:
    stdin = THREE + "a,4,1,1\nb,1,4,1\nc,1,1,4\n"
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(PAIRS + "a,b,V100,0,0\nb,c,V100,0.95,0.9\na,c,V100,0.5,0.4\n")
    found = woven("--group-size", 2, "--pair-speeds", pairs, stdin=stdin)
    by_jobs = {tuple(job["job"] for job in group["jobs"]): group for group in found["groups"]}
    assert {frozenset(names) for names in by_jobs} == {frozenset("bc"), frozenset("a")}
    pair = next(group for names, group in by_jobs.items() if len(names) == 2)
    assert pair["source"] == "measured pair"
    assert pair["normalised_throughput"] == pytest.approx(1.85)
    slowdown = {job["job"]: job["slowdown"] for job in pair["jobs"]}
    assert slowdown == {"b": pytest.approx(1 / 0.95), "c": pytest.approx(1 / 0.9)}
    assert next(group for group in by_jobs.values() if len(group["jobs"]) == 1)["source"] == "alone"
    assert {group["source"] for group in woven("--group-size", 2, stdin=stdin)["groups"]} <= {"stage times", "alone"}
    printed = run("weave", "-", "--group-size", 2, "--pair-speeds", pairs, stdin=stdin)
    assert "measured" in printed.stdout


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ("a,b,V100,1,1\na,b,K80,1,1\n", [], "has pairs on K80, V100: choose one with --gpu-model"),
        ("a,b,V100,1,1\n", ["--gpu-model", "A100"], "has no pairs on GPU model 'A100'; it has V100"),
        ("x,y,V100,1,1\n", [], "knows none of the jobs beside each other on V100"),
    ],
)
def test_pairs_of_other_models_or_jobs_are_refused(tmp_path: Path, rows: str, words: list[str], said: str) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(PAIRS + rows)
    with pytest.raises(InputError, match=said):
        run("weave", "-", "--pair-speeds", pairs, *words, stdin=COMPLEMENTS)


def test_a_gpu_model_is_for_pairs() -> None:
    with pytest.raises(InputError, match="--gpu-model is for --pair-speeds"):
        run("weave", "-", "--gpu-model", "V100", stdin=COMPLEMENTS)


def test_four_complements_are_one_group() -> None:
    found = woven(stdin=COMPLEMENTS)
    (group,) = found["groups"]
    assert [found[key] for key in ("model", "group_size", "gpus_before", "gpus_after")] == ["barrier", 4, 4, 1]
    # Each of the four long stages at the same step: 4 + 1 + 1 + 1.
    assert group["iteration_s"] == 7
    assert group["efficiency"] == 1
    assert group["normalised_throughput"] == 4
    assert [job["slowdown"] for job in group["jobs"]] == [1, 1, 1, 1]
    assert sorted(job["slot"] for job in group["jobs"]) == [0, 1, 2, 3]
    assert group["jobs"][0]["stage_s"].keys() == {"storage", "cpu", "gpu", "network"}
    assert found["solvers"][0]["optimal"]
    assert found["overhead_factors"] == {"2": 1, "3": 1, "4": 1}


def test_the_worst_order_is_worse() -> None:
    assert woven("--ordering", "worst", stdin=COMPLEMENTS)["normalised_throughput"] < 4


def test_jobs_are_woven_within_equal_numbers_of_gpus() -> None:
    text = "job,gpus,count,load_ms,compute_ms,network_ms,iteration_ms\nx,1,2,900,50,50,1000\ny,4,,50,900,50,1000\n"
    found = woven(stdin=text)
    assert {group["gpus"] for group in found["groups"]} == {1, 4}
    assert [solver["gpus"] for solver in found["solvers"]] == [1, 4]
    assert all(len({job["job"] for job in group["jobs"]}) == 1 for group in found["groups"])
    assert found["jobs"] == found["jobs_in_groups"] == 3
    alone = found["groups"][-1]
    assert (alone["iteration_s"], alone["jobs"][0]["slowdown"], alone["normalised_throughput"]) == (1.0, 1.0, 1.0)


def test_three_stages_take_the_measured_model_and_its_overhead() -> None:
    text = THREE + "x,0.9,0.05,0\ny,0.05,0.9,0\n"
    found = woven(stdin=text)
    (group,) = found["groups"]
    assert (found["model"], group["overhead_factor"]) == ("measured", MEASURED_OVERHEAD[1])
    free = woven("--interleave-overhead", "none", stdin=text)["groups"][0]
    assert group["iteration_s"] == pytest.approx(MEASURED_OVERHEAD[1] * free["iteration_s"])
    dear = woven("--interleave-overhead", "1.1/1/1", stdin=text)["groups"][0]
    assert dear["iteration_s"] == pytest.approx(1.1 * free["iteration_s"])


def test_four_stages_under_the_measured_model_become_three() -> None:
    found = woven("--model", "measured", stdin=COMPLEMENTS)
    assert found["groups"][0]["jobs"][0]["stage_s"].keys() == {"load", "compute", "network"}
    assert "added up as load" in found["notes"][0]


def test_stage_times_come_from_the_models_profile(home: Path) -> None:
    assert run("profiles", "add", "mine", "--gpus", 2, "--iteration", "1s", "--stages", "0.9,0.1,0").exit_code == 0
    result = run("weave", "-", stdin="job_id,model,gpus\na,bert,1\nb,a2c,1\nc,mine,4\n")
    assert result.exit_code == 0, result.stderr
    assert "stage times of 3 jobs are from the profile library, by model and GPUs (1 measured on" in result.stderr
    found = woven(stdin="model,count\nbert,2\na2c,2\n")
    assert {job["job"] for group in found["groups"] for job in group["jobs"]} == {"bert", "a2c"}
    assert sum(len(group["jobs"]) * group["groups_alike"] for group in found["groups"]) == 4


def test_group_size_memory_and_groups_are_kept() -> None:
    text = "job,count,load_s,compute_s,network_s,gpu_memory_mib\nx,4,0.9,0.05,0,9000\ny,4,0.05,0.9,0,3000\n"
    two = woven("--group-size", 2, stdin=text)
    assert max(len(group["jobs"]) for group in two["groups"]) == 2
    tight = woven("--gpu-memory", "12GiB", stdin=text)
    for group in tight["groups"]:
        assert sum({"x": 9000, "y": 3000}[job["job"]] for job in group["jobs"]) <= 12288
    assert woven("--groups", 2, stdin=text)["group_count"] <= 2


def test_the_table_says_all(tmp_path: Path) -> None:
    file, plot, out = tmp_path / "jobs.csv", tmp_path / "woven.svg", tmp_path / "woven.json"
    file.write_text(COMPLEMENTS)
    result = run("weave", file, "--json", out, "--plot", plot)
    assert result.exit_code == 0
    assert f"wrote {out}\nwrote {plot}\n" in result.stderr
    assert json.loads(out.read_text())["group_count"] == 1
    assert "<svg" in plot.read_text()
    for said in ("1.00×", "0.25 → 1.00", "4.00×", "4 → 1", "4 jobs in 1 group on 1 GPU instead of 4", "optimal"):
        assert said in result.stdout
    assert "model: barrier, ordering best, overhead none" in result.stdout


@pytest.mark.parametrize("suffix", ["png", *slow("pdf")])
def test_plots_of_every_kind(tmp_path: Path, suffix: str) -> None:
    plot = tmp_path / f"woven.{suffix}"
    rows = "".join(f"{name},{gpus},0.2,0.3,0.1\n" for gpus, name in enumerate("abc_$dghi", 1))
    assert run("weave", "-", "--plot", plot, stdin="job,gpus,load_s,compute_s,network_s\n" + rows).exit_code == 0
    assert plot.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("text", "args", "says"),
    [
        (THREE, (), "holds no jobs, only a header"),
        ("", (), "is empty"),
        ("gpus,load_s,compute_s,network_s\n1,1,1,1\n", (), "lacks column job"),
        ("job\na\n", (), "has neither stage times"),
        ("submit_s,duration_s,gpus\n0,1,1\n", (), "is a trace .* has their stage times or models"),
        ("job,load_s,compute_s\na,1,1\n", (), "lacks the stage time network_s"),
        ("job,model\na,brt\n", (), "did you mean 'bert'"),
        ("model,batch_size\nbert,7\n", (), "no profile of batch size 7, only of \\[4\\]"),
        ("job,model\na,\n", (), ":2: has neither stage times nor a model"),
        (THREE + "a,1,1,1\na,1,1,1\n", (), "'a' was used before, on line 2"),
        (THREE + "a,1,x,1\n", (), "<stdin>:2, column 'compute_s': compute_s is 'x'"),
        (THREE + "a,0,0,0\n", (), "all stages take 0 s"),
        ("job,count,load_s,compute_s,network_s\na,0,1,1,1\n", (), "count is '0'"),
        ("job,count,load_s,compute_s,network_s\na,2000000,1,1,1\n", (), "at most 1,000,000"),
        (THREE + "a,1,1,1\n", ("--interleave-overhead", "2/3"), "must be|at least 1"),
        (THREE + "a,1,1,1\n", ("--interleave-overhead", "1/nan/1"), "must be|at least 1"),
        (THREE + "a,1,1,1\n", ("--model", "barrier", "--group-size", 4), "at most as many jobs as stages, 3"),
        (THREE + "a,1,1,1\n", ("--gpu-memory", "much"), "--gpu-memory: 'much' is not a memory size"),
        (THREE + "a,1,1,1\n", ("--plot", "out.gif"), "ends in .png, .svg or .pdf"),
        (THREE + "a,1,1,1\n", ("--json", "/nowhere/x.json"), "the folder /nowhere does not exist"),
        (THREE + "a,1,1,1\n", ("--library", "/nowhere/lib.csv", "--group-size", 1), None),
        ("job,model\na,bert\n", ("--library", "/nowhere/lib.csv"), "no such profile library"),
    ],
)
def test_errors(text: str, args: tuple[object, ...], says: str | None) -> None:
    if says is None:
        assert run("weave", "-", *args, stdin=text).exit_code == 0
        return
    with pytest.raises((InputError, TraceError), match=says) as caught:
        run("weave", "-", *args, stdin=text)
    assert caught.value.exit_code == 2


def test_a_job_larger_than_the_gpu() -> None:
    text = "job,load_s,compute_s,network_s,gpu_memory_mib\na,1,1,1,20000\nb,1,1,1,\n"
    with pytest.raises(InputError, match="'a' needs 20,000 MiB on each GPU, --gpu-memory is 16,384 MiB"):
        run("weave", "-", "--gpu-memory", "16GiB", stdin=text)
    assert "memory of 1 of 2 jobs is unknown" in woven("--gpu-memory", "32GiB", stdin=text)["notes"][0]


# -- profiles ---------------------------------------------------------------------------------------------------------


def test_import_then_list(tmp_path: Path) -> None:
    file = tmp_path / "artifact.csv"
    file.write_text(
        "model,num_gpu,batch_size,iteration_time_ms,stage0_dataload_ms,stage1_gpu_ms,stage2_network_ms,"
        "start_overhead_s\nbert,1,4,180,1,160,0,11\nnew,2,8,100,50,30,20,3\n"
    )
    assert "imported 2 profiles into" in run("profiles", "import", file).stderr
    rows = json.loads(run("profiles", "list", "--json").stdout)
    mine = [row for row in rows if row["own"]]
    assert len(rows) == 49, "one of a shipped key, one new"
    assert mine[0]["iteration_s"] == 0.18
    assert mine[1] == {
        "model": "new",
        "gpus": 2,
        "batch_size": 8,
        "gpu_model": None,
        "iteration_s": 0.1,
        "stage_s": {"load": 0.05, "compute": 0.03, "network": 0.02},
        "gpu_memory_mib": None,
        "start_s": 3.0,
        "source": "",
        "noise": None,
        "date": None,
        "own": True,
    }
    with pytest.raises(InputError, match="has a profile of bert on 1 GPU, batch size 4 already \\(and 1 more\\)"):
        run("profiles", "import", file)
    assert "2 of them replaced others" in run("profiles", "import", file, "--replace").stderr
    assert "49 profiles of 9 models, 2 yours" in run("profiles", "list").stdout
    doubtful = tmp_path / "microseconds.csv"
    doubtful.write_text(file.read_text().splitlines()[0] + "\nodd,1,4,180,1000,160000,0,11\n")
    assert "warning: profile of odd" in (told := run("profiles", "import", doubtful).stderr)
    assert "check the units" in told


def test_add_show_remove(home: Path) -> None:
    args = ("profiles", "add", "net", "--gpus", 8, "--iteration", "200ms", "--stages", "30ms,60ms, 0.08,20ms")
    more = ("--batch-size", 32, "--gpu-model", "A100", "--memory", "12GiB", "--start", "10s", "--source", "me")
    result = run(*args, *more)
    assert result.exit_code == 0
    assert f"added the profile of net on 8 GPUs, batch size 32 in {home / 'profiles.csv'}" in result.stderr
    shown = run("profiles", "show", "net").stdout
    assert "30 + 60" in shown
    assert "12,288 MiB" in shown
    assert "source: me" in shown
    (row,) = json.loads(run("profiles", "show", "net", "--json").stdout)
    assert row["stage_s"] == {"storage": 0.03, "cpu": 0.06, "gpu": 0.08, "network": 0.02}
    assert "removed 1 profile of net" in run("profiles", "remove", "net", "--gpus", 8).stderr
    with pytest.raises(InputError, match="no profile of model 'net'"):
        run("profiles", "show", "net")


def test_stages_far_from_the_iteration_are_warned_of() -> None:
    result = run("profiles", "add", "net", "--gpus", 1, "--iteration", "0.2s", "--stages", "100,50,20")
    assert result.exit_code == 0
    assert "warning: profile of net on 1 GPU: the stages add up to 170 s, 850.00 times" in result.stderr


@pytest.mark.parametrize(
    ("iteration", "stages", "says"),
    [
        ("0", "1,1,1", "its iteration time is 0 s"),
        ("nan", "1,1,1", "--iteration: 'nan' is not a duration"),
        ("-1", "1,1,1", "--iteration: '-1' is not a duration"),
        ("1", "1,-1,1", "--stages: '-1' is not a duration"),
        ("1", "1,1", "has 2 times, must have 3"),
        ("1", "0,0,0", "all its stages take 0 s"),
    ],
)
def test_wrong_profiles_are_refused(iteration: str, stages: str, says: str, home: Path) -> None:
    with pytest.raises(InputError, match=says):
        run("profiles", "add", "net", "--gpus", 1, f"--iteration={iteration}", f"--stages={stages}")
    assert not home.exists()


def test_another_library_takes_what_is_added_and_yours_stays_as_it_is(home: Path, tmp_path: Path) -> None:
    other, more = tmp_path / "team.csv", tmp_path / "more.csv"
    here = ("--library", str(other))

    def known() -> list[str]:
        return [row["model"] for row in json.loads(run("profiles", "list", "--json", *here).stdout) if row["own"]]

    run("profiles", "add", "net", "--gpus", 1, "--iteration", "1s", "--stages", "0.1,0.5,0.1", *here)
    more.write_text("model,gpus,iteration_s,load_s,compute_s,network_s\nmesh,2,1,0.1,0.5,0.1\n")
    run("profiles", "import", more, *here)
    assert set(known()) == {"net", "mesh"}
    assert json.loads(run("profiles", "show", "mesh", "--json", *here).stdout)
    run("profiles", "remove", "net", *here)
    assert set(known()) == {"mesh"}
    assert not home.exists()


# -- timeline ---------------------------------------------------------------------------------------------------------


def random_groups(model: str, stages: int) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(7)
    found = []
    for _ in range(300):
        jobs = int(rng.integers(1, (4 if model == "measured" else stages) + 1))
        stage_s = rng.choice([0.0, 0.1, 0.5, 1.0, 2.0], size=(jobs, stages)) * rng.uniform(0.5, 1.5, (jobs, stages))
        found.append(stage_s + 1e-3 * (stage_s.sum(axis=1, keepdims=True) == 0))
    return found


@pytest.mark.parametrize(("model", "stages"), [("measured", 3), ("barrier", 3), ("barrier", 4)])
def test_no_lane_is_held_twice_and_the_period_is_the_iteration(model: str, stages: int) -> None:
    interleaving = Interleaving(model, overhead=(1.0, 1.3, 1.4, 1.5))
    for stage_s in random_groups(model, stages):
        seconds, slots = interleaving.scheduled(stage_s[None])
        spans, period = timeline(stage_s.tolist(), slots[0].tolist(), model)
        nominal = float(seconds[0]) / interleaving.overhead[len(stage_s) - 1]
        if model == "measured" and len(stage_s) == 4:
            # Four jobs may need longer to settle than the released simulator's two rounds.
            assert period >= nominal * (1 - 2e-3)
        else:
            assert period == pytest.approx(nominal, rel=2e-3)
        for drawn in (spans, stretched(spans, period, float(seconds[0]))):
            for lane in range(len(lanes(stages, model))):
                held = sorted((s.start_s, s.start_s + s.length_s) for s in drawn if s.lane == lane)
                assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(held))
            # No job is in two stages at once.
            for job in range(len(stage_s)):
                held = sorted((s.start_s, s.start_s + s.length_s) for s in drawn if s.job == job)
                assert all(end <= start + 1e-9 for (_, end), (start, _) in itertools.pairwise(held))
        again = [s.start_s for s in spans if s.job == 0]
        per_round = len(again) // 4
        assert sorted(again)[per_round] - sorted(again)[0] == pytest.approx(period)


def test_a_window_of_two_iterations_holds_all_stages_twice() -> None:
    stage_s = [[0.5, 0.2, 0.1], [0.1, 0.6, 0.1], [0.3, 0.3, 0.3]]
    spans, period = timeline(stage_s, [0, 1, 2], "measured")
    held = [0.0] * 3
    for span in window(spans, 2 * period, 4 * period):
        held[span.job] += span.length_s
        assert span.start_s >= 0
        assert span.start_s + span.length_s <= 2 * period + 1e-9
    assert held == pytest.approx([2 * sum(times) for times in stage_s])
