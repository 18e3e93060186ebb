"""Says in a file how large its world is, whenever it begins anew, and adds up with the others until told to end."""

import os
import sys
import time

import torch
import torch.distributed as dist

said, end = sys.argv[1:]
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
with open(said, "a") as file:
    file.write(f"{rank} {size} {os.getppid()} {time.time():.3f}\n")
while True:
    over = torch.tensor([float(os.path.exists(end)), 1.0])
    dist.all_reduce(over)
    assert over[1] == size
    if over[0] > 0:
        break
    time.sleep(0.05)
dist.destroy_process_group()
