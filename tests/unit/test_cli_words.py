"""Small things that people read: one of a thing, no minus before nothing, nothing said twice."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from builders import jobs
from gpuloom.cli.demo.replay import Compared, Replay
from gpuloom.cli.demo.view import result_lines
from gpuloom.cli.events import _data_text
from gpuloom.cli.main import cli
from gpuloom.cli.show import _outcome
from gpuloom.core.words import plural
from gpuloom.policies.registry import create_policy
from gpuloom.report.metrics import facts
from gpuloom.sim.simulator import simulate
from gpuloom.traces import write_trace


def test_an_exit_code_is_told_once() -> None:
    data = {"reason": "failed", "exit_code": 85, "message": "exit code 85", "after": []}
    assert _data_text(data, 0.0) == "reason failed, exit code 85"
    attempt: Any = {"ended_s": 1.0, "exit_code": 85, "signal": None, "saved": None, "kept": None}
    assert _outcome({**attempt, "reason": "failed", "message": "exit code 85"}) == "failed, exit code 85"
    not_started = {**attempt, "exit_code": None, "reason": "not_started", "message": "x"}
    assert _outcome(not_started) == "could not be started, x"


def test_no_difference_has_no_minus() -> None:
    what = Compared(10.0, 9.9999, 5.0, ((1, 10.0, 9.9999, 1, 1),))
    lines = result_lines([{"id": 1, "name": "a", "gpus": 1, "preemptions": 0}], what, {}, "srtf")
    assert "+0.0 %" in lines[1]
    assert not any("-0.0" in line for line in lines)


def test_the_demo_compares_what_ran_with_what_was_simulated() -> None:
    rows = ((1, 10.0, 11.0, 1, 1), (2, 20.0, 18.0, 2, 1))
    views: Any = [
        {"id": 2, "name": "b", "gpus": 4, "preemptions": 1},
        {"id": 1, "name": "a", "gpus": 2, "preemptions": 2},
    ]
    others = {"srtf": Replay(14.5, 5.0, {}), "fifo": Replay(29.0, 5.0, {}), "sjf": Replay(13.05, 5.0, {})}
    lines = result_lines(views, Compared(15.0, 14.5, 5.0, rows), others, "srtf")
    assert [line.split() for line in lines[1:4]] == [
        ["a", "2", "10.00", "s", "11.00", "s", "+10.0", "%", "2"],
        ["b", "4", "20.00", "s", "18.00", "s", "-10.0", "%", "1"],
        ["average", "15.00", "s", "14.50", "s", "-3.3", "%", "3"],
    ]
    assert "these runs NOT within" in lines[5]
    assert "below 5.00 s" in lines[6]
    assert [line.split() for line in lines[8:]] == [
        ["sjf", "average", "JCT", "13.05", "s", "-10", "%"],
        ["srtf", "average", "JCT", "14.50", "s", "as", "it", "ran"],
        ["fifo", "average", "JCT", "29.00", "s", "+100", "%"],
    ]
    assert "these runs within" in result_lines(views, Compared(15.0, 14.9, 5.0, rows), others, "srtf")[5]


def test_one_is_one() -> None:
    result = simulate(jobs([(0.0, 1.0, 1)]), "1x1", "fifo")
    assert "1 job" in facts([result])
    assert "1 GPU" in facts([result])
    assert plural(1, "policy", "policies") == "1 policy"


def test_gpus_of_no_model_are_gpus(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    write_trace(jobs([(0.0, 1.0, 2), (0.0, 1.0, 1)]), file)
    told = CliRunner().invoke(cli, ["explain", str(file), "--cluster", "1x4", "--policy", "fifo", "--job", "0"]).output
    assert "starts on 2 GPUs, node n0" in told
    asked = ["explain", str(file), "--cluster", "1x4:V100", "--policy", "fifo", "--job", "1"]
    assert "starts on 1 V100, node n0" in CliRunner().invoke(cli, asked).output


def test_models_that_are_alike_are_not_called_faster(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    write_trace(jobs([(0.0, 1.0, 1)]), file)
    asked = ["explain", str(file), "--cluster", "1x4:V100,1x4:K80", "--policy", "fifo", "--job", "0"]
    assert "equally fast" in CliRunner().invoke(cli, asked).stdout


@pytest.mark.parametrize(
    ("free", "says"), [(0, "0 are free"), (1, "1 is free"), (2, "2 are free"), (8, "8 GPUs are free, but")]
)
def test_a_reason_counts(free: int, says: str) -> None:
    snapshot: Any = SimpleNamespace(workload=jobs([(0.0, 10.0, 4)]), free_gpus=free, waiting_count=1)
    for name in ("sjf", "elastic", "rl"):
        assert says.removesuffix(", but") in create_policy(name).reason(snapshot, 0).text


def test_an_empty_policy_is_asked_for(tmp_path: Path) -> None:
    found = CliRunner().invoke(cli, ["policy", "set", " ", "--home", str(tmp_path)])
    assert found.exit_code == 2
    assert "which policy? gpuloom policies lists them" in found.output


def test_who_jobs_run_as_is_said() -> None:
    assert "All jobs run as the user who starts the scheduler" in " ".join(
        CliRunner().invoke(cli, ["up", "--help"]).output.split()
    )
