"""PyTorch, on one GPU or by torchrun on several, made preemptible by three lines: those that name `Training`.

gpuloom submit -- python train.py [--steps N] [--checkpoint FILE]
gpuloom submit -g 2 -- torchrun train.py

Stopped at any step and started again, it ends with the very same loss.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from gpuloom.training.torch import Training

parser = argparse.ArgumentParser(description="PyTorch that can be preempted.")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes longer")
parser.add_argument("--checkpoint", type=Path, default=Path("runs") / "train.pt")
given = parser.parse_args()

cuda = torch.cuda.is_available()
rank, local_rank = int(os.environ.get("RANK", "0")), int(os.environ.get("LOCAL_RANK", "0"))
device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
torch.manual_seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(32, 1))
model: torch.nn.Module = net.to(device)
if "RANK" in os.environ:
    dist.init_process_group("nccl" if cuda else "gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)

training = Training(given.checkpoint, model=model, optimizer=optimizer, schedule=schedule)
for _step in training.steps(given.steps):
    inputs = torch.randn(32, 8, device=device)
    loss = (model(inputs) - inputs.square().sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    time.sleep(given.pause)
if rank == 0:
    print("weights sum up to", repr(sum(float(one.sum()) for one in net.parameters())))
if dist.is_initialized():
    dist.destroy_process_group()
