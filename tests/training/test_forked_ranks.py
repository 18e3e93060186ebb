"""Real PyTorch, imported once and forked: the ranks train together as ranks do that were started one by one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuloom.executors import direct
from gpuloom.files.hook_records import read_record, training_of
from gpuloom.training.inject import DOOR

SCRIPT = """
import json
import os
import sys

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

before = "torch._dyn" + "amo" in sys.modules  # who names it is not given it
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(7)
net = torch.nn.Linear(4, 1)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = TensorDataset(torch.arange(480.0).reshape(120, 4)[rank::dist.get_world_size()] / 480)
for _ in range(2):
    for (batch,) in DataLoader(data, batch_size=4, num_workers=1):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
told = {"rank": rank, "before": before, "weights": net.weight.tolist(), "alone": torch.cuda.is_initialized()}
os.write(1, (json.dumps(told) + "\\n").encode())
dist.destroy_process_group()
"""


def trained(python: str, folder: Path, **env: str) -> list[dict[str, Any]]:
    """What each of three ranks tells, and how many rows of records they leave."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port = str(tried.getsockname()[1])
    asked = ["--processes", "3", "--first", "0", "--world", "3", "--node", "0", "--nodes", "1", "--run", "1.1-a"]
    done = subprocess.run(
        (python, "-I", "-S", direct.__file__, *asked, "--", python, folder / "train.py"),
        capture_output=True,
        text=True,
        timeout=120,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(DOOR),
            "GPULOOM_HOOKS": str(folder / "hooks"),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            **env,
        },
    )
    assert done.returncode == 0, done.stderr
    assert not (folder / "hooks" / "hooks.log").exists()
    records = [training_of(*read_record(str(path))[3:]) for path in sorted((folder / "hooks").glob("*.train"))]
    assert sorted((one.rank, one.world_size, one.iterations) for one in records) == [(n, 3, 20) for n in range(3)]
    return sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda one: int(one["rank"]))


@pytest.mark.slow
def test_forked_ranks_train_as_others_do(training_python: str, tmp_path: Path) -> None:
    forked = trained(training_python, tmp_path / "forked")
    apart = trained(training_python, tmp_path / "apart", GPULOOM_FORKS="off")
    assert [one["before"] for one in forked] == [True] * 3
    assert [one["before"] for one in apart] == [False] * 3
    assert [one["weights"] for one in forked] == [one["weights"] for one in apart]
    assert len({str(one["weights"]) for one in forked}) == 1
