"""bench/gpu_suspend.py with stand-ins for PyTorch's programs and the driver: rows that count and rows that don't."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from suspending_kit import environment, made

pytestmark = pytest.mark.slow
BENCH = Path(__file__).parents[2] / "bench" / "gpu_suspend.py"
STAND_IN = """
import ctypes, os, sys, time
driver = ctypes.CDLL("libcuda.so.1")
what, out, words = sys.argv[1], sys.argv[2], sys.argv[3:]
wrong = os.environ.get("WRONG", "")
if what == "hog":
    assert driver.fake_begin(ctypes.c_ulonglong(8 << 30)) == 0, "no room"
    open(out, "w").write("8")
    sys.exit(0)
assert driver.fake_begin(ctypes.c_ulonglong(64 << 20)) == 0
steps = int(words[words.index("--steps") + 1]) if "--steps" in words else 10**9
number = 0
with open(out, "w", buffering=1) as file:
    while number < steps and not os.path.exists(out.replace(".txt", ".stop")):
        driver.fake_step()
        number += 1
        print(number, 1.0 + (number == 400 and wrong == "differs" and steps > 10**6), file=file)
    print("end", wrong != "torn", file=file)
"""


@pytest.mark.parametrize(
    ("wrong", "fault", "told"),
    [
        ("", "", ""),
        ("differs", "", "not those of an undisturbed run"),
        ("torn", "", "not those of an undisturbed run"),
        ("", "801", "error 801"),
    ],
)
def test_what_counts(tmp_path: Path, wrong: str, fault: str, told: str) -> None:
    made(tmp_path)
    gpu = tmp_path / "gpu"
    gpu.mkdir()
    if fault:
        (gpu / fault).touch()
    (tmp_path / "worker.py").write_text(STAND_IN)
    out = tmp_path / "out.json"
    words = ["--rows", "eager;CUDA graph", "--out", str(out), "--worker", sys.executable, str(tmp_path / "worker.py")]
    done = subprocess.run(
        [sys.executable, str(BENCH), *words],
        env={**os.environ, **environment(tmp_path, gpu), "WRONG": wrong},
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.exists(), done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    rows = found["rows"]
    assert set(rows) == {"eager", "CUDA graph"}
    if not told:
        assert done.returncode == 0, done.stderr
        assert all(row["counts"] and row["equal"] for row in rows.values())
        assert [trip["mib"] for row in rows.values() for trip in row["trips"]] == [64.0] * 4
        assert found["all memory"] == {"counts": True, "gib": 8}
        assert "| eager | 64 |" in done.stdout
    else:
        assert done.returncode == 1
        assert all(not row["counts"] and told in row["why"] for row in rows.values()), rows
        assert "does not count" in done.stdout
