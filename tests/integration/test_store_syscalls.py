"""Every system call of the store fails in turn, SQLite's own among them: nothing is lost, nothing comes twice."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
STEP = int(os.environ.get("GPULOOM_TEST_FAULT_STEP", "5"))
"""Every so many of the faults are tried; 1: all of them, which takes a minute."""


def test_whatever_call_fails_the_store_keeps_what_it_acknowledged(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("no C compiler, or not Linux: system calls can't be made to fail")
    library = tmp_path / "failing_calls.so"
    build = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(TESTS / "failing_calls.c"), "-ldl"]
    subprocess.run(build, check=True, timeout=120)
    env = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(TESTS)}
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=place, prefix="gpuloom-test-") as work:
        program = [sys.executable, str(TESTS / "store_under_faults.py"), work, str(STEP)]
        done = subprocess.run(program, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    if found["calls"]["write"] == 0:
        pytest.skip("SQLite is built into this Python, where its system calls can't be made to fail")
    assert found["met"]["write"] > 0
    assert found["met"]["sync"] > 0
    assert found["met"]["open"] > 0
