"""The first job of an unknown script is measured while it runs; later jobs of it have its profile."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from real_scheduler import PROGRAM, real
from until import until

pytestmark = pytest.mark.slow

SCRIPT = """
import time
from gpuloom.training import job
for step in range(10**6):
    with job.stage("storage"):
        time.sleep(0.012)
    with job.stage("gpu"):
        time.sleep(0.006)
    job.progress(step + 1)
"""


def test_a_job_is_profiled_while_it_runs_and_its_stages_are_shown(tmp_path: Path) -> None:
    with real(tmp_path, slots=1) as it:
        it.up()
        (it.files / "train.py").write_text(SCRIPT)
        command = [sys.executable, "train.py", "--width", "8", "--seed", "1"]
        job = it.client.submit([{"command": command, "workdir": str(it.files)}])[0][0]
        measured = it.home / "measured.csv"
        until(measured.exists, "a profile of the job that runs")
        with measured.open() as file:
            (row,) = csv.DictReader(file)
        assert (row["model"], row["gpus"]) == ("train --width 8", "1")
        assert float(row["storage_s"]) >= 0.012
        assert float(row["gpu_s"]) >= 0.006
        hooks = it.client.show(job)["hooks"]
        assert hooks is not None
        assert hooks["seen"] == "profile"
        assert hooks["measured"] is not None
        assert hooks["measured"]["framework"] == "marked"
        shown = it.run("show", str(job)).stdout
        assert "storage" in shown
        assert "advice: " in shown
        # Another seed is the same script: it has the profile's stage times from its first moment.
        again = it.client.submit([{"command": [*command[:-1], "2"], "workdir": str(it.files)}])[0][0]
        it.client.set_policy("muri-s")
        assert it.client.policy()["lacks"] == []
        it.client.cancel([job, again])


def test_by_a_dry_run_it_has_a_profile_before_it_is_submitted(tmp_path: Path) -> None:
    with real(tmp_path, slots=2) as it:
        it.up()
        script = it.files / "train.py"
        script.write_text(SCRIPT)
        words = ["submit", "--profile", "dry", "--", sys.executable, str(script), "--width", "8"]
        env = {**os.environ, "GPULOOM_HOME": str(it.home)}
        done = subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=90, env=env, check=True)
        assert "kept 1 profile of 'train --width 8'" in done.stderr
        with (it.home / "profiles.csv").open() as file:
            (row,) = csv.DictReader(file)
        assert (row["model"], row["gpus"], row["gpu_model"]) == ("train --width 8", "1", "CPU")
        assert float(row["storage_s"]) >= 0.012
        states = [it.client.job(number)["state"] for number in (1, 2)]
        assert states[0] == "cancelled"
        assert states[1] in ("queued", "starting", "running")
        it.client.cancel([2])
