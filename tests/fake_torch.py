"""A fake `torch` in a folder: as much of its API as `gpuloom share profile` and its test programs touch.

Its "GPU" is a list of launches; its profiler writes a Chrome trace with the fields that PyTorch's has. Environment:
FAKE_CUDA=0 (no GPU), FAKE_BROKEN (profiler: fails, torn: half a trace, full: no space left).
"""

from __future__ import annotations

from pathlib import Path

TORCH = '''
import functools, os, sys, types
__version__ = "2.9.0+fake"
float32, float16, bfloat16, uint8 = "float", "c10::Half", "c10::BFloat16", "byte"
HERE = os.environ.get("FAKE_CUDA", "1") == "1"
clock = [1000.0]
events = None
grad = [True]

class no_grad:
    def __enter__(self): self.before, grad[0] = grad[0], False
    def __exit__(self, *_): grad[0] = self.before
inference_mode = no_grad
def is_grad_enabled(): return grad[0]

def operator(name, dims, kernels, types=None, values=()):
    """An operator on the CPU that launches kernels: (name, grid, block, registers, shared, us)."""
    cuda._initialized = HERE
    begin = clock[0]
    clock[0] += 2
    external = int(clock[0] * 10)
    for kernel, grid, block, registers, shared, us in kernels:
        clock[0] += 1
        correlation = int(clock[0] * 10) + 1
        if events is not None and HERE:
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1,
                "ts": clock[0], "dur": 1, "args": {"External id": external, "correlation": correlation}})
            events.append({"ph": "X", "cat": "kernel", "name": kernel, "pid": 0, "tid": 7, "ts": clock[0] + 500,
                "dur": us, "args": {"External id": external, "device": 0, "stream": 7, "correlation": correlation,
                "registers per thread": registers, "shared memory": shared, "grid": grid, "block": block}})
    if events is not None:
        events.append({"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": begin,
            "dur": clock[0] - begin, "args": {"External id": external, "Input Dims": dims,
            "Input type": types or ["float"] * len(dims), "Concrete Inputs": list(values)}})

def zeros(*shape, dtype=None, device=None):
    return types.SimpleNamespace(copy_=lambda other: cuda.spend(2 * (128 << 20) / 2e12))
def mm(a, b): cuda.spend(2 * 4096**3 / 1e14)

class _Cuda(types.ModuleType):
    _initialized = False
    now = 0.0
    def spend(self, seconds): self.now += seconds
    def is_available(self): return HERE
    def is_initialized(self): return self._initialized
    def is_current_stream_capturing(self): return False
    def synchronize(self): pass
    def current_device(self): return 0
    def mem_get_info(self): return (80 << 30, 80 << 30)
    def get_device_properties(self, number):
        return types.SimpleNamespace(name="NVIDIA A100", multi_processor_count=108, major=8, minor=0)
    class Event:
        def __init__(self, enable_timing=False): self.at = 0
        def record(self): self.at = cuda.now
        def elapsed_time(self, other): return (other.at - self.at) * 1000
cuda = _Cuda("torch.cuda")

class Module:
    def __call__(self, *a, **k): return self.forward(*a, **k)
nn = types.ModuleType("torch.nn")
nn.Module = Module
nn.functional = types.SimpleNamespace(conv2d=lambda x, w, padding: cuda.spend(1e-3))

hooks = {}
class _Handle:
    def __init__(self, hook): self.hook = hook; hooks[id(self)] = hook
    def remove(self): hooks.pop(id(self), None)
optim = types.ModuleType("torch.optim")
_optimizer = types.ModuleType("torch.optim.optimizer")  # torch.optim has no attribute of that name
_optimizer.register_optimizer_step_post_hook = _Handle
class Optimizer:
    def step(self):
        for hook in [*hooks.values()]: hook(self, (), {})
optim.Optimizer = Optimizer
distributed = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)

class record_function:
    def __init__(self, name): self.name = name
    def __enter__(self): self.begin = clock[0]
    def __exit__(self, *_):
        clock[0] += 1
        for category in ("user_annotation", "gpu_user_annotation"):
            late = 500 * (category[0] == "g")
            events.append({"ph": "X", "cat": category, "name": self.name, "pid": 1, "tid": 1, "args": {},
                "ts": self.begin + late, "dur": clock[0] - self.begin})

class profile:
    def __init__(self, activities, record_shapes, with_flops):
        assert record_shapes and with_flops and len(activities) == 2
    def start(self):
        global events
        if os.environ.get("FAKE_BROKEN") == "fails": raise RuntimeError("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES")
        events = []
    def stop(self):
        global events
        self.events, events = events, None
    def export_chrome_trace(self, path):
        import json
        text = json.dumps({"schemaVersion": 1, "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}, *self.events]})
        broken = os.environ.get("FAKE_BROKEN")
        if broken == "full": raise OSError(28, "No space left on device", path)
        open(path, "w").write(text[: len(text) // 2] if broken == "torn" else text)
profiler = types.SimpleNamespace(profile=profile, record_function=record_function,
    ProfilerActivity=types.SimpleNamespace(CPU=0, CUDA=1))
for module in (cuda, nn, optim, _optimizer): sys.modules[module.__name__] = module
'''

MODEL = """
import os, sys, torch
GEMM = ("ampere_sgemm_128x64", [432, 1, 1], [256, 1, 1], 64, 0)
RELU = ("vectorized_elementwise", [1024, 1, 1], [128, 1, 1], 16, 0)
OTHER = ("my_own_kernel", [54, 1, 1], [64, 1, 1], 32, 4096)
class Layer(torch.nn.Module):
    def forward(self, rows):
        torch.operator("aten::addmm", [[512], [rows, 1024], [1024, 512]], [(*GEMM, 50.0)])
class Net(torch.nn.Module):
    def __init__(self): self.a, self.b = Layer(), Layer()
    def forward(self, rows=4096):
        self.a(rows)
        self.b(rows)
        torch.operator("aten::relu", [[rows, 5120]], [(*RELU, 100.0)])
        torch.operator("mine::op", [[rows]], [(*OTHER, 7.0)])
"""

TRAIN = (
    MODEL
    + """
net, one, two = Net(), torch.optim.Optimizer(), torch.optim.Optimizer()
for step in range(int(sys.argv[1])):
    net()
    if step in (0, 4):  # tuning
        torch.operator("aten::addmm", [], [("tuning", [1, 1, 1], [32, 1, 1], 8, 0, 3.0)])
    torch.operator("aten::_foreach_add_", [], [("foreach", [320, 1, 1], [512, 1, 1], 32, 0, 9.5)])
    one.step()
    two.step()
print("trained", flush=True)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""
)

SERVE = (
    MODEL
    + """
net = Net()
for request in range(int(sys.argv[1])):
    with torch.inference_mode():
        net()
print("served", flush=True)
"""
)


def install(folder: Path) -> Path:
    """Make the package `torch` in a folder, and programs beside it: train.py, serve.py."""
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH)
    (folder / "train.py").write_text(TRAIN)
    (folder / "serve.py").write_text(SERVE)
    return folder
