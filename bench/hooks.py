"""What hooks cost a training, and how right their stage times are.

    build/training/bin/python bench/hooks.py               cost and errors, about three minutes on two cores
    build/training/bin/python bench/hooks.py --only cost   one of: cost, start, errors
    build/training/bin/python bench/hooks.py --json FILE   the figures as JSON as well ('-': instead of the table)

Needs PyTorch; errors of frameworks that are not installed are left out. Cost: a process trains without hooks, then
they enter, and it trains again. What is compared is the CPU time of its thread for an iteration (a batch from a
DataLoader, forward, backward, step): of each training the lower quartile, of the rounds the median. What other programs
do to caches is in the slower iterations.
Errors: tests/training/known.py, whose stages are sleeps and loops of a known CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from gpuloom.files.hook_records import hooked
from gpuloom.training.inject import PACKAGE, environment

KNOWN = Path(__file__).resolve().parents[1] / "tests" / "training" / "known.py"
READ_MS, PREPARE_MS, COMPUTE_MS = 8.0, 12.0, 10.0
BATCHES = {"plain": 1, "accelerate": 2, "lightning": 2, "hf": 2}
"""Of an iteration."""
LOOP = """
import importlib.util, json, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
iterations, busy_s, package = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

def train():
    times, walls = [], []
    loader = DataLoader(TensorDataset(torch.zeros(iterations * 8, 64)), batch_size=8)
    before, wall = time.thread_time(), time.perf_counter()
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        until = time.thread_time() + busy_s
        while time.thread_time() < until:
            pass
        optimizer.step()
        now, clock = time.thread_time(), time.perf_counter()
        times.append(now - before)
        walls.append(clock - wall)
        before, wall = now, clock
    return sorted(times)[len(times) // 4], sorted(walls)[len(walls) // 4]

train()
without = train()
spec = importlib.util.spec_from_file_location(
    "_gpuloom_hooks", package + "/__init__.py", submodule_search_locations=[package]
)
hooks = sys.modules["_gpuloom_hooks"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)
hooks.start()  # the framework is there: its hooks are installed at once
train()
print(json.dumps([without, train()]))
"""


def run(words: list[str], folder: Path | None, **more: str) -> str:
    """What a Python of ours prints, with hooks that record into the folder, or without."""
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"} | more
    if folder is not None:
        own |= environment(own, folder)
    done = subprocess.run([sys.executable, *words], env=own, capture_output=True, text=True, check=True)
    return done.stdout


def cost(rounds: int, iterations: int, busy_s: float) -> dict[str, float]:
    """CPU and wall milliseconds of an iteration before and after the hooks enter, and the difference."""
    found: list[list[list[float]]] = []
    with tempfile.TemporaryDirectory() as place:
        for _ in range(rounds):
            words = ["-c", LOOP, str(iterations), str(busy_s), str(PACKAGE)]
            found.append(json.loads(run(words, None, GPULOOM_HOOKS=str(Path(place, "hooks")))))
    off, on = ([median(row[which][part] for row in found) * 1e3 for part in (0, 1)] for which in (0, 1))
    return {
        "cpu_ms_without": off[0],
        "cpu_ms_with": on[0],
        "cpu_ms_added": on[0] - off[0],
        "wall_ms_without": off[1],
        "wall_ms_with": on[1],
    }


def start(rounds: int) -> dict[str, float]:
    """Milliseconds that a Python which imports nothing takes to start and end, with and without hooks."""
    found: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as place:
        for _ in range(rounds):
            for on in (False, True):
                began_s = time.perf_counter()
                run(["-c", "pass"], Path(place, "hooks") if on else None)
                found[on].append((time.perf_counter() - began_s) * 1e3)
    return {"ms_without": min(found[False]), "ms_with": min(found[True])}


def errors(batches: int) -> list[dict[str, Any]]:
    """Of each framework: what was asked for and what the hooks measured, milliseconds of an iteration."""
    found = []
    for name, times in BATCHES.items():
        module = {"plain": "torch", "hf": "transformers"}.get(name, name)
        if find_spec(module) is None:
            continue
        with tempfile.TemporaryDirectory() as place:
            said = json.loads(run([str(KNOWN), name, str(batches)], Path(place, "hooks")).splitlines()[-1])
            measured = hooked(str(Path(place, "hooks"))).measured
        assert measured is not None
        found.append(
            {
                "framework": name,
                "iterations": measured.iterations,
                "steps": said["steps"],
                "storage_ms": [READ_MS * times, measured.stages_s[0] * 1e3],
                "cpu_ms": [PREPARE_MS * times, measured.stages_s[1] * 1e3],
                "computing_ms": [COMPUTE_MS * times, said["compute"][0] * 1e3 * times, measured.stages_s[2] * 1e3],
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["cost", "start", "errors"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "cores": os.cpu_count()}
    if given.only in (None, "cost"):
        figures["short"] = cost(given.rounds, 2000, 0.0)
        figures["20 ms"] = cost(given.rounds, 150, 0.020)
    if given.only in (None, "start"):
        figures["start"] = start(given.rounds * 3)
    if given.only in (None, "errors"):
        figures["errors"] = errors(120)
    if given.json == "-":
        print(json.dumps(figures, indent=2))
        return
    if given.json:
        Path(given.json).write_text(json.dumps(figures, indent=2) + "\n")
    for name in ("short", "20 ms"):
        if name in figures:
            f = figures[name]
            print(
                f"{name} iterations: {f['cpu_ms_without']:.3f} → {f['cpu_ms_with']:.3f} ms of CPU "
                f"({f['cpu_ms_added']:+.3f} ms), {f['wall_ms_without']:.3f} → {f['wall_ms_with']:.3f} ms by the clock"
            )
    if "start" in figures:
        print(f"a Python's start: {figures['start']['ms_without']:.1f} → {figures['start']['ms_with']:.1f} ms")
    for row in figures.get("errors", ()):
        print(
            f"{row['framework']}: {row['iterations']} of {row['steps']} steps; storage {row['storage_ms'][0]:g} → "
            f"{row['storage_ms'][1]:.2f}, CPU {row['cpu_ms'][0]:g} → {row['cpu_ms'][1]:.2f}, computing "
            f"{row['computing_ms'][0]:g} (got {row['computing_ms'][1]:.1f}) → {row['computing_ms'][2]:.2f} ms"
        )


if __name__ == "__main__":
    main()
