"""A plain PyTorch script that asks gpuloom for notices itself: trains, saves where it is stopped, and says its loss."""

import os
import signal
import sys
from pathlib import Path

import torch

from gpuloom.training import job

TOTAL = 40
checkpoint = Path(sys.argv[1])

torch.manual_seed(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
start = 0
if checkpoint.exists():
    state = torch.load(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    start = state["step"]


def save(step: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    job.save_atomically(checkpoint, lambda file: torch.save(state, file))


stop_at = int(sys.argv[2]) if len(sys.argv) > 2 else -1
loss = torch.tensor(0.0)
for step in job.steps(TOTAL, start=start, save=save):
    if step == stop_at:
        os.kill(os.getpid(), signal.SIGTERM)
    batch = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
    loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.9f}", [f"{weight:.9f}" for weight in model.weight.flatten().tolist()])
