"""The shim as libcuda.so.1: every way to the driver, every symbol, fork, exec, threads, capture; nothing changes."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuloom.sharing.shim import build, compiler
from shim_kit import SOURCES, Stage, built

CLASSES = ("", "high", "best-effort")
LOADERS = ("direct", "dlopen", "proc1", "proc2", "ptsz")
PLAIN_RESULT = "10496471317674553444"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(built("plain"), tmp_path)
    yield made
    made.end()


def launches(log_of: Stage) -> int:
    """Launches that passed the gate, by the counters of the slot (kept until the next program takes it)."""
    data = next(log_of.shared.glob("*.share")).read_bytes()
    return int.from_bytes(data[4096 + 64 : 4096 + 72], "little")


@pytest.mark.parametrize("loader", LOADERS)
def test_every_way_to_the_driver_is_gated_and_gives_the_same_result(stage: Stage, loader: str) -> None:
    unhooked = stage.run("", "hash", "300", loader=str(stage.made.fake))
    for klass in CLASSES:
        assert stage.run(klass, "hash", "300", loader=loader) == unhooked
        if klass:
            assert launches(stage) == 300, f"{klass} by {loader}: not all launches were seen"


def test_an_absolute_path_goes_round_the_shim(stage: Stage) -> None:
    """Documented: who opens the driver by its own path is neither gated nor counted."""
    assert stage.run("high", "hash", "300", loader=str(stage.made.fake))[0]["result"] == PLAIN_RESULT
    assert list(stage.shared.glob("*.share")) == []


def test_a_ctypes_program_is_gated(stage: Stage) -> None:
    code = """
import ctypes
cuda = ctypes.CDLL("libcuda.so.1")
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    assert result == 0, (name, result)
device, context, module, function = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
call("cuModuleLoadData", ctypes.byref(module), b"image")
call("cuModuleGetFunction", ctypes.byref(function), module, b"k?ns=1000")
name = ctypes.c_char_p()
call("cuFuncGetName", ctypes.byref(name), function)
for _ in range(25):
    call("cuLaunchKernel", function, 8, 1, 1, 32, 1, 1, 0, None, None, None)
call("cuCtxSynchronize")
print(name.value.decode(), cuda.cuMemcpyPeerAsync(1, 2, 3, 4, 5, 6))
"""
    assert stage.python("high", code) == "k?ns=1000 135\n"
    assert launches(stage) == 25


@pytest.mark.parametrize("loader", ["proc1", "proc2", "ptsz"])
def test_functions_at_addresses_that_no_symbol_has_are_known_by_name(stage: Stage, loader: str) -> None:
    elsewhere = {"FAKE_ELSEWHERE": "1"}
    unhooked = stage.run("", "hash", "300", loader=str(stage.made.fake))
    assert stage.run("high", "hash", "300", loader=loader, **elsewhere) == unhooked
    assert launches(stage) == 300


REOPENED = """
import _ctypes, ctypes
for time in range(3):
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    assert ctypes.c_uint.in_dll(cuda, "gpuloom_shim_version").value, f"time {time}: that is the driver itself"
    _ctypes.dlclose(cuda._handle)
print("gated")
"""


def test_who_closes_the_driver_and_opens_it_again_is_gated(stage: Stage) -> None:
    """The driver stays loaded under the same name: without the shim it would be what is found."""
    assert stage.python("high", REOPENED) == "gated\n"


@pytest.mark.parametrize("klass", CLASSES)
def test_arguments_of_all_kinds_and_errors_pass_unchanged(stage: Stage, klass: str) -> None:
    assert stage.run(klass, "arguments") == [{"struct": "661613536859269229", "floats": "47", "integers": "135"}], (
        "a struct by value, floats and integers in registers"
    )
    found = stage.run(klass, "errors")[0]
    assert found == {"null": "400", "zero": "1", "missing": "500", "lacking": "500", "end": "1"}


def test_every_name_of_the_list_is_exported_and_nothing_else() -> None:
    exported = build.exported(built("plain").shim)
    assert exported == build.known(SOURCES)
    library = ctypes.CDLL(
        str(built("plain").fake)
    )  # a library of the same kind: the reader finds what the loader finds
    assert all(hasattr(library, name) for name in build.exported(built("plain").fake))


def test_a_driver_without_a_function_and_a_driver_that_is_missing(stage: Stage, tmp_path: Path) -> None:
    """No crash: CUDA_ERROR_NOT_FOUND for a function the driver lacks, CUDA_ERROR_STUB_LIBRARY without a driver."""
    code = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1')\n"
        "print(cuda.cuMemPoolTrimTo(None, None), cuda.cuInit(0), cuda.cuLaunchKernelEx(None, None, None, None))"
    )
    lacking = stage.python("high", code).split()
    assert lacking[:2] == ["500", "0"]
    nothing = stage.python("high", code, GPULOOM_SHARE_DRIVER=str(tmp_path / "none.so"))
    assert nothing == "34 34 34\n"
    assert "none.so" in stage.log


def test_the_shim_does_not_take_itself_or_another_shim_for_the_driver(stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / "libcuda.so.999"
    other.write_bytes(stage.made.shim.read_bytes())
    code = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))"
    assert stage.python("high", code, GPULOOM_SHARE_DRIVER=str(stage.made.shim)) == "34\n"
    assert stage.python("high", code, GPULOOM_SHARE_DRIVER=str(other)) == "34\n"
    assert "another shim" in stage.log


def test_the_driver_is_found_without_being_named(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libcuda.so.550.1").symlink_to(stage.made.fake)
    path = f"{stage.made.shim.parent}:{tmp_path / 'lib'}"
    assert stage.run("high", "hash", "300", GPULOOM_SHARE_DRIVER="", LD_LIBRARY_PATH=path)[0]["result"] == PLAIN_RESULT
    assert "libcuda.so.550.1" in stage.log


@pytest.mark.parametrize("klass", CLASSES)
@pytest.mark.parametrize("command", ["fork", "forked", "exec", "threads", "unload", "library", "events"])
def test_forks_threads_and_unloading_change_nothing(stage: Stage, command: str, klass: str) -> None:
    bare = stage.environment("", LD_LIBRARY_PATH=str(stage.made.fake.parent))
    program = [str(stage.made.program()), "direct", command]
    plain = subprocess.run(program, env=bare, capture_output=True, text=True, timeout=30, check=True).stdout
    lines = [dict(pair.split("=", 1) for pair in line.split()) for line in plain.splitlines()]
    found = stage.run(klass, command)
    assert sorted(map(str, found)) == sorted(map(str, lines))
    assert stage.programs() == [], "slots of programs that have ended are still held"


def test_a_forked_child_that_ends_leaves_the_parents_slot_alone(stage: Stage) -> None:
    parent = stage.start("high", "kept")
    assert parent.stdout is not None
    parent.stdout.readline()
    pid = int(parent.stdout.readline().removeprefix("kept="))
    assert [(p.pid, p.kernels) for p in stage.programs()] == [(pid, 50)]


@pytest.mark.parametrize("klass", CLASSES)
def test_a_capture_is_neither_gated_nor_measured(stage: Stage, klass: str) -> None:
    """The fake driver spoils a capture in which an event is queried, and counts recorded events as nodes."""
    found = stage.run(klass, "capture")[0]
    assert found["nodes"] == "50"


@pytest.mark.parametrize("klass", ["high", "best-effort"])
def test_a_capture_ends_with_its_stream(stage: Stage, klass: str) -> None:
    """Else the program would be taken to capture for good, and nothing of it would be gated any more."""
    stage.run(klass, "abandoned", "40")
    assert launches(stage) == 40


def test_a_capture_is_not_held_while_a_request_is_in_progress(stage: Stage) -> None:
    busy = stage.start("high", "busy", "5e7", "5e9")
    assert busy.stdout is not None
    assert busy.stdout.readline() == "busy=1\n"
    held = stage.run("best-effort", "capture", GPULOOM_SHARE_MAX_HOLD_MS="40")[0]
    assert int(held["capture_ns"]) < 20_000_000, "launches into a graph waited"


@pytest.mark.parametrize(
    ("command", "why"), [("nccl", "uses NCCL"), ("gpus", "several GPUs")], ids=["collectives", "two GPUs"]
)
def test_distributed_programs_are_exempt(stage: Stage, command: str, why: str) -> None:
    stage.run("best-effort", command, FAKE_GPUS="2")
    assert why in stage.log
    stage.run("best-effort", "hash", WORLD_SIZE="4")
    assert "distributed job: exempt" in stage.log


@pytest.mark.parametrize(
    "change",
    [{"GPULOOM_SHARE": "off"}, {"GPULOOM_SHARE_CLASS": "middle"}, {"GPULOOM_SHARE_DIR": "/proc/nowhere"}],
    ids=["kill switch", "unknown class", "no shared memory"],
)
def test_on_any_doubt_everything_passes_through(stage: Stage, change: dict[str, str]) -> None:
    assert stage.run("high", "hash", "300", **change)[0]["result"] == PLAIN_RESULT
    assert list(stage.shared.glob("*.share")) == []


def test_nothing_is_written_to_stdout_or_stderr(stage: Stage) -> None:
    done = subprocess.run(
        [str(stage.made.program()), "direct", "hash"],
        env=stage.environment("high", GPULOOM_SHARE_LOG="/nowhere/log"),
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_thread_local_storage_stays_small() -> None:
    """A library that is opened late gets its initial-exec storage from a small reserve (some hundred bytes)."""
    data = built("plain").shim.read_bytes()
    start, size, count = (int.from_bytes(data[at : at + n], "little") for at, n in ((32, 8), (54, 2), (56, 2)))
    headers = [data[start + i * size : start + (i + 1) * size] for i in range(count)]
    storage = [int.from_bytes(h[40:48], "little") for h in headers if int.from_bytes(h[:4], "little") == 7]
    assert sum(storage) <= 64


def wheel_headers() -> Path | None:
    """The folder of cuda.h of the wheel nvidia-cuda-runtime (-cu12), installed with the extra `dev`."""
    for folder in map(Path, sys.path):
        for inside in ("nvidia/cuda_runtime/include", "nvidia/cu13/include"):
            if (folder / inside / "cuda.h").is_file():
                return folder / inside
    return None


def test_the_abi_is_that_of_cuda_h(tmp_path: Path) -> None:
    headers = wheel_headers()
    if headers is None:
        target = tmp_path / "wheel"
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--disable-pip-version-check"]
        done = subprocess.run(
            [*command, "--target", str(target), "nvidia-cuda-runtime-cu12==12.9.79"],
            capture_output=True, text=True, timeout=120, check=False, env={**os.environ},
        )  # fmt: skip
        assert done.returncode == 0, f"cuda.h is needed: pip install nvidia-cuda-runtime-cu12\n{done.stderr}"
        headers = target / "nvidia" / "cuda_runtime" / "include"
    command = compiler.compiler()
    assert command is not None
    compiler.run_compiler(
        [*command, "-std=gnu11", "-fsyntax-only", f"-I{headers}", str(SOURCES / "tests" / "test_abi.c")], SOURCES
    )
