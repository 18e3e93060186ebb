"""A driver that can suspend programs, by pretence (fake_suspend.c): made for a test."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


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
