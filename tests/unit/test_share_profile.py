"""`gpuloom share profile`: the real command and the real hook, around programs that use a fake torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_torch import MODEL, install
from gpuloom.sharing.find import find_profile, read_profile

MAIN = "from gpuloom.cli import main; main.main()"
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPULOOM_HOME", str(tmp_path / "home"))
    return install(tmp_path / "program")


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "share", "profile", *words]


@pytest.fixture
def run(place: Path, tmp_path: Path) -> Run:
    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "TMPDIR": str(tmp_path), **more}
        return subprocess.run(
            command(*words), cwd=place, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def test_a_training_program(run: Run, tmp_path: Path) -> None:
    done = run("--warm-up", "2", "--iterations", "3", "--json", "--", sys.executable, "train.py", "20")
    assert done.returncode == 0, done.stderr
    first, *rest = done.stdout.splitlines()
    assert first == "trained"
    told = json.loads(rest[0])
    assert (told["name"], told["kernels"], told["sm_count"], told["cc"]) == ("train", 5, 108, "8.0")
    profile, where = find_profile("train")
    assert where == told["from"]
    assert [k.name[:7] for k in profile.kernels] == ["ampere_", "ampere_", "vectori", "my_own_", "foreach"], "no tuning"
    gemm, _, relu, mine, _ = profile.kernels
    # 2·4096·1024·512 FLOPs in 50 us against 1e14 FLOP/s; relu: 2·4096·5120·4 bytes in 100 us against 2e12 bytes/s.
    assert gemm.compute_util == pytest.approx(2 * 4096 * 1024 * 512 / 50e-6 / 1e14, abs=1e-3) == 0.859
    assert relu.dram_util == pytest.approx(2 * 4096 * 5120 * 4 / 100e-6 / 2e12, abs=1e-3) == 0.8389
    assert (gemm.klass, relu.klass, mine.klass) == ("compute", "memory", "unknown")
    assert (mine.compute_util, mine.dram_util, mine.duration_ns, mine.samples) == (None, None, 7000, 3)
    assert (gemm.samples, gemm.blocks, gemm.threads_per_block, gemm.sm_slots) == (6, 432, 256, 108)
    assert "3 training iterations" in profile.source
    assert "torch 2.9.0+fake" in profile.source
    assert not list(tmp_path.glob("gpuloom-profile-*")), "what it made is gone"


def test_a_service_a_request_is_an_outermost_forward(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "serve.kernels.jsonl"
    words = ("--output", str(file), "--warm-up", "3", "--class-threshold", "0.85")
    done = run(*words, "--", sys.executable, "serve.py", "30")
    assert (done.returncode, done.stdout) == (0, "served\n"), done.stderr
    profile = read_profile(file)
    assert [k.name[:7] for k in profile.kernels] == ["ampere_", "ampere_", "vectori", "my_own_"]
    assert [k.klass for k in profile.kernels] == ["compute", "compute", "unknown", "unknown"]
    assert "5 requests" in profile.source
    assert "profiled serve: 4 kernels, 0.207 ms" in done.stderr


def test_by_time(run: Run, place: Path, tmp_path: Path) -> None:
    (place / "busy.py").write_text(
        f"{MODEL}\nimport time\nnet, end = Net(), time.monotonic() + 1.5\n"
        "while time.monotonic() < end:\n    net()\n    time.sleep(0.005)\n"
    )
    file = tmp_path / "busy.jsonl"
    done = run("--seconds", "0.3", "--warm-up", "0", "--output", str(file), "--", sys.executable, "busy.py")
    assert done.returncode == 0, done.stderr
    assert len(read_profile(file).order) > 8


@pytest.mark.parametrize(
    ("words", "environment", "told"),
    [
        (("train.py", "5"), {}, "ended before enough iterations: 5 optimizer steps"),
        (("train.py", "15"), {}, "4 of 5 recorded after 10"),
        (("train.py", "30"), {"FAKE_CUDA": "0"}, "no CUDA kernel: its torch finds no GPU"),
        (("train.py", "30"), {"FAKE_BROKEN": "fails"}, "failed in the program: RuntimeError: CUPTI_ERROR"),
        (("train.py", "30"), {"FAKE_BROKEN": "torn"}, "trace can't be read"),
        (("train.py", "30"), {"FAKE_BROKEN": "full"}, "the disk is full"),
        (("-c", "print('trained')"), {}, "never imported torch"),
        (("-E", "-c", "print('trained')"), {}, "run without -E, -I and -S"),
        (("-c", "import torch, os; os.write(1, b'trained\\n'); os._exit(0)"), {}, "ran no CUDA kernel"),
    ],
)
def test_why_there_is_no_profile(run: Run, words: tuple[str, ...], environment: dict[str, str], told: str) -> None:
    done = run("--", sys.executable, *words, **environment)
    assert told in done.stderr
    assert (done.returncode, done.stdout) == (1, "trained\n"), "the program's own output, whole"
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_programs_exit_code_is_passed_on(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "out.jsonl")
    assert run("--output", file, "--", sys.executable, "train.py", "30", "7").returncode == 7
    assert Path(file).exists()
    assert run("--", sys.executable, "train.py", "3", "9").returncode == 9
    assert run("--", sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").returncode == -9
    missing = run("--", "/no/such/program")
    assert (missing.returncode, "No such file" in missing.stderr) == (127, True)


@pytest.mark.slow
def test_refused_before_the_program_starts(run: Run, tmp_path: Path) -> None:
    words = ("--warm-up", "1", "--iterations", "1", "--", sys.executable, "train.py", "9")
    assert run(*words).returncode == 0
    again = run(*words)
    assert (again.returncode, again.stdout) == (2, "")
    assert "--overwrite" in again.stderr
    assert run("--overwrite", *words).returncode == 0
    assert run("--output", str(tmp_path / "no" / "f"), *words).returncode == 2
    for name in ("x/y", ""):
        bad = run("--name", name, *words)
        assert (bad.returncode, bad.stdout) == (2, "")
        assert "can't be a profile's name" in bad.stderr
    for seconds in ("0", "0s"):
        bad = run("--seconds", seconds, "--name", "none", *words)
        assert (bad.returncode, bad.stdout) == (2, "")
        assert "--seconds must be above 0" in bad.stderr


def test_a_signal_reaches_the_program_and_the_profile_is_there_before_its_end(place: Path, tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    (place / "long.py").write_text(
        f"{MODEL}\nimport time, signal\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\nnet = Net()\n"
        "while True:\n    with torch.no_grad():\n        net()\n    time.sleep(0.001)\n"
    )
    process = subprocess.Popen(
        command("--output", str(file), "--", sys.executable, "long.py"), cwd=place, stderr=subprocess.PIPE, text=True
    )
    try:
        end = time.monotonic() + 30
        while not file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        assert read_profile(file).order
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 5
    finally:
        process.kill()
        process.communicate()


def test_the_hook_chains_a_sitecustomize_and_takes_itself_out(run: Run, place: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.chained = 'torch' in sys.modules\nVALUE = 3\n")
    (place / "train.py").write_text(
        (place / "train.py").read_text().rpartition("sys.exit")[0] + "import sitecustomize\n"
        "print(sys.chained, sitecustomize.VALUE, torch.hooks, torch.nn.Module.__call__.__qualname__)\n"
        "print([f for f in sys.meta_path if 'After' in type(f).__name__])\n"
    )
    file = str(tmp_path / "f.jsonl")
    done = run("--output", file, "--", sys.executable, "train.py", "30", PYTHONPATH=str(own))
    assert done.stdout.splitlines() == ["trained", "False 3 {} Module.__call__", "[]"], done.stderr
    assert done.returncode == 0


def test_only_the_main_process_records(run: Run, place: Path, tmp_path: Path) -> None:
    """Forked data loaders that run forward passes of their own, before and after the GPU is used."""
    loader = (
        "def fork():\n    pid = os.fork()\n    if pid == 0:\n        net = Net()\n        for _ in range(40):\n"
        "            net(8)\n            torch.optim.Optimizer().step()\n        os._exit(0)\n    os.waitpid(pid, 0)\n"
    )
    text = (place / "train.py").read_text()
    (place / "train.py").write_text(text.replace("    net()\n", "    net()\n    if step in (1, 12): fork()\n"))
    (place / "train.py").write_text((place / "train.py").read_text().replace("net, one", loader + "net, one"))
    file = tmp_path / "f.jsonl"
    done = run("--output", str(file), "--", sys.executable, "train.py", "30")
    assert done.returncode == 0, done.stderr
    assert len(read_profile(file).order) == 5


@pytest.mark.slow
def test_of_several_processes_rank_0_records(run: Run, place: Path, tmp_path: Path) -> None:
    (place / "launch.py").write_text(
        "import os, subprocess, sys\nfrom pathlib import Path\n"
        "started = [subprocess.Popen([sys.executable, 'train.py', str(30 + 5 * rank)],\n"
        "           env={**os.environ, 'RANK': str(rank)}) for rank in (2, 1, 0)]\n"
        "sys.exit(max(process.wait() for process in started))\n"
    )
    file = tmp_path / "f.jsonl"
    done = run("--output", str(file), "--", sys.executable, "launch.py")
    assert done.returncode == 0, done.stderr
    assert len(read_profile(file).order) == 5
    done = run("--name", "x", "--", sys.executable, "train.py", "30", RANK="1")
    assert done.returncode == 1


def test_output_that_cannot_be_written_is_told(run: Run) -> None:
    done = run("--output", "/proc/gpuloom.jsonl", "--", sys.executable, "train.py", "30")
    assert (done.returncode, done.stdout) == (1, "trained\n")
    assert "can't be written" in done.stderr
