"""Unmodified PyTorch trainings give their GPU memory away and go on: how long it takes, and whether anything changed.

    python bench/gpu_suspend.py [--out FILE] [--rows 'A;B'] [--budget SECONDS]

One call on a machine with an NVIDIA GPU and PyTorch, from a checkout with gpuloom's own packages. Each training runs
twice: undisturbed, and suspended and resumed twice by gpuloom's own program (gpuloom/executors/suspending.py). A row
counts only if NVML saw its memory free in between, and all losses are bitwise those of the undisturbed run. While all
are away, another program takes all the memory of the GPU. JSON after every step, and a table for
docs/results/suspending.md. Exit code 1 where a row does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_report import say, write

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import pynvml

from gpuloom.executors import suspending

ROOT = Path(__file__).resolve().parents[1]
WORKER = [sys.executable, str(ROOT / "bench" / "gpu_suspend_work.py")]
ROWS = {
    "eager": ("--gib", "1"),
    "CUDA graph": ("--gib", "1", "--graph"),
    "4 data loaders": ("--gib", "1", "--workers", "4"),
    "eager, 4 GiB": ("--gib", "4"),
    "eager, 8 GiB": ("--gib", "8"),
}
STEPS = 600
START_S, STEP_S = 90.0, 60.0
MIB = 1 << 20


class RowError(Exception):
    """A row does not count; says why."""


@dataclass
class Program:
    """A program of gpu_suspend_work.py, in a session of its own."""

    process: subprocess.Popen[bytes]
    out: Path
    errors: Path

    def lines(self) -> list[list[str]]:
        text = self.out.read_text() if self.out.exists() else ""
        return [line.split() for line in text.splitlines() if line]

    def steps(self) -> int:
        return sum(1 for line in self.lines() if line[0] != "end")

    def reach(self, steps: int, within_s: float) -> None:
        """Wait until it has done so many. Raises RowError."""
        end = time.monotonic() + within_s
        while self.steps() < steps:
            if self.process.poll() is not None:
                told = self.errors.read_text(errors="replace").strip().splitlines() or ["nothing on stderr"]
                raise RowError(f"ended with code {self.process.returncode}: {told[-1][:300]}")
            if time.monotonic() > end:
                raise RowError(f"did {self.steps()} of {steps} iterations within {within_s:.0f} s")
            time.sleep(0.02)

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def pids(self) -> list[int]:
        """It and its children."""
        tasks = Path(f"/proc/{self.process.pid}/task")
        below = [pid for task in tasks.iterdir() for pid in (task / "children").read_text().split()]
        return [self.process.pid, *map(int, below)]


@dataclass
class Bench:
    """What is asked, and what was found."""

    worker: list[str]
    out: Path
    rows: Sequence[str]
    budget_s: float
    gpu: int = 0
    began_s: float = field(default_factory=time.monotonic)
    result: dict[str, Any] = field(default_factory=dict)

    def left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.began_s)

    def run(self) -> bool:
        """Whether all rows count."""
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(self.gpu)
        self.uuid = str(pynvml.nvmlDeviceGetUUID(self.handle))
        self.result |= {
            "at": time.strftime("%F %T"),
            "gpu": pynvml.nvmlDeviceGetName(self.handle),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "python": platform.python_version(),
            "check": suspending.check(),
            "rows": {},
        }
        with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
            folder = Path(scratch)
            pairs = {}
            for number, name in enumerate(self.rows):
                words: tuple[list[str], ...] = ["--steps", str(STEPS)], []
                pairs[name] = [
                    self.started(stack, folder / f"{number}-{i}.txt", "train", *ROWS[name], *more)
                    for i, more in enumerate(words)
                ]
            for name, (alone, program) in pairs.items():
                self.row(name, program, alone)
            self.all_memory(stack, folder, [program for _, program in pairs.values()])
            for name, (alone, program) in pairs.items():
                self.compare(name, program, alone)
        self.result["took_s"] = round(time.monotonic() - self.began_s, 1)
        write(self.out, self.result)
        return all(row["counts"] for row in self.result["rows"].values()) and self.result["all memory"]["counts"]

    def started(self, stack: contextlib.ExitStack, out: Path, *words: str) -> Program:
        errors = out.with_suffix(".errors")
        with errors.open("wb") as file:
            process = subprocess.Popen(
                [*self.worker, words[0], str(out), *words[1:]], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        program = Program(process, out, errors)
        stack.callback(program.end)
        return program

    def mib_of(self, pid: int) -> float:
        """As NVML sees the process on the GPU; 0: not there."""
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        return sum((one.usedGpuMemory or 0) / MIB for one in found if one.pid == pid)

    def used_mib(self) -> float:
        return float(pynvml.nvmlDeviceGetMemoryInfo(self.handle).used / MIB)

    def moved(self, what: str, program: Program) -> dict[str, Any]:
        """Suspend or resume it by gpuloom's own program. Raises RowError."""
        folder = program.out.parent / f"{program.out.stem}-state"
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-I", suspending.__file__, what, "--folder", str(folder), "--gpus", self.uuid]
        done = subprocess.run(
            [*command, *map(str, program.pids())],
            capture_output=True,
            text=True,
            timeout=max(self.left_s(), 1.0),
            check=False,
        )
        if done.returncode != 0:
            raise RowError(f"{what}: {done.stdout.strip() or done.stderr.strip()[-300:]}")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def row(self, name: str, program: Program, alone: Program) -> None:
        """Twice there and back."""
        row: dict[str, Any] = {"counts": False, "trips": []}
        self.result["rows"][name] = row
        try:
            program.reach(20, min(START_S, self.left_s()))
            alone.reach(1, min(START_S, self.left_s()))
            for _ in range(2):
                row["trips"].append(self.trip(program))
            row["counts"] = True
        except (RowError, OSError, subprocess.TimeoutExpired) as error:
            row["why"] = str(error)
            program.end()
        write(self.out, self.result)
        say(f"{name}: {'ok' if row['counts'] else row['why']}")

    def trip(self, program: Program) -> dict[str, Any]:
        pid, before, steps = program.process.pid, self.used_mib(), program.steps()
        mib = self.mib_of(pid)
        out = self.moved("suspend", program)
        left, freed, at = self.mib_of(pid), before - self.used_mib(), program.steps()
        for child in program.pids():
            os.kill(child, signal.SIGSTOP)
        time.sleep(0.5)
        went_on = program.steps() - at
        for child in program.pids():
            os.kill(child, signal.SIGCONT)
        back = self.moved("resume", program)
        program.reach(program.steps() + 20, min(STEP_S, self.left_s()))
        if left or out["mib"] < 1:
            raise RowError(f"NVML still saw {left:.0f} MiB of it, of {mib:.0f} before")
        if went_on > 1:  # the line of the iteration that was being done when it was locked
            raise RowError(f"it did {went_on} iterations while it was away")
        return {"mib": mib, "freed_mib": freed, "out_s": out["took_s"], "in_s": back["took_s"], "at_step": steps}

    def all_memory(self, stack: contextlib.ExitStack, folder: Path, programs: list[Program]) -> None:
        """While all are away, another program takes all the memory there is."""
        told: dict[str, Any] = {"counts": False}
        self.result["all memory"] = told
        there = [program for program in programs if program.process.poll() is None]
        try:
            for program in there:
                self.moved("suspend", program)
            hog = self.started(stack, folder / "hog.txt", "hog")
            if hog.process.wait(timeout=max(1.0, min(STEP_S, self.left_s()))) != 0:
                raise RowError(f"the other program failed: {hog.errors.read_text(errors='replace')[-300:]}")
            told["gib"] = int(hog.out.read_text())
            for program in there:
                self.moved("resume", program)
                program.reach(program.steps() + 20, min(STEP_S, self.left_s()))
            told["counts"] = True
        except (RowError, OSError, ValueError, subprocess.TimeoutExpired) as error:
            told["why"] = str(error)
        write(self.out, self.result)
        say(f"all memory: {told}")

    def compare(self, name: str, program: Program, alone: Program) -> None:
        """Losses must be the same, bit for bit."""
        row = self.result["rows"][name]
        try:
            alone.process.wait(timeout=max(1.0, min(STEP_S, self.left_s())))
            program.reach(STEPS, min(STEP_S, self.left_s()))
            program.out.with_suffix(".stop").touch()
            program.process.wait(timeout=max(1.0, min(STEP_S, self.left_s())))
            told, wanted = program.lines(), alone.lines()
            row["equal"] = told[:STEPS] == wanted[:STEPS] and len(wanted) == STEPS + 1
            row["memory whole"] = told[-1] == ["end", "True"]
            if not (row["equal"] and row["memory whole"]):
                raise RowError("its losses, or what lay on the GPU, are not those of an undisturbed run")
        except (RowError, subprocess.TimeoutExpired) as error:
            row["counts"] = False
            row.setdefault("why", str(error))
        write(self.out, self.result)


def table(result: dict[str, Any]) -> str:
    """Markdown of what was found, for docs/results/suspending.md."""
    lines = ["| training | GPU memory, MiB | out, s | back, s | losses equal |", "|---|---|---|---|---|"]
    for name, row in result["rows"].items():
        if not row["counts"]:
            lines.append(f"| {name} | does not count: {row.get('why', '')} | | | |")
            continue
        mean = {key: statistics.fmean(trip[key] for trip in row["trips"]) for key in ("mib", "out_s", "in_s")}
        lines.append(f"| {name} | {mean['mib']:,.0f} | {mean['out_s']:.2f} | {mean['in_s']:.2f} | yes |")
    other = result.get("all memory", {})
    if other.get("counts"):
        lines += ["", f"While all were away another program held {other['gib']} GiB of the GPU."]
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = Path(os.environ.get("OUT", ROOT / "out")) / "gpu_suspend.json"
    parser.add_argument("--out", type=Path, default=default, help=f"JSON [{default}]")
    parser.add_argument("--rows", default=";".join(ROWS), metavar="A;B", help=f"of: {'; '.join(ROWS)} [all]")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS", help="for all [540]")
    parser.add_argument("--gpu", type=int, default=0, help="index [0]")
    parser.add_argument("--worker", nargs="+", default=WORKER, help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    rows = [name.strip() for name in given.rows.split(";") if name.strip()]
    if wrong := [name for name in rows if name not in ROWS]:
        parser.error(f"--rows: {wrong[0]}: none of {'; '.join(ROWS)}")
    bench = Bench(given.worker, given.out.absolute(), rows, given.budget, given.gpu)
    held = bench.run()
    print(table(bench.result))
    say(str(bench.out))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
