"""What it brings to choose pairs by kernel profiles; rewrites a part of docs/results/sharing.md.

python bench/kernel_pairs.py            Orion's recorded kernels, generated traces; some minutes
python bench/kernel_pairs.py --print    print, change nothing
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from beside import SERVICES, training_jct_s
from beside import workload as services_and_training
from gpuloom.core.decision import Decision
from gpuloom.core.kernel_load import Load, profile_and_load
from gpuloom.core.snapshot import Snapshot
from gpuloom.core.workload import Labels, Workload
from gpuloom.policies.beside import Beside
from gpuloom.policies.pair_speeds import Expected, KernelSharing
from gpuloom.policies.registry import create_policy
from gpuloom.sharing.expected import with_kernel_pairs
from gpuloom.sharing.find import find_profile
from gpuloom.sharing.profiles import KernelProfile
from gpuloom.sim import SimResult, simulate
from pages import with_part

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("GPULOOM_DATA", ROOT.parent / "shared" / "data")) / "orion" / "model_kernels"
PAGE = ROOT / "docs" / "results" / "sharing.md"
BEGIN, END = "<!-- kernel-pairs: begin -->", "<!-- kernel-pairs: end -->"
POLICIES = ("fifo:backfill=easy", "tiresias")
LOADS, SEEDS = (0.9, 1.1), (1, 2)
HIGH = ("resnet50_4_fwd:30%", "mobilenetv2_4_fwd:70%", "bert_2_fwd:50%", "mobilenetv2_4_fwd:30%")
TRAINING = ("resnet50_32_fb1", "mobilenetv2_96_fb1", "bert_8_fb1", "transformer_xl_8_fb1")
BOUND = 1.05


class Choosing(Beside):
    """As it is; counts the pairs that it makes, and those whose service is expected above the bound."""

    def __init__(self, text: str) -> None:
        super().__init__(create_policy(text), 0.5)
        self.pairs: dict[tuple[int, int], float] = {}

    def decide(self, snapshot: Snapshot, memory: Any) -> tuple[Decision, Any]:
        on: dict[tuple[Any, ...], list[int]] = {}
        for job, placement in snapshot.placements.items():
            on.setdefault((placement.nodes, placement.masks), []).append(job)
        known, labels = snapshot.workload.kernel_pairs, snapshot.workload.share_class
        for jobs in on.values():
            if len(jobs) == 2 and known is not None and labels is not None:
                service, training = sorted(jobs, key=lambda job: labels[job] != "high")
                found = known.beside(service, training)
                self.pairs[service, training] = 1.0 if found is None else found.p99
        return super().decide(snapshot, memory)


class Blind(Choosing):
    """Forms pairs as if all were equal; they run as fast as they do."""

    def _expected(self, workload: Workload) -> Expected:
        return Expected(replace(workload, kernel_pairs=None), 0.5, float("inf"))

    def sharing(self, workload: Workload) -> KernelSharing:
        return KernelSharing(workload, super()._expected(workload))


def profiled(load: float, seed: int) -> Workload:
    """As bench/beside.py has it; every service and every best-effort job has one of four profiles."""
    trace = services_and_training(load, seed)
    rng = np.random.default_rng(seed)
    labels = trace.share_class
    assert labels is not None
    drawn = rng.integers(len(TRAINING), size=len(trace)).tolist()
    of_class = {"high": HIGH, "best-effort": TRAINING}
    texts = [
        of_class[labels[job]][job % len(HIGH) if job < SERVICES else drawn[job]] if labels[job] else ""
        for job in range(len(trace))
    ]
    return with_kernel_pairs(replace(trace, kernel_profile=Labels.of(texts)), read)


def read(text: str) -> tuple[KernelProfile, Load | None]:
    """Of Orion's files."""
    name, load = profile_and_load(text)
    return find_profile(name, DATA)[0], load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", dest="only_print")
    options = parser.parse_args()
    lines = [
        "",
        "| policy | load | average | p99 | pairs above 1.05: blind | chosen |",
        "|---|---|---|---|---|---|",
    ]
    for policy in POLICIES:
        for load in LOADS:
            ratios: list[tuple[float, float]] = []
            above, made = [0, 0], [0, 0]
            for trace in (profiled(load, seed) for seed in SEEDS):
                results: list[SimResult] = []
                for index, kind in enumerate((Blind, Choosing)):
                    tried = kind(policy)
                    results.append(simulate(trace, "8x8", tried))
                    above[index] += sum(p99 > BOUND for p99 in tried.pairs.values())
                    made[index] += len(tried.pairs)
                blind, chosen = (training_jct_s(result, trace) for result in results)
                tails = float(np.quantile(chosen, 0.99) / np.quantile(blind, 0.99))
                ratios.append((float(chosen.mean() / blind.mean()), tails))
            average, tail = np.exp(np.log(np.array(ratios)).mean(axis=0))
            said = " | ".join(f"{bad} of {all_:,}" for bad, all_ in zip(above, made, strict=True))
            lines.append(f"| `{policy}` | {load:.0%} | {average:.2f} | {tail:.2f} | {said} |")
            print(lines[-1], flush=True)
    if not options.only_print:
        PAGE.write_text(with_part(PAGE.read_text(encoding="utf-8"), BEGIN, END, "\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
