"""Compare three policies on a generated workload, and look at single jobs: gpuloom as a library.

Run with: python examples/compare_policies.py [JOBS.csv]    (writes a row per policy and job if a file is named)
"""

from __future__ import annotations

import sys

import pandas as pd

from gpuloom.core.units import format_duration
from gpuloom.sim import simulate
from gpuloom.traces.generate import GeneratorConfig, generate

POLICIES = ("fifo:backfill=easy", "tiresias", "srsf")


def main(target: str | None = None) -> pd.DataFrame:
    """Simulate, print a table, return one row per policy and job."""
    workload = generate(GeneratorConfig(jobs=500, gpus=32, load=1.0, duration_max_s=6 * 3600.0, seed=7))
    results = [simulate(workload, "4x8", policy) for policy in POLICIES]

    print(f"{len(workload)} jobs on 32 GPUs")
    print(f"{'policy':<20}{'avg JCT':>10}{'p99 JCT':>10}{'x bound':>10}{'restarts':>10}")
    for result in results:
        average, p99 = format_duration(result.avg_jct_s), format_duration(result.p99_jct_s)
        ratio = result.avg_jct_s / result.lower_bound_avg_jct_s
        print(f"{result.policy:<20}{average:>10}{p99:>10}{ratio:>10.2f}{result.restarts:>10}")

    # Everything about every job as a data frame: here, who waits longest for its first start?
    frame = pd.concat([result.to_frame().assign(policy=result.policy) for result in results], ignore_index=True)
    frame["wait_s"] = frame["start_s"] - frame["submit_s"]
    print("\nmean wait for the first start, minutes, by policy and GPUs of the job")
    print((frame.groupby(["policy", "gpus"])["wait_s"].mean().unstack() / 60).round(1).to_string())
    if target is not None:
        frame.to_csv(target, index=False)
    return frame


if __name__ == "__main__":
    main(*sys.argv[1:2])
