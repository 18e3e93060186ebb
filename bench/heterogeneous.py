"""Write the figures of docs/results/heterogeneity.md: estimated speeds, swaps, policies on mixed clusters.

    python bench/heterogeneous.py [--data ../shared/data] [--output docs/results/heterogeneity.md]

Replaces what stands between the marks `<!-- figures: NAME -->` and `<!-- end -->`; the rest of the page is written by
hand. Takes about four minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.core.workload import Workload
from gpuloom.facts.gpus import MEASURES, find_gpu, measure_of
from gpuloom.facts.inputs import load_policy
from gpuloom.placement.swaps import Running, best_swaps
from gpuloom.report.metrics import cost_per_job_usd
from gpuloom.sim import SimResult, simulate
from gpuloom.solvers.linear import maximize
from gpuloom.traces import read_trace
from pages import with_part
from public_data import DATA, need

REPO = Path(__file__).resolve().parents[1]
GAVEL = ("V100", "P100", "K80")
SHOCKWAVE = "shockwave/460_0.2_5_100_10_1_0,0.5,0.5_0.6,0.3,0.09,0.01_multigpu_dynamic.trace.gz"
CASES = {
    "max_min_fairness": ("gavel/traces_physical/max_min_fairness.trace", "4x4:V100,4x4:P100,4x4:K80"),
    "minimize_makespan": ("gavel/traces_physical/minimize_makespan.trace", "2x4:V100,2x4:P100,2x4:K80"),
    "msr 103959": ("gavel/traces_msr_seed0/103959.trace.gz", "2x4:V100,2x4:P100,2x4:K80"),
    "msr e13805": ("gavel/traces_msr_seed0/e13805.trace.gz", "1x8:V100,1x8:P100,2x8:K80"),
    "shockwave 460": (SHOCKWAVE, "8x8:V100,8x8:P100,8x8:K80"),
}
POLICIES = (
    "fifo",
    "fifo:upgrade=no",
    "tiresias",
    "tiresias:upgrade=no",
    "srtf",
    "srtf:upgrade=no",
    "gavel",
    "hlas",
    "hlas:blind=yes",
    "hlas:literal=yes",
)
VARIANTS = (
    "hlas:gain=iterations",
    "hlas:upgrade=no",
    "hlas:work_conserving=no",
    "hlas:demote_only_if_waiting=no",
    "hlas:gain_horizon=no",
    "hlas:min_seconds_between_moves=0",
    "hlas:performance=fp32",
    "hlas:performance=typical",
)
JITTERS = 4
"""Versions of each trace for the table of switches: durations and the pace of submissions drawn anew."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def h(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h"


# -- 1. estimated speeds ---------------------------------------------------------------------------------------------


def measured_gavel(data: Path) -> np.ndarray[Any, Any]:
    """log steps/s by (job type and GPUs, V100 P100 K80), where all three were measured."""
    with gzip.open(data / "gavel" / "simulation_throughputs.json.gz") as file:
        raw = json.load(file)
    rates = [[raw[model.lower()][key]["null"] for model in GAVEL] for key in raw["v100"]]
    return np.log(np.array([row for row in rates if min(row) > 0]))


def elasticflow_pairs(data: Path) -> dict[str, float]:
    """A100 over T4 on one GPU, in samples per second at each one's largest measured batch."""
    names = {
        "bert": ("bert", "bert"),
        "deepspeech2": ("deepspeech2", "deepspeech2"),
        "resnet50": ("resnet50", "imagenet"),
    }

    def best(folder: str, name: str) -> float:
        with (data / "elasticflow" / folder / f"{name}.csv").open(encoding="utf-8") as rows:
            return max(float(r["global_batch_size"]) * float(r["1"]) for r in csv.DictReader(rows))

    return {
        model: best("throughputs_A100", on_a100) / best("throughputs_T4", on_t4)
        for model, (on_a100, on_t4) in names.items()
    }


def rating(measure: str, model: str) -> float:
    gpu = find_gpu(model)
    assert gpu is not None
    return measure_of(gpu, measure)


def estimates(data: Path) -> str:
    """Leave one GPU model out and estimate it from the other two; A100 from T4."""
    logs, pairs = measured_gavel(data), elasticflow_pairs(data)
    rows = []
    for rule in (*MEASURES, "own power law of FP32", "own power law of typical"):
        measure = {"own power law of FP32": "fp32", "own power law of typical": "typical"}.get(rule, rule)
        x = np.log([rating(measure, model) for model in GAVEL])
        errors = []
        for out in range(3):
            a, b = (i for i in range(3) if i != out)
            near = min((a, b), key=lambda i: abs(x[i] - x[out]))
            slope = (logs[:, b] - logs[:, a]) / (x[b] - x[a]) if rule.startswith("own") else 1.0
            errors.append(np.abs(logs[:, out] - logs[:, near] - slope * (x[out] - x[near])))
        factor = [f"{math.exp(np.median(error)):.2f}" for error in errors]
        pooled = np.concatenate(errors)
        row = [rule, *factor, f"{math.exp(np.median(pooled)):.2f}", f"{math.exp(np.percentile(pooled, 90)):.2f}"]
        if rule.startswith("own"):
            rows.append([*row, *["-"] * len(pairs)])
            continue
        ratio = rating(measure, "A100") / rating(measure, "T4")
        rows.append([*row, *(f"{max(ratio / true, true / ratio):.2f}" for true in pairs.values())])
    head = ["estimated by", *(f"{m} left out" for m in GAVEL), "median", "90 %", *(f"A100/T4 {m}" for m in pairs)]
    text = table(head, rows)
    true = ", ".join(f"{model} {ratio:.2f}" for model, ratio in pairs.items())
    return f"{text}\n\n{len(logs)} job types and sizes of Gavel; measured A100/T4 ratios: {true}."


# -- 2. swaps against the optimum ------------------------------------------------------------------------------------


def optimum(per_gpu: np.ndarray[Any, Any], gpus: np.ndarray[Any, Any], sizes: Sequence[int]) -> float:
    """Largest total throughput of jobs that all run, by linear program: gangs may be split, so a bound from above."""
    n, models = per_gpu.shape
    cells = np.arange(n * models)
    row, model = cells // models, cells % models
    return float(
        (
            maximize(
                (per_gpu * gpus[:, None]).ravel(),
                np.concatenate([row, n + model]),
                np.concatenate([cells, cells]),
                np.concatenate([np.ones(len(cells)), gpus[row].astype(float)]),
                np.concatenate([np.ones(n), np.full(models, -np.inf)]),
                np.concatenate([np.ones(n), np.asarray(sizes, dtype=float)]),
                (per_gpu > 0).ravel().astype(float),
            )
            * (per_gpu * gpus[:, None]).ravel()
        ).sum()
    )


def fill_cluster(
    per_gpu: np.ndarray[Any, Any], gpus: np.ndarray[Any, Any], sizes: list[int], rng: np.random.Generator, swap: bool
) -> tuple[list[float], list[float], int]:
    """Jobs come one by one until no more fits: (throughput reached, optimum) after each, and swaps done."""
    running, free, where = Running(len(sizes)), list(sizes), {}
    reached, best, swaps = [], [], 0
    for job in rng.integers(0, len(gpus), 400).tolist():
        number, n = len(where), int(gpus[job])
        fits = [m for m in range(len(sizes)) if free[m] >= n and per_gpu[job, m] > 0]
        if not fits:
            continue
        onto = max(fits, key=lambda m: per_gpu[job, m])
        found = next(best_swaps(running, per_gpu[job], n, onto, free), None) if swap else None
        if found is not None:
            kind, size = where[found.job][0], int(gpus[where[found.job][0]])
            running.remove(found.job)
            running.add(found.job, onto, size, per_gpu[kind].tolist())
            where[found.job] = (kind, onto)
            free[onto] -= size
            free[found.pool] += size
            onto, swaps = found.pool, swaps + 1
        free[onto] -= n
        running.add(number, onto, n, per_gpu[job].tolist())
        where[number] = (job, onto)
        kinds, models = (np.array(column) for column in zip(*where.values(), strict=True))
        reached.append(float((per_gpu[kinds, models] * gpus[kinds]).sum()))
        best.append(optimum(per_gpu[kinds], gpus[kinds], sizes))
    return reached, best, swaps


def against_optimum(data: Path) -> str:
    """How much of the LP's throughput single swaps reach, as a cluster fills up with Gavel's job types."""
    with gzip.open(data / "gavel" / "simulation_throughputs.json.gz") as file:
        raw = json.load(file)
    keys = list(raw["v100"])
    gpus = np.array([int(re.search(r"(\d+)\)$", key)[1]) for key in keys])  # type: ignore[index]
    rates = np.array([[raw[model.lower()][key]["null"] for model in GAVEL] for key in keys]) / gpus[:, None]
    keep = gpus <= 4
    gpus, rates = gpus[keep], rates[keep]
    relative = rates / rates.max(axis=1, keepdims=True)
    rows = []
    for what, per_gpu in (("relative", relative), ("iterations", rates)):
        for swap in (False, True):
            all_reached, all_best, full, swaps = [], [], [], 0
            for seed in range(10):
                reached, best, done = fill_cluster(per_gpu, gpus, [24, 24, 24], np.random.default_rng(seed), swap)
                all_reached += reached
                all_best += best
                full.append(reached[-1] / best[-1])
                swaps += done
            share = np.array(all_reached) / np.array(all_best)
            rows.append(
                [
                    f"{what}, {'swaps' if swap else 'fastest free GPUs only'}",
                    *(f"{100 * value:.1f} %" for value in (share.mean(), share.min(), np.mean(full))),
                    f"{swaps / len(all_reached):.2f}",
                ]
            )
    head = ["gain counted as", "of the optimum, mean", "worst state", "full cluster", "swaps per job"]
    return (
        table(head, rows) + "\n\n10 orders of arrival of Gavel's job types (1, 2 and 4 GPUs) on 24 GPUs of each model."
    )


# -- 3. policies -----------------------------------------------------------------------------------------------------


def load(data: Path, name: str) -> Workload:
    return read_trace(data / CASES[name][0], skip_bad_rows=True).workload


def offered(workload: Workload, cluster: str) -> float:
    """Offered load: GPU time asked for, at the mean speed over the cluster's GPUs, over that which there is."""
    result = simulate(
        workload, cluster, "fifo:backfill=greedy;upgrade=no", restart_overhead_s=0.0, skip_impossible=True
    )
    span = float(workload.submit_s[-1] - workload.submit_s[0])
    return float(result.attained_gpu_s.sum()) / (span * result.gpus) if span > 0 else math.inf


def done(policy: Any) -> str:
    cache = policy.cache
    return f"{cache.swaps} / {cache.upgrades}" if hasattr(cache, "swaps") else "-"


def policies(data: Path) -> str:
    parts = []
    for name, (_, cluster) in CASES.items():
        workload = load(data, name)
        rows = []
        for text in POLICIES:
            policy = load_policy(text)
            result = simulate(workload, cluster, policy, skip_impossible=True)
            rows.append(
                [
                    f"`{text}`",
                    h(result.avg_jct_s),
                    h(result.p99_jct_s),
                    h(result.makespan_s),
                    f"{cost_per_job_usd(result):.2f}",
                    str(result.restarts),
                    str(result.moves),
                    done(policy),
                ]
            )
        load_text = offered(workload, cluster)
        said = "all at once" if math.isinf(load_text) else f"offered load {load_text:.2f}"
        head = ["policy", "avg JCT", "p99 JCT", "makespan", "$ per job", "restarts", "moves", "swaps / upgrades"]
        parts.append(f"**{name}**: {len(workload)} jobs on `{cluster}`, {said}.\n\n{table(head, rows)}")
    return "\n\n".join(parts)


def jittered(workload: Workload, seed: int) -> Workload:
    """The trace with durations × 0.8 to 1.25 and the pace of submissions × 0.85 to 1.09."""
    rng = np.random.default_rng(seed)
    return replace(
        workload,
        submit_s=workload.submit_s * (0.85 + 0.06 * seed),
        duration_s=workload.duration_s * rng.uniform(0.8, 1.25, len(workload)),
    )


def variants(data: Path) -> str:
    """Each switch alone, over jittered versions of the traces: geometric mean relative to the default."""
    runs = [(jittered(load(data, name), seed), CASES[name][1]) for name in CASES for seed in range(JITTERS)]

    def measure(text: str) -> np.ndarray[Any, Any]:
        results: list[SimResult] = [simulate(w, c, text, skip_impossible=True) for w, c in runs]
        return np.array([[r.avg_jct_s, r.p99_jct_s, cost_per_job_usd(r), r.restarts] for r in results])

    base = measure("hlas")
    rows = []
    for text in (
        "tiresias",
        "tiresias:upgrade=no",
        "srtf",
        "srtf:upgrade=no",
        "gavel",
        "hlas:blind=yes",
        "hlas:literal=yes",
        *VARIANTS,
    ):
        found = measure(text)
        ratio = np.exp(np.log(found[:, :3] / base[:, :3]).mean(axis=0))
        restarts = found[:, 3].sum() / base[:, 3].sum()
        rows.append([f"`{text}`", *(f"{value:.2f}" for value in ratio), f"{restarts:.2f}"])
    head = ["relative to `hlas`", "avg JCT", "p99 JCT", "$ per job", "restarts"]
    return table(head, rows) + f"\n\n{len(runs)} runs each: the five traces above in {JITTERS} versions."


# -- 4. time ---------------------------------------------------------------------------------------------------------


def search_ms(jobs: int) -> float:
    """Milliseconds for one swap search among so many running jobs; the mean of many."""
    rng = np.random.default_rng(0)
    per_gpu = rng.uniform(0.05, 1.0, (jobs + 1, 3))
    running = Running(3)
    for job in range(jobs):
        running.add(job, int(rng.integers(0, 3)), int(rng.choice([1, 2, 4, 8])), per_gpu[job].tolist())
    begun, times = time.perf_counter(), 200
    for _ in range(times):
        next(best_swaps(running, per_gpu[jobs], 4, 0, [8, 8, 8]), None)
    return 1000 * (time.perf_counter() - begun) / times


def cpu_s(workload: Workload, cluster: str, policy: str) -> float:
    least = math.inf
    for _ in range(3):
        begun = time.process_time()
        simulate(workload, cluster, policy, skip_impossible=True)
        least = min(least, time.process_time() - begun)
    return least


def times(data: Path) -> str:
    rows = []
    cases = [(name, load(data, name), cluster) for name, (_, cluster) in CASES.items()]
    cases.append(("Muri trace3, one GPU model", read_trace(data / "muri" / "trace3.csv.gz").workload, "8x8"))
    for name, workload, cluster in cases:
        seconds = [cpu_s(workload, cluster, policy) for policy in ("tiresias", "gavel", "hlas")]
        rows.append([name, str(len(workload)), *(f"{s:.2f} s" for s in seconds), f"{seconds[2] / seconds[0]:.1f}"])
    text = table(["trace", "jobs", "`tiresias`", "`gavel`", "`hlas`", "hlas / tiresias"], rows)
    found = ", ".join(f"{n:,} running jobs {search_ms(n):.3f} ms" for n in (100, 1000, 10_000))
    return f"{text}\n\nOne swap search: {found}."


PARTS: dict[str, Callable[[Path], str]] = {
    "estimates": estimates,
    "optimum": against_optimum,
    "policies": policies,
    "variants": variants,
    "times": times,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--output", type=Path, default=REPO / "docs" / "results" / "heterogeneity.md")
    parser.add_argument("--only", choices=list(PARTS), help="make this part alone")
    options = parser.parse_args()
    need(options.data, "gavel", "shockwave", "elasticflow", "muri")
    page = options.output.read_text(encoding="utf-8")
    for name, make in PARTS.items():
        if options.only not in (None, name):
            continue
        text = make(options.data)
        print(f"== {name}\n{text}\n", flush=True)
        page = with_part(page, f"<!-- figures: {name} -->", "<!-- end -->", text)
        options.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
