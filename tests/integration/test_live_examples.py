"""The job files of examples/live run as they are written, in a shell that knows no Python with gpuloom in it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from real_scheduler import real
from until import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def clone(folder: Path) -> Path:
    """A checkout after `make setup`: the examples, and .venv."""
    shutil.copytree(ROOT / "examples" / "live", folder / "examples" / "live", ignore=shutil.ignore_patterns("runs"))
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (programs / "python").chmod(0o755)
    return folder / "examples" / "live"


def test_job_files_run_without_an_activated_environment(tmp_path: Path) -> None:
    examples = clone(tmp_path / "clone")
    for file in ("job.yaml", "sweep.sh"):
        text = (examples / file).read_text()
        (examples / file).write_text(text.replace('"600"', '"4"').replace("--steps 300", "--steps 4"))
    with real(tmp_path) as live:
        live.env = {"PATH": "/usr/bin:/bin"}
        live.up()
        for file in ("job.yaml", "array.yaml"):
            done = live.run("submit", str(examples / file))
            assert done.returncode == 0, done.stderr
        until(lambda: all(job["state"] in ("finished", "failed") for job in live.client.jobs()), "all ended", 90.0)
        for job in live.client.jobs():
            assert job["state"] == "finished", live.client.log(job["id"])
        # Beside each checkpoint lies a mark that says whose it is.
        assert len([path for path in (examples / "runs").iterdir() if not path.name.startswith(".")]) == 11
        assert live.run("down", "--stop-jobs").returncode == 0
