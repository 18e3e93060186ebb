"""The programs of `gpu_suspend.py` and `gpu_jobs.py`: unmodified trainings whose losses can be compared. Only PyTorch.

train OUT: a line for each iteration with its number and loss, until `steps` or until OUT.stop is there; then `end` and
whether what lay on the GPU all the time is what was put there. hog OUT: takes all the GPU memory it can get, says how
many GiB, and ends. serve OUT: a request now and then, with its time in milliseconds.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS gives equal results then

import torch
from torch import nn

WIDTH, BATCH = 1024, 64


class Samples(torch.utils.data.Dataset[tuple[Any, int]]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.randn(256, generator=torch.Generator().manual_seed(index)), index % 10


def batches(workers: int) -> Iterator[Any]:
    if workers:
        yield from torch.utils.data.DataLoader(Samples(), BATCH, num_workers=workers, pin_memory=True)
    generator = torch.Generator().manual_seed(1)
    while True:
        yield torch.randn(BATCH, 256, generator=generator), torch.randint(10, (BATCH,), generator=generator)


def train(given: argparse.Namespace) -> None:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    layers = [nn.Sequential(nn.Linear(256 if i == 0 else WIDTH, WIDTH), nn.ReLU()) for i in range(4)]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=given.graph)
    kept = [torch.full((2**28,), float(i), device="cuda") for i in range(given.gib)]  # of 1 GiB

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=not given.graph)
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    if given.graph:
        fixed_x, fixed_y = torch.randn(BATCH, 256).cuda(), torch.randint(10, (BATCH,)).cuda()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step(fixed_x, fixed_y)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            graph_loss = step(fixed_x, fixed_y)
    with given.out.open("w", buffering=1) as out:
        for number, (x, y) in enumerate(batches(given.workers), 1):
            if given.graph:
                fixed_x.copy_(x)
                fixed_y.copy_(y)
                graph.replay()
                loss = graph_loss
            else:
                loss = step(x.cuda(non_blocking=True), y.cuda(non_blocking=True))
            print(number, repr(loss.item()), file=out)
            if number >= given.steps or given.out.with_suffix(".stop").exists():
                break
            time.sleep(given.pause)
        whole = all(float(part.sum(dtype=torch.float64)) == i * 2.0**28 for i, part in enumerate(kept))
        print("end", whole, file=out)


def hog(given: argparse.Namespace) -> None:
    free, _ = torch.cuda.mem_get_info()
    count = (free - 2**29) // 2**30
    parts = [torch.full((2**28,), 1.0, device="cuda") for _ in range(count)]
    given.out.write_text(f"{sum(int(float(part[-1])) for part in parts)}\n")


def serve(given: argparse.Namespace) -> None:
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(24)]
    model, x = nn.Sequential(*layers).cuda().eval(), torch.randn(8, WIDTH)
    with given.out.open("w", buffering=1) as out, torch.inference_mode():
        for number in range(1, given.steps + 1):
            begin = time.perf_counter()
            float(model(x.cuda())[0, 0])
            print(number, f"{1000 * (time.perf_counter() - begin):.4f}", file=out)
            if given.out.with_suffix(".stop").exists():
                break
            time.sleep(given.pause)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("train", "hog", "serve"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--gib", type=int, default=0, help="that lie on the GPU all the time")
    parser.add_argument("--graph", action="store_true", help="the iteration is one CUDA graph")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--pause", type=float, default=0.002, help="seconds between iterations")
    given = parser.parse_args()
    {"train": train, "hog": hog, "serve": serve}[given.what](given)


if __name__ == "__main__":
    main()
