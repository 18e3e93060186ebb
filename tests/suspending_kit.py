"""A driver that can suspend programs, by pretence (fake_suspend.c), and a machine that has it: made for a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from gpuloom.executors.local import LocalExecutor
from gpuloom.executors.logs import read_log
from gpuloom.executors.port import RunPhase, RunRequest, RunStatus
from until import until


def made(folder: Path) -> None:
    """Compile it as both of NVIDIA's libraries into a folder."""
    source = Path(__file__).parent / "fake_suspend.c"
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "these tests need a C compiler (gcc)"
    library = folder / "libcuda.so.1"
    command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    shutil.copy(library, folder / "libnvidia-ml.so.1")


def environment(folder: Path, gpu: Path) -> dict[str, str]:
    """Of a program that finds that driver, made into `folder`. gpu: the folder of its pretended GPU."""
    driver = folder / "libcuda.so.1"
    return {"FAKE_GPU": str(gpu), "LD_LIBRARY_PATH": str(folder), "GPULOOM_SHARE_DRIVER": str(driver)}


GIB = 1 << 30
PROGRAM = """
import ctypes, os, signal
driver = ctypes.CDLL("libcuda.so.1")
assert driver.fake_begin(ctypes.c_ulonglong({bytes})) == 0
if {saves}:
    def save(*_):
        os.write(1, b"saved\\n")  # it may come while the number is being printed
        os._exit(0)
    signal.signal(signal.SIGTERM, save)
number = 0
while True:
    driver.fake_step()
    number += 1
    print(number, flush=True)
"""


class Machine:
    """A machine with a GPU of 8 GiB, by pretence."""

    def __init__(self, home: Path, library: Path) -> None:
        self.home, self.gpu = home, home / "gpu"
        self.gpu.mkdir(parents=True)
        self.library = library
        self.told: list[RunStatus] = []
        self.executor = self.fresh()

    def fresh(self) -> LocalExecutor:
        executor = LocalExecutor(self.home / "home")
        executor.open(self.told.append)
        return executor

    def start(self, run: str, *, gib: float = 1.0, saves: bool = False, code: str = "", **more: Any) -> int:
        """Returns its process."""
        program = code or PROGRAM.format(bytes=int(gib * GIB), saves=saves)
        env = {key: os.environ[key] for key in ("PATH", "LD_LIBRARY_PATH", "FAKE_GPU")}
        self.executor.start(
            RunRequest(
                run, ("python3", "-c", program), str(self.home), env, (0,), ("GPU-a",),
                str(self.home / "runs" / run), grace_s=5.0, **{"suspends": True, **more},
            )
        )  # fmt: skip
        until(lambda: self.steps(run) > 0, f"{run} to work")
        status = next(status for status in self.executor.runs() if status.run == run)
        assert status.pid is not None
        return status.pid

    def log(self, run: str) -> list[bytes]:
        path = self.home / "runs" / run
        return read_log(path)[0].split() if (path / "output.log").exists() else []

    def steps(self, run: str) -> int:
        return sum(1 for word in self.log(run) if word.isdigit())

    def works(self, run: str) -> None:
        before = self.steps(run)
        until(lambda: self.steps(run) > before, f"{run} to go on")
        words = [int(word) for word in self.log(run) if word.isdigit()]
        assert words == list(range(1, len(words) + 1)), "it began anew"

    def last(self, run: str) -> RunStatus | None:
        return next((status for status in reversed(self.told) if status.run == run), None)

    def phase(self, run: str) -> RunPhase | None:
        status = self.last(run)
        return None if status is None else status.phase

    def suspended(self, run: str) -> RunStatus:
        self.executor.freeze(run)
        until(lambda: self.phase(run) is RunPhase.FROZEN, f"{run} to be suspended")
        status = self.last(run)
        assert status is not None
        return status

    def wrong(self, name: str, *, wrong: bool = True) -> None:
        (self.gpu / name).touch() if wrong else (self.gpu / name).unlink()

    def used(self) -> bool:
        """Whether a process has GPU memory, as NVML shows it."""
        done = subprocess.run(
            ["python3", "-c", "import ctypes; m = (ctypes.c_ulonglong * 3)(); "
             "ctypes.CDLL('libnvidia-ml.so.1').nvmlDeviceGetMemoryInfo(None, m); print(m[2])"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return int(done.stdout) > 0
