"""Traces of the kind that Gavel's published generator draws, for comparisons with it (docs/results/heterogeneity.md).

    python bench/gavel_traces.py THROUGHPUTS.json.gz OUT.trace --jobs 500 --lam 3000 --seed 1 [--multi]

As its `utils.generate_job` (github.com/stanford-futuredata/gavel, OSDI '20) has it: job types evenly of its table;
durations on a V100 of 10^x minutes, x even in [1.5, 3] with probability 0.8, else in [3, 4]; Poisson arrivals, `lam`
seconds apart on average; with --multi Philly's numbers of GPUs (1, 2, 4, 8 with 0.7, 0.1, 0.15, 0.05), and then types
that run on several GPUs only. The draws are our own: no trace is equal to one of its seeds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path

import numpy as np

_KEY = re.compile(r"\('(.*)', (\d+)\)")


def draw(
    throughputs: Path, jobs: int, lam_s: float, seed: int, *, multi: bool = False
) -> list[tuple[str, int, int, float]]:
    """(job type, GPUs, steps, submission in seconds) of each job.

    Args:
        lam_s: mean seconds between two submissions.
    """
    data = throughputs.read_bytes()
    raw = json.loads(gzip.decompress(data) if throughputs.suffix == ".gz" else data)["v100"]
    rates = {(match[1], int(match[2])): entry["null"] for name, entry in raw.items() if (match := _KEY.fullmatch(name))}
    rng = np.random.default_rng(seed)
    rows, now_s = [], 0.0
    for _ in range(jobs):
        gpus = int(rng.choice([1, 2, 4, 8], p=[0.7, 0.1, 0.15, 0.05])) if multi else 1
        types = sorted(name for (name, count), rate in rates.items() if count == gpus and rate > 0)
        job_type = types[int(rng.integers(len(types)))]
        exponent = rng.uniform(1.5, 3.0) if rng.random() < 0.8 else rng.uniform(3.0, 4.0)
        steps = round(60.0 * 10.0**exponent * rates[job_type, gpus])
        rows.append((job_type, gpus, max(steps, 1), now_s))
        now_s += float(rng.exponential(lam_s))
    return rows


def written(rows: list[tuple[str, int, int, float]]) -> str:
    """The rows in Gavel's format."""
    command = "python3 main.py --data_dir=%s\tdata\t--num_steps\t1"
    lines = [
        f"{job_type}\t{command}\t{steps}\t{gpus}\t1\t-1.000000\t{submit_s:.6f}"
        for job_type, gpus, steps, submit_s in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("throughputs", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--jobs", type=int, default=500)
    parser.add_argument("--lam", type=float, default=3000.0, help="mean seconds between submissions")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--multi", action="store_true", help="Philly's numbers of GPUs")
    asked = parser.parse_args()
    rows = draw(asked.throughputs, asked.jobs, asked.lam, asked.seed, multi=asked.multi)
    asked.target.write_text(written(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
