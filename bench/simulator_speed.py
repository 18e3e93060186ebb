"""How fast the simulator is, on one core, beside the released Muri simulator.

    python bench/simulator_speed.py            the artifact's traces, Philly and ITP, growth (a few minutes)
    python bench/simulator_speed.py --full     and 1,000,000 jobs on 10,000 GPUs
    python bench/simulator_speed.py --json FILE

Each run adds a line to bench/history.jsonl (bench/history.py), and says what got slower than in the last ones.

CPU seconds of this process for one simulation, reading the trace and start-up excluded; the least of some runs. The
artifact's CPU seconds are those of ../shared/data/muri (reference_results.csv, SEMANTICS.md), taken on a machine of
the same kind.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from gpuloom.sim import simulate
from gpuloom.traces import read_trace
from gpuloom.traces.generate import GeneratorConfig, generate
from history import add, yardstick
from public_data import DATA
from timing import cpu

REPO = Path(__file__).resolve().parents[1]
ARTIFACT = {"SRTF": "srtf", "SRSF": "srsf", "Tiresias": "tiresias", "AntMan": "antman", "Themis": "themis"}
ARTIFACT_5755 = {"srtf": 22.0, "srsf": 27.0, "tiresias": 42.0, "antman": 186.0}
"""CPU seconds of the artifact on a trace of 5,755 jobs (SEMANTICS.md); set against a generated one of that size."""
FAST = ("fifo", "fifo:backfill=easy", "sjf", "srtf", "srsf", "tiresias", "gittins", "themis", "antman")


class Bench:
    """Prints each figure as it comes and keeps it."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.rows: list[dict[str, Any]] = []

    def row(self, what: str, policy: str, jobs: int, cpu_s: float, peer: str = "", peer_s: float | None = None) -> None:
        ratio = None if peer_s is None else peer_s / cpu_s
        self.rows.append(
            {
                "what": what,
                "policy": policy,
                "jobs": jobs,
                "cpu_s": cpu_s,
                "jobs_per_cpu_s": jobs / cpu_s,
                "peer": peer,
                "peer_cpu_s": peer_s,
                "ratio": ratio,
                "yard_s": yardstick(),
            }
        )
        versus = "" if ratio is None else f"   {peer} {peer_s:8.2f} s   {ratio:6.1f}x"
        print(f"{what:34} {policy:20} {jobs:9,} jobs {cpu_s:8.3f} s {jobs / cpu_s:10,.0f} jobs/s{versus}", flush=True)

    def artifact(self) -> None:
        folder = self.data / "muri"
        with (folder / "reference_results.csv").open(encoding="utf-8") as rows:
            peers = {(r["trace"], ARTIFACT.get(r["policy"])): float(r["cpu_s_here"]) for r in csv.DictReader(rows)}
        for trace in ("trace1", "trace1_pr", "trace3", "trace3_pr"):
            workload = read_trace(folder / f"{trace}.csv.gz").workload
            for policy in ARTIFACT.values():
                peer = peers.get((trace, policy))
                if peer is None:
                    continue
                for mode in (None, "muri"):
                    seconds, _ = cpu(lambda w=workload, p=policy, m=mode: simulate(w, "8x8", p, compat=m), 3)  # type: ignore[misc]
                    self.row(
                        f"{trace}{' --compat muri' if mode else ''}", policy, len(workload), seconds, "artifact", peer
                    )

    def contention(self) -> None:
        workload = generate(GeneratorConfig(jobs=5755, gpus=64, load=3.0, opportunistic=0.5, seed=1))
        for policy, peer in ARTIFACT_5755.items():
            seconds, _ = cpu(lambda p=policy: simulate(workload, "8x8", p), 2)  # type: ignore[misc]
            self.row("5,755 jobs, load 3", policy, len(workload), seconds, "artifact*", peer)

    def real(self) -> None:
        for name, paths, form in (
            ("Philly", self.data / "philly" / "philly_jobs_pollux.csv.gz", "philly"),
            ("ITP", self.data / "itp", "itp"),
        ):
            workload = read_trace(paths, format=form).workload
            for cluster in ("64x8", "16x8"):
                for policy in FAST:
                    seconds, _ = cpu(lambda w=workload, c=cluster, p=policy: simulate(w, c, p, skip_impossible=True))  # type: ignore[misc]
                    self.row(f"{name} on {cluster}", policy, len(workload), seconds)

    def growth(self) -> None:
        for policy in ("srtf", "srsf", "tiresias"):
            rates = []
            for jobs in (1_000, 10_000, 100_000):
                workload = generate(GeneratorConfig(jobs=jobs, gpus=512, load=0.9, seed=1))
                seconds, _ = cpu(lambda w=workload, p=policy: simulate(w, "64x8", p))  # type: ignore[misc]
                self.row("growth, load 0.9 of 512 GPUs", policy, jobs, seconds)
                rates.append(jobs / seconds)
            print(f"{'':34} {policy:20} fastest over slowest rate: {max(rates) / min(rates):.2f}")

    def million(self) -> None:
        for load, shape in ((0.9, "lognormal"), (1.05, "exponential")):
            workload = generate(GeneratorConfig(jobs=1_000_000, gpus=10_000, load=load, duration=shape, seed=1))  # type: ignore[arg-type]
            for policy in ("srtf", "tiresias"):
                seconds, _ = cpu(lambda w=workload, p=policy: simulate(w, "1250x8", p))  # type: ignore[misc]
                self.row(f"10,000 GPUs, load {load}, {shape}", policy, len(workload), seconds)

    def start_up(self) -> None:
        for arguments in (["--help"], ["simulate", "--help"], ["compare", "--help"]):
            walls = []
            for _ in range(5):
                begun = time.perf_counter()
                code = "from gpuloom.cli.main import main; main()"
                subprocess.run([sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.DEVNULL)
                walls.append(time.perf_counter() - begun)
            print(f"gpuloom {' '.join(arguments):26} {sorted(walls)[2]:.3f} s (median of 5, wall)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--full", action="store_true", help="also 1,000,000 jobs on 10,000 GPUs")
    parser.add_argument("--quick", action="store_true", help="only the artifact's traces, contention and start-up")
    parser.add_argument("--json", type=Path, help="write the figures as JSON")
    parser.add_argument("--no-history", action="store_true", help="add no line to bench/history.jsonl")
    arguments = parser.parse_args()
    bench = Bench(arguments.data)
    bench.start_up()
    if (arguments.data / "muri").is_dir():
        bench.artifact()
    else:
        print(f"no real traces in {arguments.data}: the artifact's, Philly and ITP are left out")
    bench.contention()
    if not arguments.quick:
        if (arguments.data / "philly").is_dir():
            bench.real()
        bench.growth()
    if arguments.full:
        bench.million()
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:,.0f} MiB")
    print("* the artifact's seconds are of another trace of 5,755 jobs, not of this generated one")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(bench.rows, indent=2) + "\n", encoding="utf-8")
    if not arguments.no_history:
        measured = {
            f"{row['what']} · {row['policy']} · {row['jobs']:,}": (row["cpu_s"], row["yard_s"]) for row in bench.rows
        }
        print("\n".join(add(measured)))


if __name__ == "__main__":
    main()
