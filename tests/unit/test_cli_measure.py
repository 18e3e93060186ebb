"""`gpuloom profiles measure`: runs a script as it is, ends it, shows and keeps its profile."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from gpuloom.cli import measuring
from gpuloom.cli.main import cli
from gpuloom.cli.measuring import speeds_in
from gpuloom.client import ConflictError
from gpuloom.core.errors import InputError
from gpuloom.facts.profiles import read_library

MARKED = """
import subprocess, sys, time
from pathlib import Path
from gpuloom.training import job

Path("child.pid").write_text(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"],
                                                  start_new_session=True).pid))
for step in range(100_000):
    with job.stage("storage"):
        time.sleep(0.006)
    with job.stage("gpu"):
        time.sleep(0.004)
    job.progress(step + 1)
"""


def measure(*words: str) -> Any:
    return CliRunner().invoke(cli, ["profiles", "measure", *words])


@pytest.mark.slow
def test_a_script_is_measured_kept_and_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path))
    (tmp_path / "train.py").write_text(MARKED)
    told = measure(
        "--iterations", "30", "--plot", "stages.svg", "--json", "--", sys.executable, "train.py", "--seed", "3"
    )
    assert told.exit_code == 0, told.output
    (found,) = json.loads(told.stdout)
    assert (found["key"], found["source"], found["kept"], found["on"]) == ("train", "hooks", True, None)
    measured = found["measured"]
    assert measured["iterations"] > 30
    assert measured["stages_s"][0] >= 0.006
    assert measured["stages_s"][2] >= 0.004
    assert measured["stages_s"][0] > measured["stages_s"][2]
    (row,) = read_library(tmp_path / "profiles.csv")
    assert (row.model, row.stage_s) == ("train", tuple(measured["stages_s"]))
    assert row.date
    assert "<svg" in (tmp_path / "stages.svg").read_text()
    child = int((tmp_path / "child.pid").read_text())
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE
    shown = measure("--dry-run", "--iterations", "5", "--", sys.executable, "train.py").stdout
    assert "storage" in shown
    assert "advice: " in shown


@pytest.mark.slow
def test_what_hooks_cannot_see_is_measured_by_its_log_or_its_reports(tmp_path: Path) -> None:
    told = measure("--dry-run", "--iterations", "4", "--", "sh", "-c", "while :; do echo '8.00it/s'; sleep 0.02; done")
    assert told.exit_code == 0, told.output
    assert "8 it/s by its own log; no stages: hooks saw no Python" in told.output
    reports = "import time\nfrom gpuloom.training import job\nfor n in range(500): time.sleep(0.05); job.progress(n)"
    told = measure("--dry-run", "--json", "--iterations", "20", "--", sys.executable, "-I", "-c", reports)
    (found,) = json.loads(told.stdout)
    assert (found["source"], found["measured"]) == ("progress reports", None)
    assert 1.0 < found["it_per_s"] < 21.0
    assert "-I" in found["why"]


def test_a_program_that_tells_nothing_for_long_is_named_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "UNSEEN_S", 0.1)
    told = measure("--timeout", "90s", "--", "sleep", "1")
    assert told.stderr.count("nothing to measure yet: hooks saw no Python") == 1
    assert "ended after 1m 30s (--timeout)" in told.stderr


def test_a_program_that_tells_nothing_and_one_that_is_not_there(tmp_path: Path) -> None:
    told = measure("--", "sh", "-c", "echo out of luck; exit 3")
    assert not isinstance(told.exception, InputError), "the work failed, the input was right"
    assert "nothing could be measured: hooks saw no Python" in str(told.exception)
    assert "ended with code 3" in str(told.exception)
    assert "out of luck" in str(told.exception)
    assert "can't run 'no-such-program'" in str(measure("--", "no-such-program").exception)
    assert "name what to run" in measure().output
    assert "must be" in str(measure("--plot", "x.gif", "--", "true").exception) or "ends in" in str(
        measure("--plot", "x.gif", "--", "true").exception
    )


@pytest.mark.parametrize(
    ("log", "speeds"),
    [
        ("100%|###| 10/10 [00:01<00:00,  9.50it/s]\r 20%| 2/10 [00:04<00:08, 2.00s/it]", [9.5, 0.5]),
        ("step 5: loss 0.3, 12 steps/sec", [12.0]),
        ("4 batches/s, 0.25 s/batch", [4.0, 4.0]),
        ("0it [00:00, ?it/s] 3.1MB/s 7 items/s 5 samples/s v1.2it/s", []),
    ],
)
def test_speeds_in_a_log(log: str, speeds: list[float]) -> None:
    assert speeds_in(log) == speeds


def test_hooks_of_an_outer_job_are_not_the_measured_script_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPULOOM_NOTICE_FILE", str(tmp_path / "notice"))
    began_s = time.monotonic()
    told = measure("--", "sh", "-c", 'test -z "$GPULOOM_NOTICE_FILE" && echo 5it/s 5it/s 5it/s')
    assert told.exit_code == 0, told.output
    assert time.monotonic() - began_s < 300
    assert os.environ["GPULOOM_NOTICE_FILE"]


class EndedJobs:
    """A scheduler whose jobs all end at once, which it refuses to cancel."""

    def submit(self, specs: list[Any]) -> list[list[int]]:
        return [[number] for number in range(1, len(specs) + 1)]

    def show(self, job: int) -> dict[str, Any]:
        return {"hooks": None, "job": {"state": "failed", "message": "exit code 3"}, "attempts": []}

    def cancel(self, jobs: list[int], *, grace_s: float) -> None:
        raise ConflictError(f"job {jobs[0]} is failed and can't be cancelled")


def test_jobs_that_end_before_they_are_measured_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuloom.cli.live.connect", lambda home: nullcontext(EndedJobs()))
    told = measure("--on", "V100,K80", "--", "train")
    assert told.exit_code == 1
    for job, model in ((1, "V100"), (2, "K80")):
        why = f"job {job} ended (exit code 3) before it was measured: gpuloom logs {job}"
        assert f"train on {model}\nnothing measured: {why}" in told.stdout


def test_a_name_that_no_profile_can_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    told = measure("--name", "a\nb", "--", "touch", str(tmp_path / "ran"))
    assert isinstance(told.exception, InputError)
    assert str(told.exception) == "--name 'a\\nb': must be printable"
    assert not (tmp_path / "ran").exists()
