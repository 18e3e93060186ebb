"""bench/gpu_jobs.py with stand-ins for PyTorch's programs and the driver: a job makes room for another, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suspending_kit import environment, made

BENCH = Path(__file__).parents[2] / "bench" / "gpu_jobs.py"
STAND_IN = """
import ctypes, os, sys, time
driver = ctypes.CDLL("libcuda.so.1")
out, words = sys.argv[2], sys.argv[3:]
def word(name, otherwise):
    return float(words[words.index(name) + 1]) if name in words else otherwise
assert driver.fake_begin(ctypes.c_ulonglong(int(word("--gib", 0.1) * (1 << 30)))) == 0, "no room"
number = 0
with open(out, "w", buffering=1) as file:
    while number < word("--steps", 1e9):
        driver.fake_step()
        number += 1
        print(number, 1.0 / number, file=file)
        time.sleep(word("--pause", 0.002))
    print("end", True, file=file)
"""


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["", "801"])
def test_a_job_makes_room_and_goes_on(tmp_path: Path, fault: str) -> None:
    library, gpu, out = tmp_path / "library", tmp_path / "gpu", tmp_path / "out.json"
    library.mkdir()
    gpu.mkdir()
    made(library)
    (gpu / "total").write_text(str(40 << 30))
    if fault:
        (gpu / fault).touch()
    (tmp_path / "worker.py").write_text(STAND_IN)
    words = ["--parts", "suspend", "--steps", "400", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(BENCH), *words, "--worker", sys.executable, str(tmp_path / "worker.py")],
        env={**os.environ, **environment(library, gpu)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(out.read_text())
    part = found["parts"]["suspend"]
    if not fault:
        assert done.returncode == 0, done.stderr
        assert (part["attempts"], part["went_on_by"], part["losses_equal"]) == (1, 0, True)
        assert part["state_while_away"] == "frozen"
        assert [event["data"].get("suspended_mib") for event in part["story"]] == [8192, None]
        assert found["nodes"][0]["limits"]["suspending"] == "driver 580.0.fake"
    else:  # it is told to save and end, and begins again when the other one has ended
        assert done.returncode == 1
        told = [event for event in part["events"] if event["type"] == "attempt.not_suspended"]
        assert "error 801" in told[0]["data"]["why"]
        first = next(job for job in part["jobs"] if job["name"] == "first")
        assert (first["state"], first["attempts"], first["retries_left"]) == ("finished", 2, 0)
