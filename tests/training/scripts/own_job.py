"""A loop of its own, as people write them, alone or with DDP: a checkpoint every five steps, loaded at the start."""

import os
import sys

import torch
from made_up import Sums, maybe_stop, network, used, write_weights

STEPS, EVERY = 60, 5
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(3)
model = network()
if ranks > 1:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
data, start = Sums(noise=0.0), 0
if os.path.exists("own.pt") and "forgets" not in sys.argv:
    state = torch.load("own.pt")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["training"]["optimizer"])
    start = state["step"]
for step in range(start, STEPS):
    torch.manual_seed(100 * step + rank)
    numbers = torch.randint(len(data), (4,))
    batch = [data[int(number)] for number in numbers]
    x, y = (torch.stack([one[name] for one in batch]) for name in ("x", "labels"))
    maybe_stop(step)
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    used(numbers)
    if rank == 0 and (step + 1) % EVERY == 0:
        state = {"model": model.state_dict(), "training": {"optimizer": optimizer.state_dict()}, "step": step + 1}
        torch.save(state, "own.tmp")
        os.replace("own.tmp", "own.pt")
if rank == 0:
    write_weights(model)
if ranks > 1:
    torch.distributed.destroy_process_group()
