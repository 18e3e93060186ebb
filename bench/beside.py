"""What best-effort jobs beside high-priority ones bring, by policy; rewrites a part of docs/results/sharing.md.

python bench/beside.py            generated traces, all policies that take `beside`; about a minute
python bench/beside.py --print    print, change nothing
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.core.workload import Labels, Workload
from gpuloom.sim import SimResult, simulate
from gpuloom.traces.generate import GeneratorConfig, generate
from pages import with_part

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "sharing.md"
BEGIN, END = "<!-- beside: begin -->", "<!-- beside: end -->"
POLICIES = ("fifo", "fifo:backfill=easy", "sjf", "srtf", "srsf", "tiresias", "gittins", "themis", "gavel", "hlas")
LOADS, SEEDS = (0.7, 0.9, 1.1), (1, 2, 3)
GPUS, SERVICES = 64, 16


def workload(load: float, seed: int) -> Workload:
    """16 services that hold a GPU each all the time, and 1,000 training jobs that load the other 48 GPUs so much.

    Of the training jobs 70 % need one GPU; these are best-effort.
    """
    mix = {1: 0.7, 2: 0.1, 4: 0.15, 8: 0.05}
    drawn = generate(
        GeneratorConfig(jobs=1000, gpus=GPUS - SERVICES, load=load, seed=seed, gpu_mix=mix, duration_max_s=43_200.0)
    )
    lasts_s = float(drawn.submit_s[-1]) + 86_400.0
    return Workload.sorted_by_submit(
        "services-and-training",
        np.concatenate([np.zeros(SERVICES), drawn.submit_s]),
        np.concatenate([np.full(SERVICES, lasts_s), drawn.duration_s]),
        np.concatenate([np.ones(SERVICES, dtype=np.int32), drawn.gpus]),
        share_class=Labels.of(["high"] * SERVICES + ["best-effort" if gpus == 1 else "" for gpus in drawn.gpus]),
        priority=np.concatenate([np.zeros(SERVICES, dtype=np.int32), np.ones(1000, dtype=np.int32)]),
    )


def training_jct_s(result: SimResult, trace: Workload) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Completion times of the training jobs, seconds."""
    training = np.array([trace.share_class[job] != "high" for job in range(len(trace))])  # type: ignore[index]
    found: np.ndarray[Any, np.dtype[np.float64]] = (result.end_s - trace.submit_s)[training]
    return found


def ratio(traces: list[Workload], base: list[SimResult], shared: list[SimResult], part: float | None) -> float:
    """Geometric mean of the average (part: that quantile) relative to the policy alone."""
    logs = []
    for trace, *results in zip(traces, base, shared, strict=True):
        times = [training_jct_s(result, trace) for result in results]
        one, other = (jct.mean() if part is None else np.quantile(jct, part) for jct in times)
        logs.append(math.log(other / one))
    return math.exp(sum(logs) / len(logs))


def served(traces: list[Workload], results: list[SimResult]) -> float:
    """Share of the time until their end in which the services ran; the first jobs of each trace."""
    shares = [
        (trace.duration_s / (result.end_s - trace.submit_s))[:SERVICES].mean()
        for trace, result in zip(traces, results, strict=True)
    ]
    return float(np.mean(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    options = parser.parse_args()
    lines = [
        "",
        "| policy | " + " | ".join(f"load {load:.0%}: average, p99" for load in LOADS) + " | services ran | restarts |",
        "|---|" + "---|" * (len(LOADS) + 2),
    ]
    for policy in POLICIES:
        cells, services, restarts = [], [0.0, 0.0], [0, 0]
        text = f"{policy}{';' if ':' in policy else ':'}beside=yes"
        for load in LOADS:
            traces = [workload(load, seed) for seed in SEEDS]
            base = [simulate(trace, "8x8", policy) for trace in traces]
            shared = [simulate(trace, "8x8", text) for trace in traces]
            cells.append(f"{ratio(traces, base, shared, None):.2f}, {ratio(traces, base, shared, 0.99):.2f}")
            services = [services[0] + served(traces, base), services[1] + served(traces, shared)]
            restarts = [restarts[0] + sum(r.restarts for r in base), restarts[1] + sum(r.restarts for r in shared)]
        ran = " → ".join(f"{total / len(LOADS):.0%}" for total in services)
        lines.append(f"| `{policy}` | {' | '.join(cells)} | {ran} | {restarts[0]:,} → {restarts[1]:,} |")
        print(lines[-1], flush=True)
    if not options.only_print:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), BEGIN, END, "\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
