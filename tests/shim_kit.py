"""Builds of the shim, the fake driver and the test programs, and programs run under them.

Built by CMake once per set of sources and options, into build/ of the checkout; test processes that come at once wait
for each other. Sanitizer builds, and builds with fault points, are kinds of their own.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpuloom.sharing.shim import compiler, shm

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "native" / "interposer"
KINDS = {
    "plain": (),
    "faults": ("-DGPULOOM_FAULTS=ON",),
    "address": ("-DGPULOOM_FAULTS=ON", "-DGPULOOM_SANITIZE=address,undefined"),
    "thread": ("-DGPULOOM_FAULTS=ON", "-DGPULOOM_SANITIZE=thread"),
}
TIMEOUT_S = 60


@dataclass(frozen=True)
class Built:
    """A build: folders of the shim and of the fake driver, and the programs."""

    folder: Path

    @property
    def shim(self) -> Path:
        return self.folder / "gpuloom_shim" / "libcuda.so.1"

    @property
    def fake(self) -> Path:
        return self.folder / "fake" / "libcuda.so.1"

    def program(self, name: str = "program") -> Path:
        return self.folder / name


def built(kind: str) -> Built:
    """The build of this kind, made if it must be."""
    cmake, command = cmake_program(), compiler.compiler()
    assert command is not None, "the tests of the shim need a C compiler (gcc)"
    options = ("-DGPULOOM_TESTS=ON", *KINDS[kind])
    digest = hashlib.sha256(repr((cmake, command, options)).encode())
    for path in sorted(SOURCES.rglob("*")):
        if path.suffix in (".c", ".h", ".def", ".S", ".map", ".txt"):
            digest.update(path.name.encode() + path.read_bytes())
    folder = ROOT / "build" / f"shim-{kind}-{digest.hexdigest()[:16]}"
    done = folder / "done"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            configure(folder, *options)
            compiler.run_compiler([cmake, "--build", str(folder), "--parallel", "2"], SOURCES)
            done.touch()
    return Built(folder)


def cmake_program() -> str:
    """CMake, of the extra `dev` or of the system."""
    beside = Path(sys.executable).with_name("cmake")
    found = str(beside) if beside.exists() else shutil.which("cmake")
    assert found is not None, "the tests of the shim need CMake: pip install cmake"
    return found


def configure(folder: Path, *options: str) -> None:
    """Configure a build of native/interposer in a folder."""
    compiler.run_compiler([cmake_program(), "-S", str(SOURCES), "-B", str(folder), *options], SOURCES)


@dataclass
class Stage:
    """A place with a GPU of its own (the fake one): what runs there shares its shared memory and state."""

    made: Built
    folder: Path
    extra: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def end(self) -> None:
        """End what still runs."""
        for process in self.started:
            process.kill()
            process.communicate()

    @property
    def shared(self) -> Path:
        return self.folder / "shm"

    @property
    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def environment(self, klass: str = "", **more: str) -> dict[str, str]:
        """The environment of a program; an empty class: the shim passes through."""
        self.shared.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        return {
            **kept,
            "LD_LIBRARY_PATH": str(self.made.shim.parent),
            "GPULOOM_SHARE_DRIVER": str(self.made.fake),
            "GPULOOM_SHARE_DIR": str(self.shared),
            "GPULOOM_SHARE_LOG": str(self.folder / "log"),
            "FAKE_STATE": str(self.folder / "gpu"),
            "ASAN_OPTIONS": "detect_leaks=0",  # the fake driver and the program never free
            "TSAN_OPTIONS": "halt_on_error=1",
            **({"GPULOOM_SHARE_CLASS": klass} if klass else {}),
            **self.extra,
            **more,
        }

    def start(
        self, klass: str, *arguments: str, loader: str = "direct", program: str = "program", **more: str
    ) -> subprocess.Popen[str]:
        """Start a test program; an empty loader: it takes none."""
        command = [str(self.made.program(program)), *([loader] if loader else []), *arguments]
        process = subprocess.Popen(
            command, env=self.environment(klass, **more), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.started.append(process)
        return process

    def run(self, klass: str, *arguments: str, loader: str = "direct", **more: str) -> list[dict[str, str]]:
        """Run the test program to its end: what each line of its output says."""
        return told(self.start(klass, *arguments, loader=loader, **more))

    def python(self, klass: str, code: str, **more: str) -> str:
        """Run a Python program under the shim; its output."""
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=self.environment(klass, **more),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def programs(self) -> list[shm.Program]:
        """Who shares the (only) GPU now."""
        return [program for path in shm.files(self.shared) for program in shm.read(path).programs]


def told(process: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> list[dict[str, str]]:
    """Wait for a program that must end well and write nothing to stderr."""
    out, err = process.communicate(timeout=timeout_s)
    assert (process.returncode, err) == (0, ""), f"exit {process.returncode}\n{out}\n{err}"
    return [dict(pair.split("=", 1) for pair in line.split()) for line in out.splitlines()]
