"""bench/gpu_sharing.py: load, statistics, processes, budget and report, with a stand-in for the programs on the GPU."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from shim_kit import built

ROOT = Path(__file__).resolve().parents[2]
STAND_IN = """
import ctypes, json, os, sys, threading, time
def say(**what): print(json.dumps(what), flush=True)
def heard(): return json.loads(sys.stdin.readline())
role, wrong = sys.argv[1], os.environ.get("WRONG", "")
under = "GPULOOM_SHARE_CLASS" in os.environ
if wrong == role: print("first line\\nout of memory", file=sys.stderr); sys.exit(3)
if wrong == "slow-" + role: time.sleep(60)
launch = wait = lambda: None
if under and wrong != "round the shim":
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDeviceGet(ctypes.byref(device), 0) == 0
    assert cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device) == 0
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"image") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"k?ns=3000000&per_sm=1") == 0
    launch = lambda: cuda.cuLaunchKernel(function, 400, 1, 1, 64, 1, 1, 0, None, None, None)
    wait = lambda: cuda.cuCtxSynchronize()
print("a line that is no answer")
if role == "about": say(torch="2.9", gpu="stand-in")
if role.startswith("check"): say(digest="other" if wrong == "differs" and under else "same", what=role)
if role.startswith("serve-"):
    say(ready=True, request_ms=1.0)
    while True:
        told = heard()
        if "closed" in told: say(request_times_ms=[1.02 if under else 1.0] * told["closed"])
        else:
            for _ in range(40 if under else 0):
                launch()
                wait()
            time.sleep(0.05)
            took = [1.0 + (0.04 if under else 0) + i / 1000 for i, _ in enumerate(told["serve"])]
            say(latencies_ms=took, took_ms=took)
if role == "train":
    say(ready=True)
    heard()
    stop = threading.Event()
    def work():
        if under and wrong != "round the shim": assert cuda.cuCtxSetCurrent(context) == 0
        while under and not stop.is_set():
            launch()
            wait()
    working = threading.Thread(target=work, daemon=True)
    working.start()
    say(training=True)
    heard()
    stop.set()
    working.join()
    say(iterations=70 if under else 100, seconds=10.0)
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("gpu_sharing")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    (tmp_path / "worker.py").write_text(STAND_IN)
    monkeypatch.setenv("GPULOOM_SHARE_DRIVER", str(built("plain").fake))
    monkeypatch.setenv("GPULOOM_SHARE_DIR", str(tmp_path / "shared"))
    out = str(tmp_path / "out" / "r.json")
    monkeypatch.setenv("FAKE_STATE", str(tmp_path / "fake"))
    worker = ["--worker", sys.executable, str(tmp_path / "worker.py")]
    return ["--out", out, "--quick", "--requests", "50", "--services", "eager", *worker]


def result(tmp_path: Path) -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = json.loads((tmp_path / "out" / "r.json").read_text())
    return found


@pytest.fixture(autouse=True)
def _short(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = script.Bench.training_alone

    def short(self: object, environment: dict[str, str]) -> object:
        self.train_s = 0.05  # type: ignore[attr-defined]
        return real(self, environment)

    monkeypatch.setattr(script.Bench, "training_alone", short)


def test_quantiles_and_arrivals(script: ModuleType) -> None:
    assert [script.quantile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
    assert script.quantile([7], 0.99) == 7
    with pytest.raises(ValueError, match="no values"):
        script.quantile([], 0.5)
    told = script.summary([float(value) for value in range(1, 101)])
    assert (told["requests"], told["p50_ms"], told["p99_ms"], told["max_ms"]) == (100, 50.5, pytest.approx(99.01), 100)
    times = script.arrivals(50.0, 20_000, 1)
    assert times == sorted(times) == script.arrivals(50.0, 20_000, 1) != script.arrivals(50.0, 20_000, 2)
    assert 20_000 / times[-1] == pytest.approx(50.0, rel=0.03)


@pytest.mark.slow
def test_all_steps(
    script: ModuleType,
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(script.mps, "control", lambda: None)
    assert script.main(words) == 0
    steps = result(tmp_path)["steps"]
    states = {name: step["state"] for name, step in steps.items()}
    with_mps = {"eager: mps", "eager: mps+priority", "eager: gpuloom", "eager: shim, no rule"}
    assert {name for name, state in states.items() if state != "done"} == with_mps
    assert "not installed" in str(steps["eager: mps"]["why"])
    ours, plain = steps["eager: gpuloom without mps"], steps["eager: time-slicing"]
    attached = ours["attached"]
    assert isinstance(attached, dict)
    assert attached["high"]["requests"] > 0
    assert attached["best-effort"]["kernels"] > 0
    assert attached["best-effort"]["holds"] > 0
    assert ours["best_effort_over_alone"] == pytest.approx(0.7)
    assert plain["best_effort_over_alone"] == pytest.approx(1.0)
    assert ours["p99_over_alone"] == pytest.approx((1.04 + 0.04851) / 1.04851, rel=1e-3)
    assert plain["p99_over_alone"] == 1.0
    assert steps["eager: overhead"]["overhead"] == pytest.approx(0.02)
    assert steps["eager: alone"]["requests"] == 50
    printed = capsys.readouterr().out
    assert "| eager | mps | failed |" in printed
    assert "cublas done, cudnn done, triton done" in printed


@pytest.mark.parametrize(
    ("wrong", "step", "told", "code"),
    [
        ("train", "training alone", "exit code 3, out of memory", 1),
        ("differs", "check cublas", "results differ", 0),
        ("round the shim", "eager: gpuloom without mps", "was not attached to the shim", 1),
        pytest.param("about", "machine", "out of memory", 1, marks=pytest.mark.slow),
    ],
)
def test_what_fails_is_told_and_the_rest_goes_on(
    script: ModuleType,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
    step: str,
    told: str,
    code: int,
) -> None:
    monkeypatch.setattr(script.mps, "control", lambda: None)
    monkeypatch.setenv("WRONG", wrong)
    assert script.main(words) == code
    steps = result(tmp_path)["steps"]
    assert steps[step]["state"] == "failed"
    assert told in str(steps[step]["why"])
    assert steps["shim"]["state"] == "done"


def test_a_worker_that_hangs_is_ended_with_its_children(script: ModuleType, words: list[str], tmp_path: Path) -> None:
    child = (
        "import subprocess, time; p = subprocess.Popen(['sleep', '60']); "
        "print('{\"pid\": %d}' % p.pid, flush=True); time.sleep(60)"
    )
    worker = script.Worker([sys.executable, "-c", child], os.environ, "hangs")
    pid = worker.hear("pid", 10.0)["pid"]
    with pytest.raises(script.StepError, match="no 'ready' within 0 s: still running"):
        worker.hear("ready", 0.2)
    worker.end()
    state = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.02)
    else:
        raise AssertionError("its child lives on")


def test_no_step_begins_without_time_for_it(script: ModuleType, words: list[str], tmp_path: Path) -> None:
    assert script.main([*words[:2], "--budget", "45", *words[2:]]) == 1
    steps = result(tmp_path)["steps"]
    assert steps["machine"]["state"] == "done"
    assert steps["eager: alone"]["state"] == "skipped"
    assert "it needs 40 s" in str(steps["eager: alone"]["why"])


def test_the_plan(script: ModuleType, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main([*words[:2], "--dry-run"]) == 0
    assert "1000 requests at 50% load" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit):
        script.main(["--load", "1.5"])


def test_without_torch_it_says_so(script: ModuleType, words: list[str], tmp_path: Path) -> None:
    """The real worker, in a Python that has no torch."""
    fake = tmp_path / "hide"
    fake.mkdir()
    (fake / "torch.py").write_text("raise ImportError('No module named torch')")
    command = ["env", f"PYTHONPATH={fake}", *script.WORKER]
    assert script.main([*words[: words.index("--worker")], "--worker", *command]) == 1
    assert "PyTorch can't be imported" in str(result(tmp_path)["steps"]["machine"]["why"])
