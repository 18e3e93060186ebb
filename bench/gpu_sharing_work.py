"""The programs of `gpu_sharing.py`: a service, a training job, and programs whose results are compared. Only PyTorch.

They are told by JSON lines on stdin and answer by JSON lines on stdout: about, serve-eager, serve-large, serve-graph,
train, check-cublas, check-cudnn, check-triton.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import sys
import threading
import time
from typing import Any


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


def heard() -> dict[str, Any]:
    line = sys.stdin.readline()
    if not line:
        sys.exit(0)
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def about(torch: Any) -> None:
    found = torch.cuda.get_device_properties(0)
    say(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        gpu=found.name,
        sms=found.multi_processor_count,
        cc=f"{found.major}.{found.minor}",
        memory_gib=found.total_memory / 2**30,
    )


def resnet50(torch: Any) -> Any:
    """ResNet-50 of plain modules (bottlenecks of 3, 4, 6, 3)."""
    nn = torch.nn

    class Bottleneck(nn.Module):
        def __init__(self, inner: int, width: int, stride: int) -> None:
            super().__init__()
            self.a, self.na = nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)
            self.b, self.nb = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
            self.c, self.nc = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
            self.relu = nn.ReLU(inplace=True)
            self.short = None
            if stride != 1 or inner != 4 * width:
                skip = nn.Conv2d(inner, 4 * width, 1, stride, bias=False)
                self.short = nn.Sequential(skip, nn.BatchNorm2d(4 * width))

        def forward(self, x: Any) -> Any:
            kept = x if self.short is None else self.short(x)
            x = self.relu(self.na(self.a(x)))
            x = self.relu(self.nb(self.b(x)))
            return self.relu(self.nc(self.c(x)) + kept)

    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    inner = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            layers.append(Bottleneck(inner, width, stride if number == 0 else 1))
            inner = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 1000)).cuda()


def serve(torch: Any, kind: str) -> None:
    """Requests one at a time, in order of arrival.

    `eager` launches each kernel (4 images: the processor is the bottleneck on a large GPU), `large` as well (64
    images: the GPU is), `graph` replays a CUDA graph of 4 images.
    """
    model, images = resnet50(torch).eval(), torch.randn(64 if kind == "large" else 4, 3, 224, 224)
    if kind == "graph":
        graph, given = torch.cuda.CUDAGraph(), images.cuda()
        with torch.inference_mode():
            for _ in range(3):
                model(given)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                answer = model(given)

    def request() -> float:
        with torch.inference_mode():
            if kind == "graph":
                given.copy_(images)
                graph.replay()
                return float(answer[0, 0])
            return float(model(images.cuda())[0, 0])  # waits for the result, as a service does

    def closed(count: int) -> list[float]:
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            request()
            times.append(1000 * (time.perf_counter() - begin))
        return times

    closed(50)
    say(ready=True, request_ms=sorted(closed(100))[50])
    while True:
        told = heard()
        if "closed" in told:
            say(request_times_ms=closed(told["closed"]))
            continue
        latencies, took, start = [], [], time.perf_counter() + 0.1
        for arrival in told["serve"]:
            while time.perf_counter() - start < arrival:
                pass  # a sleep ends late, above all on a virtual machine, and the request would be blamed for it
            begin = time.perf_counter()
            request()
            end = time.perf_counter()
            latencies.append(1000 * (end - start - arrival))
            took.append(1000 * (end - begin))
        say(latencies_ms=latencies, took_ms=took)


def train(torch: Any) -> None:
    """Iterations until told to stop."""
    model = resnet50(torch).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    images, labels = torch.randn(32, 3, 224, 224).cuda(), torch.randint(1000, (32,)).cuda()

    def iteration() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()

    for _ in range(10):
        iteration()
    torch.cuda.synchronize()
    say(ready=True)
    heard()
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.readline()  # told to stop, or nobody is there any more
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    count, begin = 0, time.perf_counter()
    say(training=True)
    while not stop.is_set():
        iteration()
        count += 1
        if count % 10 == 0:
            torch.cuda.synchronize()  # as a loop that prints its loss does
    torch.cuda.synchronize()
    say(iterations=count, seconds=time.perf_counter() - begin)


def digest(tensors: list[Any]) -> str:
    """Of every bit."""
    found = hashlib.sha256()
    for tensor in tensors:
        here = tensor.detach().contiguous().cpu()
        found.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))  # NumPy may be missing
    return found.hexdigest()[:32]


def check_cublas(torch: Any) -> None:
    results = []
    for kind in (torch.float32, torch.float16, torch.bfloat16):
        a, b = (torch.randn(777, 777).cuda().to(kind) for _ in range(2))
        for _ in range(20):
            a = torch.mm(a, b) / 777**0.5
        results.append(a)
    say(digest=digest(results), what="cuBLAS: 20 products of 777 by 777 in three types")


def check_cudnn(torch: Any) -> None:
    model = resnet50(torch).train()
    torch.nn.functional.cross_entropy(model(torch.randn(4, 3, 96, 96).cuda()), torch.arange(4).cuda()).backward()
    say(digest=digest([p.grad for p in model.parameters()]), what="cuDNN: gradients of ResNet-50")


def check_triton(torch: Any) -> None:
    try:
        import triton  # noqa: F401
    except ImportError:
        say(error="Triton is not installed here")
        return

    def work(x: Any) -> Any:
        return torch.softmax(torch.sin(x) * x + 1.0, dim=-1)

    compiled = torch.compile(work)  # its kernels are Triton's
    x = torch.randn(513, 1025).cuda()
    first = compiled(x)
    if float((first - work(x)).abs().max()) > 1e-5:
        say(error="torch.compile differs from eager PyTorch")
        return
    for _ in range(20):
        x = compiled(x) + 0.5
    say(digest=digest([first, x]), what="Triton: compiled sin and softmax, 21 times")


def main() -> None:
    role = sys.argv[1]
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS gives equal results then
    try:
        import torch
    except ImportError as error:
        say(error=f"PyTorch can't be imported by {sys.executable}: {error}")
        return
    if not torch.cuda.is_available():
        say(error=f"PyTorch {torch.__version__} sees no GPU")
        return
    torch.manual_seed(0)
    if role.startswith("check-"):
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    if role.startswith("serve-"):
        serve(torch, role.removeprefix("serve-"))
        return
    roles = {
        "about": about, "train": train, "check-cublas": check_cublas, "check-cudnn": check_cudnn,
        "check-triton": check_triton,
    }  # fmt: skip
    roles[role](torch)


if __name__ == "__main__":
    main()
