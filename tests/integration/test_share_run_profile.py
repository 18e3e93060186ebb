"""From a profile to the shim: `gpuloom share run --profile` on the fake driver; what the shim then knows of kernels."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_torch import install
from shim_kit import Stage, built

pytestmark = pytest.mark.slow

CLIENT, RING, ENTRY, ENTRIES = 4096, 512, 64, 32  # native/interposer/shm.h
CLASSES = ("unknown", "compute", "memory")
ELEMENTWISE = "void at::native::vectorized_elementwise_kernel"
ADD = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEEEEviT0_?ns=3000"
NORM = "_ZN2at6native12_GLOBAL__N_117layer_norm_kernelIfEEvT_?ns=3000"
OTHER = "_ZN2at6native29vectorized_elementwise_kernelILi2EEEvi?ns=3000"
LAUNCHER = """
import ctypes, json, sys
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuModuleLoadData", ctypes.byref(module), b"image")
functions = {}
for name, grid, shared, *block in json.loads(sys.argv[1]):
    if name not in functions:
        functions[name] = ctypes.c_void_p()
        call("cuModuleGetFunction", ctypes.byref(functions[name]), module, name.encode())
    call("cuLaunchKernel", functions[name], grid, 1, 1, *(block or [256]), 1, 1, shared, None, None, None)
    call("cuCtxSynchronize")
"""


def event(name: str, grid: int, us: float, shared: int = 0) -> dict[str, object]:
    return {
        "ph": "X", "cat": "kernel", "name": name, "ts": 1.0, "dur": us,
        "args": {"grid": [grid, 1, 1], "block": [256, 1, 1], "registers per thread": 32, "shared memory": shared},
    }  # fmt: skip


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(built("plain"), tmp_path)
    made.shared.mkdir()
    yield made
    made.end()


def run(
    stage: Stage, profile: str, launches: list[tuple[object, ...]], klass: str = "high"
) -> list[tuple[int, str, int]]:
    """Launch kernels in a program under `share run --profile`; SMs, class and duration that the shim had of each."""
    done = share(stage, "run", "--class", klass, "--no-mps", "--require", "--profile", profile, "--log",
                 str(stage.folder / "log"), "--", sys.executable, "-c", LAUNCHER, json.dumps(launches))  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    data = next(stage.shared.glob("*.share")).read_bytes()
    found = []
    for index in range(len(launches)):
        _, shape, duration = struct.unpack_from("<QQQ", data, CLIENT + RING + index % ENTRIES * ENTRY)
        found.append((shape & 0xFFFFFFFF, CLASSES[shape >> 32 & 255], duration))
    return found


def share(stage: Stage, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    code = (
        "import sys\nfrom pathlib import Path\nfrom gpuloom.sharing.shim import build\n"
        f"build.shim_path = lambda driver=None: Path({str(stage.made.shim)!r})\n"  # with what the tests build
        "from gpuloom.cli.main import main\nsys.argv[0] = 'gpuloom'\nmain()\n"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GPULOOM_SHARE")}
    environment = {
        **kept, "GPULOOM_SHARE_DRIVER": str(stage.made.fake), "GPULOOM_SHARE_DIR": str(stage.shared),
        "GPULOOM_HOME": str(stage.folder / "home"), "FAKE_STATE": str(stage.folder / "gpu"),
    }  # fmt: skip
    return subprocess.run(
        [sys.executable, "-c", code, "share", *arguments], env=environment, capture_output=True, text=True, timeout=60,
        check=False, cwd=cwd,
    )  # fmt: skip


def imported(stage: Stage, name: str, events: list[dict[str, object]]) -> str:
    """A trace, imported under a name."""
    device = {"name": "A100", "numSms": 108, "computeMajor": 8, "computeMinor": 0}
    path = stage.folder / f"{name}.json"
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    done = share(stage, "profiles", "import", str(path))
    assert done.returncode == 0, done.stderr
    return name


def test_kernels_of_a_trace_are_found_by_their_mangled_names(stage: Stage) -> None:
    """Demangled in the trace, mangled in the driver; SMs by occupancy on an A100, durations means over the launches."""
    name = imported(
        stage,
        "serve",
        [
            event(f"{ELEMENTWISE}<4, at::native::CUDAFunctor_add<float> >(int)", 80, 30.0),
            event(f"{ELEMENTWISE}<4, at::native::CUDAFunctor_add<float> >(int)", 80, 50.0),
            event(f"{ELEMENTWISE}<8, at::native::CUDAFunctor_mul<float> >(int)", 80, 70.0),
            event("void at::native::(anonymous namespace)::layer_norm_kernel<float>(float)", 64, 12.0, shared=2048),
            event("triton_poi_fused_0?ns=3000", 7, 9.0),
        ],
    )
    found = run(
        stage,
        name,
        [(ADD, 80, 0), (NORM, 64, 2000), ("triton_poi_fused_0?ns=3000", 7, 0), (ADD, 81, 0), (ADD, 80, 512)],
    )
    assert found[:3] == [(10, "unknown", 50_000), (8, "unknown", 12_000), (1, "unknown", 9_000)]
    assert [duration for _, _, duration in found[3:]] == [0, 0], "another grid or shared memory: another kernel"
    kinds = [line.split("] ", 1)[1].split(":")[0] for line in stage.log.splitlines() if ": grid" in line]
    assert kinds == ["by signature", "by signature", "by name", "not in the profile", "not in the profile"]


def test_class_and_utilisation_reach_the_shim_and_exact_names_come_first(stage: Stage) -> None:
    """An ncu CSV with mangled names: two instances of one template, told apart by name; a third only has the class."""
    path = stage.folder / "kernels.csv"
    metrics = ("gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
               "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed", "launch__registers_per_thread",
               "launch__shared_mem_per_block_dynamic", "launch__shared_mem_per_block_static")  # fmt: skip
    lines = [
        ["ID", "Kernel Name", "Block Size", "Grid Size", "CC", *metrics],
        ["", "", "", "", "", "us", "%", "%", "register/thread", "byte/block", "byte/block"],
        ["0", ADD, "(256, 1, 1)", "(80, 1, 1)", "8.0", "30", "20", "85", "32", "0", "0"],
        ["1", OTHER, "(256, 1, 1)", "(80, 1, 1)", "8.0", "90", "25", "75", "32", "0", "0"],
    ]
    path.write_text("\n".join(",".join(f'"{cell}"' for cell in line) for line in lines) + "\n")
    third = ADD.replace("Li4E", "Li8E")
    found = run(stage, str(path), [(ADD, 80, 0), (OTHER, 80, 0), (third, 80, 0), (third, 16, 0)])
    assert found[:3] == [(10, "memory", 30_000), (10, "memory", 90_000), (10, "memory", 60_000)]
    assert found[3][1:] == ("memory", 0), "the class by signature alone, the duration not"
    assert "by signature" in stage.log
    assert "class only" in stage.log


def test_a_recorded_duration_is_not_learnt_anew(stage: Stage) -> None:
    name = imported(stage, "fast", [event("k?ns=3000", 40, 777.0)])
    found = run(stage, name, [("k?ns=3000", 40, 0)] * 12 + [("k?ns=3000", 41, 0)] * 12)
    assert found[11] == (5, "unknown", 777_000)
    assert 0 < found[23][2] < 700_000, "of the other grid it is learnt"


def test_what_share_profile_has_recorded_is_what_the_shim_knows(stage: Stage) -> None:
    """A program is profiled (with a stand-in for PyTorch), then run under the shim with that profile by its name."""
    place = install(stage.folder / "program")
    done = share(
        stage, "profile", "--warm-up", "2", "--iterations", "3", "--", sys.executable, "train.py", "20", cwd=place
    )
    assert done.returncode == 0, done.stderr
    told = share(stage, "profiles", "show", "train", "--each", "--json")
    records = json.loads(told.stdout)["records"]
    assert {record["klass"] for record in records} == {"compute", "memory", "unknown"}
    found = run(stage, "train", [(r["name"], r["grid"][0], 0, r["block"][0]) for r in records])
    assert found == [(r["sm_slots"], r["klass"], r["duration_ns"]) for r in records]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nothing", "no kernel profile nothing, and no file of that name; there are resnet50"),
        ("/none/p.kernels.jsonl", "no kernel profile /none/p.kernels.jsonl"),
        ("broken.json", "not JSON"),
        ("text.txt", "not a kernel profile: none of gpuloom"),
        ("bert_2_fb0", "a placeholder"),
    ],
)
def test_a_profile_that_is_none_is_refused_before_the_program_runs(stage: Stage, given: str, said: str) -> None:
    (stage.folder / "broken.json").write_text("{")
    (stage.folder / "text.txt").write_text("hello\n")
    (stage.folder / "bert_2_fb0").write_text("Name,Profile,Memory_footprint,SM_usage,Duration\nk,-1,0,1,0\n")
    path = stage.folder / given
    named = str(path) if path.exists() else given
    done = share(stage, "run", "--class", "high", "--profile", named, "--", "touch", str(stage.folder / "ran"))
    assert done.returncode == 2
    assert said in done.stderr
    assert not (stage.folder / "ran").exists()
