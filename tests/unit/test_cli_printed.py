"""What the commands about shared GPUs, Pollux' simulator, and profiles print, letter by letter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from gpuloom import goodput
from gpuloom.cli import pollux
from gpuloom.cli.live_tables import show_table
from gpuloom.cli.main import cli
from gpuloom.cli.share.top import COLUMNS, rows_of, state_of
from gpuloom.goodput import costs
from gpuloom.goodput.run import PolluxResult
from gpuloom.sharing.shim.shm import Program, Shared

SERVICE = Program(
    slot=0,
    name="service",
    pid=41,
    klass="high",
    busy=True,
    held_as=None,
    held_since_ns=0,
    kernels=1_000,
    graphs=200,
    captured=30,
    holds=0,
    held_ns=0,
    longest_held_ns=0,
    gpu_ns=500_000_000,
    requests=12,
    request_ns=7_000_000,
    attached_ns=1_000_000_000,
    reasons={1: 1_200},
)
TRAINING = replace(
    SERVICE,
    slot=1,
    name="training",
    pid=42,
    klass="best-effort",
    busy=False,
    held_as=9,
    held_since_ns=2_500_000_000,
    holds=4,
    held_ns=250_000_000,
    longest_held_ns=125_500_000,
    reasons={2: 7, 3: 70, 9: 4},
)


def shared(at_s: float, *programs: Program) -> Shared:
    return Shared(Path("a.share"), "GPU-0", 80, int(at_s * 1e9), programs)


def test_rates_of_programs_are_since_the_look_before_or_since_they_came() -> None:
    before = shared(2.0, SERVICE)
    later = replace(SERVICE, kernels=1_300, graphs=300, gpu_ns=900_000_000)
    service, training = rows_of(shared(3.0, later, TRAINING), before)
    assert (service["kernels_per_s"], service["gpu_share"], service["held_share"]) == (400.0, pytest.approx(0.4), 0.0)
    # It came at 1 s: 1,200 launches in 2 s; held for 0.25 s, and for 0.5 s until now.
    assert (training["kernels_per_s"], training["gpu_share"], training["held_share"]) == (600.0, 0.25, 0.375)
    assert (training["held_s"], training["holds"], training["longest_hold_ms"]) == (0.75, 4, 125.5)
    assert (service["requests"], service["request_ms"], service["captured"]) == (12, 7.0, 30)
    assert (sum(training["admitted"].values()), sum(training["held_for"].values())) == (77, 4)
    (again,) = rows_of(shared(3.0, later), None)
    assert again["kernels_per_s"] == 800.0
    (another,) = rows_of(shared(3.0, replace(later, attached_ns=2_500_000_000)), before)
    assert another["kernels_per_s"] == 3_200.0, "another program in the same place"
    (most,) = rows_of(shared(1.5, replace(later, held_ns=10**10)), None)
    assert (most["gpu_share"], most["held_share"]) == (1.0, 1.0)


def test_states_of_programs() -> None:
    programs = SERVICE, replace(SERVICE, busy=False), replace(SERVICE, klass="exempt"), replace(TRAINING, held_as=None)
    assert [state_of(program) for program in programs] == ["in a request", "idle", "passing", "running"]
    assert state_of(TRAINING).startswith("held: ")


TOP = """\
gpu    program   pid  class        state         kernels/s  gpu share  held  held in all   longest  admitted             held for
GPU-0  service    41  high         in a request        600        25%    0%           0s    0.0 ms  idle 1,200
GPU-0  training   42  best-effort  held: sm            600        25%   38%         0.8s  125.5 ms  exempt 70, beside 7  sm 4
"""  # noqa: E501


def test_top_as_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    show_table(COLUMNS, rows_of(shared(3.0, SERVICE, TRAINING), None))
    assert capsys.readouterr().out == TOP


def result(gpu_hours: tuple[float, float, float], last_s: float = 3600.0) -> PolluxResult:
    submit_s = np.array([0.0, 60.0, 120.0])
    return PolluxResult(
        ("a", "b", "c"), submit_s, submit_s + np.array([last_s, 1800, 900]), np.array(gpu_hours) * 3600.0, 4, 9
    )


RESULTS = """\
workload  policy  avg JCT s  median JCT s  p99 JCT s  makespan s  GPU hours  restarts
one       pollux    2,100.0         1,800      3,564       3,600       16.0         4
two       pollux    3,300.0         1,800      7,092       7,200       11.0         4
one       sia       2,100.0         1,800      3,564       3,600        0.5         4
two       sia       2,100.0         1,800      3,564       3,600       20.0         4
mean      pollux    2,700.0         1,800      5,328       5,400       13.5         4
mean      sia       2,100.0         1,800      3,564       3,600       10.2         4
"""


def test_results_of_pollux_as_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    one, two = ("one", "pollux", result((4, 5, 7))), ("two", "pollux", result((1, 4, 6), 7200.0))
    others = ("one", "sia", result((0.1, 0.2, 0.2))), ("two", "sia", result((10, 5, 5)))
    pollux._print([one, two, *others], ["pollux", "sia"], None)
    lines = RESULTS.splitlines()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == lines
    pollux._print([one, others[0]], ["pollux", "sia"], None)
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown == [lines[0].split(), lines[1].split(), lines[3].split()], "no means of one workload"


def test_results_of_pollux_as_they_are_written(tmp_path: Path) -> None:
    found = [("one", "pollux", result((4, 5, 7)))]
    pollux._write_json(found, "16x4", 60, None, str(tmp_path / "r.json"))
    assert json.loads((tmp_path / "r.json").read_text()) == {
        "cluster": "16x4",
        "interval_s": 60,
        "results": [
            {
                "workload": "one",
                "policy": "pollux",
                "jobs": 3,
                "window": None,
                "avg_jct_s": 2100.0,
                "median_jct_s": 1800.0,
                "p99_jct_s": 3564.0,
                "makespan_s": 3600.0,
                "gpu_hours": 16.0,
                "restarts": 4,
            }
        ],
    }
    pollux._write_jobs(found, str(tmp_path / "r.csv"))
    assert (tmp_path / "r.csv").read_text().splitlines() == [
        "workload,policy,job,submit_s,end_s,jct_s,gpu_s",
        "one,pollux,a,0,3600,3600,14400",
        "one,pollux,b,60,1860,1800,18000",
        "one,pollux,c,120,1020,900,25200",
    ]


KERNELS = """\
profile         GPU            kernels       ms  mean SMs  compute  memory  unknown  from
resnet50        V100 (80 SMs)      107    3.916        63      67%     14%      19%  shipped: an estimate, not measured
resnet50-train  V100 (80 SMs)      321  108.075        58      57%     11%      32%  shipped: an estimate, not measured
"""
BERT = """\
model  GPUs  batch  GPU model  iteration  load  compute  network  memory  start  of
bert      1      4  V100             178   0.5      160        0           10 s  shipped
"""


def test_profiles_as_they_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    run = CliRunner().invoke
    assert run(cli, ["share", "profiles", "ls"]).stdout == KERNELS
    small, large = json.loads(run(cli, ["share", "profiles", "ls", "--json"]).stdout)
    assert (small["name"], small["kernels"], small["duration_ns"]) == ("resnet50", 107, 3_915_591)
    assert large["classes"] == pytest.approx({"compute": 0.5675, "memory": 0.1146, "unknown": 0.3179}, abs=1e-4)
    shown = run(cli, ["profiles", "show", "bert"]).stdout
    assert shown.startswith(BERT)
    assert shown.endswith("source: Muri artifact (SIGCOMM'22)\n")


def test_what_pollux_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every policy on every workload; on GPU models others, with models of them; where the results go."""
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        Path(f"{name}.csv").write_text("name,time,application,num_replicas,batch_size\na,0,cifar10,1,128\n")
    asked: list[Any] = []

    def simulate(jobs: Any, applications: Any, rule: Any, nodes: Any, interval_s: int) -> PolluxResult:
        asked.append((len(jobs), applications, interval_s))
        return result((4, 5, 7))

    monkeypatch.setattr(goodput, "simulate", simulate)
    monkeypatch.setattr(goodput, "load_applications", lambda where: f"all of {where}")
    monkeypatch.setattr(goodput, "load_models", lambda where, models: f"{models} of {where}")
    monkeypatch.setattr(costs, "with_costs", lambda apps, restarts, slower: (apps, restarts, slower))

    def run(*words: str) -> Any:
        asked.clear()
        done = CliRunner().invoke(cli, ["pollux", *words, "--throughputs", "p"], catch_exceptions=False)
        assert done.exit_code == 0
        return done

    Path("p").mkdir()
    done = run("one.csv", "two.csv", "--json", "r.json", "--interval", "2m")
    assert asked == [(1, ({"": "all of p"}, None, None), 120)] * 6
    assert done.stderr == "wrote r.json\n"
    assert done.stdout.startswith("workload  policy")
    told = json.loads(Path("r.json").read_text())
    assert (told["cluster"], told["interval_s"]) == ("16x4", 120)
    assert [(one["workload"], one["policy"]) for one in told["results"]] == [
        (workload, policy) for workload in ("one", "two") for policy in ("tiresias", "optimus", "goodput")
    ]
    done = run("one.csv", "--cluster", "6x4:aws,2x8:dgx-ext", "--json", "-", "--jobs-csv", "j.csv")
    assert [one["policy"] for one in json.loads(done.stdout)["results"]] == ["sia", "goodput"]
    assert asked[0][1] == ("['aws', 'dgx-ext'] of p", None, None)
    assert done.stderr == "wrote j.csv\n"
    done = run("one.csv", "--policies", "tiresias", "--restart-times", "7", "--slowdowns", "2", "--jobs-csv", "-")
    assert asked[0][1][1] is not None
    assert asked[0][1][2] is not None
    assert done.stdout.startswith("workload,policy,job,")
    assert done.stderr == ""
