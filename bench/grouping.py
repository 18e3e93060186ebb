"""How fast jobs are grouped, and how far the paper's rounds of matching are from the optimum.

    python bench/grouping.py                 all tables (two to three minutes)
    python bench/grouping.py --json FILE     the same figures as JSON

Prints Markdown. Times are CPU seconds of this process, start-up excluded, the least of three plans. The profiles are
the paper's eight models (../shared/data/muri/model_stage_profiles.csv), the jobs' models are drawn with equal
chance, or stages drawn as the square of a number from 0 to 1; all draws are seeded.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gpuloom.interleave.efficiency import Interleaving
from gpuloom.interleave.grouping import Grouping, group_jobs
from gpuloom.solvers.matching import Matcher
from public_data import DATA, need
from timing import cpu

REPO = Path(__file__).resolve().parents[1]
PROFILES = DATA / "muri" / "model_stage_profiles.csv"
PLANS = ((1_000, 8), (1_000, 50), (1_000, 1_000), (10_000, 50))
AGAINST_NETWORKX = (50, 100, 200)
MATCHINGS = (8, 20, 36, 100, 300, 1_000)
GAP_JOBS, GAP_DRAWS = 96, 20


def drawn(jobs: int, profiles: int, seed: int) -> np.ndarray:
    """Stages of jobs of so many random profiles, every profile at least once."""
    rng = np.random.default_rng(seed)
    base = rng.random((profiles, 3)) ** 2 + 0.01
    return base[np.concatenate([np.arange(profiles), rng.integers(0, profiles, jobs - profiles)])]


def weights(stage_s: np.ndarray) -> np.ndarray:
    """γ of every pair."""
    model = Interleaving()
    a, b = np.triu_indices(len(stage_s))
    pairs = np.stack([stage_s[a], stage_s[b]], axis=1)
    weight = np.zeros((len(stage_s), len(stage_s)))
    weight[a, b] = weight[b, a] = model.efficiency(pairs, model.iteration_s(pairs))
    return weight


def plans() -> list[dict[str, Any]]:
    print("\n| plan (multiround, groups of 4) | distinct profiles | CPU s |\n|---|---|---|")
    rows = []
    for jobs, profiles in PLANS:
        stage_s = drawn(jobs, profiles, 1)
        seconds, _ = cpu(lambda stage_s=stage_s: group_jobs(stage_s, interleaving=Interleaving()), 3)
        rows.append({"jobs": jobs, "profiles": profiles, "cpu_s": seconds})
        print(f"| {jobs:,} jobs | {profiles:,} | {seconds:.3f} |", flush=True)
    return rows


def networkx_ratio() -> list[dict[str, Any]]:
    import networkx as nx

    print("\n| nodes, all different | networkx s | gpuloom s | ratio | weight / networkx' |\n|---|---|---|---|---|")
    rows = []
    for nodes in AGAINST_NETWORKX:
        weight = weights(drawn(nodes, nodes, 2))
        np.fill_diagonal(weight, 0.0)
        graph = nx.Graph()
        graph.add_weighted_edges_from((a, b, weight[a, b]) for a in range(nodes) for b in range(a))
        theirs, pairs = cpu(lambda graph=graph: nx.max_weight_matching(graph), 1)
        optimum = sum(weight[a, b] for a, b in pairs)
        ours, found = cpu(lambda weight=weight: Matcher(weight).solve(), 3)
        rows.append({"nodes": nodes, "networkx_s": theirs, "cpu_s": ours, "share": found.weight / optimum})
        print(
            f"| {nodes} | {theirs:.2f} | {ours:.4f} | {theirs / ours:,.0f} | {found.weight / optimum:.5f} |", flush=True
        )
    return rows


def matchings() -> list[dict[str, Any]]:
    """Counts change, weights stay: what a simulation asks."""
    print("\n| types | solver | CPU ms, first | CPU ms, other counts | met its bound | mean gap |")
    print("|---|---|---|---|---|---|")
    rows = []
    for types in MATCHINGS:
        weight = weights(drawn(types, types, 3))
        rng = np.random.default_rng(4)
        asked = [rng.integers(0, 20, types) for _ in range(40 if types <= 100 else 3)]
        for solver in ("table", "columns"):
            if solver == "table" and types > 100:
                continue
            first, _ = cpu(lambda w=weight, s=solver, a=asked: Matcher(w).solve(a[0], solver=s), 3)
            matcher = Matcher(weight)
            matcher.solve(np.ones(types), solver=solver)
            total, found = cpu(lambda m=matcher, s=solver, a=asked: [m.solve(c, solver=s) for c in a], 1)
            met = sum(matching.optimal for matching in found)
            gap = float(np.mean([1 - matching.weight / matching.bound for matching in found]))
            rows.append(
                {"types": types, "solver": solver, "first_s": first, "next_s": total / len(asked), "gap": gap}
                | {"optimal": met, "asked": len(asked)}
            )
            print(
                f"| {types:,} | {solver} | {first * 1e3:.2f} | {total / len(asked) * 1e3:.2f} "
                f"| {met} of {len(asked)} | {gap:.3%} |",
                flush=True,
            )
    return rows


def gaps() -> list[dict[str, Any]]:
    print(
        f"\n{GAP_JOBS} jobs, {GAP_DRAWS} draws each; what the rounds and the order given reach of the exact optimum\n\n"
        "| profiles | size | objective | multiround: mean | worst | greedy: mean | exact proven | CPU s, exact |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    with PROFILES.open(encoding="utf-8") as lines:
        paper = list(csv.DictReader(lines))
    sets: dict[str, Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]] = {}
    for gpus in ("1", "8", "32"):
        own = [row for row in paper if row["num_gpu"] == gpus]
        stages = np.array(
            [[float(row[k]) for k in ("stage0_dataload_ms", "stage1_gpu_ms", "stage2_network_ms")] for row in own]
        )
        solo = np.array([float(row["iteration_time_ms"]) for row in own]) * 1.015
        sets[f"the paper's, {gpus} GPU{'s' * (gpus != '1')}"] = lambda rng, t=stages, s=solo: (
            (t[(pick := rng.integers(0, len(t), GAP_JOBS))] / 1000),
            s[pick] / 1000,
        )
    for profiles in (8, 16):
        sets[f"{profiles} random"] = lambda rng, p=profiles: (
            (t := (rng.random((p, 3)) ** 2 + 0.01)[rng.integers(0, p, GAP_JOBS)]),
            t.sum(axis=1),
        )
    rows = []
    for name, draw in sets.items():
        for size in (2, 4):
            for objective in ("efficiency", "throughput"):
                rng = np.random.default_rng(5)
                shares: dict[str, list[float]] = {"multiround": [], "greedy": []}
                proven, spent = 0, 0.0
                for _ in range(GAP_DRAWS):
                    stage_s, solo_s = draw(rng)

                    def plan(method: str, groups: int | None = None, **of: Any) -> Grouping:
                        return group_jobs(method=method, groups=groups, interleaving=Interleaving(), **of)

                    of = {"stage_s": stage_s, "solo_s": solo_s, "size": size, "objective": objective}
                    for method, reached in shares.items():
                        found = plan(method, **of)
                        # As many groups as the heuristic needed, so that both share out the same GPUs.
                        seconds, exact = cpu(lambda f=found, o=of, p=plan: p("exact", len(f.groups), **o), 1)
                        reached.append(found.value / exact.value)
                        if method == "multiround":
                            proven, spent = proven + exact.optimal, spent + seconds
                row = {
                    "profiles": name,
                    "size": size,
                    "objective": objective,
                    "multiround": float(np.mean(shares["multiround"])),
                    "multiround_worst": min(shares["multiround"]),
                    "greedy": float(np.mean(shares["greedy"])),
                    "proven": proven,
                    "exact_s": spent / GAP_DRAWS,
                }
                rows.append(row)
                print(
                    f"| {name} | {size} | {objective} | {row['multiround']:.2%} | {row['multiround_worst']:.2%} "
                    f"| {row['greedy']:.2%} | {proven} of {GAP_DRAWS} | {row['exact_s']:.3f} |",
                    flush=True,
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures there")
    arguments = parser.parse_args()
    need(DATA, "muri/model_stage_profiles.csv")
    found = {"plans": plans(), "networkx": networkx_ratio(), "matchings": matchings(), "gaps": gaps()}
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
