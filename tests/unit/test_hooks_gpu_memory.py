"""A script that ends for want of GPU memory says so in its run's directory, and is otherwise as without hooks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuloom.core.progress import GPU_FULL
from gpuloom.executors.local_files import LocalFiles, run_directory
from gpuloom.training.inject import environment

RUN = "12.1-9f3a02bc"
TORCH = "class OutOfMemoryError(RuntimeError):\n    pass\n"
FULL = "CUDA out of memory. Tried to allocate 2.00 GiB"
RAISE = f"raise torch.OutOfMemoryError({FULL!r})"


@pytest.mark.parametrize(
    ("raises", "full"),
    [
        (RAISE, True),
        (f"try:\n    {RAISE}\nexcept RuntimeError as error:\n    raise ValueError('fit') from error", True),
        (f"try:\n    {RAISE}\nexcept RuntimeError:\n    pass", False),
        ("raise MemoryError", False),
        ("raise SystemExit(3)", False),
    ],
    ids=["itself", "the cause", "caught", "main memory", "an exit"],
)  # fmt: skip
def test_what_ends_a_script(tmp_path: Path, raises: str, full: bool) -> None:
    run = run_directory(tmp_path / "runs", RUN)
    run.mkdir(parents=True)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "train.py").write_text(f"import torch\n{raises}\n")
    plain = {key: value for key, value in os.environ.items() if not key.startswith(("GPULOOM", "PYTHON"))}
    ends = []
    for env in (plain, plain | {"GPULOOM_RUN_DIR": str(run)} | environment(plain, run / "hooks")):
        done = subprocess.run(
            [sys.executable, "train.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60
        )
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]
    assert LocalFiles(tmp_path / "runs").progress(RUN) == ({GPU_FULL: True} if full else {})
    if full:
        assert (run / "gpu-memory-full").read_text() == FULL + "\n"
