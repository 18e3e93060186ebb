"""What hooks write of a job's progress, beside a script that reports by itself or not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOOKS = Path(__file__).resolve().parents[2] / "src"


def told(tmp_path: Path, *lines: str) -> Any:
    """What is in the job's progress file once a Python with these lines has ended; None: there is no file."""
    file = tmp_path / "progress"
    code = "\n".join(["from _gpuloom_hooks import report", *lines])
    env = {"PYTHONPATH": str(HOOKS), "GPULOOM_PROGRESS_FILE": str(file), "PATH": "/usr/bin:/bin"}
    subprocess.run([sys.executable, "-P", "-c", code], env=env, check=True, timeout=60)
    return json.loads(file.read_text()) if file.exists() else None


def test_steps_are_told_at_once_and_the_last_ones_at_the_end(tmp_path: Path) -> None:
    found = told(tmp_path, "report.progress(3, 10)", "report.progress(4, 10)", "report.progress(5)")
    assert (found["first_step"], found["step"], found["steps"]) == (3, 5, 10)
    assert found["first_s"] <= found["at_s"]


@pytest.mark.parametrize("tells", [True, False])
def test_a_script_that_reports_by_itself_is_not_talked_over(tmp_path: Path, tells: bool) -> None:
    own = "from gpuloom.training import job; job.progress(70, 100)" if tells else "pass"
    found = told(tmp_path, own, "report.progress(3, 10)")
    assert (found["step"], found["steps"]) == ((70, 100) if tells else (3, 10))


def test_another_training_does_not_keep_the_steps_of_the_one_before(tmp_path: Path) -> None:
    found = told(tmp_path, "report.progress(3, 10)", "report.trains_again()", "report.progress(4)")
    assert (found["step"], found.get("steps")) == (4, None)


def test_what_is_saved_takes_back_that_nothing_could_be(tmp_path: Path) -> None:
    found = told(tmp_path, "report.not_saved('no ' + 'room' * 100)")
    assert found["not_saved"].startswith("no room")
    assert len(found["not_saved"]) == 200
    found = told(tmp_path, "report.not_saved('no room')", "report.saved(9, 'hook', 'Lightning')")
    assert (found["saved_step"], found["saved_who"], found["saved_what"]) == (9, "hook", "Lightning")
    assert "not_saved" not in found
