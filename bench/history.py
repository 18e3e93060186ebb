"""What was measured before, in bench/history.jsonl: a line of JSON a run, and what got slower since.

    date     UTC, to the second
    commit   of git, with + behind it if files had changed
    python   version
    yard_s   CPU seconds of the yardstick, a fixed piece of work in Python and NumPy: the median of the run
    ratios   by figure ("growth, load 0.9 of 512 GPUs · srtf · 1,000"): its CPU seconds over the yardstick beside it

So machines of different speed, and one whose speed changes, are roughly comparable; nothing that names one is kept.
"""

from __future__ import annotations

import heapq
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

HISTORY = Path(__file__).resolve().parent / "history.jsonl"
BEFORE = 5
"""The newest so many runs that have a figure are what it is compared with: their median."""
SLOWER = 1.25
"""A figure counts as slower beyond this: on a shared machine less is chance."""


def yardstick(times: int = 3) -> float:
    """CPU seconds of work like the simulator's: a heap of tuples, a dictionary, small arrays."""
    least = float("inf")
    for _ in range(times):
        begun = time.process_time()
        heap = [((7919 * i) % 100_003, i) for i in range(60_000)]
        heapq.heapify(heap)
        seen: dict[int, int] = {}
        while heap:
            key, i = heapq.heappop(heap)
            seen[key % 1009] = seen.get(key % 1009, 0) + i
        values = np.arange(256.0)
        for _ in range(6_000):
            values = np.minimum(values * 1.0001, 1e6)
        least = min(least, time.process_time() - begun)
    return least


def read(path: Path = HISTORY) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def entry(measured: Mapping[str, tuple[float, float]]) -> dict[str, Any]:
    """A line of today. measured: by figure, its CPU seconds and those of the yardstick right before or after it."""
    ratios = {name: round(cpu_s / yard_s, 3) for name, (cpu_s, yard_s) in measured.items()}
    yard_s = statistics.median(yard_s for _, yard_s in measured.values())
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return {"date": date, "commit": commit(), "python": platform.python_version(), "yard_s": yard_s, "ratios": ratios}


def commit() -> str:
    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=HISTORY.parent, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return f"{git('rev-parse', '--short', 'HEAD')}{'+' * bool(git('status', '--porcelain', '-uno'))}"


def slower(before: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(figure, times what it was) of figures that got slower, the worst first."""
    found = []
    for name, ratio in now["ratios"].items():
        known = [run["ratios"][name] for run in before if name in run["ratios"]][-BEFORE:]
        if known and ratio > SLOWER * statistics.median(known):
            found.append((name, ratio / statistics.median(known)))
    return sorted(found, key=lambda each: -each[1])


def add(measured: Mapping[str, tuple[float, float]], path: Path = HISTORY) -> list[str]:
    """Write a line (see `entry`), and say what got slower than in the last runs."""
    before, now = read(path), entry(measured)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(now, ensure_ascii=False) + "\n")
    return told(before, now)


def told(before: Sequence[Mapping[str, Any]], now: Mapping[str, Any]) -> list[str]:
    names: Iterable[str] = now["ratios"]
    compared = sum(any(name in run["ratios"] for run in before) for name in names)
    lines = [f"slower, {times:.2f} times the median of the last runs: {name}" for name, times in slower(before, now)]
    return lines or [f"nothing got slower ({compared} of {len(now['ratios'])} figures were measured before)"]
