"""Pages and benchmarks that are made from public traces say which are missing, and where they are to be had."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


NEEDS = [
    ("pollux", "pollux/profiles_traces.tar.gz"),
    ("learning", "pollux/workloads.tar.gz"),
    ("heterogeneous", "gavel"),
    ("elastic", "elasticflow"),
    ("league", "itp"),
    ("figures", "muri"),
    ("fidelity", "muri"),
    ("fidelity_gavel", "gavel"),
    ("grouping", "muri/model_stage_profiles.csv"),
    ("sharing_pairs", "orion"),
    ("shim_pairs", "orion"),
]


@pytest.mark.parametrize(
    ("name", "needs"), [pytest.param(*row, marks=() if row[0] == "figures" else pytest.mark.slow) for row in NEEDS]
)
def test_one_line_says_what_is_missing(name: str, needs: str, tmp_path: Path) -> None:
    environment = {**os.environ, "GPULOOM_DATA": str(tmp_path)}
    told = subprocess.run(
        [sys.executable, str(BENCH / f"{name}.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stdout) == (2, "")
    (line,) = told.stderr.splitlines()
    assert line.startswith(f"{name}.py: ")
    assert needs in line
    assert f"missing in {tmp_path}" in line
    assert "docs/reference/data.md" in line
