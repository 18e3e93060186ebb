"""PyTorch DDP that can be preempted and resized: it ends with the same weights, whatever happens to it meanwhile.

gpuloom submit --elastic 1-4 -- torchrun train_ddp.py [--epochs N] [--checkpoint FILE]
torchrun --nproc-per-node 2 train_ddp.py               without gpuloom

What is gpuloom's here: the sampler (the same samples in a step at every size), `should_stop`, and how it saves.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

from gpuloom.training import job
from gpuloom.training.torch import ElasticSampler

parser = argparse.ArgumentParser(description="PyTorch DDP that can be preempted and resized.")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch", type=int, default=48, help="samples of a step, in all processes together")
parser.add_argument("--pause", type=float, default=0.0, help="seconds that a step takes one process at least")
parser.add_argument("--checkpoint", type=Path, default=Path("runs") / "ddp.pt")
parser.add_argument("--seen", type=Path, help="a folder: each process writes which samples it used, and the loss")
given = parser.parse_args()

cuda = torch.cuda.is_available()
dist.init_process_group("nccl" if cuda else "gloo")
rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")

torch.manual_seed(1)
points = torch.randn(1000, 8)
data = TensorDataset(torch.arange(len(points)), points, points.square().sum(1, keepdim=True))
net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
model = torch.nn.parallel.DistributedDataParallel(net, device_ids=[local_rank] if cuda else None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.003, momentum=0.9)
sampler = ElasticSampler(data, given.batch)
loader = DataLoader(data, batch_sampler=sampler)
step, total, mean = 0, given.epochs * len(sampler), float("nan")

if given.checkpoint.exists():
    state = torch.load(given.checkpoint, map_location=device)
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])
    sampler.load_state_dict(state["sampler"])
    step = state["step"]


def save() -> None:
    """Rank 0 saves; all go on when it has."""
    if rank == 0:
        state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "sampler": sampler.state_dict()}
        given.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        job.save_atomically(given.checkpoint, lambda file: torch.save({**state, "step": step}, file))
        job.saved(step)
    dist.barrier()


job.should_stop()  # from here on a notice is heard
job.progress(step, total)
for epoch in range(sampler.epoch, given.epochs):
    sampler.set_epoch(epoch)
    for indices, inputs, wanted in loader:
        begun_s = time.monotonic()
        # DDP takes the mean over the processes, which may have unequal parts of the batch.
        errors = (model(inputs.to(device)) - wanted.to(device)).square()
        counts = torch.tensor([float(len(indices)), errors.sum().item(), float(job.should_stop())], device=device)
        dist.all_reduce(counts)
        samples, loss, notices = counts.tolist()
        mean = loss / samples
        optimizer.zero_grad()
        (errors.sum() * dist.get_world_size() / samples).backward()
        optimizer.step()
        sampler.advance()
        step += 1
        job.progress(step, total, loss=mean, epoch=epoch)
        if given.seen is not None:
            with open(given.seen / f"{step}.{os.environ.get('GPULOOM_ATTEMPT', '1')}.{rank}", "w") as file:
                file.write(f"{mean:.9g} {' '.join(map(str, indices.tolist()))}\n")
        if notices:  # all processes know of it at the same step
            save()
            job.exit_preempted()
        time.sleep(max(given.pause / dist.get_world_size() - (time.monotonic() - begun_s), 0.0))
save()
if rank == 0:
    print(f"{dist.get_world_size()} processes at the end, {step} steps, loss {mean:.6g}", flush=True)
dist.destroy_process_group()
